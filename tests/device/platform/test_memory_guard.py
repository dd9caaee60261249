"""What a process of the device leaves behind when it dies, and who may look into it."""

import ctypes
import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from device.platform import memory as memory_guard
from tests.hand_weights import needs_hand_weights

GUARDED = """
import ctypes, json, os, signal, sys
from device.platform.memory import guard_memory
if os.geteuid() == 0 and "--drop" in sys.argv:
    os.setresuid(65_534, 65_534, 65_534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as after an ordinary start
guard = guard_memory()
status = open("/proc/self/status").read()
print(json.dumps([guard.dumps_off, guard.locked, guard.problem, status]), flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGABRT)
"""
UNGUARDED = GUARDED.replace("guard_memory()\n", "type('G', (), dict(dumps_off=0, locked=0, problem=''))\n")


def started(folder: Path, program: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def told(process: "subprocess.Popen[str]") -> tuple[bool, bool, str, str]:
    assert process.stdout is not None
    dumps_off, locked, problem, status = json.loads(process.stdout.readline())
    return dumps_off, locked, problem, status


def ended(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


def test_an_abort_leaves_no_core(tmp_path: Path) -> None:
    process = started(tmp_path, GUARDED)
    assert told(process)[0]
    limits = Path(f"/proc/{process.pid}/limits").read_text()
    assert re.search(r"Max core file size +0 +0", limits)
    process.communicate("go\n", timeout=20)
    assert process.returncode == -signal.SIGABRT
    assert list(tmp_path.iterdir()) == []


def test_locked_where_permitted_else_it_says_what_to_do(tmp_path: Path) -> None:
    process = started(tmp_path, GUARDED)
    _, locked, problem, status = told(process)
    ended(process)
    amount = re.search(r"VmLck:\s+(\d+) kB", status)
    assert amount is not None
    assert (int(amount[1]) > 1000, problem == "") == (locked, locked)
    assert locked or "LimitMEMLOCK=infinity" in problem


def test_a_small_limit_locks_nothing_rather_than_failing_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _which: (65_536, 65_536))
    monkeypatch.setattr(resource, "setrlimit", refused)
    assert memory_guard.lock_all(ctypes.CDLL(None)) == (False, "at most 64 KiB may be locked")
    assert "VmLck:\t       0 kB" in Path("/proc/self/status").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_another_process_of_the_same_user_cannot_read_its_memory(tmp_path: Path) -> None:
    def readable(program: str) -> bool:
        process = started(tmp_path, program, "--drop")
        told(process)
        try:
            reader = subprocess.run(
                ["head", "-c0", f"/proc/{process.pid}/mem"], capture_output=True, check=False, user=65_534
            )
            return reader.returncode == 0
        finally:
            ended(process)

    assert readable(UNGUARDED)
    assert not readable(GUARDED)


LOOKS = """
import resource
import numpy as np
from device.platform.memory import guard_memory, settle_memory
from models.hand_landmarks import Spot, installed_landmarks
guard_memory()
settle_memory()
landmarks = installed_landmarks()
picture = np.full((480, 640, 3), 128, np.uint8)
for turn in range(30):
    if turn == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    landmarks.joints(picture, Spot(320.0, 240.0, 300.0, (0.0, -1.0)))
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 20)
"""


@needs_hand_weights
def test_the_largest_buffer_of_a_look_costs_no_page_faults() -> None:
    """Cleared by the kernel for every picture, its 1,030 pages took a third of the time of the joints."""
    done = subprocess.run([sys.executable, "-c", LOOKS], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 100


STARTS = """
import numpy as np
from device.platform.memory import guard_memory, settle_memory
def resident_mib():
    return int(open("/proc/self/statm").read().split()[1]) >> 8
guard_memory()
held = [np.ones(kib << 10, np.uint8) for kib in (200, 60) for _ in range(500)]
last, most = held[-1], resident_mib()
del held
freed = resident_mib()
settle_memory()
print(most - freed, freed - resident_mib())
"""


def test_what_a_start_frees_is_given_back() -> None:
    """Large buffers (97 MiB) at once, also where memory is locked, small ones (29 MiB) after the start."""
    done = subprocess.run([sys.executable, "-c", STARTS], capture_output=True, text=True, check=True)
    large, small = map(int, done.stdout.split())
    assert 90 < large < 110
    assert small > 20
