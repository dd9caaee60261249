"""Looking again and again until something is there."""

import time
from collections.abc import Callable
from typing import TypeVar

from tools.rig.demo.errors import DemoFailed

T = TypeVar("T")


def wait_for(what: str, within_s: float, look: Callable[[], T | None], every_s: float = 0.05) -> T:
    """What `look` finds; DemoFailed when it finds nothing in time."""
    deadline = time.monotonic() + within_s
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise DemoFailed(f"waited {within_s:.0f} s for {what}, which did not come")
        time.sleep(every_s)
    return found


def wait_until(what: str, within_s: float, done: Callable[[], bool], every_s: float = 0.05) -> None:
    """Like `wait_for`, for what is or is not."""
    wait_for(what, within_s, lambda: done() or None, every_s)
