"""Frames on the wire (LINK/1 §1): `COBS(header ‖ payload ‖ crc) ‖ 0x00`.

Invariants
1. `FrameDecoder.feed` never raises, whatever the bytes; anything that is not a frame is dropped and counted.
2. It holds at most one maximal encoded frame between calls, and the next 0x00 always ends a damaged one.
3. A `Frame` that exists is well-formed: its kind allows every member. What a frame means in a
   session (its sess, a mid out of turn, a count that changes) is judged by `link1.link`.

>>> encode_frame(Frame(FrameKind.PING, sess=1)).hex()
'030106020101010601803ff3eb00'

COBS: Cheshire and Baker, "Consistent Overhead Byte Stuffing", IEEE/ACM Transactions on Networking, 1999.
"""

import struct
import zlib
from collections import Counter
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from link1.errors import FormatError

VERSION = 1
HEADER_BYTES = 8
CRC_BYTES = 4
MAX_PAYLOAD_BYTES = 1024
"""One slice of a message; four of them hold the largest message, and a microcontroller holds four."""
MAX_FRAGMENTS = 4
MAX_MESSAGE_BYTES = MAX_FRAGMENTS * MAX_PAYLOAD_BYTES
TAG_BYTES = 8
MIN_RAW_BYTES = HEADER_BYTES + CRC_BYTES
MAX_RAW_BYTES = HEADER_BYTES + MAX_PAYLOAD_BYTES + CRC_BYTES
_COBS_BLOCK_BYTES = 254
"""The longest run that one COBS code byte announces."""
MAX_ENCODED_BYTES = MAX_RAW_BYTES + -(-MAX_RAW_BYTES // _COBS_BLOCK_BYTES)
"""A maximal frame after COBS, without its 0x00: the most that the decoder ever holds."""


class FrameKind(IntEnum):
    """The second byte of a frame; 3 is unused."""

    DATA = 1
    ACK = 2
    RST = 4
    RSTACK = 5
    PING = 6
    PONG = 7
    HINT = 8


class Channel(IntEnum):
    CONTROL = 0
    MAIL = 1


class DropReason(StrEnum):
    """Why a frame was dropped whole; the names under which drops are counted."""

    BAD_COBS = "bad_cobs"
    TOO_SHORT = "too_short"
    TOO_LONG = "too_long"
    BAD_CRC = "bad_crc"
    WRONG_VERSION = "wrong_version"
    UNKNOWN_KIND = "unknown_kind"
    UNKNOWN_CHANNEL = "unknown_channel"
    BAD_COUNT = "bad_count"
    BAD_INDEX = "bad_index"
    SHORT_SLICE = "short_slice"
    EMPTY_LAST_FRAGMENT = "empty_last_fragment"
    BAD_PAYLOAD = "bad_payload"
    MEMBER_NOT_ALLOWED = "member_not_allowed"
    # Judged by the session:
    OTHER_SESSION = "other_session"
    NO_SESSION = "no_session"
    COUNT_CHANGED = "count_changed"
    OUT_OF_TURN = "out_of_turn"


class BadFrameError(FormatError):
    """Bytes or members that make no frame; `reason` is what the drop is counted under."""

    def __init__(self, reason: DropReason) -> None:
        super().__init__(f"no frame: {reason.value}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Frame:
    """One well-formed frame: `sess` 0..255, `mid` 0..65535, `index` < `count` <= 4.

    Raises BadFrameError for members that its kind does not allow.
    """

    kind: FrameKind
    chan: Channel = Channel.CONTROL
    sess: int = 0
    mid: int = 0
    index: int = 0
    count: int = 1
    payload: bytes = b""

    def __post_init__(self) -> None:
        fault = _data_fault(self) if self.kind is FrameKind.DATA else _single_fault(self)
        if fault is not None:
            raise BadFrameError(fault)


_LINK_WIDE = frozenset({FrameKind.RST, FrameKind.RSTACK, FrameKind.PING, FrameKind.PONG, FrameKind.HINT})
"""Kinds that belong to no channel: chan 0, mid 0."""

_EXACT_PAYLOAD_BYTES = {
    FrameKind.RST: TAG_BYTES,
    FrameKind.RSTACK: 2 * TAG_BYTES,
    FrameKind.ACK: 0,
    FrameKind.PING: 0,
    FrameKind.PONG: 0,
}


def _single_fault(frame: Frame) -> DropReason | None:
    """What is wrong with a frame of any kind but DATA."""
    exact = _EXACT_PAYLOAD_BYTES.get(frame.kind)
    if exact is not None and len(frame.payload) != exact:
        return DropReason.BAD_PAYLOAD
    if frame.index != 0 or frame.count != 1:
        return DropReason.MEMBER_NOT_ALLOWED
    if frame.kind in _LINK_WIDE and (frame.chan != 0 or frame.mid != 0):
        return DropReason.MEMBER_NOT_ALLOWED
    if frame.sess != 0 and frame.kind in (FrameKind.RST, FrameKind.RSTACK):
        return DropReason.MEMBER_NOT_ALLOWED
    return None


def _data_fault(frame: Frame) -> DropReason | None:
    index, count, size = frame.index, frame.count, len(frame.payload)
    if not 1 <= count <= MAX_FRAGMENTS:
        return DropReason.BAD_COUNT
    if index >= count:
        return DropReason.BAD_INDEX
    if index < count - 1:
        return None if size == MAX_PAYLOAD_BYTES else DropReason.SHORT_SLICE
    return None if size else DropReason.EMPTY_LAST_FRAGMENT


def encode_frame(frame: Frame) -> bytes:
    """The bytes of a frame with its closing 0x00: 14 to 1042 of them."""
    if len(frame.payload) > MAX_PAYLOAD_BYTES:
        raise BadFrameError(DropReason.TOO_LONG)
    head = _HEADER.pack(VERSION, frame.kind, frame.chan, frame.sess, frame.mid, frame.index, frame.count)
    body = head + frame.payload
    return cobs_encode(body + zlib.crc32(body).to_bytes(CRC_BYTES, "big")) + b"\x00"


_HEADER = struct.Struct(">BBBBHBB")


def cobs_encode(raw: bytes) -> bytes:
    """COBS in its shortest form, without the closing 0x00; the result holds no 0x00."""
    pieces: list[bytes] = []
    blocks = raw.split(b"\x00")
    for block in blocks:
        size, start = len(block), 0
        while size - start >= _COBS_BLOCK_BYTES:
            pieces += (b"\xff", block[start : start + _COBS_BLOCK_BYTES])
            start += _COBS_BLOCK_BYTES
        pieces += (_COBS_CODES[size - start], block[start:] if start else block)
    last = blocks[-1]
    if last and len(last) % _COBS_BLOCK_BYTES == 0:
        del pieces[-2:]  # a full run that ends the data needs no empty run behind it
    return b"".join(pieces)


_COBS_CODES = [bytes((size + 1,)) for size in range(_COBS_BLOCK_BYTES)]
"""The code byte of a run of each size that ends before a 0x00 or with the data."""


def cobs_decode(encoded: bytes) -> bytes | None:
    """Undo COBS; None for bytes that no encoder makes (a run that is cut short, or a 0x00 inside)."""
    if 0 in encoded:
        return None
    pieces = []
    position, end = 0, len(encoded)
    while position < end:
        code = encoded[position]
        following = position + code
        if following > end:
            return None
        pieces.append(encoded[position + 1 : following])
        if code != 0xFF and following < end:
            pieces.append(b"\x00")
        position = following
    return b"".join(pieces)


def decode_frame(encoded: bytes) -> Frame:
    """The frame encoded between two 0x00; raises BadFrameError.

    The checksum comes first: in damaged bytes the other members mean nothing.
    """
    raw = cobs_decode(encoded)
    if raw is None:
        raise BadFrameError(DropReason.BAD_COBS)
    if not MIN_RAW_BYTES <= len(raw) <= MAX_RAW_BYTES:
        raise BadFrameError(DropReason.TOO_SHORT if len(raw) < MIN_RAW_BYTES else DropReason.TOO_LONG)
    if zlib.crc32(raw[:-CRC_BYTES]) != int.from_bytes(raw[-CRC_BYTES:], "big"):
        raise BadFrameError(DropReason.BAD_CRC)
    version, kind_byte, chan_byte, sess, mid, index, count = _HEADER.unpack_from(raw)
    if version != VERSION:
        raise BadFrameError(DropReason.WRONG_VERSION)
    kind = _KINDS.get(kind_byte)
    if kind is None:
        raise BadFrameError(DropReason.UNKNOWN_KIND)
    chan = _CHANNELS.get(chan_byte)
    if chan is None:
        raise BadFrameError(DropReason.UNKNOWN_CHANNEL)
    return Frame(kind, chan, sess, mid, index, count, raw[HEADER_BYTES:-CRC_BYTES])


_KINDS = {int(kind): kind for kind in FrameKind}
_CHANNELS = {int(channel): channel for channel in Channel}


class FrameDecoder:
    """Cuts a byte stream into frames. `dropped` counts what was none, by reason."""

    def __init__(self) -> None:
        self.dropped: Counter[DropReason] = Counter()
        self._held = bytearray()
        self._overrun = False

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes, in order."""
        frames = []
        *complete, rest = data.split(b"\x00")
        for piece in complete:
            if self._held or self._overrun or len(piece) > MAX_ENCODED_BYTES:
                self._hold(piece)
                piece = self._close()  # noqa: PLW2901 — the piece with what was held before it
            if piece:  # a lone 0x00 is idle
                try:
                    frames.append(decode_frame(piece))
                except BadFrameError as error:
                    self.dropped[error.reason] += 1
        if rest:
            self._hold(rest)
        return frames

    def clear(self) -> None:
        """Forget a frame begun, as when the port was opened again."""
        self._held.clear()
        self._overrun = False

    @property
    def held_bytes(self) -> int:
        """Bytes of a frame begun, at most MAX_ENCODED_BYTES."""
        return len(self._held)

    def _hold(self, piece: bytes) -> None:
        if self._overrun or len(self._held) + len(piece) > MAX_ENCODED_BYTES:
            self._overrun = True
            self._held.clear()
        else:
            self._held += piece

    def _close(self) -> bytes:
        """What is held, which a 0x00 ends; nothing when it was too long."""
        if self._overrun:
            self._overrun = False
            self.dropped[DropReason.TOO_LONG] += 1
        encoded = bytes(self._held)
        self._held.clear()
        return encoded
