"""The files of the package, as they will lie on the board.

    /opt/palm-access/package/              what dpkg owns
    /opt/palm-access/versions/VERSION/     hard links to it, made by postinst; the version before stays
    /opt/palm-access/current               link to the version in use

A virtual environment runs only from the folder it was made for, so what lies in `package` was made for
`versions/VERSION`.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tools.rig.packaging.errors import PackagingError
from tools.rig.packaging.process import run

PREFIX = Path("/opt/palm-access")
UNITS = 2
"""For which units a version is made: 2 has a user and a socket for each role. A version without it is for
units with one user for both daemons; `palm-access-rollback` fits the units to it."""
PROGRAMS = {
    "palmctl": ("tools.palmctl.main", "main"),
    "palmd": ("device.core.main", "main"),
    "palm-syncd": ("device.syncd.main", "main"),
}

# -I: neither PYTHONPATH nor the current folder can put other code under a daemon that holds keys.
_SCRIPT = """\
#!{python} -I
import sys

from {module} import {function}

sys.exit({function}())
"""


def write_environment(root: Path, version: str, python: str) -> Path:
    """Make the virtual environment without packages below `root`; returns its site-packages."""
    home = PREFIX / "versions" / version
    environment = below(root, PREFIX / "package")
    site_packages = make_environment(environment, home, python, PROGRAMS)
    (environment / "VERSION").write_text(f"{version}\n")
    (environment / "UNITS").write_text(f"{UNITS}\n")
    (environment / "bin" / f"python{python}").symlink_to(f"/usr/bin/python{python}")
    for name in ("python3", "python"):
        (environment / "bin" / name).symlink_to(f"python{python}")
    for name in PROGRAMS:
        link = below(root, Path("/usr/bin") / name)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(PREFIX / "current" / "bin" / name)
    return site_packages


def make_environment(
    environment: Path, home: Path, python: str, programs: Mapping[str, tuple[str, str]]
) -> Path:
    """An environment without packages and without its Python, for the place `home`; its site-packages."""
    site_packages = environment / "lib" / f"python{python}" / "site-packages"
    site_packages.mkdir(parents=True)
    (environment / "bin").mkdir()
    (environment / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {python}\n"
        f"executable = /usr/bin/python{python}\n"
    )
    for name, (module, function) in programs.items():
        script = environment / "bin" / name
        script.write_text(_SCRIPT.format(python=home / "bin" / "python", module=module, function=function))
        script.chmod(0o755)
    return site_packages


def compile_packages(site_packages: Path, version: str, interpreter: Path) -> None:
    """Byte code of `interpreter` next to the sources, so that the board neither compiles nor writes.

    It is never checked against its source (PEP 552): the folder belongs to root and is replaced whole.
    """
    installed_at = PREFIX / "versions" / version / "lib" / site_packages.parent.name / "site-packages"
    run(
        [
            *(interpreter, "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash"),
            *("-s", site_packages, "-p", installed_at, site_packages),
        ]
    )


def copy_tree(source: Path, root: Path, places: dict[str, str]) -> None:
    """Copy files of the folder `source` to their places on the board."""
    for name, place in places.items():
        goal = below(root, Path(place))
        goal.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, goal)


def normalise(root: Path, epoch: int, executables: frozenset[Path]) -> None:
    """Give every file the time `epoch` (seconds) and mode 0644, or 0755 for folders and `executables`."""
    for folder, folders, files in os.walk(root, topdown=False):
        for name in (*files, *folders):
            path = Path(folder, name)
            if not path.is_symlink():
                runs = path.is_dir() or Path("/") / path.relative_to(root) in executables
                path.chmod(0o755 if runs else 0o644)
            os.utime(path, (epoch, epoch), follow_symlinks=False)
    root.chmod(0o755)
    os.utime(root, (epoch, epoch))


def below(root: Path, path: Path) -> Path:
    """Where the absolute `path` of the board lies below `root`."""
    return root / path.relative_to("/")


def own_version(source: Path) -> str:
    """The version in pyproject.toml."""
    found = re.search(r'^version = "([^"]+)"$', (source / "pyproject.toml").read_text(), re.MULTILINE)
    if found is None:
        raise PackagingError(f"{source / 'pyproject.toml'} names no version")
    return found[1]


def source_date_epoch(source: Path) -> int:
    """SOURCE_DATE_EPOCH, else the time of the last commit, in seconds."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    if given:
        if not given.isdecimal():
            raise PackagingError(f"SOURCE_DATE_EPOCH: expected seconds since 1970, found {given!r}")
        return int(given)
    done = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=source, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PackagingError("outside a git checkout, set SOURCE_DATE_EPOCH to the time of the release")
    return int(done.stdout)
