"""When bulk work may do its next piece: not while a frame is examined, nor while a hand is before the camera.

A page of a snapshot is tens of milliseconds of Python, and Python runs one thread at a time: a hand that came
just then would wait for it. So the thread that applies it asks before each piece of two milliseconds, and
waits; but never longer than LONGEST_WAIT_S, for at a gate where hand follows hand the gallery must go on too.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

LONGEST_WAIT_S: Final = 0.05
"""A snapshot page is some thirty pieces, so at a gate that is never empty 500 pages take a quarter of an
hour."""


class BulkTurn:
    """Told by the inference thread and the loop, asked by the threads that have bulk work."""

    def __init__(self) -> None:
        self._no_hand, self._no_frame = threading.Event(), threading.Event()
        self._no_hand.set()
        self._no_frame.set()

    def hand_seen(self, present: bool) -> None:
        """What the latest frame showed."""
        if present:
            self._no_hand.clear()
        else:
            self._no_hand.set()

    @contextmanager
    def examining(self) -> Iterator[None]:
        """Around the examination of one frame."""
        self._no_frame.clear()
        try:
            yield
        finally:
            self._no_frame.set()

    def wait(self) -> None:
        """Returns when a piece may begin."""
        self._no_frame.wait(LONGEST_WAIT_S)
        self._no_hand.wait(LONGEST_WAIT_S)
