"""A transaction engine with what is around it in memory: a journal, a cable, time that is moved by hand."""

from collections.abc import Sequence

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
    SendVerdict,
    StartCapture,
    StopCapture,
)
from device.passage.engine import Conditions, TransactionEngine
from device.trust.policy import Policy
from device.values.recognition import Sighting
from device.values.transactions import StoredVerdict, TxnMemory
from link1.canonical import JsonObject
from link1.objects import Decision, ErrorCode, LastVerdict, Passage, Request, VerdictResult
from link1.signed import object_ref
from tests.device.core_makers import THRESHOLDS, make_request, make_stored, txn_id_of

POLICY = Policy(
    config_seq=1,
    thresholds=THRESHOLDS,
    attempts=3,
    decision_timeout_ms=5_000,
    passage_timeout_ms=10_000,
    gallery_ttl_ms=21_600_000,
)
ALL_WELL = Conditions(camera=True, recogniser=True, gallery=True)


class EngineBench:
    """`sent` is what went over the cable, in order; `done` is every effect.

    While `hold` is set, what has to become durable stays undone until `release`; while `port_full` is set,
    no verdict leaves the port.
    """

    def __init__(self, *, passage_sensor: bool = True, proven: bool = True) -> None:
        self.engine = TransactionEngine(POLICY, ALL_WELL, passage_sensor=passage_sensor)
        self.now_ms = 1_000
        self.hold = False
        self.port_full = False
        self.store_works = True
        self.held: list[Effect] = []
        self.done: list[Effect] = []
        self.memory: dict[str, TxnMemory] = {}
        self.verdicts: list[StoredVerdict] = []
        self.durable_refs: set[str] = set()
        self.evidence: set[str] = set()
        if proven:
            self.prove()

    # What happens to it

    def prove(self) -> list[Effect]:
        return self.run(self.engine.link_proven(len(self.verdicts)))

    def journal_back(self) -> list[Effect]:
        return self.run(self.engine.journal_is_back(len(self.verdicts)))

    def lose_link(self) -> list[Effect]:
        return self.run(self.engine.link_down())

    def ask(self, name: str, *, ttl_ms: int = 10_000, issued_at_ms: int = 1) -> list[Effect]:
        request, wrapper = make_request(name, ttl_ms=ttl_ms, issued_at_ms=issued_at_ms)
        memory = self.memory.get(request.txn_id)
        return self.run(self.engine.request(request, wrapper, memory, self.now_ms))

    def cancel(self, name: str) -> list[Effect]:
        return self.run(self.engine.cancel(txn_id_of(name), self.memory.get(txn_id_of(name))))

    def see(self, sighting: Sighting) -> list[Effect]:
        return self.run(self.engine.sighting(sighting, self.now_ms))

    def conditions(self, conditions: Conditions) -> list[Effect]:
        return self.run(self.engine.conditions(conditions, self.now_ms))

    def decide(self, signed: tuple[Decision, JsonObject]) -> list[Effect]:
        memory = self.memory.get(signed[0].txn_id)
        return self.run(self.engine.decision(*signed, memory, self.now_ms))

    def turn(self, signed: tuple[Passage, JsonObject]) -> list[Effect]:
        return self.run(self.engine.passage(*signed, self.memory.get(signed[0].txn_id)))

    def unknown(self, *refs: str) -> list[Effect]:
        return self.run(self.engine.unknown(refs))

    def wait(self, ms: int) -> list[Effect]:
        """Let time pass; the engine is ticked at each of its deadlines on the way, and at the end."""
        end_ms = self.now_ms + ms
        effects: list[Effect] = []
        while (deadline_ms := self.engine.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            ticked = self.run(self.engine.tick(self.now_ms))
            effects += ticked
            if not ticked and self.engine.next_deadline_ms() == deadline_ms:
                raise AssertionError("a deadline has passed and nothing was done about it")
        self.now_ms = end_ms
        return effects

    def release(self) -> list[Effect]:
        """Whatever was held becomes durable now, in its order."""
        held, self.held, self.hold = self.held, [], False
        return self.run(held)

    # What it wants

    def run(self, effects: Sequence[Effect]) -> list[Effect]:
        """Carry effects out as the core does; returns them with all that follow from them."""
        all_done: list[Effect] = []
        for effect in effects:
            durable = isinstance(effect, JournalVerdict | RememberEnd | ListOpen)
            if durable and self.hold:
                self.held.append(effect)
                continue
            all_done.append(effect)
            self.done.append(effect)
            all_done += self.run(self._carry_out(effect))
        return all_done

    def _carry_out(self, effect: Effect) -> list[Effect]:
        match effect:
            case JournalVerdict(request=request):
                return self._journal(effect, request)
            case RememberEnd(txn_id, request_ref, code):
                if self.store_works:
                    self.memory.setdefault(txn_id, TxnMemory(txn_id, request_ref, ended=code))
                return self.engine.end_remembered(txn_id)
            case SendVerdict(wrapper=wrapper):
                assert object_ref(wrapper) in self.durable_refs, "a verdict left before it was durable"
                if not self.port_full:
                    self.engine.verdict_left(object_ref(wrapper), self.now_ms)
            case RecordDecision(verdict_ref, wrapper):
                self._answer(verdict_ref, "decision_ref", wrapper)
            case RecordPassage(verdict_ref, wrapper):
                self._answer(verdict_ref, "passage_ref", wrapper)
            case RecordEvidence(wrapper=wrapper):
                ref = object_ref(wrapper)
                new = ref not in self.evidence
                self.evidence.add(ref)
                return self.engine.evidence_recorded(effect, new=new)
            case ListOpen(after_seq, upto_seq, limit):
                found = [v for v in self.open_verdicts() if after_seq < v.verdict_seq <= upto_seq]
                return self.engine.open_verdicts(effect, found[:limit], self.now_ms)
        return []

    def _journal(self, effect: JournalVerdict, request: Request) -> list[Effect]:
        if not self.store_works:
            return self.engine.verdict_failed(request.txn_id)
        assert request.txn_id not in self.memory, "a second verdict for one txn_id"
        prev_ref = self.verdicts[-1].ref if self.verdicts else "0" * 32
        stored = make_stored(request, effect.outcome, len(self.verdicts) + 1, prev_ref)
        self.verdicts.append(stored)
        self.durable_refs.add(stored.ref)
        self.memory[request.txn_id] = TxnMemory(request.txn_id, effect.request_ref, verdict=stored)
        return self.engine.verdict_durable(request.txn_id, stored, self.now_ms)

    def _answer(self, verdict_ref: str, member: str, wrapper: JsonObject) -> None:
        for txn_id, memory in self.memory.items():
            if memory.verdict is not None and memory.verdict.ref == verdict_ref:
                values = {name: getattr(memory, name) for name in TxnMemory.__slots__}
                self.memory[txn_id] = TxnMemory(**(values | {member: object_ref(wrapper)}))
                return
        raise AssertionError("an answer was recorded for a verdict that does not exist")

    # What there is to see

    def open_verdicts(self) -> list[LastVerdict]:
        """Verdicts without a decision that were not disowned, by number."""
        disowned = {ref for e in self.done if isinstance(e, RecordDisowned) for ref in e.verdict_refs}
        decided = {m.verdict.ref for m in self.memory.values() if m.verdict and m.decision_ref}
        return [LastVerdict(v.seq, v.ref) for v in self.verdicts if v.ref not in decided | disowned]

    @property
    def results(self) -> list[VerdictResult]:
        return [VerdictResult(v.wrapper["verdict"]["result"]) for v in self.verdicts]

    def stored(self, name: str) -> StoredVerdict:
        memory = self.memory[txn_id_of(name)]
        assert memory.verdict is not None
        return memory.verdict

    @property
    def capturing(self) -> bool:
        """Whether the last word on it was to capture."""
        last = [e for e in self.done if isinstance(e, StartCapture | StopCapture)]
        return bool(last) and isinstance(last[-1], StartCapture)


def errors(effects: Sequence[Effect]) -> list[tuple[ErrorCode, str, str | None]]:
    return [(e.code, e.about, e.txn_id) for e in effects if isinstance(e, SendError)]


def verdicts(effects: Sequence[Effect]) -> list[JsonObject]:
    return [effect.wrapper for effect in effects if isinstance(effect, SendVerdict)]


def resolved(effects: Sequence[Effect]) -> list[tuple[str, ...]]:
    return [effect.verdict_refs for effect in effects if isinstance(effect, Resolve)]
