"""Enrolment at the device: a session, consent, each palm in turn, then one upload (device surface §3).

A sans-I/O flow: events go in with the monotonic time, effects come out. A session begins with its QR code
before the camera, or with its short code from a keypad, which the service exchanges. When the terms are shown
on this device, nothing is captured before they are accepted. Then the flow asks for one hand after the other,
takes the best three captures of each, and waits for the hand to leave in between. Enrolment requires more
than a passage: `enrol_quality_q`, passed liveness, the requested hand, captures that agree with each other
and differ from the other hand's, because a bad template leads to false matches later.

    flow = EnrolmentFlow(model_id, lambda: thresholds, agree_cosine=0.46, terms=terms)
    effects = flow.qr_seen(payload, now_ms)       # or flow.code_typed(code, now_ms), flow.redeem_answered(…)
    effects = flow.accept(version, purposes, at_ms, now_ms)
    effects = flow.look(look, now_ms)             # every frame examined while flow.busy
    effects = flow.answered(upload_id, answer, now_ms)
    effects = flow.tick(now_ms)                   # at flow.next_deadline_ms

A device does either a passage or an enrolment: the caller passes QR codes in only while no passage is being
captured, and has no passage captured while `busy`.
"""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, auto
from http import HTTPStatus
from typing import Final

from cloud_client.contract import QR_PREFIX
from device.enrolment.captures import HandCaptures, erase
from device.enrolment.consent import OPTIONAL, AcceptedPurpose, Asked, TermsFolder
from device.enrolment.effects import (
    CaptureHint,
    Effect,
    EnrolmentAccepted,
    EnrolmentFailed,
    RedeemCode,
    Step,
    Upload,
    capture_shown,
)
from device.enrolment.outbox import LONGEST_WAIT_MS, EnrolmentAnswer
from device.enrolment.session import (
    EnrolmentSession,
    normal_short_code,
    parse_qr,
    read_redeemed,
    write_enrolment,
    write_failure,
)
from device.errors import EnrolmentRefused
from device.values.recognition import EnrolmentLook, HandName
from device.values.status import ConsentShown, EnrolmentShown
from link1.errors import FormatError
from link1.objects import GuideHint
from models.thresholds import Thresholds

REDEEM_LIMIT_MS: Final = 20_000
"""A person waits at the keypad: without an answer by then, the service counts as unreachable."""
CONSENT_LIMIT_MS: Final = 180_000
"""Terms without an answer for so long are removed from the screen; the session stays open."""
HAND_LIMIT_MS: Final = 60_000
"""A hand without enough good captures in this time ends the attempt."""
TRIES: Final = 2
"""When the last attempt fails the session ends: `capture_rejected`."""
REMOVED_MS: Final = 300
"""A hand not seen for so long has left."""
HINT_EVERY_MS: Final = 300
"""Hints that change more often cannot be read."""
CODE_RESTS_MS: Final = 3_000
"""The code of an abandoned session starts it again only after it was out of view for so long."""

BOTH_HANDS: Final[tuple[HandName, ...]] = ("L", "R")
_FINISHED_REMEMBERED: Final = 32


class _Phase(Enum):
    CONSENT = auto()
    CAPTURING = auto()
    REMOVING = auto()
    SENDING = auto()


@dataclass(slots=True)
class _Running:
    """The session in progress."""

    session: EnrolmentSession
    hands: tuple[HandName, ...]
    captures: list[HandCaptures]
    phase: _Phase
    deadline_ms: int
    asked: Asked | None
    consents: tuple[AcceptedPurpose, ...] = ()
    tries: int = 1
    index: int = 0
    last_seen_ms: int = 0
    prompted: EnrolmentShown | None = None
    prompted_at_ms: int = 0
    offers: list[tuple[HandName, ...]] = field(default_factory=list)
    upload_id: int = 0

    @property
    def hand(self) -> HandName:
        return self.hands[self.index]

    @property
    def current(self) -> HandCaptures:
        return self.captures[self.index]


@dataclass(frozen=True, slots=True)
class _Redeeming:
    request_id: int
    deadline_ms: int


@dataclass(eq=False)
class EnrolmentFlow:
    """At most one enrolment at a time. Belongs to the loop; nothing here blocks or waits.

    `thresholds` returns those in force; `agree_cosine`: reached by captures of one hand with each other;
    `terms`: shown on this device's screen; None when people agree elsewhere, and the service then refuses
    enrolments without consent; `qr_hands`: the hands to enrol when a QR code began the session; `qr_prefix`:
    the first letters of this service's codes.
    """

    model_id: str
    thresholds: Callable[[], Thresholds]
    _: KW_ONLY
    agree_cosine: float
    terms: TermsFolder | None = None
    qr_hands: tuple[HandName, ...] = BOTH_HANDS
    qr_prefix: str = QR_PREFIX

    def __post_init__(self) -> None:
        self._running: _Running | None = None
        self._redeeming: _Redeeming | None = None
        self._finished: deque[str] = deque(maxlen=_FINISHED_REMEMBERED)
        self._rests: tuple[str, int] = ("", 0)
        self._last_id = 0

    @property
    def busy(self) -> bool:
        """Whether hands are being captured: the enrolment uses the camera."""
        return self._running is not None and self._running.phase in (_Phase.CAPTURING, _Phase.REMOVING)

    @property
    def idle(self) -> bool:
        """Whether nothing is in progress."""
        return self._running is None and self._redeeming is None

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` is due."""
        waiting = self._running or self._redeeming
        return waiting.deadline_ms if waiting else None

    def qr_seen(self, payload: str, now_ms: int) -> list[Effect]:
        """A QR code is in view. The same code is reported repeatedly, and it may be of any kind."""
        session = parse_qr(payload, self.qr_prefix)
        if session is None:
            return []
        rests, until_ms = self._rests
        if rests == session.session_id and now_ms < until_ms:
            self._rests = rests, now_ms + CODE_RESTS_MS
            return []
        return self.begin(session, now_ms)

    def code_typed(self, text: str, now_ms: int) -> list[Effect]:
        """A short code was typed in. Raises EnrolmentRefused when it is malformed or the device is busy."""
        code = normal_short_code(text)
        if code is None:
            raise EnrolmentRefused("not_a_code", "a short code has 8 letters and digits, such as 4F7K-9QRT")
        if not self.idle:
            raise EnrolmentRefused("busy", "another enrolment is in progress; finish or cancel it first")
        self._redeeming = _Redeeming(self._new_id(), now_ms + REDEEM_LIMIT_MS)
        return [capture_shown(Step.CHECKING_CODE), RedeemCode(self._redeeming.request_id, code)]

    def redeem_answered(self, request_id: int, answer: EnrolmentAnswer, now_ms: int) -> list[Effect]:
        """The service has answered a short code, or is unreachable."""
        if self._redeeming is None or self._redeeming.request_id != request_id:
            return []
        self._redeeming = None
        if answer.status != HTTPStatus.OK:
            return [EnrolmentFailed("", "unreachable" if answer.status == 0 else answer.code or "refused")]
        try:
            session = read_redeemed(answer.body)
        except FormatError:
            return [EnrolmentFailed("", "unreadable_answer")]
        # Of a session that is over a QR code in view says nothing; who has typed a code waits for an answer.
        over = EnrolmentFailed(session.session_id, "enrollment_session_invalid")
        return self.begin(session, now_ms) or [over]

    def begin(self, session: EnrolmentSession, now_ms: int) -> list[Effect]:
        """Begin `session`, unless another is in progress or this one has ended."""
        if not self.idle or session.session_id in self._finished:
            return []
        asked = self._asked_of(session)
        if asked is not None and self.terms is not None and not self.terms.has(asked.terms_version):
            self._rests = session.session_id, now_ms + CODE_RESTS_MS
            return [EnrolmentFailed(session.session_id, "terms_unknown")]
        hands = session.hands_required or self.qr_hands
        captures = [HandCaptures(self.agree_cosine) for _ in hands]
        running = _Running(session, hands, captures, _Phase.CONSENT, now_ms + CONSENT_LIMIT_MS, asked)
        self._running = running
        if asked is None:
            return self._start_capturing(running, now_ms)
        consent = ConsentShown(hands, asked.terms_version, tuple(asked.optional))
        return [EnrolmentShown(Step.CONSENT.value, consent=consent)]

    def accept(self, terms_version: str, purposes: Collection[str], at_ms: int, now_ms: int) -> list[Effect]:
        """The person accepts on the screen, at `at_ms` (epoch). Raises EnrolmentRefused."""
        running = self._running
        if running is None or running.phase is not _Phase.CONSENT or running.asked is None:
            raise EnrolmentRefused("not_asked", "no terms are on the screen; begin with the session's code")
        running.consents = running.asked.accepted(terms_version, purposes, at_ms)
        return self._start_capturing(running, now_ms)

    def look(self, look: EnrolmentLook, now_ms: int) -> list[Effect]:
        """An examined frame. The flow owns the capture in it."""
        running = self._running
        if running is None or not self.busy:
            if look.capture is not None:
                erase(look.capture)
            return []
        if look.hand_present:
            running.last_seen_ms = now_ms
        if running.phase is _Phase.REMOVING:
            if look.capture is not None:
                erase(look.capture)
            if now_ms - running.last_seen_ms < REMOVED_MS:
                return self._prompt(running, Step.REMOVE_HAND, None, now_ms)
            return self._next_hand(running, now_ms)
        if not look.hand_present:
            return self._hand_away(running, now_ms)
        hint = self._take(running, look)
        if running.current.complete(now_ms):
            return self._hand_done(running, now_ms)
        return self._prompt(running, Step.SHOW_HAND, hint, now_ms)

    def answered(self, upload_id: int, answer: EnrolmentAnswer, now_ms: int) -> list[Effect]:
        """The service has answered an upload; answers to uploads of earlier sessions are ignored."""
        running = self._running
        if running is None or running.phase is not _Phase.SENDING or running.upload_id != upload_id:
            return []
        if answer.status in (HTTPStatus.CREATED, HTTPStatus.ACCEPTED):
            review = answer.status == HTTPStatus.ACCEPTED
            self._end(running)
            return [EnrolmentAccepted(running.session.session_id, review)]
        if answer.code == "validation_failed" and running.offers:
            # A QR code does not name the hands of its session, and the service refuses any other set.
            return [self._offer(running)]
        # The session is still open where what it lacks can be put right, such as a consent.
        return self._give_up(running, answer.code or "refused", now_ms)

    def tick(self, now_ms: int) -> list[Effect]:
        """A deadline may have passed."""
        if self._redeeming is not None and now_ms >= self._redeeming.deadline_ms:
            self._redeeming = None
            return [EnrolmentFailed("", "unreachable")]
        running = self._running
        if running is None or now_ms < running.deadline_ms:
            return []
        if running.phase is _Phase.CONSENT:
            return self._give_up(running, "no_answer", now_ms)
        if running.phase is _Phase.SENDING:
            return self._give_up(running, "not_sent", now_ms)
        return self._minute_over(running, now_ms)

    def cancel(self, now_ms: int, code: str = "cancelled") -> list[Effect]:
        """Abandon the session without informing the service: it stays open and its code may be shown
        again."""
        if self._redeeming is not None:
            self._redeeming = None
            return [EnrolmentFailed("", code)]
        return [] if self._running is None else self._give_up(self._running, code, now_ms)

    def _asked_of(self, session: EnrolmentSession) -> Asked | None:
        if self.terms is None:
            return None
        optional = OPTIONAL if session.dataset_collection else ()
        return Asked(session.terms_version or self.terms.usual, optional)

    def _start_capturing(self, running: _Running, now_ms: int) -> list[Effect]:
        running.phase, running.index = _Phase.CAPTURING, 0
        running.deadline_ms, running.last_seen_ms = now_ms + HAND_LIMIT_MS, now_ms
        return self._prompt(running, Step.SHOW_HAND, None, now_ms)

    def _minute_over(self, running: _Running, now_ms: int) -> list[Effect]:
        """A hand still in view whose captures are enough has given them; else the attempt has failed."""
        in_view = running.phase is _Phase.CAPTURING and now_ms - running.last_seen_ms < REMOVED_MS
        if in_view and running.current.enough:
            return self._hand_done(running, now_ms)
        if running.tries < TRIES:
            return self._try_again(running, now_ms)
        session = running.session
        self._end(running)
        # The reason (quality, liveness, the wrong hand) is not disclosed.
        report = Upload(self._new_id(), write_failure(session.token))
        return [report, EnrolmentFailed(session.session_id, "capture_rejected")]

    def _try_again(self, running: _Running, now_ms: int) -> list[Effect]:
        """Drop all captures, because another person's hand may be among them."""
        for captures in running.captures:
            captures.erase()
        running.tries += 1
        self._start_capturing(running, now_ms)
        running.prompted = None
        return self._prompt(running, Step.SHOW_HAND, CaptureHint.TRY_AGAIN, now_ms)

    def _take(self, running: _Running, look: EnrolmentLook) -> GuideHint | CaptureHint | None:
        """Keep the capture if it shows the requested hand; otherwise return the hint."""
        capture = look.capture
        if look.hand is not None and look.hand != running.hand:
            if capture is not None:
                erase(capture)
            return CaptureHint.OTHER_HAND
        if capture is None:
            return look.hint
        if capture.pad.res != "pass" or capture.pad.score_q < self.thresholds().pad_q:
            erase(capture)
            return look.hint or GuideHint.HOLD_STILL
        if any(before.resemble(capture) for before in running.captures[: running.index]):
            erase(capture)
            return CaptureHint.OTHER_HAND
        agrees = running.current.add(capture)
        return look.hint or (None if agrees else GuideHint.HOLD_STILL)

    def _hand_away(self, running: _Running, now_ms: int) -> list[Effect]:
        if now_ms - running.last_seen_ms < REMOVED_MS:
            return []
        if running.current.enough:
            return self._hand_done(running, now_ms)
        # The next hand may be another person's.
        running.current.erase()
        return self._prompt(running, Step.SHOW_HAND, None, now_ms)

    def _hand_done(self, running: _Running, now_ms: int) -> list[Effect]:
        running.current.settle()
        if running.index + 1 < len(running.hands):
            running.phase, running.deadline_ms = _Phase.REMOVING, now_ms + HAND_LIMIT_MS
            return self._prompt(running, Step.REMOVE_HAND, None, now_ms)
        running.phase = _Phase.SENDING
        running.offers = [running.hands]
        if running.session.hands_required is None and len(running.hands) > 1:
            running.offers += [(hand,) for hand in running.hands]
        running.deadline_ms = now_ms + LONGEST_WAIT_MS
        return [*self._prompt(running, Step.SENDING, None, now_ms), self._offer(running)]

    def _next_hand(self, running: _Running, now_ms: int) -> list[Effect]:
        running.index += 1
        running.phase = _Phase.CAPTURING
        running.deadline_ms = now_ms + HAND_LIMIT_MS
        return self._prompt(running, Step.SHOW_HAND, None, now_ms)

    def _offer(self, running: _Running) -> Upload:
        hands = running.offers.pop(0)
        running.upload_id = self._new_id()
        captured = [
            capture
            for hand, of_hand in zip(running.hands, running.captures, strict=True)
            if hand in hands
            for capture in of_hand.held
        ]
        token = running.session.token
        return Upload(running.upload_id, write_enrolment(token, self.model_id, captured, running.consents))

    def _give_up(self, running: _Running, code: str, now_ms: int) -> list[Effect]:
        """End what may still be open at the service; a code still in view does not start it again."""
        self._end(running, remember=False)
        self._rests = running.session.session_id, now_ms + CODE_RESTS_MS
        return [EnrolmentFailed(running.session.session_id, code)]

    def _end(self, running: _Running, *, remember: bool = True) -> None:
        for captures in running.captures:
            captures.erase()
        if remember:
            self._finished.append(running.session.session_id)
        self._running = None

    def _prompt(
        self, running: _Running, step: Step, hint: GuideHint | CaptureHint | None, now_ms: int
    ) -> list[Effect]:
        """The prompt, if it is new and, when only the hint changes, not too soon."""
        hand = None if step is Step.SENDING else running.hand
        prompt = capture_shown(step, hand, hint, len(running.current.held), running.hands)
        before = running.prompted
        if prompt == before:
            return []
        only_hint = (
            before is not None
            and before.capture is not None
            and (before.step, before.capture.hand) == (step, hand)
        )
        if only_hint and now_ms - running.prompted_at_ms < HINT_EVERY_MS:
            return []
        running.prompted, running.prompted_at_ms = prompt, now_ms
        return [prompt]

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id
