"""SIGKILL at any moment, again and again, on one state directory: what was promised is there each time.

It is no test of power loss, for what was written and not synced survives it (`test_power_loss` is that one);
it tests that every start goes on where the last life was cut off.
"""

import json
import multiprocessing
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.power.power_promises import broken_promises
from tests.power.power_workload import Life, Marks, live_on
from tests.ram import in_memory

KILLS = 12
MAX_MARKS_A_LIFE = 40
WITHIN_S = 60.0


@pytest.fixture
def place() -> Iterator[Path]:
    """In memory where that is possible: a kill asks nothing of the disk."""
    with in_memory("power-") as name:
        yield Path(name)


def test_a_device_that_is_killed_again_and_again_keeps_its_promises(place: Path) -> None:
    state, marks = place / "state", place / "marks"
    state.mkdir(mode=0o700)
    Life(state, Marks(marks), "").provision()
    programs = multiprocessing.get_context("forkserver")
    programs.set_forkserver_preload(["power_workload"])
    rng = random.Random(3)
    for kill in range(KILLS):
        program = programs.Process(target=live_on, args=(state, marks))
        enough = marks.read_bytes().count(b"\n") + rng.randint(1, MAX_MARKS_A_LIFE)
        program.start()
        give_up_s = time.monotonic() + WITHIN_S
        while marks.read_bytes().count(b"\n") < enough:
            program.join(0.001)
            assert program.exitcode is None, "the device ended by itself"
            assert time.monotonic() < give_up_s
        program.kill()
        program.join()
        told = [json.loads(line) for line in marks.read_text().splitlines()]
        shutil.rmtree(place / "copy", ignore_errors=True)
        shutil.copytree(state, place / "copy")
        assert broken_promises(place / "copy", told) == [], f"kill {kill + 1}"
    whats = [said["what"] for said in told]
    assert whats.count("verdict") > KILLS
    assert {"page", "outbox", "receipt", "config", "passage"} <= set(whats)
