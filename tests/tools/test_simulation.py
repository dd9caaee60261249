"""The simulation itself: that it runs, repeats, finds what is planted, and makes a failure short."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import REPOSITORY
from tools.rig.simulation.crash_disk import CrashDisk, Cut, Make, Remove, Rename, Sync, Write
from tools.rig.simulation.disk import changes_of
from tools.rig.simulation.plan import Act, plan_of
from tools.rig.simulation.shrink import PlanPart, ddmin
from tools.rig.simulation.start import environment

MISSED_MOST = 2
"""Planted faults that need a rarer coincidence; on a busy machine a minute of CPU holds fewer runs."""
MOST_ACTS = 30
"""Of a failed run that was made short."""


def simulate(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(
        command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=False
    )


def test_a_share_of_the_simulation() -> None:
    done = simulate("tools.rig.simulation", "--seconds", "4")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "verdicts a CPU-minute" in done.stdout


@pytest.mark.long
def test_the_same_seed_is_the_same_run_with_and_without_leaps() -> None:
    first = simulate("tools.rig.simulation", "--replay", "9")
    again = simulate("tools.rig.simulation", "--replay", "9", "--stride", "0.01")
    assert first.returncode == 0, first.stdout[-4000:]
    assert first.stdout == again.stdout
    assert "→ verdict" in first.stdout


def test_a_planted_fault_is_found_and_its_run_made_short() -> None:
    title = "the validator's counters are not saved"
    done = simulate("tools.rig.simulation.planted", title, "--cpu-s", "30", "--shrink-s", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "counters survive" in done.stdout
    acts = [int(line.split("|")[5]) for line in done.stdout.splitlines()[2:]]
    assert max(acts) < MOST_ACTS


@pytest.mark.long
def test_a_campaign_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from tools.rig.simulation import campaign, world
campaign.SEEDS = 1
world.quiet()
sys.exit(campaign.campaign(Path(sys.argv[1]), 0.01, 1))
"""
    log = tmp_path / "log.jsonl"
    command = [sys.executable, "-c", program, str(log)]
    first = subprocess.check_output(command, cwd=REPOSITORY, env=environment(), text=True)
    assert first.startswith("no range of seeds yet\n")
    log.write_text(log.read_text() + '{"commit": "abc", "fir')  # it was stopped while it wrote
    again = subprocess.check_output(command, cwd=REPOSITORY, env=environment(), text=True)
    assert ": 1 seeds, " in again
    assert ": 2 seeds, " in again
    assert '"first": 1000000,' in log.read_text()
    assert '"first": 1000001,' in log.read_text()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_planted_fault_is_found() -> None:
    done = simulate("tools.rig.simulation.planted")
    assert done.returncode <= MISSED_MOST, done.stdout + done.stderr


def test_a_failure_is_made_short() -> None:
    kept: list[int] = []

    def fails(acts: Sequence[int]) -> bool:
        if {3, 17} <= set(acts):
            kept[:] = acts
            return True
        return False

    ddmin(list(range(40)), fails, lambda: True, 40)
    assert kept == [3, 17]


def test_a_short_run_is_repeated_by_the_options_that_are_printed() -> None:
    part = PlanPart((0, 3, 7), until_s=40.5, skip_s=2.25, luck=4)
    done = simulate("tools.rig.simulation", "--replay", "9", *str(part).split())
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    said = [line.partition("WORLD")[2].strip() for line in done.stdout.splitlines() if "WORLD" in line]
    acts = part.of(plan_of(9)).acts
    assert [str(act).strip() for act in acts] == said[: len(acts)]
    assert said[len(acts)] == "every trouble is over"


def test_seeds_leave_out_kinds_of_trouble() -> None:
    kinds = [{act.act for act in plan_of(seed).acts} for seed in range(60)]
    people = {Act.PASSAGE, Act.HAND_FIRST, Act.CANCELLED, Act.REPLACED}
    assert all(one & people for one in kinds)
    assert 0 < sum(Act.POWER_CUT in one for one in kinds) < 45
    assert plan_of(7) == plan_of(7)


def test_on_a_disk_that_is_filled_only_what_grows_is_refused(tmp_path: Path) -> None:
    program = """
import errno, os, sys
from pathlib import Path
from tools.rig.simulation.disk import Follower
follower, folder = Follower(), Path(sys.argv[1])
follower.watch(0, folder)

def written(name, data, at):
    place = os.open(folder / name, os.O_RDWR | os.O_CREAT)
    try:
        return os.pwrite(place, data, at)
    except OSError as error:
        return errno.errorcode[error.errno]
    finally:
        os.close(place)

held = os.open(folder / "held.partial", os.O_RDWR | os.O_CREAT)
os.posix_fallocate(held, 0, 100)
os.close(held)
(folder / "held.partial").rename(folder / "held")
said = [written("a", b"abcd", 0)]
follower.room(folder, 6)
said += [written("a", b"ABCD", 0), written("a", b"efgh", 4), written("a", b"ijk", 8), follower.left()]
with (folder / "a").open("r+b") as file:
    file.truncate(6)
said += [written("b", b"12", 0), follower.left()]
(folder / "held").unlink()
said += [follower.left(), written("b", bytes(90), 2)]
follower.room(None)
said += [written("b", bytes(900), 2), follower.left()]
print(said)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "[4, 4, 4, 'ENOSPC', 2, 2, 2, 102, 90, 900, None]\n"


def test_the_follower_sees_what_a_program_does_to_a_folder(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from tools.rig.simulation.disk import Follower
follower, folder = Follower(), Path(sys.argv[1])
follower.watch(0, folder)
with (folder / "a.new").open("wb") as file:
    file.write(b"one")
    file.flush()
    os.fsync(file.fileno())
(folder / "a.new").rename(folder / "a")
place = os.open(folder / "a", os.O_RDWR)
os.pwrite(place, b"X", 1)
os.ftruncate(place, 2)
(folder / "b").touch()
(folder / "b").unlink()
follower.fail(folder, write_errno=28)
try:
    os.pwrite(place, b"Y", 0)
except OSError as error:
    assert error.errno == 28
else:
    raise AssertionError("the disk is not full")
sys.stdout.buffer.write(follower.take())
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        check=True,
    )
    changes = list(changes_of(done.stdout))
    new, old, other = (f"{tmp_path}/{name}" for name in ("a.new", "a", "b"))
    assert changes == [
        Make(new, is_folder=False),
        Write(new, 0, b"one"),
        Sync(new),
        Rename(new, old),
        Write(old, 1, b"X"),
        Cut(old, 2),
        Make(other, is_folder=False),
        Remove(other),
    ]
    disk = CrashDisk(tmp_path)
    for change in changes:
        disk.follow(change)
    assert disk.whole() == {"a": b"oX"}
    assert disk.crash() == {}
