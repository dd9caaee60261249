"""Waiting for something that happens elsewhere: in another thread, in another process, on the disk."""

import time
from collections.abc import Callable


def until(condition: Callable[[], object], within_s: float = 20.0, every_s: float = 0.005) -> None:
    """Return as soon as ``condition()`` is true; AssertionError when it is not within ``within_s``."""
    ends_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends_s, f"not within {within_s:g} s"
        time.sleep(every_s)
