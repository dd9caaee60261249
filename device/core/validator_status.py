"""The device's signed status for the validator: after each handshake, and whenever it changes."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from device import APP_PACKAGE
from device.core.served_gallery import ServedGallery
from device.health import Health
from device.platform.clock import Clock
from device.trust.pinning import Pinning
from link1.device_end import DeviceEnd
from link1.objects import DeviceStatus, LastVerdict, MailMarks


@dataclass(frozen=True, slots=True)
class StatusFacts:
    """The sources of the status."""

    device_id: str
    app_version: str
    model_id: str
    health: Health
    pinning: Pinning
    gallery: ServedGallery
    last: Callable[[], LastVerdict | None]
    mail: Callable[[], MailMarks]
    clock: Clock

    def now(self) -> DeviceStatus:
        return DeviceStatus(
            device_id=self.device_id,
            nonce_b64="",  # the device's end inserts the nonce of its session
            serving=self.health.serving,
            health=tuple(str(word) for word in self.health.words),
            app_pkg=APP_PACKAGE,
            app_version=self.app_version,
            model_id=self.model_id,
            thr_id=self.pinning.policy.thresholds.thr_id,
            gallery=self.gallery.mark(),
            last=self.last(),
            mail=self.mail(),
            at_ms=self.clock.wall_ms(),
        )


class ValidatorStatus:
    """Sends the status. Every method runs on the loop's thread. `kick`: something was queued for the
    cable."""

    def __init__(self, end: DeviceEnd, facts: StatusFacts, kick: Callable[[], None]) -> None:
        self._end = end
        self._facts = facts
        self._kick = kick
        self._loop = asyncio.get_running_loop()
        self._due = False

    def send(self) -> None:
        """A session has begun, or something has changed."""
        self._due = False
        self._end.send_status(self._facts.now())
        self._kick()

    def changed(self) -> None:
        """Something has changed; changes at the same time are sent in one status."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._send_due)

    def _send_due(self) -> None:
        # A handshake may have sent the same status meanwhile.
        if self._due:
            self.send()
