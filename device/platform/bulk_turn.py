"""When bulk work may do its next piece: not while a frame is examined, nor while a hand is in view.

A snapshot page takes tens of milliseconds of Python, and Python runs one thread at a time: a hand that
arrives during that time would wait for it. The thread that applies the page therefore asks before each piece
of two milliseconds. It never waits longer than LONGEST_WAIT_S, so that the gallery also advances at a busy
gate.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

LONGEST_WAIT_S: Final = 0.05
"""A snapshot page has about thirty pieces, so 500 pages take a quarter of an hour at a gate that is never
empty."""


class BulkTurn:
    """Set by the inference thread and the loop, read by the threads that do bulk work."""

    def __init__(self, longest_wait_s: float = LONGEST_WAIT_S) -> None:
        """`longest_wait_s`: 0 where bulk work runs on the loop, which no frame then interrupts."""
        self._longest_wait_s = longest_wait_s
        self._no_hand, self._no_frame = threading.Event(), threading.Event()
        self._no_hand.set()
        self._no_frame.set()

    def hand_seen(self, present: bool) -> None:
        if present:
            self._no_hand.clear()
        else:
            self._no_hand.set()

    @contextmanager
    def examining(self) -> Iterator[None]:
        """Encloses the examination of one frame."""
        self._no_frame.clear()
        try:
            yield
        finally:
            self._no_frame.set()

    def wait(self) -> None:
        """Return when a piece may begin."""
        self._no_frame.wait(self._longest_wait_s)
        self._no_hand.wait(self._longest_wait_s)
