"""A thread on another processor core than its caller's, for work that goes on at the same time."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress


def second_core(name: str) -> ThreadPoolExecutor:
    """One thread of this name, started by its first caller; off the core to which that caller is bound.

    Without this a kernel in a virtual machine, which takes a halted core for a busy one, starts the second
    half of a computation on the core of the first half.
    """
    return ThreadPoolExecutor(1, name, initializer=_off_the_core_of_the_caller)


def _off_the_core_of_the_caller() -> None:
    whole, inherited = os.sched_getaffinity(os.getpid()), os.sched_getaffinity(0)
    # A service manager may refuse the choice, as the unit of an older package does.
    with suppress(OSError):
        os.sched_setaffinity(0, (whole - inherited) or whole)
