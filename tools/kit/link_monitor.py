"""Makes LINK/1 bytes readable: one line a frame, and the message when its last fragment has come.

Bytes come from one port, from two ports that the monitor joins, or from a file; they go into report lines
and, if wanted, into a capture for Wireshark.
"""

import select
import time
from collections import OrderedDict
from collections.abc import Iterator
from io import BufferedReader, BytesIO

from link1.canonical import JsonObject, read_strict
from link1.channels import ChannelReceiver, Taken
from link1.errors import FormatError
from link1.frames import MAX_MESSAGE_BYTES, Channel, Frame, FrameDecoder, FrameKind
from link1.transport.serial_port import Port
from tools.kit.link_pcap import Captured, Direction, FrameCutter, PcapWriter, is_capture, read_pcap

READ_BYTES = 16_384

MAX_PARTIAL_MESSAGES = 8
"""Two channels, two directions, and as many again for what a reset left unfinished."""


class FrameLog:
    """Fed with bytes of one or both directions; answers with report lines."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder()
        self._partial: OrderedDict[tuple[Channel, int, int], ChannelReceiver] = OrderedDict()
        self._dropped_before = 0

    def feed(self, data: bytes) -> list[JsonObject]:
        """A line for each frame that `data` completes, and one when something was no frame."""
        lines = [self._line(frame) for frame in self._decoder.feed(data)]
        dropped = self._decoder.dropped.total()
        if dropped != self._dropped_before:
            reasons = {reason.value: count for reason, count in self._decoder.dropped.items()}
            lines.append({"kind": "DROPPED", "so_far": reasons})
            self._dropped_before = dropped
        return lines

    def _line(self, frame: Frame) -> JsonObject:
        line: JsonObject = {"kind": frame.kind.name}
        if frame.kind in (FrameKind.DATA, FrameKind.ACK):
            line |= {"chan": frame.chan.name.lower(), "mid": frame.mid}
        if frame.kind not in (FrameKind.RST, FrameKind.RSTACK):
            line["sess"] = f"{frame.sess:02x}"
        else:
            line["tags"] = [frame.payload[at : at + 8].hex() for at in range(0, len(frame.payload), 8)]
            self._partial.clear()  # another session: what is unfinished stays so
        if frame.kind is FrameKind.HINT:
            line |= _message(frame.payload)
        if frame.kind is FrameKind.DATA:
            line |= {"fragment": frame.index + 1, "of": frame.count, "bytes": len(frame.payload)}
            taken = self._take(frame)
            if taken.dropped is not None:
                line["dropped"] = taken.dropped.value
            if taken.message is not None:
                line |= _message(taken.message)
        return line

    def _take(self, frame: Frame) -> Taken:
        """What an end whose turn this message is makes of a fragment."""
        key = (frame.chan, frame.sess, frame.mid)
        taken = self._partial.setdefault(key, ChannelReceiver(expected_mid=frame.mid)).take(frame)
        if taken.message is not None:
            del self._partial[key]
        elif len(self._partial) > MAX_PARTIAL_MESSAGES:
            self._partial.popitem(last=False)
        return taken


def _message(data: bytes) -> JsonObject:
    try:
        obj = read_strict(data, max_bytes=MAX_MESSAGE_BYTES)
    except FormatError as error:
        return {"unreadable": str(error)}
    return {"type": obj.get("type"), "body": obj.get("body")}


_NAMES = {Direction.FROM_DEVICE: "device", Direction.FROM_VALIDATOR: "validator"}


class CableLog:
    """Both directions of a cable: report lines that name the sender, and a capture."""

    def __init__(self, pcap: PcapWriter | None = None) -> None:
        self._logs = {direction: FrameLog() for direction in Direction}
        self._cutters = {direction: FrameCutter() for direction in Direction}
        self._pcap = pcap

    def feed(self, piece: Captured) -> list[JsonObject]:
        """The lines of what this piece completes."""
        if self._pcap is not None:
            for data in self._cutters[piece.direction].feed(piece.data):
                self._pcap.write(Captured(piece.at_us, piece.direction, data))
        name = _NAMES.get(piece.direction)
        who: JsonObject = {} if name is None else {"from": name}
        return [who | line for line in self._logs[piece.direction].feed(piece.data)]


def pieces_of_file(file: BufferedReader | BytesIO, direction: Direction) -> Iterator[Captured]:
    """Bytes as they were captured, or the packets of a pcap file; raises FormatError for a damaged one. Of a
    pipe every piece comes when it is there."""
    magic = file.read(4)
    if is_capture(magic):
        yield from read_pcap(file, magic)
        return
    piece = magic
    while piece:
        yield Captured(_now_us(), direction, piece)
        piece = file.read1(READ_BYTES)


def pieces_of_port(port: Port, direction: Direction) -> Iterator[Captured]:
    """What arrives at a port, for ever; raises TransportError when it goes away."""
    while True:
        select.select([port.fileno()], [], [])
        yield Captured(_now_us(), direction, port.read(READ_BYTES))


def pieces_through(device: Port, validator: Port) -> Iterator[Captured]:
    """Carry bytes between two ports, for ever, and give every piece; raises TransportError.

    What one port does not take at once is held, and nothing more is read for it until it is gone.
    """
    ways = (_Way(device, validator, Direction.FROM_DEVICE), _Way(validator, device, Direction.FROM_VALIDATOR))
    while True:
        select.select(
            [way.source.fileno() for way in ways if not way.held],
            [way.sink.fileno() for way in ways if way.held],
            [],
        )
        for way in ways:
            data = way.move()
            if data:
                yield Captured(_now_us(), way.direction, data)


class _Way:
    """One direction between two ports."""

    def __init__(self, source: Port, sink: Port, direction: Direction) -> None:
        self.source, self.sink, self.direction = source, sink, direction
        self.held = b""

    def move(self) -> bytes:
        """Hand on what can be handed on; what was read by it."""
        data = b"" if self.held else self.source.read(READ_BYTES)
        self.held += data
        if self.held:
            self.held = self.held[self.sink.write(self.held) :]
        return data


def _now_us() -> int:
    return time.time_ns() // 1_000
