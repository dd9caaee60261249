"""An environment for another machine: third parties of a lock and wheels of our own, under one prefix."""

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

from tools.rig.packaging.tree import PROGRAMS, below, make_environment
from tools.rig.packaging.wheels import BuildTarget, download, install

NOT_ON_A_SERVER = frozenset(
    {
        "certifi",
        "faiss-cpu",
        "flatbuffers",
        "onnxruntime",
        "opencv-python-headless",
        "packaging",
        "protobuf",
        "pyserial",
        "tzdata",
    }
)
"""What a camera, a recogniser, a carrier or a technician needs, and no server."""

_ENTRY = re.compile(r"^(?=[A-Za-z0-9])", re.MULTILINE)


def for_target(lock: str, target: BuildTarget, left_out: frozenset[str] = frozenset()) -> str:
    """The entries of a universal lock that hold for `target`, without their markers and without `left_out`.

    pip compares markers with the Python that runs it, even where it is asked for another one's wheels.
    """
    about = {
        "python_version": target.python,
        "python_full_version": f"{target.python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "platform_machine": target.wheel_arch,
        "sys_platform": "linux",
        "os_name": "posix",
        "platform_system": "Linux",
    }
    kept = ""
    for entry in _ENTRY.split(lock):
        head, continued, hashes = entry.partition(" \\\n")
        if not continued:
            continue
        named = Requirement(head)
        if named.name not in left_out and (named.marker is None or named.marker.evaluate(about)):
            kept += f"{named.name}{named.specifier} \\\n{hashes}"
    return kept


def install_environment(
    root: Path, prefix: Path, target: BuildTarget, *, lock: Path, cache: Path, own: Sequence[Path] = ()
) -> Path:
    """Make the environment `prefix` below `root`, with `palmctl` in its `bin`; returns its site-packages.

    `lock` has no markers (`for_target`). `cache` keeps downloaded wheels. Raises PackagingError.
    """
    environment = below(root, prefix)
    programs = {"palmctl": PROGRAMS["palmctl"]}
    site_packages = make_environment(environment, prefix, target.python, programs)
    (environment / "bin" / "python").symlink_to(f"/usr/bin/python{target.python}")
    if lock.stat().st_size:
        download(lock, target, cache)
        install(lock, cache, target, site_packages)
    for wheel in own:
        unpack_own(wheel, site_packages)
    return site_packages


def unpack_own(wheel: Path, site_packages: Path) -> None:
    """Add a wheel of this project: pure Python, without data files."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site_packages)
