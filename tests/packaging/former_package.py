"""The package as an earlier commit builds it, from before the modules of the device moved into rooms."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.packaging.debian_tree import PACKAGES, TREES
from tools.rig.packaging.interpreters import minor_version

COMMIT = "ebd77c7"
VERSION = "0.1.0-0"
PYTHON = "3.11"
_BUILD = "from tools.packaging import deb; deb._COMPRESSION = ('-Znone',); deb.main()"
"""Compressing takes minutes, and only this machine unpacks it."""


def former_package() -> Path:
    """The amd64 package of `COMMIT` for Debian 12, built once. Skips the test where that is not possible."""
    path = TREES / f"palm-access_{VERSION}_amd64.deb"
    if path.exists():
        return path
    if minor_version() != PYTHON:
        pytest.skip(f"that commit builds for the Python that runs it, here {minor_version()}, not {PYTHON}")
    known = subprocess.run(["git", "cat-file", "-e", f"{COMMIT}^{{commit}}"], cwd=REPOSITORY, check=False)
    if known.returncode:
        pytest.skip(f"this clone does not have commit {COMMIT} (git fetch --unshallow)")
    folder = TREES / "former"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "build/deb").mkdir(parents=True)
    git = ("git", "archive", "--format=tar", f"--output={folder / 'source.tar'}", COMMIT)
    subprocess.run(git, cwd=REPOSITORY, check=True)
    subprocess.run(["tar", "-xf", "source.tar"], cwd=folder, check=True)
    wheels = PACKAGES / f"wheels-amd64-{PYTHON}"
    if wheels.exists():  # of the same lock; each is checked against its hash again
        shutil.copytree(wheels, folder / "build/deb" / wheels.name, copy_function=os.link)
    words = ("--arch", "amd64", "--revision", "0", "--out", str(TREES))
    subprocess.run(
        [sys.executable, "-c", _BUILD, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder), "SOURCE_DATE_EPOCH": "1763866000"},
        check=True,
    )
    shutil.rmtree(folder)
    return path
