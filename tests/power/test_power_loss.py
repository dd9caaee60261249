"""The power goes at any moment of a device's life, and nothing that somebody was told is lost.

A sample of what `make power` does whole. The harness itself is tested by breaking the device in six ways.
"""

import random
from pathlib import Path

import pytest

from tests.power.power_breakage import BROKEN, BROKEN_WITH_DAMAGE
from tests.power.power_sweep import flip, on_disk, record_life, sweep, sweep_starts
from tests.power.syscall_log import NEEDS_STRACE, STRACE
from tools.rig.simulation.crash_disk import Change, CrashDisk, Cut, Make, Rename, Sync, Write, fingerprint

recorded = pytest.mark.skipif(STRACE is None, reason=NEEDS_STRACE)


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Change], Path]:
    folder = tmp_path_factory.mktemp("life")
    return record_life(folder, rounds=3), folder / "state"


@recorded
def test_the_recording_replayed_is_what_lies_on_the_disk(life: tuple[list[Change], Path]) -> None:
    """Otherwise a change of the program's would have been missed."""
    changes, state = life
    disk = CrashDisk(state)
    for change in changes:
        disk.follow(change)
    assert disk.whole() == on_disk(state)
    told = {said["what"] for said in disk.marks}
    assert told >= {"verdict", "page", "outbox", "inbox", "config", "erased", "confirmed"}


@recorded
def test_no_promise_is_broken_wherever_the_power_goes(life: tuple[list[Change], Path]) -> None:
    changes, state = life
    found = sweep(changes, state, ways=2, every=len(changes) // 15)
    assert found.broken == []
    assert len(found.states) >= 40


@recorded
def test_the_power_may_go_again_during_the_start_after_it(life: tuple[list[Change], Path]) -> None:
    changes, state = life
    found = sweep_starts(changes, state, starts=1, ways=1, seed=4)
    assert found.broken == []
    assert len(found.states) > 5


@recorded
def test_no_damaged_byte_replaces_what_was_promised(life: tuple[list[Change], Path]) -> None:
    changes, state = life
    found = flip(changes, state, cuts=2, most=6)
    assert found.forks == []
    assert found.states > 60
    ends = {end for _, end in found.ends}
    assert "refused" in ends
    assert ends & {"whole", "stale"}
    assert "ended" not in ends


@recorded
@pytest.mark.long
@pytest.mark.parametrize("broken", BROKEN)
def test_a_device_that_breaks_its_promises_is_caught(tmp_path: Path, broken: str) -> None:
    changes = record_life(tmp_path, broken=broken, rounds=2)
    found = sweep(changes, tmp_path / "state", ways=3, every=9, most=1)
    assert found.broken


@recorded
@pytest.mark.long
def test_a_witness_that_is_not_synced_is_caught_where_the_log_is_damaged(tmp_path: Path) -> None:
    changes = record_life(tmp_path, broken=BROKEN_WITH_DAMAGE, rounds=2)
    found = flip(changes, tmp_path / "state", cuts=4, most=12)
    assert any("is given a second time" in fork for fork in found.forks)


STATE = Path("/device")


def after(*changes: Change) -> CrashDisk:
    disk = CrashDisk(STATE)
    for change in changes:
        disk.follow(change)
    return disk


def many(disk: CrashDisk) -> list[dict[str, bytes | None]]:
    trees = [disk.crash(random.Random(seed)) for seed in range(500)]
    return list({fingerprint(tree): tree for tree in trees}.values())


def test_what_was_synced_is_there_and_the_rest_may_be_gone_or_torn() -> None:
    disk = after(
        Make("/device/a", is_folder=False),
        Sync("/device"),
        Write("/device/a", 0, b"x" * 1024),
        Sync("/device/a"),
        Write("/device/a", 0, b"y" * 1024),
    )
    assert disk.crash() == {"a": b"x" * 1024}
    assert disk.crash(keep_all=True) == {"a": b"y" * 1024}
    contents = {tree["a"] for tree in many(disk)}
    assert {b"x" * 512 + b"y" * 512, b"y" * 512 + b"x" * 512} <= contents
    assert any(one is not None and one.count(b"y") % 512 for one in contents)


def test_a_file_whose_folder_was_not_synced_may_be_gone() -> None:
    disk = after(Make("/device/a", is_folder=False), Write("/device/a", None, b"abc"), Sync("/device/a"))
    assert disk.crash() == {}
    assert disk.crash(keep_all=True) == {"a": b"abc"}


def test_a_rename_may_reach_the_disk_before_the_bytes_it_names() -> None:
    old = (
        Make("/device/a", is_folder=False),
        Write("/device/a", 0, b"old"),
        Sync("/device/a"),
        Sync("/device"),
    )
    new = (
        Make("/device/b", is_folder=False),
        Write("/device/b", 0, b"new"),
        Rename("/device/b", "/device/a"),
    )
    trees = many(after(*old, *new))
    assert {"a": b"old"} in trees
    assert {"a": b"new"} in trees
    assert {"a": b""} in trees
    assert {"a": b"old", "b": b"new"} in trees
    safe = many(after(*old, *new[:2], Sync("/device/b"), new[2]))
    assert all(tree["a"] in (b"old", b"new") for tree in safe)


def test_a_cut_that_was_not_synced_may_not_have_happened() -> None:
    disk = after(
        Make("/device/a", is_folder=False),
        Sync("/device"),
        Write("/device/a", 0, b"abcdef"),
        Sync("/device/a"),
        Cut("/device/a", 2),
    )
    assert {tree["a"] for tree in many(disk)} >= {b"abcdef", b"ab"}
