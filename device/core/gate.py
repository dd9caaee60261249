"""The gate: connects sightings, the journal and the validator on the cable.

The second half of a frame's journey, top to bottom: `sighted` (decision), `_journal_verdict` (verdict,
numbered, chained and signed → journal, fsync, on its thread), `_send_verdict` (session → frame bytes →
cable). The transaction engine decides; the gate carries out its effects and answers its questions. Disk work
runs on the journal's thread, in the order of the calls.
"""

import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from typing import Final, assert_never

from device.core.latency import Latencies
from device.errors import JournalError, SequenceHalted
from device.health import Health, HealthWord
from device.journal.journal import MAX_UNBACKED, Journal
from device.mail.desk import MailDesk
from device.passage import effects
from device.passage.decision import build_verdict
from device.passage.engine import Conditions, TransactionEngine
from device.platform.clock import Clock
from device.platform.threads import RunningTasks, StoreThread, T
from device.trust.policy import Policy
from device.trust.trust import Pinned
from device.values.recognition import Sighting
from device.values.status import VerdictSummary
from device.values.transactions import StoredVerdict, TxnMemory
from link1 import events
from link1.bodies import MAX_REFS, MailChunk, MailPull
from link1.canonical import JsonObject
from link1.device_end import DeviceEnd
from link1.envelope import MessageType
from link1.keys import SigningKey
from link1.objects import GalleryMark, LastVerdict
from link1.signed import Kind, object_ref, sign_object

MAX_ASKING: Final = 3 * MAX_REFS
"""Messages that wait for the journal's memory at a time; what is beyond is dropped. The answers to one
`resolve` are two thirds of it."""
MAX_CANCELS_ASKING: Final = MAX_REFS
"""With so many of its kind waiting a `cancel` is dropped: it is unsigned, so an attacker in the cable can
forge any number, and what is signed keeps its room."""
MAX_DISOWNING: Final = MAX_REFS
"""With so many waiting an `unknown` is dropped: it is unsigned too, and the next handshake asks again."""
MAX_UNKEPT: Final = 1_024
"""Ends of requests, answers and missing answers that wait until the journal can be written; the oldest go
first."""

_log = logging.getLogger(__name__)


@dataclass
class _OnItsWay:
    """A verdict between its decision and the cable, for the latency figures."""

    frame_at_ms: int
    decided_at_s: float
    stage_ms: dict[str, float]

    def since_decided_ms(self) -> float:
        return (time.perf_counter() - self.decided_at_s) * 1000.0


@dataclass(eq=False)
class Gate:
    """Every method runs on the loop's thread, and calls the functions that it is given there. `policy`: the
    one in force at the start."""

    end: DeviceEnd
    journal: Journal
    journal_thread: StoreThread
    mail: MailDesk
    pinned: Pinned
    policy: InitVar[Policy]
    verdict_key: SigningKey
    model_id: str
    gallery_mark: Callable[[], GalleryMark]
    health: Health
    clock: Clock
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

    last: LastVerdict | None = field(default=None, init=False)
    """The newest durable verdict."""
    last_said: VerdictSummary | None = field(default=None, init=False)
    """The newest verdict since the start, with the subject removed."""
    validator_kid: str | None = field(default=None, init=False)
    """The key by which the validator of this session has proved itself."""

    def __post_init__(self, policy: Policy) -> None:
        self.latencies = Latencies()
        self.counters = Counter({"pad.fail": 0, "cable.resets": 0})
        """Since the start: `verdicts.DECISION.RESULT`, `pad.fail`, `cable.resets`."""
        # The journal's thread does their work in the order of the calls.
        self._tasks = RunningTasks(self.cannot_go_on)
        self._unkept: dict[tuple[str, str], Callable[[], bool]] = {}
        """What the journal could not record, by kind and reference: the validator may forget what it said."""
        self._session = 0
        self._asking = 0
        """Messages that wait for the journal's memory."""
        self._cancels_asking = 0
        """The cancels among them."""
        self._disowning = 0
        """The `unknown` messages that wait for the journal."""
        self._dropped = False
        """Whether a signed message found no room there since none waited."""
        self._on_its_way: dict[str, _OnItsWay] = {}
        self._unbacked: dict[events.Backing, deque[effects.RecordEvidence]] = {
            backing: deque(maxlen=MAX_UNBACKED)
            for backing in (events.Backing.REVOKED, events.Backing.UNSIGNED)
        }
        self._keeping_unbacked = False
        self._engine = TransactionEngine(
            policy,
            Conditions(camera=False, recogniser=False, gallery=False),
            passage_sensor=self.pinned.trust.passage_sensor,
        )

    async def start(self) -> None:
        """Read the journal's newest verdict; before any event."""
        self.last = await self.journal_thread.do(self.journal.last)
        if self.last is not None:
            self._engine.restarted()

    async def finish(self) -> None:
        """Wait for pending writes."""
        await self._tasks.finish()

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
        self._do(self._engine.conditions(conditions, self._now_ms()))

    def hand_enrols(self) -> None:
        """An enrolment uses the camera: no sighting comes until it has ended."""
        self._engine.hand_enrols(self._now_ms())

    def journal_is_back(self) -> None:
        """What could not be recorded is recorded now; what was lost all the same is asked for again."""
        self._tasks.start(self._keep_what_waits())
        self._ask_again()

    def configure(self, policy: Policy) -> None:
        """The service has sent a new configuration; a running capture is finished with the old one."""
        self._engine.configure(policy)

    # The second half of a frame's journey

    def sighted(self, sighting: Sighting) -> None:
        """A frame's sighting; the engine decides whether it settles an open request."""
        self._do(self._engine.sighting(sighting, self._now_ms()))

    async def _journal_verdict(self, decided: effects.JournalVerdict) -> None:
        """Number, chain, sign and store a verdict; it is sent only after that."""
        txn_id, outcome = decided.request.txn_id, decided.outcome
        sighting = outcome.sighting
        way = _OnItsWay(
            frame_at_ms=sighting.at_ms if sighting else self._now_ms(),
            decided_at_s=time.perf_counter(),
            stage_ms=dict(sighting.stage_ms) if sighting else {},
        )
        decided_at_ms, gallery = self.clock.wall_ms(), self.gallery_mark()

        def build(verdict_seq: int, prev_ref: str) -> JsonObject:
            verdict = build_verdict(
                decided.request,
                outcome,
                device_id=self.pinned.trust.device_id,
                verdict_seq=verdict_seq,
                prev_ref=prev_ref,
                decided_at_ms=decided_at_ms,
                model_id=self.model_id,
                thr_id=decided.thr_id,
                gallery=gallery,
            )
            return sign_object(Kind.VERDICT, verdict.to_obj(), self.verdict_key)

        def append() -> StoredVerdict:
            way.stage_ms["to_journal"] = way.since_decided_ms()
            return self.journal.append_verdict(txn_id, decided.request_ref, build)

        try:
            stored = await self.journal_thread.do(append)
        except JournalError as error:
            if not isinstance(error, SequenceHalted):  # reported as ROLLED_BACK
                self._store_failed(error)
            self._do(self._engine.verdict_failed(txn_id))
            return
        way.stage_ms["sign_and_journal"] = way.since_decided_ms() - way.stage_ms["to_journal"]
        self._on_its_way = {stored.ref: way}
        self.last = LastVerdict(stored.seq, stored.ref)
        self.counters[f"verdicts.{outcome.result.decision}.{outcome.result}"] += 1
        self.counters["pad.fail"] += outcome.pad.res == "fail"
        self.last_said = VerdictSummary(
            verdict_seq=stored.seq,
            verdict_ref=stored.ref,
            decision=str(outcome.result.decision),
            result=str(outcome.result),
            quality_q=outcome.quality_q,
            score_q=outcome.score_q,
            pad=outcome.pad,
            attempts=outcome.attempts,
        )
        self._do(self._engine.verdict_durable(txn_id, stored, self._now_ms()))
        self.news_for_upload()

    def _send_verdict(self, wrapper: JsonObject) -> None:
        """A durable verdict is sent before everything that waits; if it is lost, the validator asks again."""
        self.end.send_verdict(wrapper)
        self.kick_cable()

    def _verdict_left(self, event: events.VerdictLeft) -> None:
        """The verdict's last byte has left the port: the journey ends, and the decision is due."""
        self._engine.verdict_left(event.verdict_ref, self._now_ms())
        self.kick_cable()
        way = self._on_its_way.pop(event.verdict_ref, None)
        if way is None:
            return
        before_ms = way.stage_ms["to_journal"] + way.stage_ms["sign_and_journal"]
        way.stage_ms["cable"] = max(0.0, way.since_decided_ms() - before_ms)
        total_ms = float(self._now_ms() - way.frame_at_ms)
        self.latencies.add(total_ms, way.stage_ms)
        if self.last_said is not None:
            self.passed(self.last_said, total_ms, way.stage_ms)

    # Messages from the cable

    def on_cable_event(self, event: events.DeviceEvent) -> None:  # noqa: C901, PLR0912 - one line an event
        now_ms = self._now_ms()
        match event:
            case events.Proven():
                self._proven(event)
            case events.Down():
                self._down(event)
            case events.RequestReceived(request, wrapper):
                self._with_memory(
                    request.txn_id, lambda memory: self._engine.request(request, wrapper, memory, now_ms)
                )
            case events.CancelReceived(txn_id):
                self._with_memory(txn_id, lambda memory: self._engine.cancel(txn_id, memory), cancel=True)
            case events.DecisionReceived(decision, wrapper):
                self._with_memory(
                    decision.txn_id, lambda memory: self._engine.decision(decision, wrapper, memory, now_ms)
                )
            case events.PassageReceived(passage, wrapper):
                self._with_memory(
                    passage.txn_id, lambda memory: self._engine.passage(passage, wrapper, memory)
                )
            case events.WrongEvidence():
                self._do(self._engine.wrong_evidence(event.type.value, event.wrapper, event.backing))
            case events.UnknownReceived():
                if self._disowning < MAX_DISOWNING:
                    self._do(self._engine.unknown(event.verdict_refs))
            case events.ReadyReceived():
                self._ready(event)
            case events.VerdictLeft():
                self._verdict_left(event)
            case MailChunk():
                self.mail.received(event)
            case MailPull():
                self.mail.pulled(event)
            case events.ErrorReceived():
                _log.warning("the validator complains: %s about %s", event.code, event.about)
            case _:
                assert_never(event)

    def _proven(self, event: events.Proven) -> None:
        self.validator_kid = event.validator_kid
        self.health.clear(HealthWord.LINK_DOWN)
        self.validator_proven()
        self._do(self._engine.link_proven(self.last.verdict_seq if self.last else 0))

    def _down(self, event: events.Down) -> None:
        self._session += 1
        self.counters["cable.resets"] += 1
        self.validator_kid = None
        self.mail.session_ended()
        self.health.report(
            HealthWord.LINK_DOWN, f"the session with the validator ended: {event.reason.value}"
        )
        self._do(self._engine.link_down())

    def _ready(self, event: events.ReadyReceived) -> None:
        self.health.put(
            HealthWord.SENSOR_MISMATCH,
            event.passage_sensor != self.pinned.trust.passage_sensor,
            "validator and registration disagree about the turn sensor; registration is followed",
        )

    def _ask_again(self) -> None:
        """Answers of the validator were lost here, and it has them."""
        if self.end.proven:
            self._do(self._engine.journal_is_back(self.last.verdict_seq if self.last else 0))

    def _with_memory(
        self, txn_id: str, step: Callable[[TxnMemory | None], list[effects.Effect]], *, cancel: bool = False
    ) -> None:
        """Read the journal's memory of a transaction, then take the step, unless the session has ended."""
        if self._asking >= MAX_ASKING or (cancel and self._cancels_asking >= MAX_CANCELS_ASKING):
            self._dropped |= not cancel
            return
        self._asking += 1
        self._cancels_asking += cancel
        session = self._session

        def memory_of_it() -> TxnMemory | None:
            # On the journal's thread: what an ended session still asks keeps no verdict waiting.
            return self.journal.find_txn(txn_id) if session == self._session else None

        async def ask() -> None:
            try:
                memory = await self.journal_thread.do(memory_of_it)
            except JournalError as error:
                # Without its memory the device cannot distinguish a replay from a new request: do not answer.
                self._store_failed(error)
                return
            finally:
                self._asking -= 1
                self._cancels_asking -= cancel
            if session == self._session:
                self._do(step(memory))
            if self._dropped and not self._asking:
                self._dropped = False
                self._ask_again()

        self._tasks.start(ask())

    # The engine's effects

    def _do(self, due: Iterable[effects.Effect]) -> None:
        for effect in due:
            self._carry_out(effect)
        self.kick_cable()

    def _carry_out(self, effect: effects.Effect) -> None:  # noqa: C901, PLR0912 - one line an effect
        match effect:
            case effects.StartCapture():
                self.capture_wanted(True)
            case effects.StopCapture():
                self.capture_wanted(False)
            case effects.SendGuide():
                self.end.send_guide(effect.txn_id, effect.hint)
            case effects.SendVerdict():
                self._send_verdict(effect.wrapper)
            case effects.SendError():
                self.end.send_error(effect.code, MessageType(effect.about), effect.txn_id)
            case effects.Resolve():
                self.end.send_resolve(effect.verdict_refs)
            case effects.JournalVerdict():
                self._tasks.start(self._journal_verdict(effect))
            case effects.RememberEnd():
                self._tasks.start(self._remember_end(effect))
            case effects.RecordDecision(ref, wrapper, awaits):
                self._record(
                    ("decision", ref),
                    lambda: self.journal.record_decision(ref, wrapper, awaits_passage=awaits),
                )
            case effects.RecordPassage(ref, wrapper):
                self._record(("passage", ref), lambda: self.journal.record_passage(ref, wrapper))
            case effects.RecordOutcomeUnknown(ref):
                self._record(("no answer", ref), lambda: self.journal.record_outcome_unknown(ref))
            case effects.RecordDisowned(refs):
                self._disowning += 1
                self._tasks.start(self._record_disowned(refs))
            case effects.RecordEvidence():
                self._take_evidence(effect)
            case effects.ListOpen():
                self._tasks.start(self._list_open(effect))
            case _:
                assert_never(effect)

    async def _remember_end(self, end: effects.RememberEnd) -> None:
        await self._keep_later(
            ("end", end.txn_id),
            lambda: self.journal.remember_end(end.txn_id, end.request_ref, end.code),
        )
        self._do(self._engine.end_remembered(end.txn_id))

    async def _record_disowned(self, refs: tuple[str, ...]) -> None:
        try:
            await self._keep(lambda: self.journal.record_disowned(refs))
        finally:
            self._disowning -= 1

    def _record(self, about: tuple[str, str], work: Callable[[], bool]) -> None:
        self._tasks.start(self._keep_later(about, work))

    def _take_evidence(self, evidence: effects.RecordEvidence) -> None:
        """Messages signed by a validator key are kept at once. The others can be forged in any number, so
        only the newest are kept, one at a time, and no verdict waits behind them."""
        if HealthWord.REVOKED in self.health.words:
            return  # the verdicts are destroyed, so an honest answer to one looks like a wrong one
        if evidence.backing is events.Backing.SIGNED:
            self._tasks.start(self._record_evidence(evidence))
            return
        self._unbacked[evidence.backing].append(evidence)
        if not self._keeping_unbacked:
            self._keeping_unbacked = True
            self._tasks.start(self._record_unbacked())

    async def _record_unbacked(self) -> None:
        try:
            while any(self._unbacked.values()):
                for waiting in self._unbacked.values():
                    if waiting:
                        await self._record_evidence(waiting.popleft())
        finally:
            self._keeping_unbacked = False

    async def _record_evidence(self, evidence: effects.RecordEvidence) -> None:
        def record() -> bool:
            return self.journal.record_evidence(
                evidence.about, evidence.wrapper, evidence.txn_id, evidence.backing
            )

        if evidence.backing is events.Backing.SIGNED:
            new = await self._keep_later(("evidence", object_ref(evidence.wrapper)), record)
        else:
            new = await self._keep(record)
        if new is not None:
            # The journal knows what it keeps; the device's end also remembers messages beyond its limits.
            new = new and (not evidence.answer or self.end.first_copy(evidence.wrapper))
            self._do(self._engine.evidence_recorded(evidence, new=new))

    async def _list_open(self, asked: effects.ListOpen) -> None:
        verdicts = await self._keep(
            lambda: self.journal.unacknowledged(
                after_seq=asked.after_seq, upto_seq=asked.upto_seq, limit=asked.limit
            )
        )
        if verdicts is not None:
            self._do(self._engine.open_verdicts(asked, verdicts, self._now_ms()))

    async def _keep(self, work: Callable[[], T]) -> T | None:
        """Do `work` in the journal; after a failure, which health reports, None. The passage goes on."""
        try:
            result = await self.journal_thread.do(work)
        except JournalError as error:
            self._store_failed(error)
            return None
        self.news_for_upload()
        return result

    async def _keep_later(self, about: tuple[str, str], work: Callable[[], bool]) -> bool | None:
        """Do `work` in the journal; after a failure None, and again when the journal is back."""
        if (result := await self._keep(work)) is None:
            self._unkept[about] = work
            if len(self._unkept) > MAX_UNKEPT:
                del self._unkept[next(iter(self._unkept))]
        return result

    async def _keep_what_waits(self) -> None:
        """One at a time, so that no verdict waits behind all of them."""
        waiting, self._unkept = self._unkept, {}
        for about, work in waiting.items():
            await self._keep_later(about, work)

    def _store_failed(self, error: JournalError) -> None:
        _log.error("%s", error)
        self.health.report(HealthWord.STORE_FAULT, str(error))

    def _now_ms(self) -> int:
        return self.clock.monotonic_ms()


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
