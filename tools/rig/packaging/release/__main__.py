"""Build a release.

    python -m tools.rig.packaging.release [--key KEY] [--arch amd64|arm64] [--out FOLDER] [--dirty]

FOLDER/VERSION holds everything. What one commit's build has finished is kept in FOLDER/work, so that a build
that was interrupted goes on where it was; sources with changes always build all of it.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.rig.packaging import tree
from tools.rig.packaging.deb import SOURCE
from tools.rig.packaging.debian_package import RELEASES
from tools.rig.packaging.errors import PackagingError
from tools.rig.packaging.process import run
from tools.rig.packaging.release.apt import write_apt
from tools.rig.packaging.release.distributions import build_distributions, sha256
from tools.rig.packaging.release.images import DEMONSTRATION, SERVER, build_image
from tools.rig.packaging.release.notes import release_notes
from tools.rig.packaging.release.provenance import statement
from tools.rig.packaging.release.sbom import Artefact, write_sbom
from tools.rig.packaging.release.server_deb import ServerBuild, build_server_deb
from tools.rig.packaging.release.signing import Signer, signer
from tools.rig.packaging.wheels import WHEEL_ARCHS, BuildTarget

SUMS = "SHA256SUMS"
DIRTY = "+dirty"


@dataclass(frozen=True, slots=True)
class Order:
    """A release to be made."""

    version: str
    commit: str
    """The whole hash, with `+dirty` where the checkout has changes."""
    epoch: int
    """Time of the commit, seconds since 1970."""
    archs: tuple[str, ...]
    out: Path

    @property
    def named(self) -> str:
        """The folder of the release."""
        return f"{self.version}{DIRTY}" if self.commit.endswith(DIRTY) else self.version


@dataclass(frozen=True, slots=True)
class Steps:
    """What is built for one commit, each step in a folder below `work` that appears when it is complete."""

    work: Path

    def folder(self, name: str, make: Callable[[Path], object]) -> Path:
        """The folder that `make` fills, made unless an earlier build of this commit has completed it."""
        folder, part = self.work / name, self.work / f".{name}"
        if not folder.exists():
            print(f"release: {name}", flush=True)
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            make(part)
            part.rename(folder)
        return folder


def build_release(order: Order, by: Signer | None) -> Path:
    """Make the release; returns its folder. Raises PackagingError."""
    notes = release_notes((SOURCE / "CHANGELOG.md").read_text(), order.version)
    steps = Steps(order.out / "work" / f"{order.commit}-{order.epoch}")
    if order.commit.endswith(DIRTY):
        shutil.rmtree(steps.work, ignore_errors=True)
    wheels = steps.folder("wheels", lambda out: build_distributions(SOURCE, order.epoch, out))
    packages = [deb for arch in order.archs for deb in _packages(order, steps, wheels, arch)]
    images = [image for arch in order.archs for image in _images(order, steps, wheels, arch)]
    artefacts = [path for path in sorted(wheels.iterdir()) if path.name != "requirements.txt"]
    artefacts += [*packages, *images]
    bills = steps.folder(f"sbom-{'-'.join(order.archs)}", lambda out: _write_bills(artefacts, order, out))

    part, final = order.out / f".{order.named}", order.out / order.named
    shutil.rmtree(part, ignore_errors=True)
    _link(sorted(wheels.iterdir()), part / "wheels")
    _link(images, part / "images")
    _link(sorted(bills.iterdir()), part / "sbom")
    write_apt(packages, part / "apt", order.epoch, by)
    compose = Path(__file__).parent / "compose.yaml"
    (part / "compose.yaml").write_text(compose.read_text().replace("@VERSION@", order.version))
    (part / "RELEASE_NOTES.md").write_text(notes)
    subjects = {str(path.relative_to(part)): path for path in files_of(part)}
    proof = part / "provenance.json"
    proof.write_text(statement(subjects, version=order.version, commit=order.commit, source=SOURCE))
    if by:
        by.detached(proof)
    sums = "".join(f"{sha256(path)}  {path.relative_to(part)}\n" for path in files_of(part))
    (part / SUMS).write_text(sums)
    if by:
        by.detached(part / SUMS)
    shutil.rmtree(final, ignore_errors=True)
    part.rename(final)
    return final


def _packages(order: Order, steps: Steps, wheels: Path, arch: str) -> list[Path]:
    """The Debian packages of device and server for one architecture."""
    device = steps.folder(f"device-{arch}", lambda out: _device_debs(arch, order.epoch, out))

    def server(out: Path) -> None:
        for release in RELEASES:
            build_server_deb(
                ServerBuild(
                    source=SOURCE,
                    wheels=wheels,
                    target=BuildTarget(arch, release.python),
                    version=release.version(order.version),
                    epoch=order.epoch,
                    cache=order.out / "cache",
                    out=out,
                )
            )

    return [*sorted(device.iterdir()), *sorted(steps.folder(f"server-{arch}", server).iterdir())]


def _images(order: Order, steps: Steps, wheels: Path, arch: str) -> list[Path]:
    def images(out: Path) -> None:
        for kind in (SERVER, DEMONSTRATION):
            build_image(
                kind,
                arch,
                source=SOURCE,
                wheels=wheels,
                version=order.version,
                epoch=order.epoch,
                cache=order.out / "cache",
                out=out,
            )

    return sorted(steps.folder(f"images-{arch}", images).iterdir())


def _device_debs(arch: str, epoch: int, out: Path) -> None:
    run(
        [sys.executable, "-m", "tools.rig.packaging.deb", "--arch", arch, "--out", out.absolute()],
        cwd=SOURCE,
        env={"SOURCE_DATE_EPOCH": str(epoch)},
    )


def _write_bills(artefacts: Sequence[Path], order: Order, out: Path) -> None:
    for path in artefacts:
        # The name before the version: palm_access_cloud-1.0.0.tar.gz, palm-access-cloud_1.0.0_amd64.deb
        name = re.split(r"[-_](?=\d)", path.name)[0].replace("_", "-")
        write_sbom(Artefact(path, name, order.version, order.epoch), out / f"{path.name}.cdx.json")


def _link(files: Sequence[Path], folder: Path) -> None:
    """Hard links to `files` in the new folder `folder`."""
    folder.mkdir(parents=True)
    for path in files:
        os.link(path, folder / path.name)


def files_of(folder: Path) -> list[Path]:
    """Every file below `folder`, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=SOURCE, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PackagingError(f"a release is made in a git checkout: {done.stderr.strip()}")
    return done.stdout.strip()


def _commit(dirty: bool) -> str:
    """The commit that is built. PackagingError for changes unless `dirty`."""
    changes = _git("status", "--porcelain")
    if changes and not dirty:
        raise PackagingError(
            f"expected a clean checkout, found changes:\n{changes}\n"
            "commit them, or make a trial release with --dirty"
        )
    return _git("rev-parse", "HEAD") + (DIRTY if changes else "")


def main() -> None:
    """The program. Exit status: 0 built, 1 failed, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.rig.packaging.release", description="Build a release."
    )
    parser.add_argument(
        "--key",
        default=os.environ.get("PALM_RELEASE_KEY"),
        help="file with the secret OpenPGP key, or its fingerprint; else $PALM_RELEASE_KEY, else unsigned",
    )
    parser.add_argument("--arch", choices=sorted(WHEEL_ARCHS), help="one architecture; default: both")
    parser.add_argument("--out", type=Path, default=SOURCE / "build/release", help="default: build/release")
    parser.add_argument(
        "--dirty", action="store_true", help="build a checkout with changes too, as VERSION+dirty"
    )
    given = parser.parse_args()
    try:
        order = Order(
            version=tree.own_version(SOURCE),
            commit=_commit(given.dirty),
            epoch=tree.source_date_epoch(SOURCE),
            archs=(given.arch,) if given.arch else tuple(sorted(WHEEL_ARCHS)),
            out=given.out.absolute(),
        )
        with signer(given.key, order.epoch) if given.key else contextlib.nullcontext() as by:
            folder = build_release(order, by)
    except PackagingError as error:
        print(f"release: {error}", file=sys.stderr)
        sys.exit(1)
    unsigned = "" if by else ", not signed: give --key or PALM_RELEASE_KEY"
    print(f"{folder}: {len(files_of(folder))} files{unsigned}")


if __name__ == "__main__":
    main()
