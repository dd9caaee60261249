"""The inbox's end of the cable: chunks in, whole records and answers out (LINK/1 §5).

It assembles one record at a time, the next one after the last applied. The bytes received survive a reset of
the link, so that a transfer continues; after a restart of the program it begins at 0 again.
"""

from link1.bodies import MailAck, MailChunk, MailState


class InboxAssembly:
    """Assembles the next record. Sans-I/O: `take` returns the answer, or the whole record."""

    def __init__(self, applied_seq: int) -> None:
        self.applied_seq = applied_seq
        self._total = 0
        self._data = bytearray()
        self._judging = False

    @property
    def next_seq(self) -> int:
        """The only record that is accepted now."""
        return self.applied_seq + 1

    def take(self, chunk: MailChunk) -> MailAck | bytes | None:
        """The answer to a chunk; the bytes of the record when it is complete and has to be judged; None while
        it is being judged."""
        if chunk.seq <= self.applied_seq:
            return self._ack(chunk.seq, MailState.APPLIED)
        if chunk.seq != self.next_seq:
            return self._ack(chunk.seq, MailState.GAP)
        if self._judging:
            return None
        if chunk.total != self._total:
            self._total = chunk.total
            self._data.clear()
        if chunk.offset == len(self._data):
            self._data += chunk.data
        if len(self._data) < self._total:
            return self._ack(chunk.seq, MailState.MORE)
        self._judging = True
        return bytes(self._data)

    def applied(self) -> MailAck:
        """The record has taken effect, durably."""
        self.applied_seq += 1
        self._restart()
        return self._ack(self.applied_seq, MailState.APPLIED)

    def refused(self, code: str) -> MailAck:
        """The record is rejected; it has to be sent again from the beginning."""
        self._restart()
        return self._ack(self.next_seq, MailState.REFUSED, code)

    def postponed(self) -> None:
        """The record cannot be judged now; the next question has it judged again."""
        self._judging = False

    def _restart(self) -> None:
        self._judging = False
        self._total = 0
        self._data.clear()

    def _ack(self, seq: int, state: MailState, code: str | None = None) -> MailAck:
        next_offset = len(self._data) if state is MailState.MORE else 0
        return MailAck(seq, next_offset, state, self.applied_seq, code)
