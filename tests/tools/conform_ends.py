"""Simulated ends for the conformance test: the real sans-I/O parts, a simulated clock, a hand on a string."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from device.journal.mail import OutboxEntry
from device.mail.apply import InboxAssembly
from device.mail.outbox import chunk_of
from device.passage.decision import build_verdict
from device.passage.effects import (
    Effect,
    JournalVerdict,
    ListOpen,
    RecordDecision,
    RecordDisowned,
    RecordEvidence,
    RecordPassage,
    RememberEnd,
    Resolve,
    SendError,
    SendGuide,
    SendVerdict,
)
from device.passage.engine import Conditions, TransactionEngine
from device.trust.policy import Policy
from device.values.recognition import MatchedPerson, Sighting
from device.values.transactions import StoredVerdict, TxnMemory
from link1.bodies import MailChunk, MailNone, MailPull
from link1.canonical import canonical_bytes
from link1.device_end import DeviceEnd
from link1.envelope import MessageType, Role
from link1.events import (
    CancelReceived,
    DecisionReceived,
    Down,
    PassageReceived,
    Proven,
    RequestReceived,
    UnknownReceived,
    WrongEvidence,
)
from link1.keys import SigningKey
from link1.objects import ErrorCode, GalleryMark, LastVerdict, MailMarks, Pad
from link1.signed import Kind, object_ref, sign_object
from link1.validator.desk import RequestEnded, ValidatorDesk, VerdictAnswered, accept_all
from link1.validator.end import ValidatorEnd
from link1.validator.mail import ValidatorMail
from link1.validator.memory import DeskMemory
from models.thresholds import Thresholds
from tools.kit.conform.counters import Counters
from tools.kit.conform.end_under_test import Deed, EndUnderTest, Setup
from tools.kit.conform.rules import RuleFinding, RuleResult
from tools.kit.conform.runner import chosen, make_bench, rules_for, run_rules
from tools.kit.golden.values import status_of

DEVICE_KEY, VALIDATOR_KEY = SigningKey.from_seed(b"d" * 32), SigningKey.from_seed(b"v" * 32)
REVOKED_KEY = SigningKey.from_seed(b"r" * 32)
PINNED = frozenset({VALIDATOR_KEY.kid})
DEVICE_ID, DBD_ID, GATE_ID = "palm-1", "dbd-1", "gate-1"
THRESHOLDS = Thresholds("thr-1", 5_000, 500, 50, 5_000, 60)
GALLERY = GalleryMark("main", 1, 7, "0" * 16)
WALL_MS = 1_700_000_000_000


OUTBOX = OutboxEntry(1, canonical_bytes({"post": {"box": "out", "seq": 1}, "ct_b64": "A" * 4_000}))
"""What a device has for its service; only the service could open it."""


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

    def reopen(self, within_ms: int) -> None:
        """The end was restarted (`end` is another one): it opens its port."""
        self._out.clear()
        self.end.port_opened(self.time_ms)

    def leave_alone(self, for_ms: int) -> None:
        """Nobody reads meanwhile, and what the end said is lost, as on a serial port."""
        until_ms = self.time_ms + for_ms
        while self.time_ms < until_ms:
            self.read(until_ms)

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


SEEN_EVERY_MS = 500


@dataclass
class SimulatedDevice:
    """DeviceEnd and TransactionEngine as the daemon joins them, with a journal in memory.

    It is driven like an end; `hand_until_ms` is when the hand that is there leaves. `restart` makes end and
    engine anew, over the same journal."""

    end: DeviceEnd
    engine: TransactionEngine
    hand_until_ms: int | None = None
    seen_ms: int = 0
    """When the hand that is there was seen last."""
    memory: dict[str, TxnMemory] = field(default_factory=dict)
    verdicts: list[StoredVerdict] = field(default_factory=list)
    disowned: set[str] = field(default_factory=set)
    evidence: list[str] = field(default_factory=list)
    passages: set[str] = field(default_factory=set)
    applied_seq: int = 1
    """Inbox records that are applied."""
    inbox: InboxAssembly = field(default_factory=lambda: InboxAssembly(1))
    remake: "Callable[[], SimulatedDevice] | None" = None
    revoked: set[str] = field(default_factory=set)
    clock_right: bool = True
    """Ends read no wall clock to decide by; one that did would look here."""
    now_ms: int = 0

    def revoke(self, now_ms: int) -> None:
        """The service revokes the validator's key."""
        self.revoked.add(VALIDATOR_KEY.kid)
        self._events(self.end.keys_changed(now_ms), now_ms)

    def add_again(self) -> None:
        """The service names the revoked key once more: it stays revoked."""

    def restarted(self) -> "SimulatedDevice":
        """The device after a restart: another end and engine, what is durable as it was."""
        assert self.remake is not None
        fresh = self.remake()
        fresh.memory, fresh.verdicts, fresh.disowned = self.memory, self.verdicts, self.disowned
        fresh.evidence, fresh.passages, fresh.remake = self.evidence, self.passages, self.remake
        return fresh

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
        due += [] if self.hand_until_ms is None else [self.seen_ms + SEEN_EVERY_MS]
        return min((time for time in due if time is not None), default=None)

    def tick(self, now_ms: int) -> None:
        self._events(self.end.tick(now_ms), now_ms)
        self._do(self.engine.tick(now_ms))
        if self.hand_until_ms is not None and now_ms >= self.hand_until_ms:
            self.hand_leaves(now_ms)
        elif self.hand_until_ms is not None and now_ms >= self.seen_ms + SEEN_EVERY_MS:
            self._see_hand(now_ms)

    # the hand

    def hand_leaves(self, now_ms: int) -> None:
        self.hand_until_ms = None
        self._do(self.engine.sighting(Sighting(False, now_ms), now_ms))

    def hand_comes(self, now_ms: int, stays_ms: int = 800) -> None:
        self.now_ms = now_ms
        self.hand_until_ms = now_ms + stays_ms
        self._see_hand(now_ms)

    def _see_hand(self, now_ms: int) -> None:
        self.seen_ms = now_ms
        seen = Sighting(
            hand_present=True,
            at_ms=now_ms,
            hint=None,
            quality_q=90,
            pad=Pad("pass", "texture", 9_000),
            score=0.8,
            margin=0.4,
            candidate=MatchedPerson("5" * 32, "L"),
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
                    marks = MailMarks(self.applied_seq, OUTBOX.seq, OUTBOX.seq - 1)
                    self.end.send_status(replace(status_of("", WALL_MS, mark), mail=marks))
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
                case MailChunk() as chunk:
                    self._mail_in(chunk)
                case MailPull() as pull:
                    self._mail_out(pull)

    def _mail_in(self, chunk: MailChunk) -> None:
        """Nothing that comes here was sealed by a service: a whole record is refused."""
        answer = self.inbox.take(chunk)
        if answer is not None:
            self.end.send_mail_ack(self.inbox.refused("malformed") if isinstance(answer, bytes) else answer)

    def _mail_out(self, pull: MailPull) -> None:
        chunk = chunk_of(OUTBOX, pull.offset)
        if pull.after_seq >= OUTBOX.seq:
            self.end.send_mail_none(MailNone(pull.after_seq))
        elif chunk is None:
            self.end.send_error(ErrorCode.MALFORMED, MessageType.MAIL_PULL)
        else:
            self.end.send_mail(chunk)

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
            case SendGuide(txn_id, hint):
                self.end.send_guide(txn_id, hint)
            case Resolve(refs):
                self.end.send_resolve(refs)
            case RecordDecision(ref, wrapper, awaits_passage):
                self._note(ref, decision_ref=object_ref(wrapper))
                if awaits_passage:
                    self.passages.add(ref)
            case RecordPassage(ref, wrapper):
                self.passages.discard(ref)
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
                answered -= self.passages
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

    remake: Callable[[DeskMemory], "SimulatedValidator"]
    clock_right = True

    def restarted(self) -> "SimulatedValidator":
        """The desk after a restart, with what is durable."""
        return self.remake(self.memory)

    def __init__(self, end: ValidatorEnd, **changes: Any) -> None:
        values: dict[str, Any] = {
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
        events = super().port_opened(now_ms)
        return events if self.open_txn_id is not None else [*events, *self.arm(3_000, now_ms)]

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
    kind: type[SimulatedDevice] = SimulatedDevice,
) -> SimulatedDevice:
    policy = Policy(1, THRESHOLDS, 3, 5_000, 10_000, 21_600_000)
    lives = iter(range(1, 1_000))
    revoked: set[str] = set()

    def make() -> SimulatedDevice:
        return kind(
            end(
                device_id=DEVICE_ID,
                gate_id=GATE_ID,
                dbd_id=DBD_ID,
                verdict_key=DEVICE_KEY,
                validator_keys=lambda kid, _at: VALIDATOR_KEY.public if kid in PINNED - revoked else None,
                random=random.Random(next(lives)).randbytes,
            ),
            engine(policy, Conditions(True, True, True), passage_sensor=passage_sensor),
            remake=make,
            revoked=revoked,
        )

    return make()


def validator_end(
    end: type[ValidatorEnd] = ValidatorEnd, seed: int = 2, *, passage_sensor: bool = False
) -> ValidatorEnd:
    return end(
        dbd_id=DBD_ID,
        gate_id=GATE_ID,
        key=VALIDATOR_KEY,
        device_keys=lambda kid, _at: DEVICE_KEY.public if kid == DEVICE_KEY.kid else None,
        passage_sensor=passage_sensor,
        random=random.Random(seed).randbytes,
    )


def validator(
    desk: type[SimulatedValidator] = SimulatedValidator,
    end: type[ValidatorEnd] = ValidatorEnd,
    *,
    passage_sensor: bool = False,
) -> SimulatedValidator:
    lives = iter(range(2, 1_000))

    def make(memory: DeskMemory) -> SimulatedValidator:
        seed = next(lives)
        its_end = validator_end(end, seed, passage_sensor=passage_sensor)
        mail = ValidatorMail(its_end)
        mail.offer(1, b"{" + b" " * 4_000 + b"}")
        made = desk(
            its_end,
            memory=memory,
            random=random.Random(-seed).randbytes,
            turn_after_ms=300 if passage_sensor else None,
            mail=mail,
        )
        made.remake = make
        return made

    return make(DeskMemory())


@dataclass
class StringHand:
    """Shows a hand to a simulated device; the machine takes `leaves_ms` to take it away."""

    line: EndLine
    leaves_ms: int = 100
    settles_ms: int = 1_000
    tireless: bool = True

    def show(self) -> None:
        self.line.end.hand_comes(self.line.time_ms, stays_ms=60_000)

    def away(self) -> Callable[[], bool]:
        self.line.end.hand_leaves(self.line.time_ms)
        gone_ms = self.line.time_ms + self.leaves_ms
        return lambda: self.line.time_ms >= gone_ms


@dataclass
class SimulatedOwner:
    """Does what the owner of an end can do; `cannot` holds the deeds that this one refuses."""

    line: EndLine
    cannot: frozenset[Deed] = frozenset()

    def begin(self, deed: Deed) -> Callable[[], bool | None]:
        if deed in self.cannot:
            return lambda: False
        end, now_ms = self.line.end, self.line.time_ms
        match deed:
            case Deed.RESTART:
                self.line.end = end.restarted()
            case Deed.REVOKE:
                end.revoke(now_ms)
            case Deed.ADD_AGAIN:
                end.add_again()
            case Deed.CANCEL:
                end.cancel()
            case Deed.REPLACE:
                end.arm(3_000, now_ms)
            case Deed.CLOCK_BACK | Deed.CLOCK_AHEAD | Deed.CLOCK_RIGHT:
                end.clock_right = deed is Deed.CLOCK_RIGHT
        return lambda: True


def bench_for(end: SimulatedDevice | SimulatedValidator, *, sensor: bool = False) -> EndUnderTest:
    return on_line(end, sensor=sensor)[0]


def on_line(
    end: SimulatedDevice | SimulatedValidator, *, sensor: bool = False
) -> tuple[EndUnderTest, EndLine]:
    """A bench that can try everything, and its line; its wall clock goes with the simulated time."""
    line = EndLine(end)
    role, own_id, own, peer, peer_id = (
        (Role.VALIDATOR, DBD_ID, VALIDATOR_KEY, DEVICE_KEY, DEVICE_ID)
        if isinstance(end, SimulatedDevice)
        else (Role.DEVICE, DEVICE_ID, DEVICE_KEY, VALIDATOR_KEY, DBD_ID)
    )
    hand = StringHand(line) if role is Role.VALIDATOR else None
    setup = Setup(
        role,
        own_id,
        GATE_ID,
        own,
        peer.public,
        peer_id,
        passage_sensor=sensor,
        hand=hand,
        hook=SimulatedOwner(line),
        revoked=REVOKED_KEY,
    )
    wall_ms = lambda: WALL_MS + line.time_ms  # noqa: E731 (one line)
    bench = make_bench(setup, line, Counters(), wall_ms, random.Random(9).randbytes)
    return bench, line


def findings_of(
    end: SimulatedDevice | SimulatedValidator, *only: str, sensor: bool = False, alone_ms: int = 0
) -> list[RuleFinding]:
    """`alone_ms`: how long the end has been on its port before somebody is at the other end."""
    role = Role.DEVICE if isinstance(end, SimulatedDevice) else Role.VALIDATOR
    bench, line = on_line(end, sensor=sensor)
    line.leave_alone(alone_ms)
    return list(run_rules(bench, chosen(rules_for(role), only)))


def not_passed(findings: list[RuleFinding]) -> dict[str, str]:
    return {
        finding.rule.id: f"{finding.result}: {finding.found}"
        for finding in findings
        if finding.result is not RuleResult.PASS
    }
