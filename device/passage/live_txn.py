"""What the transaction engine keeps of a transaction until the journal has it."""

from dataclasses import dataclass, field

from device.passage.decision import Attempt
from device.passage.table import TRANSITIONS, State, Trigger
from device.values.transactions import TxnMemory
from link1.objects import Request


@dataclass(slots=True)
class LiveTxn:
    """A request that has no durable verdict yet. Times are monotonic milliseconds.

    `ref`: object_ref of its wrapper. `session`: the one in which it was made or last repeated.
    """

    request: Request
    ref: str
    session: int
    expires_ms: int
    finish_ms: int
    attempt: Attempt
    state: State = State.ARMED
    captured_from_ms: int = 0

    def step(self, trigger: Trigger) -> None:
        self.state = TRANSITIONS[self.state, trigger]


@dataclass(slots=True)
class Ending:
    """An end that is being made durable, and the message types that it then answers."""

    memory: TxnMemory
    answers: list[str] = field(default_factory=list)
