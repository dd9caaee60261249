"""After a sent verdict: decisions, passages, time-outs, and questions after a handshake.

Each message comes with a journal read, which may be slightly out of date. `RecentTxns` knows what is on its
way to the disk, so a message that arrives before the journal has caught up is judged in the same way.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from enum import Enum, auto

from device.passage.effects import (
    Effect,
    ListOpen,
    RecordDecision,
    RecordDisowned,
    RecordEvidence,
    RecordOutcomeUnknown,
    RecordPassage,
    Resolve,
)
from device.passage.table import Life, State, Trigger
from device.trust.policy import Policy
from device.values.transactions import StoredVerdict, TxnMemory
from link1.bodies import MAX_REFS
from link1.canonical import JsonObject
from link1.objects import Decision, LastVerdict, Passage
from link1.signed import object_ref

MAX_OPEN = 64
"""Each waits at most 15 s by default, and a gate lets one person through every second or two."""
_PACE_MS = 1_000
MAX_RECENT = 64
"""A journal read is one or two messages behind; the rest is a reserve for slow disks."""


class Belongs(Enum):
    """Whether a decision or passage with a valid signature belongs to the verdict it names (LINK/1 §4)."""

    YES = auto()
    REPEATED = auto()
    """The same message is recorded already."""
    CONTRADICTS = auto()
    """It fits the verdict, but another message of its kind was recorded before."""
    WRONG = auto()
    """It names another verdict, or ids or a nonce that differ from the verdict's."""


def judge(answer: Decision | Passage, answer_ref: str, memory: TxnMemory | None) -> Belongs:
    """`answer_ref`: object_ref of the signed answer. `memory`: of its txn_id."""
    if memory is None or memory.verdict is None or not _fits(answer, memory.verdict):
        return Belongs.WRONG
    recorded_ref = memory.decision_ref if isinstance(answer, Decision) else memory.passage_ref
    if recorded_ref is None:
        return Belongs.YES
    return Belongs.REPEATED if recorded_ref == answer_ref else Belongs.CONTRADICTS


def _fits(answer: Decision | Passage, stored: StoredVerdict) -> bool:
    verdict = stored.wrapper["verdict"]
    nonce_fits = not isinstance(answer, Decision) or verdict["nonce_b64"] == answer.nonce_b64
    return (
        nonce_fits
        and answer.verdict_ref == stored.ref
        and all(verdict[name] == getattr(answer, name) for name in ("txn_id", "gate_id", "dbd_id"))
    )


class RecentTxns:
    """The newest knowledge of the last `MAX_RECENT` transactions, until the journal has it too."""

    def __init__(self) -> None:
        self._recent: OrderedDict[str, TxnMemory] = OrderedDict()

    def newest(self, txn_id: str, journaled: TxnMemory | None) -> TxnMemory | None:
        """The newest memory of `txn_id`; `journaled`: the result of a journal read."""
        return self._recent.get(txn_id, journaled)

    def note(self, memory: TxnMemory) -> None:
        """`memory` is the newest of its transaction."""
        self._recent[memory.txn_id] = memory
        self._recent.move_to_end(memory.txn_id)
        if len(self._recent) > MAX_RECENT:
            self._recent.popitem(last=False)


@dataclass(slots=True)
class _OpenVerdict:
    """`deadline_ms` is None until the verdict has left the port."""

    life: Life
    deadline_ms: int | None


class OpenOutcomes:
    """Sent verdicts, and the time by which a decision or a passage is due (LINK/1 §4).

    It holds only the timers; the records are in the journal, which also knows the verdicts from before a
    restart. The newest `MAX_OPEN` are watched. An older one is given up early, without harm: a later answer
    still completes it.
    """

    def __init__(self) -> None:
        self._open: dict[str, _OpenVerdict] = {}

    @property
    def next_deadline_ms(self) -> int | None:
        deadlines = (entry.deadline_ms for entry in self._open.values())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def sent(self, verdict_ref: str, life: Life) -> list[Effect]:
        """A verdict was handed to the link; its time starts when it has left the port."""
        return self._watch(verdict_ref, _OpenVerdict(life, None))

    def left(self, verdict_ref: str, deadline_ms: int) -> None:
        """The last byte of the verdict has left the port; a decision is due by `deadline_ms`."""
        entry = self._open.get(verdict_ref)
        if entry is not None and entry.deadline_ms is None:
            entry.deadline_ms = deadline_ms

    def session_ended(self) -> list[Effect]:
        """The session is over: verdicts that have not left the port will get no decision in it."""
        stuck = [ref for ref, entry in self._open.items() if entry.deadline_ms is None]
        return [self._give_up(ref) for ref in stuck]

    def decided(self, verdict_ref: str, *, passage_due_ms: int | None) -> list[Effect]:
        """A decision has arrived; `passage_due_ms` is None when no passage will follow."""
        entry = self._open.get(verdict_ref)
        life = entry.life if entry else Life(State.OUTCOME_UNKNOWN)
        trigger = Trigger.DECISION if passage_due_ms is None else Trigger.DECISION_ACTUATED
        if not life.takes(trigger):
            return []  # already decided
        life.step(trigger)
        self._open.pop(verdict_ref, None)
        return [] if passage_due_ms is None else self._watch(verdict_ref, _OpenVerdict(life, passage_due_ms))

    def passed(self, verdict_ref: str) -> None:
        """The turn sensor has reported. Before a decision this changes nothing: the decision is still due."""
        entry = self._open.get(verdict_ref)
        if entry is not None and entry.life.takes(Trigger.PASSAGE):
            entry.life.step(Trigger.PASSAGE)
            del self._open[verdict_ref]

    def tick(self, now_ms: int) -> list[Effect]:
        late = [
            ref
            for ref, entry in self._open.items()
            if entry.deadline_ms is not None and now_ms >= entry.deadline_ms
        ]
        return [self._give_up(ref) for ref in late]

    def _watch(self, verdict_ref: str, entry: _OpenVerdict) -> list[Effect]:
        self._open[verdict_ref] = entry
        return [self._give_up(next(iter(self._open)))] if len(self._open) > MAX_OPEN else []

    def _give_up(self, verdict_ref: str) -> Effect:
        self._open.pop(verdict_ref).life.step(Trigger.TIMEOUT)
        return RecordOutcomeUnknown(verdict_ref)


class ResolveRound:
    """After a handshake: asks the validator for the outcomes of verdicts that still await an answer.

    The refs are sent in order, at most 32 a message. The next message follows when the previous one is
    answered or after a second: a validator that has forgotten them stays silent, and one that answers sends a
    decision and a passage for each. Verdicts made after the handshake are not asked about.
    """

    def __init__(self) -> None:
        self._asked: ListOpen | None = None
        self._after_seq = 0
        self._upto_seq = 0
        self._unanswered: set[str] = set()
        self.next_deadline_ms: int | None = None

    def start(self, last_seq: int) -> list[Effect]:
        """A session has begun; `last_seq` is the number of the newest verdict, 0 for none."""
        self.stop()
        self._upto_seq = last_seq
        return self._list() if last_seq else []

    def stop(self) -> None:
        self._asked = None
        self._after_seq = 0
        self._unanswered.clear()
        self.next_deadline_ms = None

    def listed(self, asked: ListOpen, verdicts: list[LastVerdict], now_ms: int) -> list[Effect]:
        """The answer to `asked`; an answer to a question of an earlier session is ignored."""
        if asked is not self._asked:
            return []
        if not verdicts:
            self.stop()
            return []
        refs = tuple(verdict.verdict_ref for verdict in verdicts)
        self._after_seq = verdicts[-1].verdict_seq
        self._unanswered = set(refs)
        self.next_deadline_ms = now_ms + _PACE_MS
        return [Resolve(refs)]

    def answered(self, verdict_ref: str) -> list[Effect]:
        """A decision, a passage or `unknown` has arrived for this verdict."""
        if verdict_ref not in self._unanswered:
            return []
        self._unanswered.discard(verdict_ref)
        return self._list() if not self._unanswered else []

    def tick(self, now_ms: int) -> list[Effect]:
        return self._list() if self.next_deadline_ms is not None and now_ms >= self.next_deadline_ms else []

    def _list(self) -> list[Effect]:
        self.next_deadline_ms = None
        self._unanswered.clear()
        self._asked = ListOpen(self._after_seq, self._upto_seq, MAX_REFS)
        return [self._asked]


class AfterVerdict:
    """The transaction engine's second half. Times are monotonic milliseconds."""

    def __init__(self, policy: Policy, recent: RecentTxns, *, passage_sensor: bool) -> None:
        self._policy = policy
        self._passage_sensor = passage_sensor
        self._recent = recent
        self._outcomes = OpenOutcomes()
        self._round = ResolveRound()

    def configure(self, policy: Policy) -> None:
        self._policy = policy

    def next_deadline_ms(self) -> int | None:
        deadlines = (self._outcomes.next_deadline_ms, self._round.next_deadline_ms)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def tick(self, now_ms: int) -> list[Effect]:
        return [*self._outcomes.tick(now_ms), *self._round.tick(now_ms)]

    def session_begins(self, last_seq: int) -> list[Effect]:
        """Ask about every verdict up to number `last_seq` that still awaits an answer."""
        return self._round.start(last_seq)

    def session_ends(self) -> list[Effect]:
        self._round.stop()
        return self._outcomes.session_ended()

    def listed(self, asked: ListOpen, verdicts: list[LastVerdict], now_ms: int) -> list[Effect]:
        """The answer to ListOpen."""
        return self._round.listed(asked, verdicts, now_ms)

    def sent(self, verdict_ref: str, life: Life) -> list[Effect]:
        """A verdict was handed to the link."""
        return self._outcomes.sent(verdict_ref, life)

    def left(self, verdict_ref: str, now_ms: int) -> None:
        """The last byte of a verdict has left the port: the time for its decision starts."""
        self._outcomes.left(verdict_ref, now_ms + self._policy.decision_timeout_ms)

    def decision(
        self, decision: Decision, wrapper: JsonObject, memory: TxnMemory | None, now_ms: int
    ) -> list[Effect]:
        """A decision with a valid signature."""
        ref, known = object_ref(wrapper), self._recent.newest(decision.txn_id, memory)
        belongs = judge(decision, ref, known)
        if known is None or belongs in (Belongs.WRONG, Belongs.CONTRADICTS):
            return [_evidence("decision", belongs, wrapper, decision.txn_id)]
        awaits_passage = decision.actuated and self._passage_sensor and known.passage_ref is None
        record = RecordDecision(decision.verdict_ref, wrapper, awaits_passage)
        answered = self._round.answered(decision.verdict_ref)
        if belongs is Belongs.REPEATED:
            return [*_unless_kept(record, memory.decision_ref if memory else None), *answered]
        self._recent.note(replace(known, decision_ref=ref))
        due_ms = now_ms + self._policy.passage_timeout_ms if awaits_passage else None
        return [record, *self._outcomes.decided(decision.verdict_ref, passage_due_ms=due_ms), *answered]

    def passage(self, passage: Passage, wrapper: JsonObject, memory: TxnMemory | None) -> list[Effect]:
        """The turn sensor's report, with a valid signature."""
        ref, known = object_ref(wrapper), self._recent.newest(passage.txn_id, memory)
        belongs = judge(passage, ref, known)
        if known is None or belongs in (Belongs.WRONG, Belongs.CONTRADICTS):
            return [_evidence("passage", belongs, wrapper, passage.txn_id)]
        record = RecordPassage(passage.verdict_ref, wrapper)
        answered = self._round.answered(passage.verdict_ref)
        if belongs is Belongs.REPEATED:
            return [*_unless_kept(record, memory.passage_ref if memory else None), *answered]
        self._recent.note(replace(known, passage_ref=ref))
        self._outcomes.passed(passage.verdict_ref)
        return [record, *answered]

    def unknown(self, verdict_refs: tuple[str, ...]) -> list[Effect]:
        """The validator has not acted on these verdicts and never will.

        Their time goes on. Where the disk refuses to record this, the missing answer is recorded then: asked
        again, a validator may have forgotten.
        """
        effects: list[Effect] = [RecordDisowned(verdict_refs)]
        for verdict_ref in verdict_refs:
            effects += self._round.answered(verdict_ref)
        return effects


def _evidence(about: str, belongs: Belongs, wrapper: JsonObject, txn_id: str) -> Effect:
    """A contradiction is left to the service; a wrong message is reported to the validator as well."""
    return RecordEvidence(about, wrapper, txn_id, answer=belongs is not Belongs.CONTRADICTS)


def _unless_kept(record: Effect, kept_ref: str | None) -> list[Effect]:
    """A repeated answer is recorded again only when the journal does not have the first one."""
    return [] if kept_ref is not None else [record]
