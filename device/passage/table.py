"""The life of a transaction as a table (LINK/1 §4, device states).

    armed → capturing → decided → sent → awaiting_passage → complete
    with cancelled, expired, outcome_unknown, and forgotten: a reset dropped it before it had a verdict.

A trigger that has no row for a state cannot happen there; that it did would be a fault of this program.
"""

from enum import StrEnum


class State(StrEnum):
    ARMED = "armed"
    CAPTURING = "capturing"
    DECIDED = "decided"
    SENT = "sent"
    AWAITING_PASSAGE = "awaiting_passage"
    COMPLETE = "complete"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    OUTCOME_UNKNOWN = "outcome_unknown"
    FORGOTTEN = "forgotten"


class Trigger(StrEnum):
    HAND_CAME = "a hand that has answered nothing yet is there"
    HAND_PASSED_BY = "it left before it could be captured"
    OUTCOME = "it is decided what the verdict says"
    TIME_UP = "no hand came in time"
    CANCEL = "the validator cancels"
    REPLACED = "the validator sends another request"
    LINK_LOST = "the session ends"
    DURABLE = "the verdict is on the disk, its session stands: it is sent"
    WITHHELD = "the verdict is on the disk, its session has ended: it is not sent"
    STORE_FAILED = "the verdict cannot be made durable: there is none"
    DECISION = "a decision that no passage follows"
    DECISION_ACTUATED = "a decision that was acted upon, with a turn sensor"
    PASSAGE = "the turn sensor has spoken"
    TIMEOUT = "what has to come next does not come in time, or the validator says it never will"


TRANSITIONS: dict[tuple[State, Trigger], State] = {
    (State.ARMED, Trigger.HAND_CAME): State.CAPTURING,
    (State.ARMED, Trigger.OUTCOME): State.DECIDED,  # the camera cannot tell whether a hand is there
    (State.ARMED, Trigger.TIME_UP): State.EXPIRED,
    (State.ARMED, Trigger.CANCEL): State.CANCELLED,
    (State.ARMED, Trigger.REPLACED): State.CANCELLED,
    (State.ARMED, Trigger.LINK_LOST): State.FORGOTTEN,
    (State.CAPTURING, Trigger.HAND_PASSED_BY): State.ARMED,
    (State.CAPTURING, Trigger.OUTCOME): State.DECIDED,
    (State.CAPTURING, Trigger.CANCEL): State.CANCELLED,
    (State.CAPTURING, Trigger.REPLACED): State.CANCELLED,
    (State.CAPTURING, Trigger.LINK_LOST): State.FORGOTTEN,
    (State.DECIDED, Trigger.DURABLE): State.SENT,
    (State.DECIDED, Trigger.WITHHELD): State.OUTCOME_UNKNOWN,
    (State.DECIDED, Trigger.STORE_FAILED): State.EXPIRED,
    (State.SENT, Trigger.DECISION): State.COMPLETE,
    (State.SENT, Trigger.DECISION_ACTUATED): State.AWAITING_PASSAGE,
    (State.SENT, Trigger.TIMEOUT): State.OUTCOME_UNKNOWN,
    (State.AWAITING_PASSAGE, Trigger.PASSAGE): State.COMPLETE,
    (State.AWAITING_PASSAGE, Trigger.TIMEOUT): State.OUTCOME_UNKNOWN,
    (State.OUTCOME_UNKNOWN, Trigger.DECISION): State.COMPLETE,
    (State.OUTCOME_UNKNOWN, Trigger.DECISION_ACTUATED): State.AWAITING_PASSAGE,
    (State.OUTCOME_UNKNOWN, Trigger.PASSAGE): State.COMPLETE,
}


class Life:
    """Where one transaction is in the table. Its state changes by `step` and in no other way."""

    __slots__ = ("_state",)

    def __init__(self, state: State = State.ARMED) -> None:
        """`state`: another one for a transaction that is taken up where the journal left it."""
        self._state = state

    @property
    def state(self) -> State:
        return self._state

    def takes(self, trigger: Trigger) -> bool:
        """Whether `trigger` can happen now."""
        return (self._state, trigger) in TRANSITIONS

    def step(self, trigger: Trigger) -> None:
        """`trigger` has happened. KeyError where it cannot: a fault of this program."""
        self._state = TRANSITIONS[self._state, trigger]


WITHOUT_VERDICT = frozenset({State.ARMED, State.CAPTURING})
"""Here a cancel, another request or a reset still ends a transaction without a verdict."""

ENDED = frozenset({State.COMPLETE, State.CANCELLED, State.EXPIRED, State.FORGOTTEN})
"""Nothing leads out of these."""


def diagram() -> str:
    """The table as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.ARMED}"]
    lines += [f"    {source} --> {target}: {trigger}" for (source, trigger), target in TRANSITIONS.items()]
    lines += [f"    {state} --> [*]" for state in State if state in ENDED]
    return "\n".join(lines) + "\n"
