"""From the lock to a folder of installed packages, for another machine than this one.

Every wheel is downloaded for the target's platform and checked against the hash in the lock; nothing is
compiled and nothing of this machine's own packages is used.
"""

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.rig.packaging.process import run

NOT_ON_A_BOARD = frozenset({"pip"})
"""sqlite-utils names pip for its plugin command; a board installs nothing by it."""

WHEEL_ARCHS = {"amd64": "x86_64", "arm64": "aarch64"}
"""Debian's name of each architecture, and that in the names of wheels and of the kernel."""

PKCS11 = frozenset({"asn1crypto", "python-pkcs11"})
"""What a `pkcs11:` signer needs; the lock of the development environment pins both."""

OWN_NOT_ON_A_BOARD = (
    "cloud_client/reference_server",
    "link1/validator",
    "models/evaluation",
    "models/synthesis",
    "models/training",
    "tools/cloud",
    "tools/kit",
    "tools/rig",
)
"""Folders of this project that no wheel for a board holds."""

_GLIBC = ("2_28", "2_27", "2_26", "2_24", "2_17")
"""manylinux platforms that run on Debian 12 and newer, newest first; what a lock may hold ends at 2.28."""


@dataclass(frozen=True, slots=True)
class BuildTarget:
    debian_arch: str
    python: str
    """Minor version, for example "3.11"."""

    @property
    def wheel_arch(self) -> str:
        """The architecture as wheels name it."""
        return WHEEL_ARCHS[self.debian_arch]

    @property
    def pip_options(self) -> list[str]:
        """Options that make pip choose wheels for this machine instead of the build machine."""
        tag = f"cp{self.python.replace('.', '')}"
        options = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", self.python]
        for abi in (tag, "abi3", "none"):
            options += ["--abi", abi]
        for glibc in _GLIBC:
            options += ["--platform", f"manylinux_{glibc}_{self.wheel_arch}"]
        return [*options, "--platform", f"manylinux2014_{self.wheel_arch}"]


def without(lock: str, names: frozenset[str]) -> str:
    """The lock's text without the entries of `names`. An entry goes from its name to the next one's."""
    return "".join(entry for entry in _entries(lock) if entry.partition("==")[0] not in names)


def only(lock: str, names: frozenset[str]) -> str:
    """The entries of `names` alone, which have no markers."""
    return "".join(entry for entry in _entries(lock) if entry.partition("==")[0] in names)


def _entries(lock: str) -> list[str]:
    return re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)


def download(lock: Path, target: BuildTarget, into: Path) -> None:
    """Fetch every wheel that `lock` pins, from the index pip is configured with. Raises PackagingError."""
    into.mkdir(parents=True, exist_ok=True)
    _pip("download", "--require-hashes", "--no-deps", "--dest", into, *target.pip_options, "-r", lock)


def build_own(source: Path, into: Path) -> Path:
    """Build the project's own wheel; raises PackagingError."""
    into.mkdir(parents=True)
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", into.absolute()], cwd=source)
    (wheel,) = into.glob("palm_access_device-*.whl")
    return wheel


def install(lock: Path, wheels: Path, target: BuildTarget, site_packages: Path) -> None:
    """Unpack the wheels of `lock`, checked by hash once more, into an empty `site_packages`."""
    _unpack(wheels, target, site_packages, "--require-hashes", "-r", lock)


def install_own(own: Path, target: BuildTarget, site_packages: Path) -> None:
    """Unpack the project's own wheel."""
    _unpack(own.parent, target, site_packages, own.stem.split("-")[0])


def _unpack(wheels: Path, target: BuildTarget, site_packages: Path, *what: object) -> None:
    offline = ("--no-index", "--find-links", wheels, "--no-deps", "--no-compile", "--target", site_packages)
    _pip("install", *offline, *target.pip_options, *what)
    # pip wrote the programs' scripts with the builder's interpreter in them; ours are written elsewhere.
    shutil.rmtree(site_packages / "bin", ignore_errors=True)


def _pip(*arguments: object) -> None:
    run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", *arguments])
