"""Which bytes the port has not taken yet, and which frames it has taken but not let go.

A port may take a write only in part, and may hold what it took for a while (a UART at 921600 baud holds
4 KiB for 45 ms). The link hands it a few frames at a time, knows how many are unsent, and learns when the
last fragment of a message has left.
"""

from collections import deque
from dataclasses import dataclass

from link1.channels import InFlight


@dataclass(frozen=True, slots=True)
class _Unsent:
    """A frame on its way: it has left when `end` bytes have; `ending` is the message it completes."""

    end: int
    ending: InFlight | None


class PortQueue:
    """Bounded by one write of frames and by what the operating system's queue of a port can hold."""

    def __init__(self) -> None:
        self.unwritten = b""
        self._zero_first = False
        self._put_total = 0
        self._written_total = 0
        self._unsent: deque[_Unsent] = deque()

    def opened(self) -> None:
        """A port just opened holds nothing of ours; the first byte to it is a 0x00."""
        self.unwritten = b""
        self._zero_first = True
        self._put_total = self._written_total = 0
        self._unsent.clear()

    def put(self, encoded: bytes, ending: InFlight | None) -> None:
        """Add a frame behind what is unwritten; `ending` is the message that it completes."""
        if self._zero_first:
            encoded = b"\x00" + encoded
            self._zero_first = False
        self.unwritten += encoded
        self._put_total += len(encoded)
        self._unsent.append(_Unsent(self._put_total, ending))

    def wrote(self, count: int) -> None:
        """The port took `count` of the unwritten bytes."""
        self._written_total += count
        self.unwritten = self.unwritten[count:]

    def give_up(self) -> None:
        """The session is over. Drop what is unwritten; a 0x00 before the next frame ends what the port may
        have of a frame. Of the messages that the port still holds none is waited for any more."""
        if self.unwritten:
            self.unwritten = b""
            self._zero_first = True
            self._put_total = self._written_total
            while self._unsent and self._unsent[-1].end > self._written_total:
                self._unsent.pop()
        self._unsent = deque(_Unsent(frame.end, None) for frame in self._unsent)

    def departed(self, held: int) -> list[InFlight]:
        """The messages whose last fragment has left, when the port now holds `held` bytes."""
        left_total = self._written_total - held
        messages = []
        while self._unsent and self._unsent[0].end <= left_total:
            ending = self._unsent.popleft().ending
            if ending is not None:
                messages.append(ending)
        return messages

    @property
    def frames_unsent(self) -> int:
        """Frames that have not left: unwritten, or taken by the port and not let go."""
        return len(self._unsent)

    @property
    def frames_inside(self) -> int:
        """Frames that the port has taken and not let go."""
        return sum(frame.end <= self._written_total for frame in self._unsent)

    @property
    def message_inside(self) -> bool:
        """True while the last fragment of a message lies in the port."""
        return any(frame.ending is not None and frame.end <= self._written_total for frame in self._unsent)
