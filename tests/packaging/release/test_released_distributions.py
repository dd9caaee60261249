"""Wheels and source distributions of a release, and the lock that comes with them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.archives import unpack_kept
from tests.packaging.installed import link_installed
from tests.packaging.release.conftest import EPOCH
from tools.rig.packaging.documents import locked_names
from tools.rig.packaging.release.distributions import (
    LOCK,
    PROJECTS,
    build_distributions,
    sdist_of,
    sha256,
    wheel_of,
)
from tools.rig.packaging.release.environment import NOT_ON_A_SERVER, for_target, unpack_own
from tools.rig.packaging.wheels import NOT_ON_A_BOARD, BuildTarget

pytestmark = pytest.mark.timeout(600)
IMPORT_ALL = """
import importlib, pkgutil, re, sys
from pathlib import Path

sys.path[:0] = sys.argv[1:3]
import cloud_client.reference_server, tools.cloud

names = set()
for package in (cloud_client.reference_server, tools.cloud):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        names.add(module.name)
        # What a function imports when it is called is imported here as well.
        text = Path(importlib.util.find_spec(module.name).origin).read_text()
        names.update(re.findall(r"^ +from (\\S+) import", text, re.MULTILINE))
# An extra, which a server without a token does without.
names = {name for name in names if not name.startswith("pkcs11")}
for name in sorted(names):
    importlib.import_module(name)
print(len(names))
"""


def test_another_path_gives_the_same_bytes(wheels: Path, copied_checkout: Path, tmp_path: Path) -> None:
    build_distributions(copied_checkout, EPOCH, tmp_path)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        path.name for path in sorted(wheels.iterdir())
    ]
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (wheels / path.name).read_bytes(), path.name


@pytest.mark.parametrize("name", PROJECTS)
def test_a_source_distribution_builds_the_same_wheel(wheels: Path, name: str, tmp_path: Path) -> None:
    unpack_kept(sdist_of(wheels, name), tmp_path)
    (root,) = tmp_path.iterdir()
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=root, env={"SOURCE_DATE_EPOCH": str(EPOCH)}, check=True, capture_output=True,
    )  # fmt: skip
    assert wheel_of(tmp_path, name).read_bytes() == wheel_of(wheels, name).read_bytes()


def test_the_lock_pins_our_own_wheels_too(wheels: Path) -> None:
    text = (wheels / "requirements.txt").read_text()
    for name in PROJECTS:
        entry = re.search(rf"^{name.replace('_', '-')}==\S+((?: \\\n    --hash=\S+)+)$", text, re.MULTILINE)
        assert entry
        for path in (wheel_of(wheels, name), sdist_of(wheels, name)):
            assert f"sha256:{sha256(path)}" in entry[1]
    assert locked_names((REPOSITORY / LOCK).read_text()) < locked_names(text)


def test_both_locks_pin_the_same_files() -> None:
    def entries(text: str) -> dict[str, list[str]]:
        parts = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)
        return {part.partition(" ")[0]: re.findall(r"sha256:\w+", part) for part in parts if "==" in part}

    lock = entries((REPOSITORY / LOCK).read_text())
    tried = entries((REPOSITORY / "tools/rig/packaging/lock/dev.txt").read_text())
    assert lock.items() <= tried.items(), "what is released is not what the tests run with: make lock"


def test_markers_are_judged_for_the_target() -> None:
    lock = (
        "numpy==2.4.6 ; python_full_version < '3.12' \\\n    --hash=sha256:aa\n"
        "numpy==2.5.5 ; python_full_version >= '3.12' \\\n    --hash=sha256:bb\n"
        "colorama==0.4.6 ; sys_platform == 'win32' \\\n    --hash=sha256:cc\n"
        "pip==26.3 \\\n    --hash=sha256:dd\n"
    )
    old, new = (BuildTarget("arm64", python) for python in ("3.11", "3.13"))
    assert for_target(lock, old, NOT_ON_A_BOARD) == "numpy==2.4.6 \\\n    --hash=sha256:aa\n"
    assert for_target(lock, new, NOT_ON_A_BOARD) == "numpy==2.5.5 \\\n    --hash=sha256:bb\n"


def test_every_module_of_the_server_imports_with_what_a_server_has(wheels: Path, tmp_path: Path) -> None:
    own, libraries = tmp_path / "own", tmp_path / "libraries"
    libraries.mkdir()
    for name in ("palm_access_device", "palm_access_cloud"):
        unpack_own(wheel_of(wheels, name), own)
    here = BuildTarget("amd64", f"{sys.version_info.major}.{sys.version_info.minor}")
    lock = for_target((REPOSITORY / LOCK).read_text(), here, NOT_ON_A_BOARD | NOT_ON_A_SERVER)
    link_installed(locked_names(lock), libraries)
    # -I and -S: neither the folder it runs in nor the environment of the tests is looked at.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", IMPORT_ALL, own, libraries],
        capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 80


def test_what_a_server_does_without_is_in_the_lock() -> None:
    assert locked_names((REPOSITORY / LOCK).read_text()) >= NOT_ON_A_SERVER
