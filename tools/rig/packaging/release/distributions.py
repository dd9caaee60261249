"""Wheels and source distributions of the three distributions, and the lock that pins all they need.

`pip install --require-hashes --find-links . -r requirements.txt` in their folder installs everything that
`palmctl` can do; the third parties come from the index pip is configured with, by hash.
"""

import hashlib
import sys
from pathlib import Path

from tools.rig.packaging.process import run

PROJECTS = {
    "palm_access_device": Path(),
    "palm_access_cloud": Path("tools/rig/packaging/cloud"),
    "palm_access_rig": Path("tools/rig/packaging/rig"),
}
"""Name of each distribution in its file names, and its folder in a checkout."""
LOCK = Path("tools/rig/packaging/lock/palmctl.txt")
"""Pins the third parties of all three together."""

_LOCK_HEAD = """\
# palmctl with the reference server, the kit and the rig, every file pinned by hash. In this folder:
#     pip install --require-hashes --find-links . -r requirements.txt
"""


def build_distributions(source: Path, epoch: int, out: Path) -> list[Path]:
    """Write wheels, source distributions and `requirements.txt` into `out`; returns their paths.

    `source`: root of a checkout; `epoch`: time of every file, seconds since 1970. Raises PackagingError.
    """
    out.mkdir(parents=True, exist_ok=True)
    lock = _LOCK_HEAD
    for name, folder in PROJECTS.items():
        run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", out.absolute()],
            cwd=source / folder,
            env={"SOURCE_DATE_EPOCH": str(epoch)},
        )
        wheel, sdist = wheel_of(out, name), sdist_of(out, name)
        version = wheel.name.split("-")[1]
        sums = "".join(f" \\\n    --hash=sha256:{sha256(path)}" for path in (wheel, sdist))
        lock += f"{name.replace('_', '-')}=={version}{sums}\n"
    (out / "requirements.txt").write_text(lock + (source / LOCK).read_text())
    return sorted(out.iterdir())


def wheel_of(folder: Path, name: str) -> Path:
    (wheel,) = folder.glob(f"{name}-*.whl")
    return wheel


def sdist_of(folder: Path, name: str) -> Path:
    (sdist,) = folder.glob(f"{name}-*.tar.gz")
    return sdist


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
