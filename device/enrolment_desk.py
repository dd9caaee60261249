"""The enrolment at this device: the flow, the upload that it ends in, and what people are shown."""

import logging
from collections.abc import Callable
from functools import partial

from device.clock import Clock
from device.enrolment import (
    Done,
    Effect,
    EnrolmentFlow,
    EnrolmentLook,
    Failed,
    Prompt,
    Upload,
)
from device.enrolment_outbox import EnrolmentAnswer, EnrolmentOutbox
from link1.canonical import JsonObject

_log = logging.getLogger(__name__)


class EnrolmentDesk:
    """Runs one enrolment at a time. `on_change` is told when the camera is needed or no longer needed."""

    def __init__(
        self,
        flow: EnrolmentFlow,
        outbox: EnrolmentOutbox,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        self._flow = flow
        self._outbox = outbox
        self._clock = clock
        self._on_change = on_change
        self._shown: JsonObject = {"step": "idle"}
        self._leaving = False

    @property
    def capturing(self) -> bool:
        """The camera belongs to the enrolment."""
        return self._flow.busy

    @property
    def hand_lingers(self) -> bool:
        """The hand that was enrolled is still there: it has not come for a passage."""
        return self._leaving

    @property
    def next_deadline_ms(self) -> int | None:
        return self._flow.next_deadline_ms

    def shown(self) -> JsonObject:
        """What a screen would show: `step`, and with it `hand`, `hint`, `captured`, `wanted` or `code`."""
        return self._shown

    def code_seen(self, payload: str) -> None:
        """A QR code was held before the camera."""
        self._do(self._flow.qr_seen(payload, self._clock.monotonic_ms()))

    def look(self, look: EnrolmentLook) -> None:
        """An examined frame, while `capturing`."""
        self._do(self._flow.look(look, self._clock.monotonic_ms()))

    def hand_seen(self, hand_present: bool) -> None:
        """Any other frame: the enrolled hand has left once no hand is there."""
        self._leaving = self._leaving and hand_present

    def tick(self) -> None:
        self._do(self._flow.tick(self._clock.monotonic_ms()))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Prompt(step, hand, hint, captured, wanted):
                    self._shown = {
                        "step": str(step),
                        "hand": hand,
                        "hint": None if hint is None else str(hint),
                        "captured": captured,
                        "wanted": wanted,
                    }
                case Upload(upload_id, body):
                    self._leaving = True
                    if not self._outbox.submit(
                        body, partial(self._answered, upload_id), self._clock.monotonic_ms()
                    ):
                        _log.warning("enrolment: too many uploads are waiting, the service is away")
                        self._do(self._flow.cancel())
                case Done(session_id, review, _):
                    _log.info("enrolment %s: %s", session_id, "held for review" if review else "completed")
                    self._shown = {"step": "review" if review else "done"}
                case Failed(session_id, code):
                    _log.warning("enrolment %s failed: %s", session_id, code)
                    self._shown = {"step": "failed", "code": code}
        if effects:
            self._on_change()

    def _answered(self, upload_id: int, answer: EnrolmentAnswer) -> None:
        self._do(self._flow.answered(upload_id, answer))
