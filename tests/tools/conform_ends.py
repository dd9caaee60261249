"""Simulated ends for the conformance test: the real sans-I/O parts, a simulated clock, a hand on a string."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from device.transactions.decision import Candidate, Sighting, Thresholds, build_verdict
from device.transactions.effects import (
    Effect,
    Guide,
    JournalVerdict,
    ListOpen,
    RecordDecision,
    RecordDisowned,
    RecordEvidence,
    RecordPassage,
    RememberEnd,
    Resolve,
    SendError,
    SendVerdict,
)
from device.transactions.engine import TransactionEngine
from device.transactions.settings import Conditions, EngineSettings
from device.transactions.txn_memory import StoredVerdict, TxnMemory
from link1.bodies import MailAck, MailNone, MailState
from link1.desk_memory import DeskMemory
from link1.device_end import DeviceEnd
from link1.envelope import MessageType, Role
from link1.events import (
    CancelReceived,
    DecisionReceived,
    Down,
    MailPullReceived,
    MailReceived,
    PassageReceived,
    Proven,
    RequestReceived,
    UnknownReceived,
    WrongEvidence,
)
from link1.keys import SigningKey
from link1.objects import GalleryMark, LastVerdict, Pad
from link1.signed import Kind, object_ref, sign_object
from link1.validator_desk import RequestEnded, ValidatorDesk, VerdictAnswered
from link1.validator_end import ValidatorEnd
from tools.conform.bench import Bench, Setup
from tools.conform.counters import Counters
from tools.conform.rules import Finding, Result
from tools.conform.runner import chosen, make_bench, rules_for, run_rules
from tools.golden_values import status_of
from tools.validator_policy import accept_all

DEVICE_KEY, VALIDATOR_KEY = SigningKey.from_seed(b"d" * 32), SigningKey.from_seed(b"v" * 32)
DEVICE_ID, DBD_ID, GATE_ID = "palm-1", "dbd-1", "gate-1"
THRESHOLDS = Thresholds("thr-1", 5_000, 500, 50, 5_000, 60)
GALLERY = GalleryMark("main", 1, 7, "0" * 16)
WALL_MS = 1_700_000_000_000


class EndLine:
    """A `Line` whose other end is an object in this process, in simulated time."""

    def __init__(self, end: Any) -> None:
        self.end = end
        self.time_ms = 1_000
        self._out = bytearray()
        end.port_opened(self.time_ms)

    def now_ms(self) -> int:
        return self.time_ms

    def write(self, data: bytes) -> None:
        if data:
            self.end.receive(data, self.time_ms)
            self._pump()

    def read(self, until_ms: int) -> bytes:
        self._pump()
        while not self._out and self.time_ms < until_ms:
            due = self.end.next_deadline_ms()
            self.time_ms = max(self.time_ms + 1, min(until_ms, until_ms if due is None else due))
            self.end.tick(self.time_ms)
            self._pump()
        data, self._out = bytes(self._out), bytearray()
        return data

    def _pump(self) -> None:
        while data := self.end.data_to_send(self.time_ms):
            self._out += data
            self.end.sent(len(data), self.time_ms)


@dataclass
class SimulatedDevice:
    """DeviceEnd and TransactionEngine as the daemon joins them, with a journal in memory.

    It is driven like an end; `hand_until_ms` is when the hand that is there leaves."""

    end: DeviceEnd
    engine: TransactionEngine
    hand_until_ms: int | None = None
    memory: dict[str, TxnMemory] = field(default_factory=dict)
    verdicts: list[StoredVerdict] = field(default_factory=list)
    disowned: set[str] = field(default_factory=set)
    evidence: list[str] = field(default_factory=list)
    now_ms: int = 0

    # driven like an end

    def port_opened(self, now_ms: int) -> None:
        self._events(self.end.port_opened(now_ms), now_ms)

    def receive(self, data: bytes, now_ms: int) -> None:
        self._events(self.end.receive(data, now_ms), now_ms)

    def sent(self, count: int, now_ms: int) -> None:
        self._events(self.end.sent(count, now_ms), now_ms)

    def data_to_send(self, now_ms: int) -> bytes:
        return self.end.data_to_send(now_ms)

    def next_deadline_ms(self) -> int | None:
        due = [self.end.next_deadline_ms(), self.engine.next_deadline_ms(), self.hand_until_ms]
        return min((time for time in due if time is not None), default=None)

    def tick(self, now_ms: int) -> None:
        self._events(self.end.tick(now_ms), now_ms)
        self._do(self.engine.tick(now_ms))
        if self.hand_until_ms is not None and now_ms >= self.hand_until_ms:
            self.hand_until_ms = None
            self._do(self.engine.sighting(Sighting(False, now_ms), now_ms))

    # the hand

    def hand_comes(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.hand_until_ms = now_ms + 800
        seen = Sighting(
            hand_present=True,
            at_ms=now_ms,
            hint=None,
            quality_q=90,
            pad=Pad("pass", "texture", 9_000),
            score=0.8,
            margin=0.4,
            candidate=Candidate("5" * 32, "L"),
            good=True,
        )
        self._do(self.engine.sighting(seen, now_ms))

    # between the two

    def _events(self, events: Iterable[object], now_ms: int) -> None:  # noqa: C901 (one case an event)
        self.now_ms = now_ms
        for event in events:
            match event:
                case Proven():
                    last = self.verdicts[-1] if self.verdicts else None
                    mark = LastVerdict(last.seq, last.ref) if last else None
                    self.end.send_status(status_of("", WALL_MS, mark))
                    self._do(self.engine.link_proven(len(self.verdicts)))
                case Down():
                    self._do(self.engine.link_down())
                case RequestReceived(request, wrapper):
                    known = self.memory.get(request.txn_id)
                    self._do(self.engine.request(request, wrapper, known, now_ms))
                case CancelReceived(txn_id):
                    self._do(self.engine.cancel(txn_id, self.memory.get(txn_id)))
                case DecisionReceived(decision, wrapper):
                    known = self.memory.get(decision.txn_id)
                    self._do(self.engine.decision(decision, wrapper, known, now_ms))
                case PassageReceived(passage, wrapper):
                    self._do(self.engine.passage(passage, wrapper, self.memory.get(passage.txn_id)))
                case UnknownReceived(refs):
                    self._do(self.engine.unknown(refs))
                case WrongEvidence(type_, wrapper):
                    self._do(self.engine.wrong_evidence(type_.value, wrapper))
                case MailReceived(chunk):
                    self.end.send_mail_ack(MailAck(chunk.seq, 0, MailState.GAP, 0))
                case MailPullReceived(pull):
                    self.end.send_mail_none(MailNone(pull.after_seq))

    def _do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._do(self._carry_out(effect))

    def _carry_out(self, effect: Effect) -> list[Effect]:  # noqa: C901 (one case an effect)
        match effect:
            case JournalVerdict():
                return self._journal(effect)
            case RememberEnd(txn_id, request_ref, code):
                self.memory[txn_id] = TxnMemory(txn_id, request_ref, ended=code)
                return self.engine.end_remembered(txn_id)
            case SendVerdict(wrapper=wrapper):
                self.end.send_verdict(wrapper)
            case SendError(code, about, txn_id):
                self.end.send_error(code, MessageType(about), txn_id)
            case Guide(txn_id, hint):
                self.end.send_guide(txn_id, hint)
            case Resolve(refs):
                self.end.send_resolve(refs)
            case RecordDecision(ref, wrapper):
                self._note(ref, decision_ref=object_ref(wrapper))
            case RecordPassage(ref, wrapper):
                self._note(ref, passage_ref=object_ref(wrapper))
            case RecordDisowned(refs):
                self.disowned |= set(refs)
            case RecordEvidence():
                self.evidence.append(object_ref(effect.wrapper))
                new = (
                    self.end.refuse_evidence(MessageType(effect.about), effect.wrapper)
                    if effect.answer
                    else False
                )
                del new
            case ListOpen(after_seq, upto_seq, limit):
                answered = {m.verdict.ref for m in self.memory.values() if m.verdict and m.decision_ref}
                found = [
                    LastVerdict(v.seq, v.ref)
                    for v in self.verdicts
                    if after_seq < v.seq <= upto_seq and v.ref not in answered | self.disowned
                ]
                return self.engine.open_verdicts(effect, found[:limit], self.now_ms)
            case _:
                pass
        return []

    def _journal(self, effect: JournalVerdict) -> list[Effect]:
        verdict = build_verdict(
            effect.request,
            effect.outcome,
            device_id=DEVICE_ID,
            verdict_seq=len(self.verdicts) + 1,
            prev_ref=self.verdicts[-1].ref if self.verdicts else "0" * 32,
            decided_at_ms=WALL_MS,
            model_id="palm-1",
            thr_id="thr-1",
            gallery=GALLERY,
        )
        wrapper = sign_object(Kind.VERDICT, verdict.to_obj(), DEVICE_KEY)
        stored = StoredVerdict(verdict.verdict_seq, object_ref(wrapper), wrapper)
        self.verdicts.append(stored)
        txn_id = effect.request.txn_id
        self.memory[txn_id] = TxnMemory(txn_id, effect.request_ref, verdict=stored)
        return self.engine.verdict_durable(txn_id, stored, self.now_ms)

    def _note(self, verdict_ref: str, **members: str) -> None:
        for txn_id, known in self.memory.items():
            if known.verdict is not None and known.verdict.ref == verdict_ref:
                values = {name: getattr(known, name) for name in TxnMemory.__slots__}
                self.memory[txn_id] = TxnMemory(**(values | members))


class SimulatedValidator(ValidatorDesk):
    """The desk as `palmctl dbd simulate` keeps it: it asks anew whenever nothing is open."""

    def __init__(self, end: ValidatorEnd, **changes: Any) -> None:
        values: dict[str, Any] = {
            "dbd_id": DBD_ID,
            "gate_id": GATE_ID,
            "key": VALIDATOR_KEY,
            "decide": accept_all,
            "memory": DeskMemory(),
            "save": lambda _memory: None,
            "wall_ms": lambda: WALL_MS,
            "random": random.Random(5).randbytes,
            "turn_after_ms": None,
        }
        super().__init__(end, **(values | changes))

    def tick(self, now_ms: int) -> list[Any]:
        return self._rearm(super().tick(now_ms), now_ms)

    def receive(self, data: bytes, now_ms: int) -> list[Any]:
        return self._rearm(super().receive(data, now_ms), now_ms)

    def port_opened(self, now_ms: int) -> list[Any]:
        return self._rearm(super().port_opened(now_ms), now_ms)

    def _rearm(self, events: list[Any], now_ms: int) -> list[Any]:
        ended = any(isinstance(event, VerdictAnswered | RequestEnded) for event in events)
        if self.open_txn_id is None and (ended or not self.memory.answered):
            events += self.arm(3_000, now_ms)
        return events


def device(
    end: type[DeviceEnd] = DeviceEnd,
    engine: type[TransactionEngine] = TransactionEngine,
    *,
    passage_sensor: bool = False,
) -> SimulatedDevice:
    settings = EngineSettings(THRESHOLDS, 3, 5_000, 10_000, passage_sensor)
    return SimulatedDevice(
        end(
            device_id=DEVICE_ID,
            gate_id=GATE_ID,
            dbd_id=DBD_ID,
            verdict_key=DEVICE_KEY,
            validator_keys=lambda kid, _at: VALIDATOR_KEY.public if kid == VALIDATOR_KEY.kid else None,
            random=random.Random(1).randbytes,
        ),
        engine(settings, Conditions(True, True, True)),
    )


def validator(
    desk: type[SimulatedValidator] = SimulatedValidator, end: type[ValidatorEnd] = ValidatorEnd
) -> SimulatedValidator:
    return desk(
        end(
            dbd_id=DBD_ID,
            gate_id=GATE_ID,
            key=VALIDATOR_KEY,
            device_keys=lambda kid, _at: DEVICE_KEY.public if kid == DEVICE_KEY.kid else None,
            passage_sensor=False,
            random=random.Random(2).randbytes,
        )
    )


@dataclass
class StringHand:
    """Shows a hand to a simulated device; it leaves by itself, and `away` waits for that."""

    device: SimulatedDevice
    line: EndLine
    wait: Callable[[int], None] = lambda _ms: None
    settles_ms: int = 1_000

    def show(self) -> None:
        self.device.hand_comes(self.line.time_ms)

    def away(self) -> None:
        self.wait(1_000)


def bench_for(end: SimulatedDevice | SimulatedValidator) -> Bench:
    line = EndLine(end)
    if isinstance(end, SimulatedDevice):
        hand = StringHand(end, line)
        setup = Setup(Role.VALIDATOR, DBD_ID, GATE_ID, VALIDATOR_KEY, DEVICE_KEY.public, DEVICE_ID, hand=hand)
        bench = make_bench(setup, line, Counters(), lambda: WALL_MS, random.Random(9).randbytes)
        hand.wait = bench.peer.listen
        return bench
    setup = Setup(Role.DEVICE, DEVICE_ID, GATE_ID, DEVICE_KEY, VALIDATOR_KEY.public, DBD_ID)
    return make_bench(setup, line, Counters(), lambda: WALL_MS, random.Random(9).randbytes)


def findings_of(end: SimulatedDevice | SimulatedValidator, *only: str) -> list[Finding]:
    role = Role.DEVICE if isinstance(end, SimulatedDevice) else Role.VALIDATOR
    return list(run_rules(bench_for(end), chosen(rules_for(role), only)))


def not_passed(findings: list[Finding]) -> dict[str, str]:
    return {
        finding.rule.id: f"{finding.result}: {finding.found}"
        for finding in findings
        if finding.result is not Result.PASS
    }
