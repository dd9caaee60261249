"""What the tests of a release build once."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests import REPOSITORY
from tools.rig.packaging.release.distributions import build_distributions

EPOCH = 1_790_000_000


@pytest.fixture(scope="package")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `wheels` of a release, built from this checkout."""
    out = tmp_path_factory.mktemp("wheels")
    build_distributions(REPOSITORY, EPOCH, out)
    return out


@pytest.fixture(scope="package")
def copied_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of this checkout at another path; git knows nothing of it."""
    copy = tmp_path_factory.mktemp("elsewhere") / "in" / "a" / "longer" / "path"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in listed.split("\0"):
        source, goal = REPOSITORY / name, copy / name
        if name and source.exists():
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, goal, follow_symlinks=False)
    return copy
