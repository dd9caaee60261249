"""What a validator does with a passage: asks, checks, decides once, answers always (LINK/1 §4).

The one rule that everything here serves: the turnstile is actuated only for the desk's own open request,
on the first copy of a verdict that fits it in every member, in time, and with a verdict_seq above every one
acted on before. Every verdict is answered; a verdict that may not be acted on gets `stale`, not actuated.

A `ValidatorDesk` wraps a `ValidatorEnd` and is driven in its place; it reads no clock but the wall clock
handed in, and writes nothing: `save` makes its memory durable before anything leaves or moves.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from link1.canonical import JsonObject, b64_encode
from link1.envelope import ABOUT_MESSAGE, MessageType
from link1.events import Down, ErrorReceived
from link1.link import RandomSource
from link1.objects import Decision, GuideHint, Passage, Request, Verdict, VerdictDecision, VerdictResult
from link1.signed import Kind, sign_object
from link1.validator.end import ValidatorEnd
from link1.validator.events import (
    DeviceProven,
    GuideReceived,
    ResolveReceived,
    ValidatorEvent,
    VerdictReceived,
)
from link1.validator.mail import MailEvent, ValidatorMail
from link1.validator.memory import MAX_ANSWERED, DeskMemory

LATE_AFTER_TTL_MS = 2_000
"""A verdict is acted on within ttl_ms and this of the request's last sending."""
REQUEST_NONCE_BYTES = 16
MAX_HELD_ANSWERS = 2 * MAX_ANSWERED
"""Messages that wait for room on the channel: what one `resolve` can ask for. A decision or a passage that
finds no place among them is remembered as far as `DeskMemory` goes, and said when the device asks for it."""
MAX_HINTS = 64
"""Hints remembered of one request: at five a second, longer than a person waits at a gate."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the operator's rules make of a verdict; the words are extensible."""

    outcome: str
    reason: str
    actuated: bool

    def decision_on(
        self, verdict: Verdict, verdict_ref: str, decision_seq: int, decided_at_ms: int
    ) -> Decision:
        """The decision that says it."""
        return Decision(
            txn_id=verdict.txn_id,
            gate_id=verdict.gate_id,
            dbd_id=verdict.dbd_id,
            nonce_b64=verdict.nonce_b64,
            verdict_ref=verdict_ref,
            reason=self.reason,
            outcome=self.outcome,
            actuated=self.actuated,
            decision_seq=decision_seq,
            decided_at_ms=decided_at_ms,
        )


STALE = Choice(outcome="BLOQUEAR", reason="stale", actuated=False)
"""The answer to every verdict that may not be acted on."""

Decide = Callable[[Verdict], Choice]


def accept_all(verdict: Verdict) -> Choice:
    """Open for every accept, stay closed for everything else."""
    if verdict.decision is VerdictDecision.ACCEPT:
        return Choice("LIBERAR", "ok", actuated=True)
    reasons = {VerdictResult.GALLERY_EXPIRED: "stale", VerdictResult.NOT_READY: "fault"}
    return Choice("BLOQUEAR", reasons.get(verdict.result, "not_recognised"), actuated=False)


class Save(Protocol):
    """Makes the memory durable before it returns; raises OSError when it cannot."""

    def __call__(self, memory: DeskMemory, /) -> None: ...


@dataclass(frozen=True, slots=True)
class RequestSent:
    """`again`: the identical request once more, after the session was reset."""

    request: Request
    again: bool


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """A request ended without a verdict; `why` is an error code, or `replaced`, `no_answer`."""

    txn_id: str
    why: str


@dataclass(frozen=True, slots=True)
class VerdictAnswered:
    """A verdict has its decision. `refused` says why it was not acted on: `repeat`, `not_open`,
    `mismatch`, `late`, `old_seq`; None when the operator's rules chose."""

    verdict: Verdict
    verdict_ref: str
    choice: Choice
    refused: str | None
    hints: tuple[GuideHint, ...]


@dataclass(frozen=True, slots=True)
class PassageReported:
    txn_id: str
    verdict_ref: str
    passed: bool
    cause: str


DeskEvent = ValidatorEvent | RequestSent | RequestEnded | VerdictAnswered | PassageReported | MailEvent


@dataclass(slots=True)
class _Open:
    """The one request that may still be answered."""

    request: Request
    wrapper: JsonObject
    sent_ms: int | None = None
    hints: list[GuideHint] = field(default_factory=list)

    @property
    def ends_ms(self) -> int | None:
        return None if self.sent_ms is None else self.sent_ms + self.request.ttl_ms + LATE_AFTER_TTL_MS


@dataclass(frozen=True, slots=True)
class TurnDue:
    """A turnstile was opened; its sensor reports at `at_ms`."""

    at_ms: int
    txn_id: str
    verdict_ref: str


class ValidatorDesk:
    """Driven like a ValidatorEnd; `arm` opens a request, everything else follows from what comes in."""

    def __init__(
        self,
        end: ValidatorEnd,
        *,
        decide: Decide,
        memory: DeskMemory,
        save: Save,
        wall_ms: Callable[[], int],
        random: RandomSource,
        turn_after_ms: int | None,
        mail: ValidatorMail | None = None,
    ) -> None:
        """`turn_after_ms`: how long after opening the turn sensor reports a person; None without a sensor.
        `mail`: the mail that this validator carries; None where it carries none."""
        self._end = end
        self._mail = mail
        self._identity = end.identity
        self._decide = decide
        self._save = save
        self._wall_ms = wall_ms
        self._random = random
        self._turn_after_ms = turn_after_ms
        self.memory = memory
        self._open: _Open | None = None
        self._turns: deque[TurnDue] = deque()
        self._outbox: deque[tuple[MessageType, JsonObject]] = deque()
        self._request_due = False
        self._unresolved: tuple[str, ...] = ()

    # ---- driving

    @property
    def held_answers(self) -> int:
        """Messages that wait for room, at most MAX_HELD_ANSWERS."""
        return len(self._outbox)

    @property
    def idle(self) -> bool:
        """True when everything said has been acknowledged and no turnstile is open."""
        return not self._outbox and not self._turns and self._end.link.idle

    @property
    def waits_for_port(self) -> bool:
        return self._end.waits_for_port

    def port_opened(self, now_ms: int) -> list[DeskEvent]:
        return self._follow(self._end.port_opened(now_ms), now_ms)

    def port_closed(self, now_ms: int) -> list[DeskEvent]:
        return self._follow(self._end.port_closed(now_ms), now_ms)

    def receive(self, data: bytes, now_ms: int) -> list[DeskEvent]:
        return self._follow(self._end.receive(data, now_ms), now_ms)

    def sent(self, count: int, now_ms: int, in_port: int = 0) -> list[DeskEvent]:
        return self._follow(self._end.sent(count, now_ms, in_port), now_ms)

    def data_to_send(self, now_ms: int, max_bytes: int = 4096) -> bytes:
        return self._end.data_to_send(now_ms, max_bytes)

    def next_deadline_ms(self) -> int | None:
        deadlines = [self._end.next_deadline_ms()]
        if self._mail is not None:
            deadlines.append(self._mail.next_deadline_ms())
        if self._open is not None:
            deadlines.append(self._open.ends_ms)
        if self._turns:
            deadlines.append(self._turns[0].at_ms)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def tick(self, now_ms: int) -> list[DeskEvent]:
        events = self._follow(self._end.tick(now_ms), now_ms)
        while self._turns and self._turns[0].at_ms <= now_ms:
            events.append(self._report_turn(self._turns.popleft()))
        ends_ms = None if self._open is None else self._open.ends_ms
        if ends_ms is not None and now_ms >= ends_ms:
            events += self._close_request("no_answer")
        events += self._send_waiting(now_ms)
        if self._mail is not None:
            self._mail.tick(now_ms)
        return events

    # ---- commands

    @property
    def open_txn_id(self) -> str | None:
        return None if self._open is None else self._open.request.txn_id

    def arm(self, ttl_ms: int, now_ms: int) -> list[DeskEvent]:
        """Open a new request; an open one is replaced. It goes out as soon as the device is proven."""
        events = self._close_request("replaced")
        request = Request(
            txn_id=self._random(16).hex(),
            gate_id=self._identity.gate_id,
            dbd_id=self._identity.id,
            nonce_b64=b64_encode(self._random(REQUEST_NONCE_BYTES)),
            issued_at_ms=self._wall_ms(),
            ttl_ms=ttl_ms,
        )
        self._open = _Open(request, sign_object(Kind.REQUEST, request.to_obj(), self._identity.key))
        self._request_due = True
        return events + self._send_waiting(now_ms)

    def cancel(self) -> list[DeskEvent]:
        """Withdraw the open request; a verdict that crosses the cancel is answered, not acted on."""
        if self._open is None:
            return []
        if self._end.proven and not self._request_due:  # else the device does not know it
            self._say(MessageType.CANCEL, {"txn_id": self._open.request.txn_id})
        events = self._close_request("cancelled")
        self._flush()
        return events

    # ---- what comes in

    def _follow(self, end_events: list[ValidatorEvent], now_ms: int) -> list[DeskEvent]:
        events: list[DeskEvent] = []
        for event in end_events:
            events.append(event)
            match event:
                case DeviceProven(_, device_kid):
                    self.memory = self.memory.for_device(device_kid)
                    self._request_due = self._open is not None
                    events += self._send_waiting(now_ms)
                case Down():
                    self._outbox.clear()  # the device asks again by resolve
                    self._unresolved = ()
                case GuideReceived(txn_id, hint):
                    self._note_hint(txn_id, hint)
                case VerdictReceived(verdict, _, verdict_ref):
                    events += self._answer(verdict, verdict_ref, now_ms)
                case ResolveReceived(verdict_refs):
                    self._resolve(verdict_refs)
                case ErrorReceived(code, about, txn_id):
                    # A device that could not read the type says `message`; then the txn_id decides.
                    known = {
                        MessageType.REQUEST: (None, self.open_txn_id),
                        ABOUT_MESSAGE: (self.open_txn_id,),
                    }
                    if self._open is not None and txn_id in known.get(about, ()):
                        events += self._close_request(code)
                case _:
                    pass
            if self._mail is not None:
                events += self._mail.follow(event, now_ms)
        return events + self._send_waiting(now_ms)

    def _note_hint(self, txn_id: str, hint: GuideHint) -> None:
        if self._open is not None and txn_id == self.open_txn_id and len(self._open.hints) < MAX_HINTS:
            self._open.hints.append(hint)

    def _send_waiting(self, now_ms: int) -> list[DeskEvent]:
        """Hand over what waits here, as far as the channel has room."""
        self._flush()
        return self._send_request(now_ms) if self._request_due else []

    def _send_request(self, now_ms: int) -> list[DeskEvent]:
        """Send the open request, or the identical bytes again in a new session: its ttl starts again."""
        if self._open is None or not self._end.send_request(self._open.wrapper):
            return []
        self._request_due = False
        again = self._open.sent_ms is not None
        self._open.sent_ms = now_ms
        return [RequestSent(self._open.request, again)]

    def _close_request(self, why: str) -> list[DeskEvent]:
        if self._open is None:
            return []
        txn_id, self._open = self._open.request.txn_id, None
        self._request_due = False
        self._answer_unknown()
        return [RequestEnded(txn_id, why)]

    def _answer(self, verdict: Verdict, verdict_ref: str, now_ms: int) -> list[DeskEvent]:
        known = self.memory.find(verdict_ref)
        if known is not None:
            self._say_again(verdict_ref)
            obj = known.decision["decision_obj"]
            choice = Choice(obj["outcome"], obj["reason"], obj["actuated"])
            return [VerdictAnswered(verdict, verdict_ref, choice, "repeat", ())]
        refused = self._why_not(verdict, now_ms)
        choice = STALE if refused else self._decide(verdict)
        decision = choice.decision_on(verdict, verdict_ref, self.memory.decision_seq + 1, self._wall_ms())
        wrapper = sign_object(Kind.DECISION, decision.to_obj(), self._identity.key)
        acted_on = None if refused else verdict.verdict_seq
        self._remember(self.memory.with_decision(verdict_ref, wrapper, acted_on))
        self._say(MessageType.DECISION, wrapper)
        hints: tuple[GuideHint, ...] = ()
        if self._open is not None and verdict.txn_id == self.open_txn_id and refused != "mismatch":
            hints = tuple(self._open.hints)
            self._open, self._request_due = None, False
            self._answer_unknown()
        if choice.actuated and self._turn_after_ms is not None:
            self._turns.append(TurnDue(now_ms + self._turn_after_ms, verdict.txn_id, verdict_ref))
        return [VerdictAnswered(verdict, verdict_ref, choice, refused, hints)]

    def _why_not(self, verdict: Verdict, now_ms: int) -> str | None:
        """Why a verdict seen for the first time may not be acted on. The end has checked signature, gate,
        validator and device."""
        if self._open is None or verdict.txn_id != self.open_txn_id:
            return "not_open"
        asked = self._open.request
        if (verdict.nonce_b64, verdict.issued_at_ms, verdict.ttl_ms) != (
            asked.nonce_b64,
            asked.issued_at_ms,
            asked.ttl_ms,
        ):
            return "mismatch"
        if self._open.ends_ms is None or now_ms > self._open.ends_ms:
            return "late"
        return "old_seq" if verdict.verdict_seq <= self.memory.highest_verdict_seq else None

    def _report_turn(self, turn: TurnDue) -> PassageReported:
        passage = Passage(
            txn_id=turn.txn_id,
            dbd_id=self._identity.id,
            gate_id=self._identity.gate_id,
            verdict_ref=turn.verdict_ref,
            passed=True,
            cause="giro",
            at_ms=self._wall_ms(),
            dbd_event_seq=self.memory.dbd_event_seq + 1,
        )
        wrapper = sign_object(Kind.PASSAGE, passage.to_obj(), self._identity.key)
        self._remember(self.memory.with_passage(turn.verdict_ref, wrapper))
        self._say(MessageType.PASSAGE, wrapper)
        return PassageReported(turn.txn_id, turn.verdict_ref, passage.passed, passage.cause)

    def _remember(self, memory: DeskMemory) -> None:
        self._save(memory)
        self.memory = memory

    # ---- outcomes of verdicts

    def _resolve(self, verdict_refs: tuple[str, ...]) -> None:
        for ref in verdict_refs:
            self._say_again(ref)
        self._unresolved = tuple(ref for ref in verdict_refs if self.memory.find(ref) is None)
        self._answer_unknown()

    def _say_again(self, verdict_ref: str) -> None:
        """Decision and passage as they were signed."""
        known = self.memory.find(verdict_ref)
        if known is None:
            return
        self._say(MessageType.DECISION, known.decision)
        if known.passage is not None:
            self._say(MessageType.PASSAGE, known.passage)

    def _say(self, type_: MessageType, body: JsonObject) -> None:
        if len(self._outbox) < MAX_HELD_ANSWERS:
            self._outbox.append((type_, body))

    def _answer_unknown(self) -> None:
        """`unknown` for what was certainly never acted on. While a request is open, one of these verdicts
        may be its own and come yet, so the answer waits; a desk that has forgotten answers stays silent."""
        if self._open is not None or not self.memory.complete:
            return
        refs = [ref for ref in self._unresolved if self.memory.find(ref) is None]
        self._unresolved = ()
        if refs and len(self._outbox) < MAX_HELD_ANSWERS:
            self._outbox.appendleft((MessageType.UNKNOWN, {"verdict_refs": refs}))

    def _flush(self) -> None:
        end = self._end
        senders: dict[MessageType, Callable[[JsonObject], bool]] = {
            MessageType.DECISION: end.send_decision,
            MessageType.PASSAGE: end.send_passage,
            MessageType.UNKNOWN: lambda body: end.send_unknown(body["verdict_refs"]),
            MessageType.CANCEL: lambda body: end.send_cancel(body["txn_id"]),
        }
        while self._outbox:
            type_, body = self._outbox[0]
            if not senders[type_](body):
                return
            self._outbox.popleft()
