"""Helper processes of a bench end with it, also when it is killed and can end nothing itself.

What is left behind would go on with its work: read a terminal that another program gets later under the same
number, send requests, keep a core busy.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable
from typing import Final

_ORPHANED: Final = 1
"""The exit status, which no one is there to read."""


def end_with_standard_input() -> None:
    """End this process when its standard input ends: a pipe that the program which started it holds open."""

    def drain() -> None:
        while os.read(0, 4096):
            pass

    _end_after(drain)


def end_with_parent() -> None:
    """End this process, one of `multiprocessing`, when the process that started it does."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        _end_after(parent.join)


def _end_after(wait: Callable[[], object]) -> None:
    def watch() -> None:
        wait()
        os._exit(_ORPHANED)  # not by an exception: the main thread may be in a call that never returns

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
