"""The device's signed status for the validator: after each handshake, and whenever it changes."""

import asyncio
from collections.abc import Callable

from link1.device_end import DeviceEnd
from link1.objects import DeviceStatus


class ValidatorStatus:
    """Sends the status. Every method runs on the loop's thread. `kick`: something was queued for the
    cable."""

    def __init__(self, end: DeviceEnd, now: Callable[[], DeviceStatus], kick: Callable[[], None]) -> None:
        self._end = end
        self._now = now
        self._kick = kick
        self._due = False

    def send(self) -> None:
        """A session has begun, or something has changed."""
        self._due = False
        self._end.send_status(self._now())
        self._kick()

    def changed(self) -> None:
        """Something has changed; changes at the same time are sent in one status."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._send_due)

    def _send_due(self) -> None:
        # A handshake may have sent the same status meanwhile.
        if self._due:
            self.send()
