"""Captures of the cable as pcap files that Wireshark opens (with tools/kit/wireshark/link1.lua).

A packet is one byte of direction and then the bytes of one frame as they were on the wire, COBS and closing
0x00 included, so that damaged frames can be looked at too. Link type DLT_USER0 (147); times in microseconds.

pcap: https://datatracker.ietf.org/doc/draft-ietf-opsawg-pcap/
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import BinaryIO

from link1.errors import FormatError
from link1.frames import MAX_ENCODED_BYTES

DLT_USER0 = 147
MAGIC_US = 0xA1B2C3D4
_OURS = MAGIC_US.to_bytes(4, "little")
_CAPTURES = (
    *(_OURS, _OURS[::-1], b"\x4d\x3c\xb2\xa1", b"\xa1\xb2\x3c\x4d"),  # microseconds, nanoseconds
    b"\n\r\r\n",  # pcapng
)
"""How captures begin; no frame begins so."""
_FILE_HEADER = struct.Struct("<IHHiIII")
_PACKET_HEADER = struct.Struct("<IIII")
MAX_PACKET_BYTES = 2 * MAX_ENCODED_BYTES
"""Bytes between two 0x00 are cut at this length: a longer run is no frame."""
_SNAPLEN = MAX_PACKET_BYTES + 2


class Direction(IntEnum):
    """The first byte of a packet: who sent it."""

    UNKNOWN = 0
    FROM_DEVICE = 1
    FROM_VALIDATOR = 2


@dataclass(frozen=True, slots=True)
class Captured:
    """One packet of a capture: epoch microseconds, who sent it, the bytes of the wire."""

    at_us: int
    direction: Direction
    data: bytes


class FrameCutter:
    """Cuts a byte stream after each 0x00, without looking at the bytes between; lone 0x00 are left out.

    >>> cutter = FrameCutter()
    >>> cutter.feed(bytes([0, 7, 8, 0, 9]))
    [b'\\x07\\x08\\x00']
    >>> cutter.feed(bytes([1, 0]))
    [b'\\t\\x01\\x00']
    """

    def __init__(self) -> None:
        self.held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The pieces that `data` completes, each with its 0x00; at most MAX_PACKET_BYTES of any."""
        pieces = []
        *complete, rest = data.split(b"\x00")
        for piece in complete:
            self._hold(piece)
            if self.held:
                pieces.append(bytes(self.held) + b"\x00")
            self.held.clear()
        self._hold(rest)
        return pieces

    def _hold(self, piece: bytes) -> None:
        self.held += piece[: MAX_PACKET_BYTES - len(self.held)]


class PcapWriter:
    """Writes a capture; every packet is flushed, so that a capture can be watched while it grows."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        file.write(_FILE_HEADER.pack(MAGIC_US, 2, 4, 0, 0, _SNAPLEN, DLT_USER0))
        file.flush()

    def write(self, packet: Captured) -> None:
        data = bytes((packet.direction,)) + packet.data
        seconds, microseconds = divmod(packet.at_us, 1_000_000)
        self._file.write(_PACKET_HEADER.pack(seconds, microseconds, len(data), len(data)) + data)
        self._file.flush()


def is_capture(start: bytes) -> bool:
    """Whether a file that begins so is a capture; one in another form than ours is refused by `read_pcap`."""
    return start[:4] in _CAPTURES


def read_pcap(file: BinaryIO, begun: bytes = b"") -> Iterator[Captured]:
    """The packets of a capture, of which `begun` has been read. Raises FormatError for another file."""
    head = begun + file.read(_FILE_HEADER.size - len(begun))
    if len(head) < _FILE_HEADER.size or head[:4] != _OURS:
        raise FormatError("not a little-endian pcap file with microseconds; Wireshark's Save As makes one")
    if _FILE_HEADER.unpack(head)[6] != DLT_USER0:
        raise FormatError("a pcap file of something else: the link type is not DLT_USER0 (147)")
    while len(head := file.read(_PACKET_HEADER.size)) == _PACKET_HEADER.size:
        seconds, microseconds, size, _ = _PACKET_HEADER.unpack(head)
        data = file.read(size) if 1 <= size <= _SNAPLEN else b""
        if not data or len(data) < size or data[0] not in list(Direction):
            raise FormatError("a damaged packet in the pcap file")
        yield Captured(seconds * 1_000_000 + microseconds, Direction(data[0]), data[1:])
