"""The transaction engine: requests and sightings in, verdicts and errors out (LINK/1 §4). No I/O, no clock.

Invariants
1. At most one verdict for each txn_id, and one for each hand.
2. A verdict is sent only after it is durable, in a session in which its request was made or repeated.
3. An end without a verdict is reported only when it is durable, so that a replayed request uses up no
   verdict; where the disk cannot be written, when that has been tried.
4. No verdict without a hand, except for NOT_READY when the camera cannot see one.
5. Memory is bounded: durable records are in the journal, which the caller reads before it passes a message
   in.

Every method takes `now_ms` (monotonic milliseconds) and returns effects, to be carried out in that order.
Messages are passed in order of arrival, each with the journal's memory of its txn_id; the engine's own memory
takes precedence, because a journal read may be slightly out of date.

    engine.request(request, wrapper, None, now_ms)         → [StartCapture]
    engine.sighting(Sighting(...good and live...), now_ms) → [StopCapture, JournalVerdict]
    engine.verdict_durable(txn_id, stored, now_ms)         → [SendVerdict, SendGuide thanks]
    engine.decision(decision, wrapper, memory, now_ms)     → [RecordDecision]
"""

from dataclasses import dataclass, field

from device.passage.after_verdict import AfterVerdict, RecentTxns
from device.passage.decision import Attempt, Outcome
from device.passage.effects import (
    Effect,
    JournalVerdict,
    ListOpen,
    RecordEvidence,
    RecordOutcomeUnknown,
    RememberEnd,
    SendError,
    SendGuide,
    SendVerdict,
    StartCapture,
    StopCapture,
)
from device.passage.table import Life, State, Trigger
from device.trust.policy import Policy
from device.values.recognition import Sighting
from device.values.transactions import StoredVerdict, TxnMemory
from link1.canonical import JsonObject
from link1.events import Backing
from link1.members import HEX32
from link1.objects import (
    Decision,
    ErrorCode,
    GuideHint,
    LastVerdict,
    Passage,
    Request,
    VerdictResult,
)
from link1.signed import object_ref

EXPIRES_BEFORE_TTL_MS = 200
"""LINK/1 §4: without a hand, `error expired` is sent this long before the ttl ends."""
FINISHED_AFTER_TTL_MS = 1_000
"""LINK/1 §4: a hand that was in view by then is finished this long after the ttl."""
CAPTURE_WINDOW_MS = 1_500
"""The first sighting after this time decides. No timer does: what a slow board still examines may be the good
capture."""
PASSING_BY_MS = 300
"""A hand that leaves sooner without a good capture was only passing by."""

_MIN_GAP_MS = 200
_REPEAT_MS = 1_000
"""A hint is one unacknowledged frame: it is repeated while it holds, in case a frame was lost."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the device can do now. `camera`: it sees whether a hand is in view. `recogniser`: model and stores
    work and the device is not revoked. `gallery`: there is one and it is within its TTL.
    """

    camera: bool
    recogniser: bool
    gallery: bool


@dataclass(slots=True)
class _LiveTxn:
    """A request without a durable verdict. Times are monotonic milliseconds.

    `ref`: object_ref of its wrapper. `session`: the session in which it was made or last repeated.
    """

    request: Request
    ref: str
    session: int
    expires_ms: int
    finish_ms: int
    attempt: Attempt
    life: Life = field(default_factory=Life)
    captured_from_ms: int = 0


@dataclass(slots=True)
class _Ending:
    """An end that is being made durable, and the message types to answer then."""

    memory: TxnMemory
    answers: list[str] = field(default_factory=list)


class _Guidance:
    """Limits hints to five a second (LINK/1 §4, guide)."""

    def __init__(self) -> None:
        self._last: tuple[str, GuideHint] | None = None
        self._last_ms: int | None = None

    def wants(self, txn_id: str, hint: GuideHint, now_ms: int) -> bool:
        """Whether to send `hint` now; it then counts as sent."""
        if self._last_ms is not None:
            gap_ms = now_ms - self._last_ms
            if gap_ms < _MIN_GAP_MS or (self._last == (txn_id, hint) and gap_ms < _REPEAT_MS):
                return False
        self._last = (txn_id, hint)
        self._last_ms = now_ms
        return True


class TransactionEngine:
    """The device's side of all transactions of one cable."""

    def __init__(self, policy: Policy, conditions: Conditions, *, passage_sensor: bool) -> None:
        """`passage_sensor`: as registered, regardless of `ready`."""
        self._policy = policy
        self._conditions = conditions
        self._gallery_since_ms = 0
        self._session = 0
        self._hand_present = False
        self._hand_spent = False
        self._current: _LiveTxn | None = None
        self._deciding: dict[str, _LiveTxn] = {}
        self._ending: dict[str, _Ending] = {}
        self._recent = RecentTxns()
        self._after = AfterVerdict(policy, self._recent, passage_sensor=passage_sensor)
        self._guidance = _Guidance()

    # State and time

    @property
    def open_txn_id(self) -> str | None:
        """The transaction that waits for a hand or captures it."""
        return self._current.request.txn_id if self._current else None

    def next_deadline_ms(self) -> int | None:
        """When `tick` is due, in monotonic milliseconds."""
        deadlines = (self._current_deadline_ms(), self._after.next_deadline_ms())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def configure(self, policy: Policy) -> None:
        """New settings; a running capture is finished with the old ones."""
        self._policy = policy
        self._after.configure(policy)

    def tick(self, now_ms: int) -> list[Effect]:
        return [*self._tick_current(now_ms), *self._after.tick(now_ms)]

    # The session

    def link_proven(self, last_seq: int) -> list[Effect]:
        """Both ends have proved themselves. `last_seq`: number of the newest verdict, 0 for none."""
        return [*self._end_session(), *self._after.session_begins(last_seq)]

    def journal_is_back(self, last_seq: int) -> list[Effect]:
        """The journal can be written again after a failure. Answers of the validator were lost meanwhile, so
        it is asked again as after a handshake; an armed request stays armed."""
        return self._after.session_begins(last_seq)

    def link_down(self) -> list[Effect]:
        """The session has ended: an armed request is dropped, and a sent verdict is repeated only on
        request."""
        return self._end_session()

    def _end_session(self) -> list[Effect]:
        self._session += 1
        effects = self._after.session_ends()
        for ending in self._ending.values():
            ending.answers.clear()
        if self._current is None:
            return effects
        self._current.life.step(Trigger.LINK_LOST)
        self._current = None
        return [*effects, StopCapture()]

    # Messages of the validator

    def request(
        self, request: Request, wrapper: JsonObject, memory: TxnMemory | None, now_ms: int
    ) -> list[Effect]:
        """A request whose wrapper, signature, contract and gate were checked; its ttl starts at `now_ms`."""
        ref = object_ref(wrapper)
        known = self._request_again(request.txn_id, ref, memory)
        if known is not None:
            return known
        effects = self._end_current(Trigger.REPLACED, ErrorCode.CANCELLED, answers=[])
        ttl_ends_ms = now_ms + request.ttl_ms
        self._current = _LiveTxn(
            request,
            ref,
            self._session,
            expires_ms=ttl_ends_ms - EXPIRES_BEFORE_TTL_MS,
            finish_ms=ttl_ends_ms + FINISHED_AFTER_TTL_MS,
            attempt=self._new_attempt(),
        )
        if not self._hand_spent:
            effects.append(StartCapture(request.txn_id))
        return [*effects, *self._look_at_hand(now_ms), *self._guide(None, now_ms)]

    def _request_again(self, txn_id: str, ref: str, memory: TxnMemory | None) -> list[Effect] | None:
        """The answer to a request with a known txn_id; None when it is unknown."""
        conflict: list[Effect] = [SendError(ErrorCode.TXN_CONFLICT, "request", txn_id)]
        live = self._deciding.get(txn_id)
        if self._current and self._current.request.txn_id == txn_id:
            live = self._current
        if live is not None:
            if live.ref != ref:
                return conflict
            live.session = self._session
            return []
        ending = self._ending.get(txn_id)
        known = ending.memory if ending else self._recent.newest(txn_id, memory)
        if known is None:
            return None
        if known.request_ref != ref:
            return conflict
        if known.verdict is not None:
            return [SendVerdict(txn_id, known.verdict.wrapper)]
        return self._tell_end(known, memory, "request")

    def cancel(self, txn_id: str, memory: TxnMemory | None) -> list[Effect]:
        """A cancel, which is unsigned. A verdict sent at the same time stays valid and is not sent again."""
        if self._current and self._current.request.txn_id == txn_id:
            return self._end_current(Trigger.CANCEL, ErrorCode.CANCELLED, answers=["cancel"])
        if txn_id in self._deciding:
            return []
        ending = self._ending.get(txn_id)
        known = ending.memory if ending else self._recent.newest(txn_id, memory)
        if known is None:
            return [SendError(ErrorCode.CANCELLED, "cancel", None)]
        return [] if known.verdict is not None else self._tell_end(known, memory, "cancel")

    def decision(
        self, decision: Decision, wrapper: JsonObject, memory: TxnMemory | None, now_ms: int
    ) -> list[Effect]:
        """A decision with a valid signature. A late one completes its verdict, also after `unknown`."""
        return self._after.decision(decision, wrapper, memory, now_ms)

    def passage(self, passage: Passage, wrapper: JsonObject, memory: TxnMemory | None) -> list[Effect]:
        """The turn sensor's report, with a valid signature."""
        return self._after.passage(passage, wrapper, memory)

    def wrong_evidence(
        self, about: str, wrapper: JsonObject, backing: Backing = Backing.UNSIGNED
    ) -> list[Effect]:
        """A decision or passage (`about`) whose signature alone disqualifies it; the link has answered it."""
        return [RecordEvidence(about, wrapper, _named_txn_id(wrapper), answer=False, backing=backing)]

    def evidence_recorded(self, recorded: RecordEvidence, *, new: bool) -> list[Effect]:
        """`new`: this same message was not kept before. Each distinct message is answered once."""
        if not (new and recorded.answer):
            return []
        # Without txn_id: the one in the message need not come from a signed request.
        return [SendError(ErrorCode.BAD_DECISION, recorded.about, None)]

    def unknown(self, verdict_refs: tuple[str, ...]) -> list[Effect]:
        """The validator has not acted on these verdicts and never will; a signed decision overrides that."""
        return self._after.unknown(verdict_refs)

    def open_verdicts(self, asked: ListOpen, verdicts: list[LastVerdict], now_ms: int) -> list[Effect]:
        """The answer to ListOpen; `asked` is that effect."""
        return self._after.listed(asked, verdicts, now_ms)

    # The hand

    def sighting(self, sighting: Sighting, now_ms: int) -> list[Effect]:
        """A frame's sighting. `hand_present` must not flicker: false means that the hand has left."""
        if not self._conditions.camera:
            return []  # the last frame of a camera that has failed meanwhile
        if not sighting.hand_present:
            return [*self._hand_left(now_ms), *self._guide(None, now_ms)]
        self._hand_present = True
        effects = self._look_at_hand(now_ms)
        txn = self._current
        if txn is not None and txn.life.state is State.CAPTURING:
            # A frame from before the gallery was fresh may have been searched in what it was before its page.
            outcome = txn.attempt.add(sighting) if sighting.at_ms >= self._gallery_since_ms else None
            if outcome is None and now_ms - txn.captured_from_ms >= CAPTURE_WINDOW_MS:
                outcome = txn.attempt.conclude()
            if outcome is not None:
                effects += self._decide(txn, outcome)
        return [*effects, *self._guide(sighting.hint, now_ms)]

    def hand_enrols(self, now_ms: int) -> None:
        """An enrolment uses the camera. Its hand asks for no passage, so it is spent until it has left."""
        self._hand_unseen(now_ms)
        self._hand_spent = True

    def _hand_unseen(self, now_ms: int) -> None:
        """Whose hand comes next is unknown, so a request that was capturing waits for one again. A spent hand
        stays spent: it was not seen to leave."""
        self._hand_present = False
        txn = self._current
        if txn is not None and txn.life.state is State.CAPTURING and now_ms < txn.expires_ms:
            txn.life.step(Trigger.HAND_UNSEEN)
            txn.attempt = self._new_attempt()

    def conditions(self, conditions: Conditions, now_ms: int) -> list[Effect]:
        if not conditions.camera:
            self._hand_unseen(now_ms)
        if conditions.gallery and not self._conditions.gallery:
            self._gallery_since_ms = now_ms
        self._conditions = conditions
        return [*self._look_at_hand(now_ms), *self._tick_current(now_ms)]

    def restarted(self) -> None:
        """The device has answered hands before this start: one in view may have had its verdict, and has to
        leave before it answers (LINK/1: one hand, one verdict)."""
        self._hand_spent = True

    def _hand_left(self, now_ms: int) -> list[Effect]:
        was_spent, self._hand_present, self._hand_spent = self._hand_spent, False, False
        txn = self._current
        if txn is None:
            return []
        if txn.life.state is State.ARMED:
            return [StartCapture(txn.request.txn_id)] if was_spent else []
        passing = txn.attempt.decisive == 0 and now_ms - txn.captured_from_ms < PASSING_BY_MS
        if passing and now_ms < txn.expires_ms:
            txn.life.step(Trigger.HAND_PASSED_BY)
            txn.attempt = self._new_attempt()
            return []
        return self._decide(txn, txn.attempt.conclude())

    def _look_at_hand(self, now_ms: int) -> list[Effect]:
        """Start with the hand in view, unless it is spent; abstain if it cannot be judged."""
        txn = self._current
        if txn is None or self._hand_spent or not self._hand_present:
            return []
        if txn.life.state is State.ARMED:
            txn.life.step(Trigger.HAND_CAME)
            txn.captured_from_ms = now_ms
        if not self._conditions.recogniser:
            return self._decide(txn, txn.attempt.abstain(VerdictResult.NOT_READY))
        if not self._conditions.gallery:
            return self._decide(txn, txn.attempt.abstain(VerdictResult.GALLERY_EXPIRED))
        return []

    def _guide(self, hint: GuideHint | None, now_ms: int) -> list[Effect]:
        txn = self._current
        if txn is None:
            return []
        if self._hand_spent and self._hand_present:
            hint = GuideHint.REMOVE_HAND
        elif txn.life.state is State.ARMED:
            hint = GuideHint.SHOW_HAND
        if hint is None or not self._guidance.wants(txn.request.txn_id, hint, now_ms):
            return []
        return [SendGuide(txn.request.txn_id, hint)]

    # The current transaction

    def _current_deadline_ms(self) -> int | None:
        txn = self._current
        if txn is None:
            return None
        if txn.life.state is State.ARMED or not self._conditions.camera:
            return txn.expires_ms
        return txn.finish_ms

    def _tick_current(self, now_ms: int) -> list[Effect]:
        txn, deadline_ms = self._current, self._current_deadline_ms()
        if txn is None or deadline_ms is None or now_ms < deadline_ms:
            return []
        if not self._conditions.camera:
            return self._decide(txn, txn.attempt.abstain(VerdictResult.NOT_READY))
        if txn.life.state is State.ARMED:
            return self._end_current(Trigger.TIME_UP, ErrorCode.EXPIRED, answers=["request"])
        return self._decide(txn, txn.attempt.conclude())

    def _decide(self, txn: _LiveTxn, outcome: Outcome) -> list[Effect]:
        txn.life.step(Trigger.OUTCOME)
        self._current = None
        self._hand_spent = self._hand_spent or self._hand_present
        self._deciding[txn.request.txn_id] = txn
        return [StopCapture(), JournalVerdict(txn.request, txn.ref, outcome, txn.attempt.thr_id)]

    def _end_current(self, trigger: Trigger, code: ErrorCode, *, answers: list[str]) -> list[Effect]:
        txn = self._current
        if txn is None:
            return []
        txn.life.step(trigger)
        self._current = None
        return [StopCapture(), *self._end(txn, code, answers)]

    def _end(self, txn: _LiveTxn, code: ErrorCode, answers: list[str]) -> list[Effect]:
        txn_id = txn.request.txn_id
        self._ending[txn_id] = _Ending(TxnMemory(txn_id, txn.ref, ended=code), answers)
        return [RememberEnd(txn_id, txn.ref, code)]

    def _tell_end(self, known: TxnMemory, journaled: TxnMemory | None, about: str) -> list[Effect]:
        """Report how the transaction ended, now or as soon as that is durable."""
        txn_id, code = known.txn_id, known.ended or ErrorCode.CANCELLED
        ending = self._ending.get(txn_id)
        if ending is not None:
            if about not in ending.answers:
                ending.answers.append(about)
            return []
        if journaled is not None and journaled.ended is not None:
            return [SendError(code, about, txn_id)]
        # The disk refused it; by now it may take it.
        self._ending[txn_id] = _Ending(known, [about])
        return [RememberEnd(txn_id, known.request_ref, code)]

    def _new_attempt(self) -> Attempt:
        return Attempt(self._policy.thresholds, attempts=self._policy.attempts)

    # Results of the journal

    def verdict_durable(self, txn_id: str, stored: StoredVerdict, now_ms: int) -> list[Effect]:
        """JournalVerdict was done."""
        txn = self._deciding.pop(txn_id)
        self._recent.note(TxnMemory(txn_id, txn.ref, verdict=stored))
        if txn.session != self._session:
            # Never sent in a session that did not ask: it could open a gate for a person who has left.
            txn.life.step(Trigger.WITHHELD)
            return [RecordOutcomeUnknown(stored.ref)]
        txn.life.step(Trigger.DURABLE)
        effects: list[Effect] = [SendVerdict(txn_id, stored.wrapper)]
        if self._guidance.wants(txn_id, GuideHint.THANKS, now_ms):
            effects.append(SendGuide(txn_id, GuideHint.THANKS))
        return [*effects, *self._after.sent(stored.ref, txn.life)]

    def verdict_left(self, verdict_ref: str, now_ms: int) -> None:
        """The last byte of a verdict has left the port: the time for its decision starts."""
        self._after.left(verdict_ref, now_ms)

    def verdict_failed(self, txn_id: str) -> list[Effect]:
        """JournalVerdict failed: a verdict that is not durable must not be sent, so the request ends."""
        txn = self._deciding.pop(txn_id)
        txn.life.step(Trigger.STORE_FAILED)
        return self._end(txn, ErrorCode.EXPIRED, ["request"] if txn.session == self._session else [])

    def end_remembered(self, txn_id: str) -> list[Effect]:
        """RememberEnd was done, or has failed, which STORE_FAULT reports."""
        ending = self._ending.pop(txn_id)
        self._recent.note(ending.memory)
        code = ending.memory.ended or ErrorCode.CANCELLED
        return [SendError(code, about, txn_id) for about in ending.answers]


def _named_txn_id(wrapper: JsonObject) -> str | None:
    """The transaction that a decision or passage names."""
    obj = wrapper.get("decision_obj", wrapper.get("passage"))
    txn_id = obj.get("txn_id") if isinstance(obj, dict) else None
    return txn_id if isinstance(txn_id, str) and HEX32.fullmatch(txn_id) else None
