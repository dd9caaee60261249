"""Which bytes the port has not taken yet, and which frames it has taken but not let go.

A port may take a write only in part, and may hold what it took for a while (a UART at 921600 baud holds
4 KiB for 45 ms). The link hands it one frame at a time, knows how many frames are unsent, and learns when
the last fragment of a message has left.
"""

from collections import deque
from dataclasses import dataclass

from link1.channels import InFlight


@dataclass(frozen=True, slots=True)
class _Inside:
    """A frame in the port: it has left when `end` bytes have; `ending` is the message it completes."""

    end: int
    ending: InFlight | None


class PortQueue:
    """Bounded by one frame unwritten and by what the operating system's queue of a port can hold."""

    def __init__(self) -> None:
        self.unwritten = b""
        self._ending: InFlight | None = None
        self._zero_first = False
        self._written_total = 0
        self._inside: deque[_Inside] = deque()

    def opened(self) -> None:
        """A port just opened holds nothing of ours; the first byte to it is a 0x00."""
        self.unwritten = b""
        self._ending = None
        self._zero_first = True
        self._written_total = 0
        self._inside.clear()

    def put(self, encoded: bytes, ending: InFlight | None) -> None:
        """Make a frame the next to be written; only when nothing is unwritten."""
        self.unwritten = b"\x00" + encoded if self._zero_first else encoded
        self._zero_first = False
        self._ending = ending

    def wrote(self, count: int) -> None:
        """The port took `count` of the unwritten bytes."""
        self._written_total += count
        self.unwritten = self.unwritten[count:]
        if not self.unwritten:
            self._inside.append(_Inside(self._written_total, self._ending))
            self._ending = None

    def give_up(self) -> None:
        """Drop the rest of a frame; a 0x00 before the next one ends what the port may have of it."""
        if self.unwritten:
            self.unwritten = b""
            self._ending = None
            self._zero_first = True

    def departed(self, held: int) -> list[InFlight]:
        """The messages whose last fragment has left, when the port now holds `held` bytes."""
        left_total = self._written_total - held
        messages = []
        while self._inside and self._inside[0].end <= left_total:
            ending = self._inside.popleft().ending
            if ending is not None:
                messages.append(ending)
        return messages

    @property
    def frames_inside(self) -> int:
        """Frames that the port has taken and not let go."""
        return len(self._inside)

    @property
    def message_inside(self) -> bool:
        """True while the last fragment of a message lies in the port."""
        return any(frame.ending is not None for frame in self._inside)
