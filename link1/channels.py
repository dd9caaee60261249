"""One reliable, ordered channel in one direction: stop-and-wait per message (LINK/1 §1).

`ChannelSender` holds what waits and the one message in flight; `ChannelReceiver` puts fragments together.
Neither knows ports, tags or the other channel; `link1.link` joins them.
"""

from collections import deque
from dataclasses import dataclass, field

from link1.errors import FormatError
from link1.frames import MAX_MESSAGE_BYTES, MAX_PAYLOAD_BYTES, Channel, DropReason, Frame, FrameKind

MAX_WAITING = 16
"""LINK/1 §1: room for every message that one passage can cause, on a machine with 32 KiB."""
RETRANSMIT_AFTER_MS = (200, 400, 800, 1600, 2000, 2000)
"""How long each of the six transmissions waits for its ACK; then the link is down."""
_MIDS = 1 << 16
_REPEAT_WINDOW = _MIDS // 2
"""How far back a mid counts as a repeat rather than as one to come (serial number arithmetic)."""


def slices_of(data: bytes) -> list[bytes]:
    """The fragments of a message: 1024 bytes each, the last at least 1."""
    return [data[start : start + MAX_PAYLOAD_BYTES] for start in range(0, len(data), MAX_PAYLOAD_BYTES)]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message of 1..4096 bytes to send; raises FormatError for another length.

    A `droppable` one may be given up for a newer one of the same `name`; an `urgent` one goes before what
    waits; one with a `token` is reported when it has left.
    """

    name: str
    data: bytes
    droppable: bool = False
    urgent: bool = False
    token: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.data) <= MAX_MESSAGE_BYTES:
            raise FormatError(f"a message has 1 to {MAX_MESSAGE_BYTES} bytes, this one has {len(self.data)}")


@dataclass(slots=True)
class InFlight:
    """The one message that has been sent and not yet acknowledged."""

    channel: Channel
    message: Outgoing
    mid: int
    slices: list[bytes]
    next_slice: int = 0
    transmissions: int = 0
    deadline_ms: int | None = None

    @property
    def has_frame(self) -> bool:
        return self.next_slice < len(self.slices)

    def left(self, now_ms: int) -> bool:
        """The last fragment has left the port: the timer starts. True the first time for a message."""
        self.transmissions += 1
        self.deadline_ms = now_ms + RETRANSMIT_AFTER_MS[self.transmissions - 1]
        return self.transmissions == 1


@dataclass(slots=True)
class ChannelSender:
    """What goes out on one channel. All state ends with the session."""

    channel: Channel
    waiting: deque[Outgoing] = field(default_factory=deque)
    in_flight: InFlight | None = None
    next_mid: int = 0

    def clear(self) -> None:
        self.waiting.clear()
        self.in_flight = None
        self.next_mid = 0

    @property
    def idle(self) -> bool:
        return self.in_flight is None and not self.waiting

    def queue(self, message: Outgoing) -> bool:
        """Let a message wait its turn; False when there is no room, so that it waits at its source.

        A droppable message (status, error) takes the place of the oldest waiting one of its name; an
        urgent one (verdict) goes before everything that is not urgent, and where no message is in flight it
        need not wait at all.
        """
        most = MAX_WAITING + (message.urgent and self.in_flight is None)
        if len(self.waiting) >= most and not (message.droppable and self._drop_oldest(message.name)):
            return False
        if message.urgent:
            place = sum(1 for other in self.waiting if other.urgent)
            self.waiting.insert(place, message)
        else:
            self.waiting.append(message)
        return True

    def withdraw_waiting(self, name: str | None = None) -> bool:
        """Drop what has not begun to go out, of all or of one name; whether there was any."""
        kept = deque(other for other in self.waiting if name is not None and other.name != name)
        dropped = len(kept) < len(self.waiting)
        self.waiting = kept
        return dropped

    def _drop_oldest(self, name: str) -> bool:
        for place, other in enumerate(self.waiting):
            if other.droppable and other.name == name:
                del self.waiting[place]
                return True
        return False

    @property
    def has_frame(self) -> bool:
        """True when a frame could go out now."""
        return self.in_flight.has_frame if self.in_flight is not None else bool(self.waiting)

    def take_frame(self, sess: int) -> tuple[Frame, bool]:
        """The next frame, and whether it is the last of its message. Only when `has_frame`."""
        flight = self.in_flight
        if flight is None:
            message = self.waiting.popleft()
            flight = InFlight(self.channel, message, self.next_mid, slices_of(message.data))
            self.in_flight = flight
            self.next_mid = (self.next_mid + 1) % _MIDS
        index, count = flight.next_slice, len(flight.slices)
        flight.next_slice += 1
        frame = Frame(FrameKind.DATA, self.channel, sess, flight.mid, index, count, flight.slices[index])
        return frame, index == count - 1

    def acknowledged(self, mid: int) -> Outgoing | None:
        """End the message that this ACK settles. A message that was never sent whole cannot have arrived.

        Returns the message if nothing said before that it had left: a port that was not asked yet may still
        count as its own what the peer has.
        """
        flight = self.in_flight
        if flight is None or flight.mid != mid or (flight.transmissions == 0 and flight.has_frame):
            return None
        self.in_flight = None
        return flight.message if flight.transmissions == 0 else None

    @property
    def deadline_ms(self) -> int | None:
        return self.in_flight.deadline_ms if self.in_flight is not None else None

    def expire(self, now_ms: int) -> bool:
        """Send the whole message again when its time is over; False when six went unanswered."""
        flight = self.in_flight
        if flight is None or flight.deadline_ms is None or now_ms < flight.deadline_ms:
            return True
        if flight.transmissions >= len(RETRANSMIT_AFTER_MS):
            return False
        flight.deadline_ms = None
        flight.next_slice = 0
        return True


@dataclass(frozen=True, slots=True)
class Taken:
    """The outcome of a DATA frame."""

    acknowledge: bool = False
    message: bytes | None = None
    dropped: DropReason | None = None


@dataclass(slots=True)
class ChannelReceiver:
    """What comes in on one channel: at most one message is held, in at most four slices."""

    expected_mid: int = 0
    delivered: int = 0
    count: int = 0
    slices: dict[int, bytes] = field(default_factory=dict)

    def clear(self) -> None:
        self.expected_mid = 0
        self.delivered = 0
        self.slices.clear()

    def take(self, frame: Frame) -> Taken:
        """Judge one DATA frame of this channel and session."""
        if frame.mid != self.expected_mid:
            behind = (self.expected_mid - frame.mid) % _MIDS
            if behind <= min(self.delivered, _REPEAT_WINDOW):
                return Taken(acknowledge=True)
            return Taken(dropped=DropReason.OUT_OF_TURN)
        if self.slices and frame.count != self.count:
            return Taken(dropped=DropReason.COUNT_CHANGED)
        self.count = frame.count
        self.slices[frame.index] = frame.payload
        if len(self.slices) < frame.count:
            return Taken()
        message = b"".join(self.slices[index] for index in range(frame.count))
        self.slices.clear()
        self.expected_mid = (self.expected_mid + 1) % _MIDS
        self.delivered = min(self.delivered + 1, _REPEAT_WINDOW)
        return Taken(acknowledge=True, message=message)
