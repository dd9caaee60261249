"""Frames with any members: what `link1.frames` refuses to build can be built here."""

import zlib

from link1.frames import CRC_BYTES, VERSION, cobs_encode


def raw_frame(
    kind: int,
    *,
    chan: int = 0,
    sess: int = 0,
    mid: int = 0,
    index: int = 0,
    count: int = 1,
    payload: bytes = b"",
    version: int = VERSION,
    crc_flip: int = 0,
) -> bytes:
    """The bytes of a frame with its closing 0x00; every member 0..255, mid 0..65535, none is checked.

    `crc_flip` is XORed to the checksum.
    """
    body = bytes((version, kind, chan, sess)) + mid.to_bytes(2, "big") + bytes((index, count)) + payload
    crc = zlib.crc32(body) ^ crc_flip
    return cobs_encode(body + crc.to_bytes(CRC_BYTES, "big")) + b"\x00"
