"""When bulk work may begin its next piece: not while a hand is before the camera.

A page of a snapshot is tens of milliseconds of Python, and Python runs one thread at a time: a hand that came
just then would wait for it. So each piece waits until the hand is gone, but never longer than LONGEST_WAIT_S:
at a gate where hand follows hand the gallery must go on too.
"""

import asyncio
from typing import Final

LONGEST_WAIT_S: Final = 1.5
"""A hand is answered well within this, and with 500 pages a snapshot still arrives within a quarter of an
hour at the busiest gate."""


class BulkTurn:
    """Lives on the loop's thread."""

    def __init__(self) -> None:
        self._free = asyncio.Event()
        self._free.set()

    def hand_seen(self, present: bool) -> None:
        """What the latest frame showed."""
        if present:
            self._free.clear()
        else:
            self._free.set()

    async def wait(self) -> None:
        """Returns when a piece may begin."""
        try:
            async with asyncio.timeout(LONGEST_WAIT_S):
                await self._free.wait()
        except TimeoutError:
            return
