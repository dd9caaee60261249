"""What every Debian package made here has: control files with checksums, and reproducible bytes."""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.rig.packaging.process import run

MAINTAINER = "Palm Access Device developers <palm-access@lists.example.org>"
# More than one thread on every machine: one thread alone writes other bytes than several.
_COMPRESSION = ("-Zxz", "-z1", "--threads-max=2")


@dataclass(frozen=True, slots=True)
class DebianRelease:
    """A Debian release: its number, its suite and the minor version of its Python."""

    number: int
    suite: str
    python: str

    def version(self, own: str, revision: int = 1) -> str:
        """The package's version for this release; that for a newer release is the higher one."""
        return f"{own}-{revision}~deb{self.number}u1"


RELEASES = (DebianRelease(12, "bookworm", "3.11"), DebianRelease(13, "trixie", "3.13"))


def write_control(root: Path, control: str, scripts: Mapping[str, str]) -> None:
    """Write DEBIAN/ below `root`: checksums, the files of /etc as conffiles, and the maintainer `scripts`.

    `control`: the fields, with `@KIB@` for the installed size.
    """
    folder = root / "DEBIAN"
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    conffiles = [path for path in files if path.is_relative_to(root / "etc")]
    sums = "".join(
        f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}  {path.relative_to(root)}\n"
        for path in files
        if path not in conffiles
    )
    kib = sum(path.stat().st_size // 1024 + 1 for path in files)
    folder.mkdir()
    (folder / "md5sums").write_text(sums)
    (folder / "control").write_text(control.replace("@KIB@", str(kib)))
    (folder / "conffiles").write_text("".join(f"/{path.relative_to(root)}\n" for path in conffiles))
    for name, text in scripts.items():
        (folder / name).write_text(text)


def pack(root: Path, scripts: Mapping[str, str], epoch: int, package: Path) -> None:
    """Make the file `package` of `root`, whose files have their times and modes. PackagingError."""
    for name in scripts:
        (root / "DEBIAN" / name).chmod(0o755)
    part = package.with_suffix(".part")
    run(
        ["dpkg-deb", "--root-owner-group", *_COMPRESSION, "--build", root, part],
        env={"SOURCE_DATE_EPOCH": str(epoch)},
    )
    part.rename(package)


def gzipped(text: str) -> bytes:
    """`text` as gzip, the same bytes every time."""
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)
