"""Verdicts that were sent, and the time within which something has to come of them (LINK/1 §4).

Only their timers live here; what is recorded of them lives in the journal, which also knows those of before
a restart. The newest `MAX_OPEN` are watched; an older one is given up early, which costs nothing: what comes
later still completes it.
"""

from dataclasses import dataclass

from device.passage.effects import Effect, RecordOutcomeUnknown
from device.passage.table import TRANSITIONS, State, Trigger

MAX_OPEN = 64
"""Each waits 15 s at most by default, and a gate lets one person through every second or two."""


@dataclass(slots=True)
class _Open:
    """`deadline_ms` is None until the verdict has left the port."""

    state: State
    deadline_ms: int | None


class OpenOutcomes:
    """Timers by verdict_ref."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def next_deadline_ms(self) -> int | None:
        deadlines = (entry.deadline_ms for entry in self._open.values())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def sent(self, verdict_ref: str) -> list[Effect]:
        """A verdict was handed to the link; its time runs from when it has left the port."""
        return self._watch(verdict_ref, _Open(State.SENT, None))

    def left(self, verdict_ref: str, deadline_ms: int) -> None:
        """The last byte of the verdict has left the port; a decision is due by `deadline_ms`."""
        entry = self._open.get(verdict_ref)
        if entry is not None and entry.deadline_ms is None:
            entry.deadline_ms = deadline_ms

    def session_ended(self) -> list[Effect]:
        """Nothing of this session leaves any more: what has not left will not be decided in it."""
        stuck = [ref for ref, entry in self._open.items() if entry.deadline_ms is None]
        return [self._give_up(ref) for ref in stuck]

    def decided(self, verdict_ref: str, *, passage_due_ms: int | None) -> list[Effect]:
        """A decision has come; None when no passage will follow."""
        entry = self._open.get(verdict_ref)
        trigger = Trigger.DECISION if passage_due_ms is None else Trigger.DECISION_ACTUATED
        state = TRANSITIONS.get((entry.state if entry else State.OUTCOME_UNKNOWN, trigger))
        if state is None:
            return []  # it was decided before
        self._open.pop(verdict_ref, None)
        return [] if passage_due_ms is None else self._watch(verdict_ref, _Open(state, passage_due_ms))

    def passed(self, verdict_ref: str) -> None:
        """The turn sensor has spoken. Before any decision that changes nothing: the decision is still due."""
        entry = self._open.get(verdict_ref)
        if entry is not None and (entry.state, Trigger.PASSAGE) in TRANSITIONS:
            del self._open[verdict_ref]

    def disowned(self, verdict_refs: tuple[str, ...]) -> None:
        """The validator never will act on these: nothing has to be waited for."""
        for verdict_ref in verdict_refs:
            if verdict_ref in self._open and self._open[verdict_ref].state is State.SENT:
                del self._open[verdict_ref]

    def tick(self, now_ms: int) -> list[Effect]:
        late = [
            ref
            for ref, entry in self._open.items()
            if entry.deadline_ms is not None and now_ms >= entry.deadline_ms
        ]
        return [self._give_up(ref) for ref in late]

    def _watch(self, verdict_ref: str, entry: _Open) -> list[Effect]:
        self._open[verdict_ref] = entry
        return [self._give_up(next(iter(self._open)))] if len(self._open) > MAX_OPEN else []

    def _give_up(self, verdict_ref: str) -> Effect:
        del self._open[verdict_ref]
        return RecordOutcomeUnknown(verdict_ref)
