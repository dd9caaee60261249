"""The gate: connects sightings, the journal and the validator on the cable.

The second half of a frame's journey, top to bottom: `sighted` (decision), `_journal_verdict` (verdict,
numbered, chained and signed → journal, fsync, on its thread), `_send_verdict` (session → frame bytes →
cable). The transaction engine decides; the gate carries out its effects and answers its questions. Disk work
runs on the journal's thread, in the order of the calls.
"""

import asyncio
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, assert_never

from device.core.latency import Latencies
from device.errors import JournalError, SequenceHalted
from device.health import Health, HealthWord
from device.journal.evidence import MAX_UNBACKED
from device.journal.journal import Journal
from device.passage.decision import build_verdict
from device.passage.effects import (
    Effect,
    JournalVerdict,
    ListOpen,
    RecordDecision,
    RecordDisowned,
    RecordEvidence,
    RecordOutcomeUnknown,
    RecordPassage,
    RememberEnd,
    Resolve,
    SendError,
    SendGuide,
    SendVerdict,
    StartCapture,
    StopCapture,
)
from device.passage.engine import TransactionEngine
from device.passage.settings import Conditions, EngineSettings
from device.platform.clock import Clock
from device.platform.threads import StoreThread, T
from device.trust.policy import Policy
from device.trust.trust import Pinned, Trust
from device.values.recognition import Sighting
from device.values.status import PadStatus, VerdictSummary
from device.values.transactions import StoredVerdict, TxnMemory
from link1.bodies import MailChunk, MailPull
from link1.canonical import JsonObject
from link1.device_end import DeviceEnd
from link1.envelope import MessageType
from link1.events import (
    Backing,
    CancelReceived,
    DecisionReceived,
    DeviceEvent,
    Down,
    ErrorReceived,
    MailPullReceived,
    MailReceived,
    PassageReceived,
    Proven,
    ReadyReceived,
    RequestReceived,
    UnknownReceived,
    VerdictLeft,
    WrongEvidence,
)
from link1.keys import SigningKey
from link1.objects import GalleryMark, LastVerdict
from link1.signed import Kind, sign_object

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GateHost:
    """The gate's reports to the rest of the core. Called on the loop's thread."""

    capture_wanted: Callable[[bool], None]
    """Whether a request waits for a hand."""
    validator_proven: Callable[[], None]
    """A session has begun: a signed status is due."""
    news_for_upload: Callable[[], None]
    """The journal has a new entry for the service."""
    passed: Callable[[VerdictSummary, float, Mapping[str, float]], None]
    """A verdict's last byte has left: its summary, milliseconds since its frame, and those of each stage."""
    kick_cable: Callable[[], None]
    """Something was queued for the cable, or a deadline has changed."""
    cannot_go_on: Callable[[BaseException], None]
    """A fault of the program: it ends and is started again; the journal holds what was promised."""


class TakesMail(Protocol):
    """The receiver of the cable's mail messages."""

    def session_ended(self) -> None:
        """Questions of the session are not answered any more."""
        ...

    def received(self, chunk: MailChunk) -> None:
        """The validator offers a piece of mail."""
        ...

    def pulled(self, pull: MailPull) -> None:
        """The validator asks for mail."""
        ...


@dataclass(frozen=True, slots=True)
class GateParts:
    """What the gate works with. `policy`: the one in force at the start."""

    end: DeviceEnd
    journal: Journal
    journal_thread: StoreThread
    mail: TakesMail
    pinned: Pinned
    policy: Policy
    verdict_key: SigningKey
    model_id: str
    gallery_mark: Callable[[], GalleryMark]
    health: Health
    clock: Clock


@dataclass
class _OnItsWay:
    """A verdict between its decision and the cable, for the latency figures."""

    frame_at_ms: int
    decided_at_s: float
    stage_ms: dict[str, float]

    def since_decided_ms(self) -> float:
        return (time.perf_counter() - self.decided_at_s) * 1000.0


class Gate:
    """Every method runs on the loop's thread."""

    def __init__(self, parts: GateParts, host: GateHost) -> None:
        self.latencies = Latencies()
        self.counters = Counter({"pad.fail": 0, "cable.resets": 0})
        """Since the start: `verdicts.DECISION.RESULT`, `pad.fail`, `cable.resets`."""
        self._parts = parts
        self._host = host
        self._end = parts.end
        self._journal = parts.journal
        self._thread = parts.journal_thread
        self._health = parts.health
        self._clock = parts.clock
        self._last: LastVerdict | None = None
        self._last_said: VerdictSummary | None = None
        self._validator_kid: str | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._session = 0
        self._on_its_way: dict[str, _OnItsWay] = {}
        self._unbacked: dict[Backing, deque[RecordEvidence]] = {
            backing: deque(maxlen=MAX_UNBACKED) for backing in (Backing.REVOKED, Backing.UNSIGNED)
        }
        self._keeping_unbacked = False
        self._engine = TransactionEngine(
            _settings(parts.policy, parts.pinned.trust),
            Conditions(camera=False, recogniser=False, gallery=False),
        )

    @property
    def last(self) -> LastVerdict | None:
        """The newest durable verdict."""
        return self._last

    @property
    def last_said(self) -> VerdictSummary | None:
        """The newest verdict since the start, with the subject removed."""
        return self._last_said

    @property
    def validator_kid(self) -> str | None:
        """The key by which the validator of this session has proved itself."""
        return self._validator_kid

    async def start(self) -> None:
        """Read the journal's newest verdict; before any event."""
        self._last = await self._thread.do(self._journal.last)
        if self._last is not None:
            self._engine.restarted()

    async def finish(self) -> None:
        """Wait for pending writes."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def open_txn_id(self) -> str | None:
        """The transaction that waits for a hand."""
        return self._engine.open_txn_id

    def next_deadline_ms(self) -> int | None:
        """When `tick` is due (monotonic ms)."""
        return self._engine.next_deadline_ms()

    def tick(self) -> None:
        self._do(self._engine.tick(self._now_ms()))

    def conditions(self, conditions: Conditions) -> None:
        """The conditions have changed."""
        self._do(self._engine.conditions(conditions, self._now_ms()))

    def journal_is_back(self) -> None:
        """Answers that arrived while the journal could not be written are lost here; the validator has
        them."""
        if self._end.proven:
            self._do(self._engine.journal_is_back(self._last.verdict_seq if self._last else 0))

    def configure(self, policy: Policy) -> None:
        """The service has sent a new configuration; a running capture is finished with the old one."""
        self._engine.configure(_settings(policy, self._parts.pinned.trust))

    # The second half of a frame's journey

    def sighted(self, sighting: Sighting) -> None:
        """A frame's sighting; the engine decides whether it settles an open request."""
        self._do(self._engine.sighting(sighting, self._now_ms()))

    async def _journal_verdict(self, decided: JournalVerdict) -> None:
        """Number, chain, sign and store a verdict; it is sent only after that."""
        txn_id, outcome = decided.request.txn_id, decided.outcome
        sighting, parts = outcome.sighting, self._parts
        way = _OnItsWay(
            frame_at_ms=sighting.at_ms if sighting else self._now_ms(),
            decided_at_s=time.perf_counter(),
            stage_ms=dict(sighting.stage_ms) if sighting else {},
        )
        decided_at_ms, gallery = self._clock.wall_ms(), parts.gallery_mark()

        def build(verdict_seq: int, prev_ref: str) -> JsonObject:
            verdict = build_verdict(
                decided.request,
                outcome,
                device_id=parts.pinned.trust.device_id,
                verdict_seq=verdict_seq,
                prev_ref=prev_ref,
                decided_at_ms=decided_at_ms,
                model_id=parts.model_id,
                thr_id=decided.thr_id,
                gallery=gallery,
            )
            return sign_object(Kind.VERDICT, verdict.to_obj(), parts.verdict_key)

        def append() -> StoredVerdict:
            way.stage_ms["to_journal"] = way.since_decided_ms()
            return self._journal.append_verdict(txn_id, decided.request_ref, build)

        try:
            stored = await self._thread.do(append)
        except JournalError as error:
            if not isinstance(error, SequenceHalted):  # reported as ROLLED_BACK
                self._store_failed(error)
            self._do(self._engine.verdict_failed(txn_id))
            return
        way.stage_ms["sign_and_journal"] = way.since_decided_ms() - way.stage_ms["to_journal"]
        self._on_its_way = {stored.ref: way}
        self._last = LastVerdict(stored.seq, stored.ref)
        pad = outcome.pad
        self.counters[f"verdicts.{outcome.result.decision}.{outcome.result}"] += 1
        self.counters["pad.fail"] += pad.res == "fail"
        self._last_said = VerdictSummary(
            verdict_seq=stored.seq,
            verdict_ref=stored.ref,
            decision=str(outcome.result.decision),
            result=str(outcome.result),
            quality_q=outcome.quality_q,
            score_q=outcome.score_q,
            pad=PadStatus(pad.res, pad.mech, pad.score_q),
            attempts=outcome.attempts,
        )
        self._do(self._engine.verdict_durable(txn_id, stored, self._now_ms()))
        self._host.news_for_upload()

    def _send_verdict(self, wrapper: JsonObject) -> None:
        """A durable verdict is sent before everything that waits; if it is lost, the validator asks again."""
        self._end.send_verdict(wrapper)
        self._host.kick_cable()

    def _verdict_left(self, event: VerdictLeft) -> None:
        """The verdict's last byte has left the port: the journey ends, and the decision is due."""
        self._engine.verdict_left(event.verdict_ref, self._now_ms())
        self._host.kick_cable()
        way = self._on_its_way.pop(event.verdict_ref, None)
        if way is None:
            return
        before_ms = way.stage_ms["to_journal"] + way.stage_ms["sign_and_journal"]
        way.stage_ms["cable"] = max(0.0, way.since_decided_ms() - before_ms)
        total_ms = float(self._now_ms() - way.frame_at_ms)
        self.latencies.add(total_ms, way.stage_ms)
        if self._last_said is not None:
            self._host.passed(self._last_said, total_ms, way.stage_ms)

    # Messages from the cable

    def on_cable_event(self, event: DeviceEvent) -> None:  # noqa: C901, PLR0912 - one line an event
        """One event of the device's end."""
        match event:
            case Proven():
                self._proven(event)
            case Down():
                self._down(event)
            case RequestReceived():
                self._request(event)
            case CancelReceived():
                self._cancel(event)
            case DecisionReceived():
                self._decision(event)
            case PassageReceived():
                self._passage(event)
            case WrongEvidence():
                self._do(self._engine.wrong_evidence(event.type.value, event.wrapper, event.backing))
            case UnknownReceived():
                self._do(self._engine.unknown(event.verdict_refs))
            case ReadyReceived():
                self._ready(event)
            case VerdictLeft():
                self._verdict_left(event)
            case MailReceived():
                self._parts.mail.received(event.chunk)
            case MailPullReceived():
                self._parts.mail.pulled(event.pull)
            case ErrorReceived():
                self._complaint(event)
            case _:
                assert_never(event)

    def _proven(self, event: Proven) -> None:
        self._validator_kid = event.validator_kid
        self._health.clear(HealthWord.LINK_DOWN)
        self._host.validator_proven()
        self._do(self._engine.link_proven(self._last.verdict_seq if self._last else 0))

    def _down(self, event: Down) -> None:
        self._session += 1
        self.counters["cable.resets"] += 1
        self._validator_kid = None
        self._parts.mail.session_ended()
        self._health.report(
            HealthWord.LINK_DOWN, f"the session with the validator ended: {event.reason.value}"
        )
        self._do(self._engine.link_down())

    def _request(self, event: RequestReceived) -> None:
        now_ms, request = self._now_ms(), event.request
        self._with_memory(
            request.txn_id, lambda memory: self._engine.request(request, event.wrapper, memory, now_ms)
        )

    def _cancel(self, event: CancelReceived) -> None:
        self._with_memory(event.txn_id, lambda memory: self._engine.cancel(event.txn_id, memory))

    def _decision(self, event: DecisionReceived) -> None:
        now_ms, decision = self._now_ms(), event.decision
        self._with_memory(
            decision.txn_id, lambda memory: self._engine.decision(decision, event.wrapper, memory, now_ms)
        )

    def _passage(self, event: PassageReceived) -> None:
        passage = event.passage
        self._with_memory(passage.txn_id, lambda memory: self._engine.passage(passage, event.wrapper, memory))

    def _ready(self, event: ReadyReceived) -> None:
        self._health.put(
            HealthWord.SENSOR_MISMATCH,
            event.passage_sensor != self._parts.pinned.trust.passage_sensor,
            "validator and registration disagree about the turn sensor; registration is followed",
        )

    def _complaint(self, event: ErrorReceived) -> None:
        _log.warning("the validator complains: %s about %s", event.code, event.about)

    def _with_memory(self, txn_id: str, step: Callable[[TxnMemory | None], list[Effect]]) -> None:
        """Read the journal's memory of a transaction, then take the step, unless the session has ended."""
        session = self._session

        async def ask() -> None:
            try:
                memory = await self._thread.do(lambda: self._journal.find_txn(txn_id))
            except JournalError as error:
                # Without its memory the device cannot distinguish a replay from a new request: do not answer.
                self._store_failed(error)
                return
            if session == self._session:
                self._do(step(memory))

        self._spawn(ask())

    # The engine's effects

    def _do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._carry_out(effect)
        self._host.kick_cable()

    def _carry_out(self, effect: Effect) -> None:  # noqa: C901, PLR0912 - one line an effect
        match effect:
            case StartCapture():
                self._host.capture_wanted(True)
            case StopCapture():
                self._host.capture_wanted(False)
            case SendGuide():
                self._end.send_guide(effect.txn_id, effect.hint)
            case SendVerdict():
                self._send_verdict(effect.wrapper)
            case SendError():
                self._end.send_error(effect.code, MessageType(effect.about), effect.txn_id)
            case Resolve():
                self._end.send_resolve(effect.verdict_refs)
            case JournalVerdict():
                self._spawn(self._journal_verdict(effect))
            case RememberEnd():
                self._spawn(self._remember_end(effect))
            case RecordDecision(ref, wrapper, awaits):
                self._record(lambda: self._journal.record_decision(ref, wrapper, awaits_passage=awaits))
            case RecordPassage(ref, wrapper):
                self._record(lambda: self._journal.record_passage(ref, wrapper))
            case RecordOutcomeUnknown(ref):
                self._record(lambda: self._journal.record_outcome_unknown(ref))
            case RecordDisowned(refs):
                self._record(lambda: self._journal.record_disowned(refs))
            case RecordEvidence():
                self._take_evidence(effect)
            case ListOpen():
                self._spawn(self._list_open(effect))
            case _:
                assert_never(effect)

    async def _remember_end(self, end: RememberEnd) -> None:
        await self._keep(lambda: self._journal.remember_end(end.txn_id, end.request_ref, end.code))
        self._do(self._engine.end_remembered(end.txn_id))

    def _record(self, work: Callable[[], None]) -> None:
        self._spawn(self._keep(work))

    def _take_evidence(self, evidence: RecordEvidence) -> None:
        """Messages signed by a validator key are kept at once. The others can be forged in any number, so
        only the newest are kept, one at a time, and no verdict waits behind them."""
        if evidence.backing is Backing.SIGNED:
            self._spawn(self._record_evidence(evidence))
            return
        self._unbacked[evidence.backing].append(evidence)
        if not self._keeping_unbacked:
            self._keeping_unbacked = True
            self._spawn(self._record_unbacked())

    async def _record_unbacked(self) -> None:
        try:
            while any(self._unbacked.values()):
                for waiting in self._unbacked.values():
                    if waiting:
                        await self._record_evidence(waiting.popleft())
        finally:
            self._keeping_unbacked = False

    async def _record_evidence(self, evidence: RecordEvidence) -> None:
        new = await self._keep(
            lambda: self._journal.record_evidence(
                evidence.about, evidence.wrapper, evidence.txn_id, evidence.backing
            )
        )
        if new is not None:
            # The journal knows what it keeps; the device's end also remembers messages beyond its limits.
            new = new and (not evidence.answer or self._end.first_copy(evidence.wrapper))
            self._do(self._engine.evidence_recorded(evidence, new=new))

    async def _list_open(self, asked: ListOpen) -> None:
        verdicts = await self._keep(
            lambda: self._journal.unacknowledged(
                after_seq=asked.after_seq, upto_seq=asked.upto_seq, limit=asked.limit
            )
        )
        if verdicts is not None:
            self._do(self._engine.open_verdicts(asked, verdicts, self._now_ms()))

    async def _keep(self, work: Callable[[], T]) -> T | None:
        """Do `work` in the journal; after a failure, which health reports, None. The passage goes on."""
        try:
            result = await self._thread.do(work)
        except JournalError as error:
            self._store_failed(error)
            return None
        self._host.news_for_upload()
        return result

    def _store_failed(self, error: JournalError) -> None:
        _log.error("%s", error)
        self._health.report(HealthWord.STORE_FAULT, str(error))

    def _now_ms(self) -> int:
        return self._clock.monotonic_ms()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        """Start `work`; the journal's thread does it in the order of these calls."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._host.cannot_go_on(error)


def device_end(pinned: Pinned, verdict_key: SigningKey, clock: Clock) -> DeviceEnd:
    """The device's end of the cable, with the keys pinned at each moment."""
    trust = pinned.trust
    return DeviceEnd(
        device_id=trust.device_id,
        gate_id=trust.gate_id,
        dbd_id=trust.dbd_id,
        verdict_key=verdict_key,
        validator_keys=lambda kid, at_ms: (
            pinned.validator_key(kid, clock.wall_ms()) if at_ms is None else pinned.trust.dbd_key(kid, at_ms)
        ),
        once_pinned=pinned.once_pinned,
        random=os.urandom,
    )


def _settings(policy: Policy, trust: Trust) -> EngineSettings:
    return EngineSettings(
        thresholds=policy.thresholds,
        attempts=policy.attempts,
        decision_timeout_ms=policy.decision_timeout_ms,
        passage_timeout_ms=policy.passage_timeout_ms,
        passage_sensor=trust.passage_sensor,
    )
