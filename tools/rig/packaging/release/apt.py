"""An apt repository of files alone: any web server, or a folder, serves it."""

import gzip
import hashlib
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tools.rig.packaging.errors import PackagingError
from tools.rig.packaging.process import run
from tools.rig.packaging.release.distributions import sha256
from tools.rig.packaging.release.signing import Signer

SUITES = {"3.11": "bookworm", "3.13": "trixie"}
"""The suite of a package, by the Python it needs."""
KEY = "palm-access.asc"
SOURCES = "palm-access.sources"

_SOURCES = """\
# Copy to /etc/apt/sources.list.d/, the key to /etc/apt/keyrings/; write the address of this folder
# and the suite of the machine.
Types: deb
URIs: https://packages.example.org/palm-access/apt
Suites: {suites}
Components: main
Signed-By: /etc/apt/keyrings/{key}
"""


def suite_of(package: Path) -> str:
    """The Debian suite that a package is made for. Raises PackagingError."""
    depends = run(["dpkg-deb", "-f", package, "Depends"])
    found = re.search(r"\bpython(3\.\d+)", depends)
    if found is None or found[1] not in SUITES:
        raise PackagingError(
            f"{package.name}: expected python3.11 or python3.13 in Depends, found {depends.strip()}"
        )
    return SUITES[found[1]]


def write_apt(packages: Sequence[Path], out: Path, epoch: int, signer: Signer | None) -> None:
    """Link `packages` into the pool of the repository `out` and write its lists, signed if there is a signer.

    Raises PackagingError.
    """
    pools: dict[str, list[Path]] = {}
    for package in packages:
        suite = suite_of(package)
        pool = out / "pool" / suite
        pool.mkdir(parents=True, exist_ok=True)
        os.link(package, pool / package.name)
        pools.setdefault(suite, []).append(pool / package.name)
    for suite, pool_files in sorted(pools.items()):
        _write_suite(out, suite, sorted(pool_files), epoch, signer)
    (out / SOURCES).write_text(_SOURCES.format(suites=" ".join(sorted(pools)), key=KEY))
    if signer:
        (out / KEY).write_text(signer.public_key())


def _write_suite(out: Path, suite: str, packages: Sequence[Path], epoch: int, signer: Signer | None) -> None:
    folder = out / "dists" / suite
    lists: dict[str, str] = {}
    for package in packages:
        arch = run(["dpkg-deb", "-f", package, "Architecture"]).strip()
        lists[arch] = lists.get(arch, "") + _entry(package, out)
    sums = ""
    for arch, text in sorted(lists.items()):
        binary = folder / f"main/binary-{arch}"
        binary.mkdir(parents=True, exist_ok=True)
        for name, data in {
            "Packages": text.encode(),
            "Packages.gz": gzip.compress(text.encode(), compresslevel=9, mtime=0),
        }.items():
            (binary / name).write_bytes(data)
            place = f"main/binary-{arch}/{name}"
            sums += f" {hashlib.sha256(data).hexdigest()} {len(data)} {place}\n"
    date = datetime.fromtimestamp(epoch, UTC).strftime("%a, %d %b %Y %H:%M:%S UTC")
    release = folder / "Release"
    release.write_text(
        f"Origin: palm-access\nLabel: palm-access\nSuite: {suite}\nCodename: {suite}\nDate: {date}\n"
        f"Architectures: {' '.join(sorted(lists))}\nComponents: main\nSHA256:\n{sums}"
    )
    if signer:
        signer.clear(release, folder / "InRelease")
        signer.detached(release, ".gpg")


def _entry(package: Path, out: Path) -> str:
    fields = run(["dpkg-deb", "-f", package]).rstrip("\n")
    return (
        f"{fields}\nFilename: {package.relative_to(out)}\nSize: {package.stat().st_size}\n"
        f"SHA256: {sha256(package)}\n\n"
    )
