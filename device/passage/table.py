"""The life of a transaction as a table (LINK/1 §4, device states).

    armed → capturing → decided → sent → awaiting_passage → complete
    with cancelled, expired, outcome_unknown, and forgotten: a reset dropped it before it had a verdict.

A trigger without a row for a state cannot happen there; if it does, the program is wrong.
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
    HAND_CAME = "a hand that is not spent is in view"
    HAND_PASSED_BY = "it left before it could be captured"
    HAND_UNSEEN = "the camera no longer shows whether it is there"
    OUTCOME = "the outcome is decided"
    TIME_UP = "no hand came in time"
    CANCEL = "the validator cancels"
    REPLACED = "the validator sends another request"
    LINK_LOST = "the session ends"
    DURABLE = "the verdict is on the disk and its session exists: it is sent"
    WITHHELD = "the verdict is on the disk and its session has ended: it is not sent"
    STORE_FAILED = "the verdict cannot be made durable and is dropped"
    DECISION = "a decision without a passage to follow"
    DECISION_ACTUATED = "a decision that was acted upon, with a turn sensor"
    PASSAGE = "the turn sensor has reported"
    TIMEOUT = "the next answer does not arrive in time"


TRANSITIONS: dict[tuple[State, Trigger], State] = {
    (State.ARMED, Trigger.HAND_CAME): State.CAPTURING,
    (State.ARMED, Trigger.OUTCOME): State.DECIDED,  # the camera cannot see whether a hand is there
    (State.ARMED, Trigger.TIME_UP): State.EXPIRED,
    (State.ARMED, Trigger.CANCEL): State.CANCELLED,
    (State.ARMED, Trigger.REPLACED): State.CANCELLED,
    (State.ARMED, Trigger.LINK_LOST): State.FORGOTTEN,
    (State.CAPTURING, Trigger.HAND_PASSED_BY): State.ARMED,
    (State.CAPTURING, Trigger.HAND_UNSEEN): State.ARMED,
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
    """The state of one transaction, which changes only by `step`."""

    __slots__ = ("_state",)

    def __init__(self, state: State = State.ARMED) -> None:
        """`state`: for a transaction that continues from the journal."""
        self._state = state

    @property
    def state(self) -> State:
        return self._state

    def takes(self, trigger: Trigger) -> bool:
        """Whether `trigger` can happen now."""
        return (self._state, trigger) in TRANSITIONS

    def step(self, trigger: Trigger) -> None:
        """`trigger` has happened. Raises KeyError where it cannot happen, which is a fault of the program."""
        self._state = TRANSITIONS[self._state, trigger]
