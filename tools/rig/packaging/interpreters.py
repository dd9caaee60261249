"""An interpreter of each Debian release's Python, which makes the byte code of its package.

The one that runs is used where it fits, or one on PATH. Else apt fetches the release's own from Debian and
checks Debian's signature; it runs from a folder, with the C library of its release. Root is not needed.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from tools.rig.packaging.errors import PackagingError
from tools.rig.packaging.process import run

_MIRROR = "http://deb.debian.org/debian"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_PARTS = ("python{0}-minimal", "libpython{0}-minimal", "libpython{0}-stdlib", "libc6", "libexpat1", "zlib1g")
_SCRIPT = """\
#!/bin/sh
PYTHONHOME={root}/usr exec {loader} --library-path {libraries} {root}/usr/bin/python{python} "$@"
"""


def interpreter(python: str, suite: str, cache: Path) -> Path:
    """A program that is Python `python` ("3.13"); if need be it is fetched from the suite `suite` ("trixie").

    What is fetched stays below `cache`. Raises PackagingError.
    """
    if python == minor_version():
        return Path(sys.executable)
    found = shutil.which(f"python{python}")
    if found and _version_of(Path(found)) == python:
        return Path(found)
    folder = cache.absolute() / f"python-{python}"
    script = folder / f"python{python}"
    if not script.exists():
        shutil.rmtree(folder, ignore_errors=True)
        _fetch(python, suite, folder)
        _write_script(python, folder, script)
    if _version_of(script) != python:
        raise PackagingError(f"{script} does not run; install python{python}, or remove {folder}")
    return script


def minor_version() -> str:
    """Of the Python that runs: "3.11"."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _version_of(program: Path) -> str | None:
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([program, "-c", ask], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _fetch(python: str, suite: str, folder: Path) -> None:
    """Unpack what that interpreter needs into `folder`/root, with an apt whose state is in `folder` alone."""
    if shutil.which("apt-get") is None or not _KEYRING.exists():
        raise PackagingError(
            f"byte code for {suite} needs Python {python}, and this machine has no apt with Debian's keyring "
            f"to fetch it: put a python{python} on PATH"
        )
    for name in ("state/lists/partial", "cache/archives/partial", "packages", "root"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {_MIRROR} {suite} main\n")
    places = {
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        # root's apt downloads as a user of its own, which may not write into a person's folder.
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-q", *(word for name, value in places.items() for word in ("-o", f"{name}={value}"))]
    run([*apt, "update"])
    run([*apt, "download", *(part.format(python) for part in _PARTS)], cwd=folder / "packages")
    for package in sorted((folder / "packages").glob("*.deb")):
        run(["dpkg-deb", "-x", package, folder / "root"])
    for name in ("state", "cache", "packages"):
        shutil.rmtree(folder / name)


def _write_script(python: str, folder: Path, script: Path) -> None:
    root = folder / "root"
    loaders = sorted(path for path in root.glob("**/ld-linux*.so.*") if not path.is_symlink())
    if not loaders:
        raise PackagingError(f"libc6 brought no ld-linux*.so below {root}; remove {folder} and try again")
    places = sorted({str(path.parent) for path in root.glob("**/lib*.so.*")})
    part = script.with_suffix(".part")
    part.write_text(_SCRIPT.format(root=root, loader=loaders[0], libraries=":".join(places), python=python))
    part.chmod(0o755)
    part.rename(script)
