"""Build the Debian packages: one for each release and architecture.

    python -m tools.rig.packaging.deb [--release 12|13] [--arch amd64|arm64] [--revision N] [--pkcs11]
                                      [--out FOLDER]

Needs no compiler and no root, on either release and architecture. The same sources and the same interpreters
(`tools.rig.packaging.interpreters`) give the same bytes.
"""

import argparse
import hashlib
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from models.hand_landmarks import WEIGHTS_FOLDER
from tools.rig.packaging import documents, hand_weights, tree
from tools.rig.packaging.debian_package import MAINTAINER, RELEASES, pack, write_control
from tools.rig.packaging.errors import PackagingError
from tools.rig.packaging.interpreters import interpreter
from tools.rig.packaging.wheels import (
    NOT_ON_A_BOARD,
    PKCS11,
    WHEEL_ARCHS,
    BuildTarget,
    build_own,
    download,
    install,
    install_own,
    only,
    without,
)

SOURCE = Path(__file__).parents[3]
PACKAGE = "palm-access"

# Files of systemd/ and where they go.
SYSTEM_FILES = {
    "palmd.service": "/lib/systemd/system/palmd.service",
    "palm-syncd.service": "/lib/systemd/system/palm-syncd.service",
    "palmd-again.timer": "/lib/systemd/system/palmd-again.timer",
    "palm-update.path": "/lib/systemd/system/palm-update.path",
    "palm-update.service": "/lib/systemd/system/palm-update.service",
    "palm-update-recover.service": "/lib/systemd/system/palm-update-recover.service",
    "palmd-tpm.conf": "/usr/share/palm-access/palmd-tpm.conf",
    "palm-usb-gadget.service": "/lib/systemd/system/palm-usb-gadget.service",
    "palm-totem.service": "/lib/systemd/system/palm-totem.service",
    "palm-kiosk.service": "/lib/systemd/system/palm-kiosk.service",
    "kiosk/palm-kiosk": "/usr/libexec/palm-access/palm-kiosk",
    "kiosk/policies.json": "/usr/share/palm-access/kiosk/chromium/policies/managed/palm-kiosk.json",
    "kiosk/keyboard.xkb": "/usr/share/palm-access/kiosk/xkb/symbols/palm-kiosk",
    "usb-gadget": "/usr/libexec/palm-access/usb-gadget",
    "70-palm-access.rules": "/lib/udev/rules.d/70-palm-access.rules",
    "palm-access.sysusers": "/usr/lib/sysusers.d/palm-access.conf",
    "palm-access.tmpfiles": "/usr/lib/tmpfiles.d/palm-access.conf",
    "palm-access.modules-load": "/usr/lib/modules-load.d/palm-access.conf",
}
DEBIAN_FILES = {
    "device.toml.example": "/etc/palm-access/device.toml.example",
    "palm-access-rollback": "/usr/sbin/palm-access-rollback",
    "copyright": f"/usr/share/doc/{PACKAGE}/copyright",
    "lintian-overrides": f"/usr/share/lintian/overrides/{PACKAGE}",
}
EXECUTABLES = frozenset(
    {
        Path("/usr/sbin/palm-access-rollback"),
        Path("/usr/libexec/palm-access/palm-kiosk"),
        Path("/usr/libexec/palm-access/usb-gadget"),
    }
) | {tree.PREFIX / "package" / "bin" / name for name in tree.PROGRAMS}
MAINTAINER_SCRIPTS = ("preinst", "postinst", "prerm", "postrm")


_CONTROL = """\
Package: {package}
Version: {version}
Architecture: {arch}
Maintainer: {maintainer}
Installed-Size: @KIB@
Depends: {depends}
Recommends: ca-certificates
Suggests: cage, chromium, fonts-dejavu-core, seatd, xwayland
Section: embedded
Priority: optional
Description: palm-recognition access device: core, carrier and command line
 A device at a turnstile sees a palm, recognises it without any network, and
 sends a signed verdict over a cable to the operator's validator, which alone
 decides and opens.
 .
 This package holds palmd (camera, cable, keys, gallery; no network),
 palm-syncd (the carrier to the service), palmctl (the technician's command
 line), and everything they need in a virtual environment under /opt.
"""


@dataclass(frozen=True, slots=True)
class Build:
    """One package to be made."""

    target: BuildTarget
    interpreter: Path
    """A program that is the target's Python, on this machine."""
    version: str
    epoch: int
    """Time of every file, seconds since 1970."""
    lock: str
    """Names every wheel by version and hash."""
    hand_weights: Path | None
    """The folder that `tools.rig.packaging.hand_weights` made; None makes a package without them."""
    cache: Path
    """Where wheels stay between builds."""
    out: Path

    @property
    def path(self) -> Path:
        return self.out / f"{PACKAGE}_{self.version}_{self.target.debian_arch}.deb"


def build(order: Build) -> Path:
    """Make the package; returns its path. Raises PackagingError."""
    order.out.mkdir(parents=True, exist_ok=True)
    order.cache.mkdir(parents=True, exist_ok=True)
    wheels = order.cache / f"wheels-{order.target.debian_arch}-{order.target.python}"
    with tempfile.TemporaryDirectory(dir=order.cache, prefix="tree-") as scratch:
        lock = Path(scratch, "board.txt")
        lock.write_text(without(order.lock, NOT_ON_A_BOARD))
        download(lock, order.target, wheels)
        root, own = Path(scratch, "root"), build_own(SOURCE, Path(scratch, "own"))
        site_packages = tree.write_environment(root, order.version, order.target.python)
        install(lock, wheels, order.target, site_packages)
        install_own(own, order.target, site_packages)
        if order.hand_weights is not None:
            shutil.copytree(order.hand_weights, tree.below(root, tree.PREFIX / "package" / WEIGHTS_FOLDER))
        locked = documents.locked_names(lock.read_text())
        documents.write_all(
            root, documents.About(SOURCE, PACKAGE, order.version, MAINTAINER, order.epoch, locked)
        )
        tree.compile_packages(site_packages, order.version, order.interpreter)
        tree.copy_tree(SOURCE / "systemd", root, SYSTEM_FILES)
        tree.copy_tree(Path(__file__).parent / "debian", root, DEBIAN_FILES)
        control = _CONTROL.format(
            package=PACKAGE,
            version=order.version,
            arch=order.target.debian_arch,
            maintainer=MAINTAINER,
            depends=f"python{order.target.python}, libc6 (>= 2.28), libstdc++6, systemd (>= 252), udev",
        )
        scripts = {
            name: (Path(__file__).parent / "debian" / name)
            .read_text()
            .replace("@VERSION@", order.version)
            .replace("@PYTHON@", order.target.python)
            for name in MAINTAINER_SCRIPTS
        }
        write_control(root, control, scripts)
        tree.normalise(root, order.epoch, EXECUTABLES)
        pack(root, scripts, order.epoch, order.path)
    return order.path


def main() -> None:
    """The program. Exit status: 0 built, 1 failed, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.rig.packaging.deb", description="Build the Debian packages."
    )
    numbers = [release.number for release in RELEASES]
    parser.add_argument("--release", type=int, choices=numbers, help="one Debian release; default: both")
    parser.add_argument("--arch", choices=sorted(WHEEL_ARCHS), help="one architecture; default: both")
    parser.add_argument("--revision", type=int, default=1, help="the number after the version; default 1")
    parser.add_argument(
        "--pkcs11",
        action="store_true",
        help="with python-pkcs11, for boards with a TPM or secure element",
    )
    parser.add_argument("--out", type=Path, default=SOURCE / "build/deb", help="default: build/deb")
    given = parser.parse_args()
    cache = SOURCE / "build/deb"
    locks = SOURCE / "tools/rig/packaging/lock"
    lock = (locks / "device.txt").read_text()
    if given.pkcs11:
        lock += only((locks / "dev.txt").read_text(), PKCS11)
    try:
        epoch = tree.source_date_epoch(SOURCE)
        weights = cache / "hand-weights"
        hand_weights.make(weights)
        for release in RELEASES:
            if given.release not in (None, release.number):
                continue
            program = interpreter(release.python, release.suite, cache)
            for arch in [given.arch] if given.arch else sorted(WHEEL_ARCHS):
                path = build(
                    Build(
                        target=BuildTarget(arch, release.python),
                        interpreter=program,
                        version=release.version(tree.own_version(SOURCE), given.revision),
                        epoch=epoch,
                        lock=lock,
                        hand_weights=weights,
                        cache=cache,
                        out=given.out,
                    )
                )
                size = path.stat().st_size / 1e6
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                print(f"{path}  Debian {release.number}  {size:.0f} MB  sha256 {digest}", flush=True)
    except PackagingError as error:
        print(f"deb: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
