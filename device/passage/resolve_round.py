"""After a handshake: asking the validator what became of the verdicts that still await something.

The refs go out in turn, at most 32 a message, the next message when the one before is answered or a
second has passed: a validator that has forgotten stays silent, and one that answers has to send a decision
and a passage for each. Verdicts made after the handshake are not asked about.
"""

from device.passage.effects import Effect, ListOpen, Resolve
from link1.objects import LastVerdict

MAX_REFS = 32
_PACE_MS = 1_000


class ResolveRound:
    """One round of questions; each handshake starts a new one."""

    def __init__(self) -> None:
        self._asked: ListOpen | None = None
        self._after_seq = 0
        self._upto_seq = 0
        self._unanswered: set[str] = set()
        self._next_ms: int | None = None

    @property
    def next_deadline_ms(self) -> int | None:
        return self._next_ms

    def start(self, last_seq: int) -> list[Effect]:
        """A session stands; `last_seq` is the number of the newest verdict, 0 for none."""
        self.stop()
        self._upto_seq = last_seq
        return self._list() if last_seq else []

    def stop(self) -> None:
        """The session is over."""
        self._asked = None
        self._after_seq = 0
        self._unanswered.clear()
        self._next_ms = None

    def listed(self, asked: ListOpen, verdicts: list[LastVerdict], now_ms: int) -> list[Effect]:
        """The answer to `asked`; one that an earlier session asked for is let go."""
        if asked is not self._asked:
            return []
        self._asked = None
        if not verdicts:
            self.stop()
            return []
        refs = tuple(verdict.verdict_ref for verdict in verdicts)
        self._after_seq = verdicts[-1].verdict_seq
        self._unanswered = set(refs)
        self._next_ms = now_ms + _PACE_MS
        return [Resolve(refs)]

    def answered(self, verdict_ref: str) -> list[Effect]:
        """A decision, a passage or `unknown` has come for this verdict."""
        if verdict_ref not in self._unanswered:
            return []
        self._unanswered.discard(verdict_ref)
        return self._list() if not self._unanswered else []

    def tick(self, now_ms: int) -> list[Effect]:
        return self._list() if self._next_ms is not None and now_ms >= self._next_ms else []

    def _list(self) -> list[Effect]:
        self._next_ms = None
        self._unanswered.clear()
        self._asked = ListOpen(self._after_seq, self._upto_seq, MAX_REFS)
        return [self._asked]
