"""Validators that do one thing wrong on purpose, so that a device can be seen to bear it.

`FaultyDesk` is the real desk with one fault a passage; which one is chosen by `--fault` or by the policy.
docs/tutorials/VALIDATOR.md says how the device should react to each.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import cycle
from typing import Any

from link1.canonical import JsonObject
from link1.keys import SigningKey
from link1.link_states import DownReason
from link1.objects import Decision, Request, Verdict
from link1.signed import Kind, sign_object
from link1.validator.desk import DeskEvent, ValidatorDesk, VerdictAnswered

LATE_DECISION_MS = 6_000
"""Past the 5 s after which a device says outcome_unknown."""


class Fault(StrEnum):
    DROP_DECISION = "drop-decision"
    LATE_DECISION = "late-decision"
    DUPLICATE_DECISION = "duplicate-decision"
    WRONG_SIGNATURE = "wrong-signature"
    WRONG_REF = "wrong-ref"
    CONTRADICTING_DECISION = "contradicting-decision"
    NO_PASSAGE = "no-passage"
    RESET_AFTER_VERDICT = "reset-after-verdict"
    REPLAY_REQUEST = "replay-request"
    CHANGED_REQUEST = "changed-request"
    LATE_CANCEL = "late-cancel"


NO_TURN_AFTER = frozenset({Fault.NO_PASSAGE, Fault.DROP_DECISION, Fault.RESET_AFTER_VERDICT})
"""Faults after which no passage is reported: one without its decision would be a second fault."""

FaultOf = Callable[[Verdict], Fault | None]


def in_turn(faults: Sequence[Fault], otherwise: FaultOf = lambda _verdict: None) -> FaultOf:
    """The next of `faults` for every passage, over and over; what `otherwise` says goes before it."""
    turn = cycle(faults) if faults else None

    def fault_of(verdict: Verdict) -> Fault | None:
        chosen = otherwise(verdict)
        return chosen if chosen is not None or turn is None else next(turn)

    return fault_of


class FaultyDesk(ValidatorDesk):
    """A ValidatorDesk that also commits faults. Its memory stays right: after a reset it answers truly."""

    def __init__(self, *arguments: Any, fault_of: FaultOf, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._fault_of = fault_of
        self._stranger = SigningKey.generate()
        self._late: deque[tuple[int, JsonObject]] = deque()
        self._asked: tuple[Request, JsonObject] | None = None
        self._reset_due = False
        self.injected: dict[str, Fault] = {}
        """What was done wrong, by verdict_ref; the owner takes out what it has seen."""

    # ---- driving

    def receive(self, data: bytes, now_ms: int) -> list[DeskEvent]:
        events = super().receive(data, now_ms)
        if self._reset_due:
            self._reset_due = False
            events += self._follow(self._end.reset(now_ms, DownReason.UNANSWERED), now_ms)
        return events

    def next_deadline_ms(self) -> int | None:
        deadlines = [super().next_deadline_ms(), self._late[0][0] if self._late else None]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def tick(self, now_ms: int) -> list[DeskEvent]:
        while self._late and self._late[0][0] <= now_ms:
            self._end.send_decision(self._late.popleft()[1])
        return super().tick(now_ms)

    @property
    def idle(self) -> bool:
        return super().idle and not self._late

    # ---- where the faults are committed

    def _send_request(self, now_ms: int) -> list[DeskEvent]:
        if self._open is not None:
            self._asked = (self._open.request, self._open.wrapper)
        return super()._send_request(now_ms)

    def _answer(self, verdict: Verdict, verdict_ref: str, now_ms: int) -> list[DeskEvent]:
        events = super()._answer(verdict, verdict_ref, now_ms)
        first = any(isinstance(event, VerdictAnswered) and event.refused is None for event in events)
        fault = self._fault_of(verdict) if first else None
        if fault is not None:
            self._commit(fault, verdict_ref, now_ms)
            self.injected[verdict_ref] = fault
        return events

    def _commit(self, fault: Fault, verdict_ref: str, now_ms: int) -> None:
        """The decision on the verdict is the newest thing in the outbox."""
        type_, wrapper = self._outbox.pop()
        before, after = self._around(fault, wrapper)
        if fault is Fault.LATE_DECISION:
            self._late.append((now_ms + LATE_DECISION_MS, wrapper))
        elif fault is not Fault.DROP_DECISION:
            self._outbox.extend((type_, item) for item in (*before, wrapper, *after))
        if fault in NO_TURN_AFTER:
            self._turns = deque(turn for turn in self._turns if turn.verdict_ref != verdict_ref)
        self._reset_due = fault is Fault.RESET_AFTER_VERDICT
        self._misuse_request(fault)

    def _around(self, fault: Fault, wrapper: JsonObject) -> tuple[list[JsonObject], list[JsonObject]]:
        """Wrong decisions to be sent before the right one, and after it."""
        decision = Decision.from_obj(wrapper["decision_obj"])
        match fault:
            case Fault.DUPLICATE_DECISION:
                return [], [wrapper]
            case Fault.WRONG_SIGNATURE:
                forged = sign_object(Kind.DECISION, decision.to_obj(), self._stranger)
                return [forged | {"signer_kid": self._identity.key.kid}], []
            case Fault.WRONG_REF:
                return [self._signed(replace(decision, verdict_ref="0" * 32))], []
            case Fault.CONTRADICTING_DECISION:
                return [], [self._signed(replace(decision, actuated=not decision.actuated))]
            case _:
                return [], []

    def _signed(self, decision: Decision) -> JsonObject:
        return sign_object(Kind.DECISION, decision.to_obj(), self._identity.key)

    def _misuse_request(self, fault: Fault) -> None:
        """Something wrong with the request that the verdict has just answered."""
        if self._asked is None:
            return
        request, wrapper = self._asked
        if fault is Fault.REPLAY_REQUEST:
            self._end.send_request(wrapper)
        elif fault is Fault.CHANGED_REQUEST:
            changed = replace(request, issued_at_ms=request.issued_at_ms + 1)
            self._end.send_request(sign_object(Kind.REQUEST, changed.to_obj(), self._identity.key))
        elif fault is Fault.LATE_CANCEL:
            self._end.send_cancel(request.txn_id)
