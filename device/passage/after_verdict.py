"""What comes of verdicts that were sent: decisions, passages, time-outs, and questions after a handshake.

Journal reads come in with each message and may be a moment old: what is on its way to the disk is known from
`RecentTxns`, so a message that overtakes the journal is judged like one that does not.
"""

from dataclasses import replace

from device.passage.effects import (
    Effect,
    ListOpen,
    RecordDecision,
    RecordDisowned,
    RecordEvidence,
    RecordPassage,
)
from device.passage.open_outcomes import OpenOutcomes
from device.passage.recent_txns import RecentTxns
from device.passage.resolve_round import ResolveRound
from device.passage.settings import EngineSettings
from device.passage.verdict_answers import Belongs, judge_decision, judge_passage
from device.values.transactions import TxnMemory
from link1.canonical import JsonObject
from link1.objects import Decision, LastVerdict, Passage
from link1.signed import object_ref


class AfterVerdict:
    """The transaction engine's second half. Times are monotonic milliseconds."""

    def __init__(self, settings: EngineSettings, recent: RecentTxns) -> None:
        self._settings = settings
        self._recent = recent
        self._outcomes = OpenOutcomes()
        self._round = ResolveRound()

    def __len__(self) -> int:
        """How many verdicts are watched."""
        return len(self._outcomes)

    def configure(self, settings: EngineSettings) -> None:
        self._settings = settings

    def next_deadline_ms(self) -> int | None:
        deadlines = (self._outcomes.next_deadline_ms, self._round.next_deadline_ms)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def tick(self, now_ms: int) -> list[Effect]:
        return [*self._outcomes.tick(now_ms), *self._round.tick(now_ms)]

    def session_begins(self, last_seq: int) -> list[Effect]:
        """Ask about everything up to verdict `last_seq` that still awaits something."""
        return self._round.start(last_seq)

    def session_ends(self) -> list[Effect]:
        self._round.stop()
        return self._outcomes.session_ended()

    def listed(self, asked: ListOpen, verdicts: list[LastVerdict], now_ms: int) -> list[Effect]:
        """The answer to ListOpen."""
        return self._round.listed(asked, verdicts, now_ms)

    def sent(self, verdict_ref: str) -> list[Effect]:
        """A verdict was handed to the link."""
        return self._outcomes.sent(verdict_ref)

    def left(self, verdict_ref: str, now_ms: int) -> None:
        """The last byte of a verdict has left the port: the time for its decision runs from here."""
        self._outcomes.left(verdict_ref, now_ms + self._settings.decision_timeout_ms)

    def decision(
        self, decision: Decision, wrapper: JsonObject, memory: TxnMemory | None, now_ms: int
    ) -> list[Effect]:
        """A decision whose signature holds."""
        ref, known = object_ref(wrapper), self._recent.newest(decision.txn_id, memory)
        belongs = judge_decision(decision, ref, known)
        if known is None or belongs in (Belongs.WRONG, Belongs.CONTRADICTS):
            return [_evidence("decision", belongs, wrapper, decision.txn_id)]
        awaits_passage = decision.actuated and self._settings.passage_sensor and known.passage_ref is None
        record = RecordDecision(decision.verdict_ref, wrapper, awaits_passage)
        answered = self._round.answered(decision.verdict_ref)
        if belongs is Belongs.REPEATED:
            return [*_unless_kept(record, memory.decision_ref if memory else None), *answered]
        self._recent.note(replace(known, decision_ref=ref))
        due_ms = now_ms + self._settings.passage_timeout_ms if awaits_passage else None
        return [record, *self._outcomes.decided(decision.verdict_ref, passage_due_ms=due_ms), *answered]

    def passage(self, passage: Passage, wrapper: JsonObject, memory: TxnMemory | None) -> list[Effect]:
        """What the turn sensor saw; the signature holds."""
        ref, known = object_ref(wrapper), self._recent.newest(passage.txn_id, memory)
        belongs = judge_passage(passage, ref, known)
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
        """The validator has not acted on these and never will."""
        self._outcomes.disowned(verdict_refs)
        effects: list[Effect] = [RecordDisowned(verdict_refs)]
        for verdict_ref in verdict_refs:
            effects += self._round.answered(verdict_ref)
        return effects


def _evidence(about: str, belongs: Belongs, wrapper: JsonObject, txn_id: str) -> Effect:
    """A contradiction is for the service to judge; what is plainly wrong the validator is told."""
    return RecordEvidence(about, wrapper, txn_id, answer=belongs is not Belongs.CONTRADICTS)


def _unless_kept(record: Effect, kept_ref: str | None) -> list[Effect]:
    """A repeated answer is recorded again only where the journal did not keep the first one."""
    return [] if kept_ref is not None else [record]
