"""The inbox's end of the cable: chunks in, whole records and answers out (LINK/1 §5).

One record at a time, the one after the last applied. What has been received of it outlives a reset of the
link, so a transfer goes on where it was; it does not outlive the program, which then asks from 0 again.
"""

from link1.bodies import MailAck, MailChunk, MailState


class InboxAssembly:
    """Puts the next record together. Sans-I/O: `take` answers, or says that a record is whole."""

    def __init__(self, applied_seq: int) -> None:
        self._applied_seq = applied_seq
        self._total = 0
        self._data = bytearray()
        self._judging = False

    @property
    def applied_seq(self) -> int:
        return self._applied_seq

    @property
    def next_seq(self) -> int:
        """The only record that is taken now."""
        return self._applied_seq + 1

    def take(self, chunk: MailChunk) -> MailAck | bytes | None:
        """The answer to a chunk; the bytes of the record when it is whole now and has to be judged; None
        while it is being judged, and the answer is still to come."""
        if chunk.seq <= self._applied_seq:
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
        self._applied_seq += 1
        self._begin_anew()
        return self._ack(self._applied_seq, MailState.APPLIED)

    def refused(self, code: str) -> MailAck:
        """The record is not taken; it has to come again, from the beginning."""
        self._begin_anew()
        return self._ack(self.next_seq, MailState.REFUSED, code)

    def postponed(self) -> None:
        """Nothing can be said of the record now: whoever asks again has it judged again."""
        self._judging = False

    def _begin_anew(self) -> None:
        self._judging = False
        self._total = 0
        self._data.clear()

    def _ack(self, seq: int, state: MailState, code: str | None = None) -> MailAck:
        next_offset = len(self._data) if state is MailState.MORE else 0
        return MailAck(seq, next_offset, state, self._applied_seq, code)
