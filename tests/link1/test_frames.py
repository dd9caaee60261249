"""Frames: the golden bytes of LINK/1 §1, every reason for a drop, and a decoder that nothing upsets."""

import itertools
import zlib
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from link1.frames import (
    MAX_ENCODED_BYTES,
    BadFrameError,
    Channel,
    DropReason,
    Frame,
    FrameDecoder,
    FrameKind,
    cobs_decode,
    cobs_encode,
    encode_frame,
)

TAG_1 = bytes(range(0x01, 0x09))
TAG_2 = bytes(range(0x11, 0x19))

GOLDEN = [
    (Frame(FrameKind.RST, payload=TAG_1), "030104010101010e010102030405060708853cfc4800"),
    (
        Frame(FrameKind.RSTACK, payload=TAG_1 + TAG_2),
        "0301050101010116010102030405060708111213141516171894b8ddf600",
    ),
    (Frame(FrameKind.PING, sess=0x01), "030106020101010601803ff3eb00"),
    (Frame(FrameKind.ACK, sess=0x01, mid=5), "03010202010205060172bb151300"),
    (
        Frame(FrameKind.DATA, sess=0x11, payload=b'{"v":1}'),
        "030101021101010d017b2276223a317db187a03700",
    ),
]


@pytest.mark.parametrize(("frame", "golden"), GOLDEN, ids=[frame.kind.name for frame, _ in GOLDEN])
def test_golden_frames(frame: Frame, golden: str) -> None:
    assert encode_frame(frame).hex() == golden
    assert FrameDecoder().feed(bytes.fromhex(golden)) == [frame]


def test_checksum_is_crc32_iso_hdlc() -> None:
    assert zlib.crc32(b"123456789") == 0xCBF43926


def frames() -> st.SearchStrategy[Frame]:
    single = st.one_of(
        st.builds(Frame, st.just(FrameKind.RST), payload=st.binary(min_size=8, max_size=8)),
        st.builds(Frame, st.just(FrameKind.RSTACK), payload=st.binary(min_size=16, max_size=16)),
        st.builds(Frame, st.sampled_from([FrameKind.PING, FrameKind.PONG]), sess=st.integers(0, 255)),
        st.builds(
            Frame,
            st.just(FrameKind.ACK),
            st.sampled_from(Channel),
            st.integers(0, 255),
            st.integers(0, 65535),
        ),
        st.builds(Frame, st.just(FrameKind.HINT), sess=st.integers(0, 255), payload=st.binary(max_size=1024)),
    )
    last = st.integers(1, 4).flatmap(
        lambda count: st.builds(
            Frame,
            st.just(FrameKind.DATA),
            st.sampled_from(Channel),
            st.integers(0, 255),
            st.integers(0, 65535),
            st.just(count - 1),
            st.just(count),
            st.binary(min_size=1, max_size=1024),
        )
    )
    inner = st.binary(min_size=1024, max_size=1024).map(
        lambda data: Frame(FrameKind.DATA, Channel.MAIL, 7, 9, 0, 2, data)
    )
    return st.one_of(single, last, inner)


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(st.lists(frames(), max_size=6), st.lists(st.integers(0, 10_000), max_size=8))
def test_what_is_encoded_is_decoded_however_it_arrives(sent: list[Frame], cuts: list[int]) -> None:
    data = b"\x00".join(encode_frame(frame) for frame in sent)
    decoder = FrameDecoder()
    received = [frame for piece in pieces(data, cuts) for frame in decoder.feed(piece)]
    assert received == sent
    assert decoder.dropped.total() == 0


@given(st.binary(max_size=3000), st.lists(st.integers(0, 10_000), max_size=8))
def test_no_bytes_upset_the_decoder_and_the_next_frame_is_served(noise: bytes, cuts: list[int]) -> None:
    decoder = FrameDecoder()
    for piece in pieces(noise, cuts):
        decoder.feed(piece)
        assert decoder.held_bytes <= MAX_ENCODED_BYTES
    honest = Frame(FrameKind.DATA, sess=1, payload=b"here")
    assert decoder.feed(b"\x00" + encode_frame(honest))[-1] == honest


@given(frames(), st.data())
def test_a_flipped_bit_never_passes(frame: Frame, data: st.DataObject) -> None:
    encoded = bytearray(encode_frame(frame))
    at = data.draw(st.integers(0, len(encoded) - 2))
    encoded[at] ^= 1 << data.draw(st.integers(0, 7))
    assert frame not in FrameDecoder().feed(bytes(encoded))


@given(st.binary(max_size=1100))
def test_cobs_round_trip(raw: bytes) -> None:
    encoded = cobs_encode(raw)
    assert 0 not in encoded
    assert len(encoded) <= len(raw) + max(1, -(-len(raw) // 254))
    assert cobs_decode(encoded) == raw


@pytest.mark.parametrize(
    ("raw", "encoded"),
    [
        (b"", b"\x01"),
        (b"\x00", b"\x01\x01"),
        (b"\x00\x00", b"\x01\x01\x01"),
        (b"\x11\x22\x00\x33", b"\x03\x11\x22\x02\x33"),
        (b"\x11\x00\x00\x00", b"\x02\x11\x01\x01\x01"),
        (b"x" * 254, b"\xff" + b"x" * 254),
        (b"x" * 255, b"\xff" + b"x" * 254 + b"\x02x"),
        (b"\x00" + b"x" * 254, b"\x01\xff" + b"x" * 254),
        (b"x" * 254 + b"\x00", b"\xff" + b"x" * 254 + b"\x01\x01"),
    ],
)
def test_cobs_examples(raw: bytes, encoded: bytes) -> None:
    """The examples of the paper and of its edge at runs of 254."""
    assert cobs_encode(raw) == encoded
    assert cobs_decode(encoded) == raw


def test_a_second_spelling_of_the_same_bytes_is_read_too() -> None:
    assert cobs_decode(b"\xff" + b"x" * 254 + b"\x01") == b"x" * 254


def raw_frame(*head: int, payload: bytes = b"", crc: int | None = None) -> bytes:
    body = bytes(head) + payload
    checksum = zlib.crc32(body) if crc is None else crc
    return cobs_encode(body + checksum.to_bytes(4, "big")) + b"\x00"


DROPS = [
    ("cobs cut short", b"\x09abc\x00", DropReason.BAD_COBS),
    ("eleven bytes", cobs_encode(bytes(11)) + b"\x00", DropReason.TOO_SHORT),
    ("1037 bytes", raw_frame(1, 1, 0, 0, 0, 0, 0, 1, payload=bytes(1025)), DropReason.TOO_LONG),
    ("endless", b"\xff" * 5000 + b"\x00", DropReason.TOO_LONG),
    ("checksum", raw_frame(1, 6, 0, 1, 0, 0, 0, 1, crc=0), DropReason.BAD_CRC),
    ("ver 2", raw_frame(2, 6, 0, 1, 0, 0, 0, 1), DropReason.WRONG_VERSION),
    ("kind 3", raw_frame(1, 3, 0, 1, 0, 0, 0, 1), DropReason.UNKNOWN_KIND),
    ("kind 9", raw_frame(1, 9, 0, 1, 0, 0, 0, 1), DropReason.UNKNOWN_KIND),
    ("kind 0", raw_frame(1, 0, 0, 1, 0, 0, 0, 1), DropReason.UNKNOWN_KIND),
    ("chan 2", raw_frame(1, 1, 2, 1, 0, 0, 0, 1, payload=b"x"), DropReason.UNKNOWN_CHANNEL),
    ("count 0", raw_frame(1, 1, 0, 1, 0, 0, 0, 0, payload=b"x"), DropReason.BAD_COUNT),
    ("count 5", raw_frame(1, 1, 0, 1, 0, 0, 4, 5, payload=b"x"), DropReason.BAD_COUNT),
    ("index is count", raw_frame(1, 1, 0, 1, 0, 0, 1, 1, payload=b"x"), DropReason.BAD_INDEX),
    ("short inner slice", raw_frame(1, 1, 0, 1, 0, 0, 0, 2, payload=bytes(1023)), DropReason.SHORT_SLICE),
    ("empty last fragment", raw_frame(1, 1, 0, 1, 0, 0, 0, 1), DropReason.EMPTY_LAST_FRAGMENT),
    ("RST of 7", raw_frame(1, 4, 0, 0, 0, 0, 0, 1, payload=bytes(7)), DropReason.BAD_PAYLOAD),
    ("RST of 9", raw_frame(1, 4, 0, 0, 0, 0, 0, 1, payload=bytes(9)), DropReason.BAD_PAYLOAD),
    ("RSTACK of 15", raw_frame(1, 5, 0, 0, 0, 0, 0, 1, payload=bytes(15)), DropReason.BAD_PAYLOAD),
    ("payload in ACK", raw_frame(1, 2, 0, 1, 0, 0, 0, 1, payload=b"x"), DropReason.BAD_PAYLOAD),
    ("payload in PING", raw_frame(1, 6, 0, 1, 0, 0, 0, 1, payload=b"x"), DropReason.BAD_PAYLOAD),
    ("payload in PONG", raw_frame(1, 7, 0, 1, 0, 0, 0, 1, payload=b"x"), DropReason.BAD_PAYLOAD),
    ("sess in RST", raw_frame(1, 4, 0, 1, 0, 0, 0, 1, payload=bytes(8)), DropReason.MEMBER_NOT_ALLOWED),
    ("sess in RSTACK", raw_frame(1, 5, 0, 1, 0, 0, 0, 1, payload=bytes(16)), DropReason.MEMBER_NOT_ALLOWED),
    ("chan in RST", raw_frame(1, 4, 1, 0, 0, 0, 0, 1, payload=bytes(8)), DropReason.MEMBER_NOT_ALLOWED),
    ("mid in RST", raw_frame(1, 4, 0, 0, 0, 1, 0, 1, payload=bytes(8)), DropReason.MEMBER_NOT_ALLOWED),
    ("mid in PING", raw_frame(1, 6, 0, 1, 0, 1, 0, 1), DropReason.MEMBER_NOT_ALLOWED),
    ("chan in PONG", raw_frame(1, 7, 1, 1, 0, 0, 0, 1), DropReason.MEMBER_NOT_ALLOWED),
    ("mid in HINT", raw_frame(1, 8, 0, 1, 0, 1, 0, 1, payload=b"x"), DropReason.MEMBER_NOT_ALLOWED),
    ("chan in HINT", raw_frame(1, 8, 1, 1, 0, 0, 0, 1, payload=b"x"), DropReason.MEMBER_NOT_ALLOWED),
    ("count in HINT", raw_frame(1, 8, 0, 1, 0, 0, 0, 2, payload=bytes(1024)), DropReason.MEMBER_NOT_ALLOWED),
    ("index in ACK", raw_frame(1, 2, 0, 1, 0, 0, 1, 1), DropReason.MEMBER_NOT_ALLOWED),
    ("count 0 in ACK", raw_frame(1, 2, 0, 1, 0, 0, 0, 0), DropReason.MEMBER_NOT_ALLOWED),
]


@pytest.mark.parametrize(("data", "reason"), [drop[1:] for drop in DROPS], ids=[drop[0] for drop in DROPS])
def test_what_is_no_frame_is_dropped_whole_and_counted(data: bytes, reason: DropReason) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(data) == []
    assert dict(decoder.dropped) == {reason: 1}
    ping = Frame(FrameKind.PING, sess=1)
    assert decoder.feed(encode_frame(ping)) == [ping]


def test_a_lone_zero_is_idle() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(bytes(50)) == []
    assert decoder.dropped.total() == 0


def test_no_frame_can_be_made_that_would_be_dropped() -> None:
    with pytest.raises(BadFrameError):
        Frame(FrameKind.DATA, index=1, count=1, payload=b"x")
    with pytest.raises(BadFrameError):
        Frame(FrameKind.PING, payload=b"x")
    with pytest.raises(BadFrameError):
        encode_frame(Frame(FrameKind.HINT, payload=bytes(1025)))
