"""The power goes at any moment of an installation of software, and the board comes back with a whole version.

A sample of what `make power` does whole. An installer that is broken in five ways tests the harness.
"""

import os
from pathlib import Path

import pytest

from tests.device.updates.installed_board import NEW, OLD, OLDER
from tests.power.syscall_log import NEEDS_STRACE, STRACE
from tests.power.update_sweep import RELEASES, record_installation, sweep, sweep_starts
from tests.power.update_workload import BROKEN
from tools.rig.simulation.crash_disk import CrashDisk

pytestmark = [
    pytest.mark.skipif(STRACE is None, reason=NEEDS_STRACE),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may switch versions"),
]


@pytest.mark.parametrize("release", RELEASES)
def test_wherever_the_power_goes_a_whole_version_is_in_use(tmp_path: Path, release: str) -> None:
    made = record_installation(tmp_path, release)
    disk = CrashDisk(made.prefix, made.start)
    for change in made.changes:
        disk.follow(change)
    installed = {path for path, content in disk.whole().items() if content is not None}
    assert installed == {
        str(path.relative_to(made.prefix)) for path in made.prefix.rglob("*") if is_file(path)
    }
    found = sweep(made, ways=1, every=4)
    found_again = sweep_starts(made, starts=1, ways=1)
    assert found.broken + found_again.broken == []
    assert len(found.states) > 10
    assert found.ends == ({(OLD, OLDER), (NEW, OLD)} if release == "serves" else {(OLD, OLDER)})


def is_file(path: Path) -> bool:
    return path.is_symlink() or not path.is_dir()


@pytest.mark.long
@pytest.mark.parametrize("broken", BROKEN)
def test_an_installer_that_breaks_its_promise_is_caught(tmp_path: Path, broken: str) -> None:
    made = record_installation(tmp_path, "serves", broken)
    assert sweep(made, ways=3).broken
