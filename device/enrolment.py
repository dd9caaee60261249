"""Enrolment at the device: a session's QR code, then each palm in turn, then one upload (device surface §3).

A sans-I/O flow: events go in with the monotonic time, effects come out. It asks for one hand after the other,
takes up to three good captures of each, and sees the hand leave in between. Enrolment is held to more than a
passage is: `enrol_quality_q`, liveness passed, the hand asked for, captures that agree with each other and
differ from the other hand's; for a bad template is a false match waiting for its day.

    flow = EnrolmentFlow(model_id, lambda: thresholds)
    effects = flow.qr_seen(payload, now_ms)       # or flow.redeemed(session, now_ms)
    effects = flow.look(look, now_ms)             # every frame examined while flow.busy
    effects = flow.answered(upload_id, answer)
    effects = flow.tick(now_ms)                   # at flow.next_deadline_ms

A device does either a passage or an enrolment: whoever composes the two offers QR codes only while no passage
request is armed, and has no passage captured while `busy`.
"""

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from http import HTTPStatus
from typing import Any, Final

from device.decision import Thresholds
from device.enrolment_captures import CAPTURES_WANTED, HandCaptures, HandName, PalmCapture, erase
from device.enrolment_outbox import LONGEST_WAIT_MS, EnrolmentAnswer
from link1.canonical import JsonObject, b64_encode, read_strict
from link1.errors import FormatError
from link1.objects import GuideHint

HAND_LIMIT_MS: Final = 60_000
"""A hand that gave no good captures in this time ends the session: `capture_rejected`."""
REMOVED_MS: Final = 300
"""A hand not seen for so long has left."""
HINT_EVERY_MS: Final = 300
"""Hints that change more often than this cannot be read."""

BOTH_HANDS: Final[tuple[HandName, ...]] = ("L", "R")
QR_PREFIX: Final = "SVC"

_FINISHED_REMEMBERED: Final = 32
_ANSWER_MAX_BYTES: Final = 64 * 1024


class Step(StrEnum):
    """What the person is to do, or what is being done."""

    SHOW_HAND = "show_hand"
    REMOVE_HAND = "remove_hand"
    SENDING = "sending"


class CaptureHint(StrEnum):
    """Why the hand in view is not taken, besides the hints of the cable."""

    OTHER_HAND = "other_hand"


@dataclass(frozen=True, slots=True)
class EnrolmentSession:
    """An open session. `hands_required` is None when it came by QR code, which does not say."""

    session_id: str
    token: str = field(repr=False)
    hands_required: tuple[HandName, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class EnrolmentLook:
    """One examined frame: which hand was seen, what kept it from being taken, or the capture itself.

    `capture` stands when `enrol_quality_q` was reached; liveness is judged here, by its `pad`.
    """

    hand_present: bool
    hand: HandName | None = None
    hint: GuideHint | None = None
    capture: PalmCapture | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """To be shown: the step, the hand asked for, a hint, and how many captures of it there are."""

    step: Step
    hand: HandName | None = None
    hint: GuideHint | CaptureHint | None = None
    captured: int = 0
    wanted: int = CAPTURES_WANTED


@dataclass(frozen=True, slots=True)
class Upload:
    """A body of `POST /v1/enrollments` to deliver; its answer comes back through `answered`."""

    upload_id: int
    body: JsonObject = field(repr=False)


@dataclass(frozen=True, slots=True)
class Done:
    """The service has taken the enrolment; with `review` an operator must approve it first."""

    session_id: str
    review: bool
    subject_ref: str | None


@dataclass(frozen=True, slots=True)
class Failed:
    """It ended without success. `code`: capture_rejected, not_sent, cancelled, or the service's word."""

    session_id: str
    code: str


Effect = Prompt | Upload | Done | Failed


class _Phase(Enum):
    CAPTURING = auto()
    REMOVING = auto()
    SENDING = auto()


@dataclass(slots=True)
class _Running:
    """The session in progress."""

    session: EnrolmentSession
    hands: tuple[HandName, ...]
    captures: list[HandCaptures]
    deadline_ms: int
    phase: _Phase = _Phase.CAPTURING
    index: int = 0
    last_seen_ms: int = 0
    prompted: Prompt | None = None
    prompted_at_ms: int = 0
    offers: list[tuple[HandName, ...]] = field(default_factory=list)
    upload_id: int = 0

    @property
    def hand(self) -> HandName:
        """The hand asked for."""
        return self.hands[self.index]

    @property
    def current(self) -> HandCaptures:
        """Its captures."""
        return self.captures[self.index]


class EnrolmentFlow:
    """At most one enrolment at a time. Belongs to the loop; nothing here blocks or waits."""

    def __init__(
        self,
        model_id: str,
        thresholds: Callable[[], Thresholds],
        *,
        qr_hands: tuple[HandName, ...] = BOTH_HANDS,
        qr_prefix: str = QR_PREFIX,
    ) -> None:
        """`thresholds` gives those in force; `qr_hands` are asked for where a QR code began the session;
        `qr_prefix` are the letters that a code of this service begins with."""
        self._model_id = model_id
        self._thresholds = thresholds
        self._qr_hands = qr_hands
        self._qr_prefix = qr_prefix
        self._running: _Running | None = None
        self._finished: deque[str] = deque(maxlen=_FINISHED_REMEMBERED)
        self._last_upload_id = 0

    @property
    def busy(self) -> bool:
        """Whether hands are being captured: the camera belongs to the enrolment."""
        return self._running is not None and self._running.phase is not _Phase.SENDING

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` is due, if nothing happens before."""
        return self._running.deadline_ms if self._running else None

    def qr_seen(self, payload: str, now_ms: int) -> list[Effect]:
        """A QR code stands before the camera; it is seen many times, and any code may be held there."""
        session = parse_qr(payload, self._qr_prefix)
        return self.redeemed(session, now_ms) if session is not None else []

    def redeemed(self, session: EnrolmentSession, now_ms: int) -> list[Effect]:
        """Begin with `session`, unless another is in progress or this one has ended."""
        if self._running is not None or session.session_id in self._finished:
            return []
        hands = session.hands_required or self._qr_hands
        # The captures of one hand agree like a passage with its template does.
        agree_cosine = self._thresholds().accept_q / 10_000
        captures = [HandCaptures(agree_cosine) for _ in hands]
        self._running = _Running(session, hands, captures, now_ms + HAND_LIMIT_MS, last_seen_ms=now_ms)
        return self._prompt(self._running, Step.SHOW_HAND, None, now_ms)

    def look(self, look: EnrolmentLook, now_ms: int) -> list[Effect]:
        """What a frame showed. A capture in it belongs to the flow from here on."""
        running = self._running
        if running is None or running.phase is _Phase.SENDING:
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

    def answered(self, upload_id: int, answer: EnrolmentAnswer) -> list[Effect]:
        """The service has answered an upload; answers to uploads of sessions gone by are ignored."""
        running = self._running
        if running is None or running.phase is not _Phase.SENDING or running.upload_id != upload_id:
            return []
        if answer.status in (HTTPStatus.CREATED, HTTPStatus.ACCEPTED):
            subject_ref = _subject_ref(answer.body)
            review = answer.status == HTTPStatus.ACCEPTED
            self._end(running)
            return [Done(running.session.session_id, review, subject_ref)]
        if answer.code == "validation_failed" and running.offers:
            # A QR code does not say which hands its session wants: the service refuses any other set.
            return [self._offer(running)]
        self._end(running)
        return [Failed(running.session.session_id, answer.code or "refused")]

    def tick(self, now_ms: int) -> list[Effect]:
        """A deadline may have passed."""
        running = self._running
        if running is None or now_ms < running.deadline_ms:
            return []
        session = running.session
        self._end(running)
        if running.phase is _Phase.SENDING:
            return [Failed(session.session_id, "not_sent")]
        # What it was (quality, liveness, the wrong hand) is not told to the service or anyone else.
        report = Upload(self._new_upload_id(), {"token": session.token, "failed": "capture_rejected"})
        return [report, Failed(session.session_id, "capture_rejected")]

    def cancel(self) -> list[Effect]:
        """Give up, without a word to the service: the session stays open and its code may be shown again."""
        running = self._running
        if running is None:
            return []
        self._end(running, remember=False)
        return [Failed(running.session.session_id, "cancelled")]

    def _take(self, running: _Running, look: EnrolmentLook) -> GuideHint | CaptureHint | None:
        """Keeps the capture when it is one of the hand asked for; else says what is wrong with it."""
        capture = look.capture
        if look.hand is not None and look.hand != running.hand:
            if capture is not None:
                erase(capture)
            return CaptureHint.OTHER_HAND
        if capture is None:
            return look.hint
        if capture.pad.res != "pass" or capture.pad.score_q < self._thresholds().pad_q:
            erase(capture)
            return look.hint or GuideHint.HOLD_STILL
        if any(before.resemble(capture) for before in running.captures[: running.index]):
            erase(capture)
            return CaptureHint.OTHER_HAND
        running.current.add(capture)
        return look.hint

    def _hand_away(self, running: _Running, now_ms: int) -> list[Effect]:
        if now_ms - running.last_seen_ms < REMOVED_MS:
            return []
        if running.current.enough:
            return self._hand_done(running, now_ms)
        # The hand that comes next may be another person's.
        running.current.erase()
        return self._prompt(running, Step.SHOW_HAND, None, now_ms)

    def _hand_done(self, running: _Running, now_ms: int) -> list[Effect]:
        if running.index + 1 < len(running.hands):
            running.phase = _Phase.REMOVING
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
        running.upload_id = self._new_upload_id()
        captured = [
            capture
            for hand, of_hand in zip(running.hands, running.captures, strict=True)
            if hand in hands
            for capture in of_hand.held
        ]
        body: JsonObject = {
            "token": running.session.token,
            "model_id": self._model_id,
            "hands": [_hand_obj(capture) for capture in captured],
            "consents": [],
        }
        return Upload(running.upload_id, body)

    def _end(self, running: _Running, *, remember: bool = True) -> None:
        for captures in running.captures:
            captures.erase()
        if remember:
            self._finished.append(running.session.session_id)
        self._running = None

    def _prompt(
        self, running: _Running, step: Step, hint: GuideHint | CaptureHint | None, now_ms: int
    ) -> list[Effect]:
        """The prompt, when it says something new and not too soon after a mere hint."""
        hand = None if step is Step.SENDING else running.hand
        prompt = Prompt(step, hand, hint, len(running.current.held))
        before = running.prompted
        if prompt == before:
            return []
        only_hint = before is not None and (before.step, before.hand) == (step, hand)
        if only_hint and now_ms - running.prompted_at_ms < HINT_EVERY_MS:
            return []
        running.prompted, running.prompted_at_ms = prompt, now_ms
        return [prompt]

    def _new_upload_id(self) -> int:
        self._last_upload_id += 1
        return self._last_upload_id


def parse_qr(payload: str, prefix: str = QR_PREFIX) -> EnrolmentSession | None:
    """The session of `<prefix>1:ENR:<session_id>:<token>` (partner API, Enrollment session); else None."""
    found = re.fullmatch(
        re.escape(prefix) + r"1:ENR:([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}):([A-Za-z0-9_-]{16,256})",
        payload,
    )
    return EnrolmentSession(found[1], found[2]) if found else None


def _hand_obj(capture: PalmCapture) -> JsonObject:
    return {
        "hand": capture.hand,
        "vector_b64": b64_encode(capture.vector.astype("<f4").tobytes()),
        "quality_q": capture.quality_q,
        "pad": capture.pad.to_obj(),
    }


def _subject_ref(body: bytes) -> str | None:
    """Whom the service enrolled; for display only, so an unreadable answer costs nothing."""
    try:
        answer: dict[str, Any] = read_strict(body, max_bytes=_ANSWER_MAX_BYTES)
    except FormatError:
        return None
    subject_ref = answer.get("subject_ref")
    return subject_ref if isinstance(subject_ref, str) else None
