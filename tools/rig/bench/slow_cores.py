"""Cores of this machine made slower, each by a process of real-time priority that takes a share of every
millisecond.

A quota of a control group cannot do it: it limits the sum of a group's threads, so that with two cores a
single thread still runs at full speed, and the kernel grants no less than 1 ms at a time.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from tools.rig.bench.lifeline import end_with_standard_input

PERIOD_NS: Final = 1_000_000
LEAST_SPEED: Final = 0.06
"""The kernel lets real-time processes take 95 % of a core."""
_PRIORITY: Final = 20


@contextmanager
def slowed(speed: float, cores: Sequence[int]) -> Iterator[None]:
    """Leave `speed` (0.06..1, 1 changes nothing) of these cores to all other processes. Needs root."""
    if not LEAST_SPEED <= speed <= 1:
        raise ValueError(f"expected a speed of {LEAST_SPEED} to 1; found {speed:.3f}")
    with ExitStack() as stack:
        for core in cores if speed < 1 else ():
            taker = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", __name__, str(core), str(speed)],
                    stdin=subprocess.PIPE,  # ends it with this process
                    stdout=subprocess.PIPE,
                )
            )
            stack.callback(taker.kill)
            if taker.stdout is None or not taker.stdout.readline():
                raise PermissionError("a real-time priority is not permitted here; run as root")
        yield


def take(core: int, speed: float) -> None:
    """Keep `core` busy for what `speed` leaves of each millisecond, until the process ends."""
    end_with_standard_input()  # before this thread's core and priority: the other one gets neither
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    print("taking", flush=True)
    clock, taken_ns = time.perf_counter_ns, round(PERIOD_NS * (1 - speed))
    begins_ns = clock()
    while True:
        # What a late start missed is not made up: the share of a period is what counts.
        begins_ns = max(begins_ns + PERIOD_NS, clock())
        ends_ns = begins_ns + taken_ns
        while clock() < ends_ns:
            pass
        time.sleep(max(0, begins_ns + PERIOD_NS - clock()) / 1e9)


if __name__ == "__main__":
    take(int(sys.argv[1]), float(sys.argv[2]))
