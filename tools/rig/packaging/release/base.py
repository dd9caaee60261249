"""The Debian below the images: packages pinned by hash, as `dpkg-deb -x` unpacks them.

    python -m tools.rig.packaging.release.base      resolve the newest ones again (needs apt; `make lock`)

No maintainer script runs and no root is needed, so another architecture than the builder's costs nothing. The
packages are verified against the archive's signature when they are resolved, and against the lock's hash
whenever they are unpacked. dpkg's own list of them lies where programs that look for known flaws expect it.
"""

import io
import re
import subprocess
import tarfile
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tools.rig.packaging.errors import PackagingError
from tools.rig.packaging.process import run
from tools.rig.packaging.release.distributions import sha256

SUITE, PYTHON = "trixie", "3.13"
LOCK = Path("tools/rig/packaging/lock/base.txt")
"""One line a package: architecture, file name, SHA-256, address."""
_WANTED = ("base-files", f"python{PYTHON}", "libstdc++6", "netbase")
_SOURCES = f"""\
Types: deb
URIs: http://deb.debian.org/debian
Suites: {SUITE} {SUITE}-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://deb.debian.org/debian-security
Suites: {SUITE}-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
_OFFERED = re.compile(r"^'(\S+)' (\S+) ", re.MULTILINE)
_LOCK_HEAD = """\
# The Debian packages below the images: architecture, file name, SHA-256, address. `make lock` writes it.
"""


@dataclass(frozen=True, slots=True)
class BasePackage:
    """A Debian package of the lock."""

    arch: str
    file: str
    sha256: str
    url: str

    @property
    def name(self) -> str:
        return self.file.partition("_")[0]


def pinned(lock: str, arch: str) -> list[BasePackage]:
    """The packages of a lock's text for one Debian architecture."""
    lines = (line.split() for line in lock.splitlines() if line and not line.startswith("#"))
    return [one for one in (BasePackage(*words) for words in lines) if one.arch == arch]


def unpack_base(packages: list[BasePackage], cache: Path, root: Path) -> None:
    """Unpack `packages` into the empty folder `root`, with dpkg's list of them. Raises PackagingError."""
    info = root / "var/lib/dpkg/info"
    status = ""
    # The links from /bin and /lib into /usr come first.
    for package in sorted(packages, key=lambda one: (one.name != "base-files", one.name)):
        path = fetch(package, cache)
        run(["dpkg-deb", "-x", path, root])
        info.mkdir(parents=True, exist_ok=True)
        (info / f"{package.name}.list").write_text("".join(f"{name}\n" for name in contents(path)))
        fields = run(["dpkg-deb", "-f", path]).replace("\n", "\nStatus: install ok installed\n", 1)
        status += f"{fields.rstrip()}\n\n"
    (root / "var/lib/dpkg/status").write_text(status)


def fetch(package: BasePackage, cache: Path) -> Path:
    """The package's file, downloaded unless `cache` has it. Raises PackagingError for other bytes."""
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / f"{package.sha256}.deb"
    if not path.exists():
        part = path.with_suffix(".part")
        try:
            with urllib.request.urlopen(package.url) as answer:  # noqa: S310 (checked by hash below)
                part.write_bytes(answer.read())
        except OSError as error:
            raise PackagingError(
                f"{package.url}: {error}. When Debian has replaced it by a newer one, take it from "
                f"snapshot.debian.org into {path}, or resolve the base again (make lock)"
            ) from None
        part.rename(path)
    found = sha256(path)
    if found != package.sha256:
        path.unlink()
        raise PackagingError(f"{package.url}: expected sha256 {package.sha256}, found {found}: not used")
    return path


def contents(package: Path) -> list[str]:
    """The absolute paths that a package holds, folders too, as dpkg lists them."""
    packed = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return [f"/{name.removeprefix('.').strip('/')}" for name in archive.getnames()]


def resolve() -> str:
    """The text of a new lock: what apt would install today, for each architecture. Raises PackagingError."""
    lock = _LOCK_HEAD
    for arch in ("amd64", "arm64"):
        with tempfile.TemporaryDirectory() as scratch:
            etc, archives = Path(scratch, "etc"), Path(scratch, "cache/archives")
            for folder in (etc / "apt.conf.d", etc / "preferences.d", archives / "partial"):
                folder.mkdir(parents=True)
            Path(scratch, "lists/partial").mkdir(parents=True)
            Path(scratch, "status").touch()
            (etc / "debian.sources").write_text(_SOURCES)
            settings = {
                "APT::Architecture": arch,
                "APT::Architectures": arch,
                "APT::Install-Recommends": "false",
                "APT::Sandbox::User": "root",
                "Acquire::Languages": "none",
                "Dir::Etc": etc,
                "Dir::Etc::SourceList": etc / "none.list",
                "Dir::Etc::SourceParts": etc,
                "Dir::State": scratch,
                "Dir::State::status": Path(scratch, "status"),
                "Dir::Cache": archives.parent,
            }
            apt = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in settings.items())]
            run([*apt, "update"])
            offered = _OFFERED.findall(run([*apt, "--print-uris", "-y", "install", *_WANTED]))
            run([*apt, "--download-only", "-y", "install", *_WANTED])
            for url, file in sorted(offered, key=lambda one: one[1]):
                lock += f"{arch} {file} {sha256(archives / file)} {url}\n"
    return lock


if __name__ == "__main__":
    LOCK.write_text(resolve())
