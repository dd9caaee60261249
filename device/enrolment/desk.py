"""The enrolment at this device: runs the flow, sends its requests to the service, and updates the screen."""

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

from device.enrolment.effects import (
    Effect,
    EnrolmentAccepted,
    EnrolmentFailed,
    RedeemCode,
    Upload,
)
from device.enrolment.flow import REDEEM_LIMIT_MS, EnrolmentFlow
from device.enrolment.outbox import LONGEST_WAIT_MS, EnrolmentAnswer, EnrolmentOutbox
from device.platform.clock import Clock
from device.platform.threads import wait_at_most
from device.values.recognition import EnrolmentLook
from device.values.status import EnrolmentShown
from link1.canonical import canonical_bytes

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class EnrolmentDesk:
    """Runs one enrolment at a time. `on_change` is called when the camera is needed or no longer needed.

    The carrier takes `enrolments` and `redeems` to the service. `unready` says why no enrolment can begin
    now, and is empty when one can.
    """

    flow: EnrolmentFlow
    enrolments: EnrolmentOutbox
    redeems: EnrolmentOutbox
    clock: Clock
    on_change: Callable[[], None]
    unready: Callable[[], str]
    shown: EnrolmentShown = field(default=EnrolmentShown("idle"), init=False)
    """The content of the screen."""
    _seq: int = field(default=1, init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _sending: tuple[EnrolmentOutbox, int] | None = field(default=None, init=False)

    @property
    def capturing(self) -> bool:
        """Whether the enrolment uses the camera."""
        return self.flow.busy

    @property
    def next_deadline_ms(self) -> int | None:
        return self.flow.next_deadline_ms

    async def shown_after(self, seq: int, wait_s: float) -> tuple[int, EnrolmentShown]:
        """The number and content of the screen, as soon as its number differs from `seq` or the time is
        over."""
        if self._seq == seq:
            await wait_at_most(self._changed, wait_s)
        return self._seq, self.shown

    def health_changed(self) -> None:
        """`unready` may have changed: who waits for the screen looks at it again."""
        self._wake()

    def code_seen(self, payload: str) -> None:
        if self.unready():
            return
        self._do(self.flow.qr_seen(payload, self.clock.monotonic_ms()))

    def code_typed(self, text: str) -> None:
        """A short code was typed on a keypad. Raises EnrolmentRefused."""
        self._do(self.flow.code_typed(text, self.clock.monotonic_ms()))

    def accept(self, terms_version: str, purposes: Collection[str]) -> None:
        """The person has accepted the terms on the screen. Raises EnrolmentRefused."""
        now_ms, at_ms = self.clock.monotonic_ms(), self.clock.wall_ms()
        self._do(self.flow.accept(terms_version, purposes, at_ms, now_ms))

    def cancel(self, code: str = "cancelled") -> None:
        """Cancel the running enrolment, if any; what waits for the service is overwritten."""
        if self._sending is not None:
            outbox, ticket = self._sending
            outbox.withdraw(ticket)
            self._sending = None
        self._do(self.flow.cancel(self.clock.monotonic_ms(), code))

    def forget(self) -> None:
        """Overwrite everything, at a wipe or at the end of the program."""
        self.cancel()
        self.enrolments.clear()
        self.redeems.clear()

    def look(self, look: EnrolmentLook) -> None:
        """An examined frame, while `capturing`."""
        self._do(self.flow.look(look, self.clock.monotonic_ms()))

    def tick(self) -> None:
        now_ms, deadline_ms = self.clock.monotonic_ms(), self.next_deadline_ms
        self.enrolments.expire(now_ms)
        self.redeems.expire(now_ms)
        if self.capturing and deadline_ms is not None and now_ms >= deadline_ms and self.unready():
            self.cancel("not_ready")  # no fault of the palms: the session stays open
        self._do(self.flow.tick(now_ms))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case EnrolmentShown():
                    self._show(effect)
                case RedeemCode(request_id, short_code):
                    ticket = self.redeems.submit(
                        bytearray(canonical_bytes({"short_code": short_code})),
                        partial(self._redeemed, request_id),
                        self.clock.monotonic_ms(),
                        REDEEM_LIMIT_MS,
                    )
                    self._sending = None if ticket is None else (self.redeems, ticket)
                case Upload(upload_id, body):
                    self._send(upload_id, body)
                case EnrolmentAccepted(session_id, review):
                    _log.info("enrolment %s: %s", session_id, "held for review" if review else "completed")
                    self._sending = None
                    self._show(EnrolmentShown("review" if review else "done"))
                case EnrolmentFailed(session_id, code):
                    _log.warning("enrolment %s failed: %s", session_id or "by short code", code)
                    self._sending = None
                    self._show(EnrolmentShown("failed", code))
        if effects:
            self.on_change()

    def _send(self, upload_id: int, body: bytearray) -> None:
        now_ms, ends_ms = self.clock.monotonic_ms(), self.next_deadline_ms
        # Palms that are offered again have what is left of their session; a report has none of its own.
        lives_ms = LONGEST_WAIT_MS if ends_ms is None else ends_ms - now_ms
        ticket = self.enrolments.submit(body, partial(self._answered, upload_id), now_ms, lives_ms)
        self._sending = None if ticket is None else (self.enrolments, ticket)
        if ticket is None:
            _log.warning("enrolment: too many uploads are waiting, the service is away")
            self._do(self.flow.cancel(now_ms, "not_sent"))

    def _redeemed(self, request_id: int, answer: EnrolmentAnswer) -> None:
        self._do(self.flow.redeem_answered(request_id, answer, self.clock.monotonic_ms()))

    def _answered(self, upload_id: int, answer: EnrolmentAnswer) -> None:
        self._do(self.flow.answered(upload_id, answer, self.clock.monotonic_ms()))

    def _show(self, shown: EnrolmentShown) -> None:
        self.shown = shown
        self._seq += 1
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
