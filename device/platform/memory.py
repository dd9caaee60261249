"""Keeps what is in memory (keys, templates) out of swap, core dumps and other processes' reach.

1. No core dump: RLIMIT_CORE 0, which cannot be raised again, and PR_SET_DUMPABLE 0, which also keeps
   processes of the same user from reading this one's memory (ptrace(2), /proc/PID/mem).
2. No swap: mlockall(2), where the limit on locked memory is lifted (the units set LimitMEMLOCK=infinity).
   With a limit, locking everything would make a later allocation fail, so nothing is locked and the device
   reports it.

3. Freed memory is overwritten: mallopt(M_PERTURB), for every library in the process. A template, its page
   and everything computed from it disappear from memory when they are no longer used, wherever they were
   copied to.

4. Memory stays flat without a page fault per picture: mallopt(M_ARENA_MAX, M_MMAP_THRESHOLD,
   M_TRIM_THRESHOLD). By default glibc gives each thread a heap and moves ever larger buffers into it; the
   heaps grow with every new order of sizes and are not given back. With a mapping for each buffer of 128 KiB
   memory is flat, but the kernel clears every page of every intermediate picture again: a quarter of a look.
   So a process has such mappings while it starts, which frees most, and keeps its buffers in the heaps from
   `settle_memory` on. (What is free inside of a heap cannot be given back once memory is locked.)

Memory that the C library never sees freed is not overwritten: objects of up to 512 bytes, keys among them,
which Python keeps in its own pools. Therefore a process that has no more use for its keys ends or restarts
(`device.core.palmd` and `device.syncd.main`, after a wipe).
"""

import ctypes
import errno
import logging
import os
import re
import resource
from pathlib import Path
from typing import Final

from link1.wire import WireObject

_log = logging.getLogger(__name__)

_AVAILABLE: Final = re.compile(r"^MemAvailable:\s+([0-9]{1,12}) kB$", re.MULTILINE)
_PR_SET_DUMPABLE: Final = 4
_M_PERTURB: Final = -6
_WHILE_STARTING: Final = {-8: 2, -3: 128 << 10, -1: 128 << 10}
"""M_ARENA_MAX: heaps; M_MMAP_THRESHOLD: bytes from which a buffer gets its own mapping, constant once set;
M_TRIM_THRESHOLD: free bytes at the end of a heap that are kept."""
_SETTLED: Final = {-3: 8 << 20, -1: 32 << 20}
"""The network of the joints takes 4 MiB a picture, which the kernel would clear in 1,030 page faults."""
_OVERWRITTEN: Final = 0xA5
"""Freed memory is filled with this, allocated memory with its complement."""
_MCL_CURRENT: Final = 1
_MCL_FUTURE: Final = 2
_MCL_ONFAULT: Final = 4
"""Lock only pages that are used: threads reserve far more than they touch (Linux 4.4)."""


class MemoryGuard(WireObject):
    """What is in force. `problem`: what could not be put in force, and what to do; empty when all is."""

    dumps_off: bool
    locked: bool
    problem: str


def guard_memory() -> MemoryGuard:
    """Put these protections in force for this process, as far as the system allows; the rest is logged."""
    problems: list[str] = []
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    if not libc.mallopt(_M_PERTURB, _OVERWRITTEN):
        problems.append("freed memory is not overwritten (this C library knows no M_PERTURB); use glibc")
    for parameter, value in _WHILE_STARTING.items():
        libc.mallopt(parameter, value)
    dumps_off = libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0
    if not dumps_off:
        problems.append(f"core dumps cannot be switched off ({os.strerror(ctypes.get_errno())})")
    locked, why = lock_all(libc)
    if not locked:
        problems.append(
            f"memory may be swapped out ({why}); set LimitMEMLOCK=infinity in the unit, or have no swap"
        )
    problem = "; ".join(problems)
    if problem:
        _log.warning("%s", problem)
    return MemoryGuard(dumps_off, locked, problem)


def settle_memory() -> None:
    """The start is over: give back what it freed, and keep from now on what each picture uses again."""
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    for parameter, value in _SETTLED.items():
        libc.mallopt(parameter, value)


def lock_all(libc: ctypes.CDLL) -> tuple[bool, str]:
    """Lock all memory of this process; whether it is locked, and why not."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if hard != resource.RLIM_INFINITY:
        try:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        except (ValueError, OSError):
            return False, f"at most {hard // 1024} KiB may be locked"
    else:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) == 0:
        return True, ""
    number = ctypes.get_errno()
    return False, errno.errorcode.get(number, str(number))


def available_mib() -> int | None:
    """How much memory programs can still get, in MiB; None where the kernel does not say."""
    try:
        found = _AVAILABLE.search(Path("/proc/meminfo").read_text(encoding="ascii"))
    except OSError:
        return None
    return None if found is None else int(found[1]) // 1024
