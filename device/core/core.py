"""The core: the loop that connects the camera, the gate, the enrolment and the carrier.

A frame's journey: `Recogniser.look` on the inference thread (camera frame → hand → palm crop → quality →
vector → match, liveness next to both), `Core.on_look` here, then `device.core.gate` (decision → verdict →
journal → session → frame bytes → cable). A delta's journey is `device.core.carrier_api`'s, and ends in
`ServiceNews.gallery_changed`.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from device.core.gate import Gate
from device.core.self_description import ValidatorStatus
from device.core.served_gallery import ServedGallery
from device.enrolment.desk import EnrolmentDesk
from device.enrolment.preview import Preview
from device.enrolment.trial_pass import TrialPasses
from device.health import Health, HealthWord
from device.passage.engine import Conditions
from device.platform.clock import Clock
from device.platform.threads import BulkTurn
from device.trust.pinning import Pinning
from device.vision.inference import RecognitionFault
from device.vision.recognition import Interest, Look
from link1.device_end import DeviceEnd

FAULTY_AFTER: Final = 5
"""After recognition fails on so many frames in a row, the device is not ready."""

_UNUSABLE: Final = frozenset(
    {HealthWord.MODEL_FAULT, HealthWord.MODEL_MISMATCH, HealthWord.STORE_FAULT, HealthWord.REVOKED}
)
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Core:
    """Passes reports of the other threads and of the carriers to the parts concerned, and decides which part
    uses the camera. Every method runs on the loop's thread.

    `recognises`: there is a model. `want`: sets the interest of the inference thread, and whether it searches
    for QR codes. `kick`: something was queued for the cable.
    """

    gate: Gate
    end: DeviceEnd
    validator_status: ValidatorStatus
    gallery: ServedGallery
    enrolment: EnrolmentDesk
    preview: Preview
    passes: TrialPasses
    health: Health
    pinning: Pinning
    bulk_turn: BulkTurn
    clock: Clock
    recognises: bool
    want: Callable[[Interest, bool], None]
    kick: Callable[[], None]
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _timer_at_ms: int = field(default=0, init=False)
    _capture_wanted: bool = field(default=False, init=False)

    async def start(self) -> None:
        """Start: from here on there may be events."""
        await self.gate.start()
        self.gallery.look()
        self.health_changed()
        self.choose_interest()

    async def finish(self) -> None:
        """Wait for pending writes."""
        if self._timer is not None:
            self._timer.cancel()
        await self.gate.finish()

    # What the camera shows

    def on_look(self, look: Look) -> None:
        """An examined frame: for the enrolment while one captures, else for the gate."""
        self.bulk_turn.hand_seen(look.sighting.hand_present)
        if look.store_fault:
            # Before the gate gets the sighting, so that it abstains; `StoreWatch` clears the word.
            self.health.report(HealthWord.STORE_FAULT, look.store_fault)
        if self.recognises:
            self.health.clear(HealthWord.MODEL_FAULT)
        if self.enrolment.capturing:
            self.enrolment.look(look.for_enrolment())
            return
        look.drop()  # of an enrolment that has ended meanwhile
        self.gallery.look()  # as old as it is now: the check of every second waits where the disk is slow
        self.gate.sighted(look.sighting)
        self.passes.sighted(look.sighting)

    def on_code(self, payload: str) -> None:
        self.enrolment.code_seen(payload)

    def on_fault(self, fault: RecognitionFault) -> None:
        """Recognition failed on a frame; after `FAULTY_AFTER` in a row the device is not ready."""
        if fault.consecutive >= FAULTY_AFTER:
            self.health.report(
                HealthWord.MODEL_FAULT,
                f"recognition failed on {fault.consecutive} frames in a row ({fault.error}); see the log",
            )

    def capture_wanted(self, wanted: bool) -> None:
        """Whether a request waits for a hand."""
        self._capture_wanted = wanted
        self.choose_interest()

    def choose_interest(self) -> None:
        if not self.recognises:
            self.want(Interest.IDLE, False)
        elif self.enrolment.capturing:
            self.gate.hand_enrols()
            self.want(Interest.ENROLMENT, False)
        else:
            self.want(self._idle_interest(), True)
        self._set_timer()

    def _idle_interest(self) -> Interest:
        if self._capture_wanted or self.passes.rehearsing:
            return Interest.PASSAGE
        return Interest.PREVIEW if self.preview.watched else Interest.IDLE

    # Health, trust and configuration

    def health_changed(self) -> None:
        words = self.health.words
        _log.info("health: %s", " ".join(words) or "nothing to report")
        self.gate.conditions(
            Conditions(
                camera=HealthWord.CAMERA_FAULT not in words,
                recogniser=_UNUSABLE.isdisjoint(words),
                gallery=HealthWord.GALLERY_STALE not in words,
            )
        )
        self.enrolment.health_changed()
        self.validator_status.changed()

    def validator_keys_changed(self) -> None:
        """A validator key that no longer counts ends its session."""
        for event in self.end.keys_changed(self.clock.monotonic_ms()):
            self.gate.on_cable_event(event)
        self.kick_cable()

    def policy_changed(self) -> None:
        self.gate.configure(self.pinning.policy)
        self.gallery.look()
        self.validator_status.changed()

    # The cable and its deadlines

    def kick_cable(self) -> None:
        self.kick()
        self._set_timer()

    def _set_timer(self) -> None:
        """A timer that is set for an earlier time is left to find out that the deadline has moved away. One
        that is due is not set again: each message comes here, and a flood would put it off."""
        deadlines = (self.gate.next_deadline_ms(), self.enrolment.next_deadline_ms)
        at_ms = min((at_ms for at_ms in deadlines if at_ms is not None), default=None)
        if at_ms is None or (self._timer is not None and self._timer_at_ms <= at_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0, at_ms - self.clock.monotonic_ms()) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._time_is_up)
        self._timer_at_ms = at_ms

    def _time_is_up(self) -> None:
        self._timer = None
        self.gate.tick()
        self.enrolment.tick()
