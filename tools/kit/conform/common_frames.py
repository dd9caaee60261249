"""Rules for both ends: frames and messages in fragments (LINK/1 §1)."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from link1.channels import MAX_WAITING
from link1.envelope import ABOUT_MESSAGE
from link1.frames import MAX_ENCODED_BYTES, MAX_MESSAGE_BYTES, MAX_PAYLOAD_BYTES, FrameKind, cobs_encode
from tools.kit.conform.end_under_test import QUIET_MS, EndUnderTest
from tools.kit.conform.peer import ANSWER_MS, Broken, Heard
from tools.kit.conform.rules import ConformanceRule
from tools.kit.raw_frames import raw_frame

STRANGE = "no_such_type"
"""An unknown type: the answer `error unsupported_type` shows that it was delivered."""
BYTES_SECTION = "§1 Bytes on the wire"
CHANNEL_SECTION = "§1 Reliable, ordered messages"
TWENTY = MAX_WAITING + 4
"""More messages than may wait, and few enough that a slow end, which may take 300 ms for each ACK, does not
come to its sixth transmission meanwhile."""
TWO_FRAGMENTS = 1_500
"""Bytes of a message that fills two fragments."""
GIVES_UP_MS = 8_500
"""200 + 400 + 800 + 1600 + 2000 + 2000 ms, and a slow machine."""


def strange(size: int = 0) -> bytes:
    """A sound message of an unknown type, of `size` bytes if that is given."""
    head, tail = b'{"body":{"x":"', b'"},"type":"' + STRANGE.encode() + b'","v":1}'
    return head + b"x" * max(0, size - len(head) - len(tail)) + tail


def want_strange_error(bench: EndUnderTest, since: int) -> None:
    """`strange` was delivered: its type is none of the contract, so the error is about `message`."""
    bench.want_error(since, "unsupported_type", about=ABOUT_MESSAGE)


def strange_errors(bench: EndUnderTest, since: int) -> list[Heard]:
    return [
        h for h in bench.peer.heard[since:] if h.type == "error" and "unsupported" in str(h.body.get("code"))
    ]


def dropped(make: Callable[[int, int], bytes], sound_bytes: int) -> Callable[[EndUnderTest], None]:
    """A check that the DATA frame `make(sess, mid)` is dropped whole, and that a sound message of
    that size is then taken."""

    def check(bench: EndUnderTest) -> None:
        bench.prove()
        peer, mid = bench.peer, bench.peer.next_mid()
        mark = peer.mark
        peer.write(make(peer.sess, mid))
        bench.barrier()
        if peer.acked(mid, 0, mark):
            raise Broken("the frame was taken and acknowledged")
        peer.say_bytes(strange(sound_bytes))
        want_strange_error(bench, mark)
        bench.barrier()
        if len(strange_errors(bench, mark)) != 1:
            raise Broken("the frame was delivered in addition to the sound frame")

    return check


def _unanswered_ping(**members: int | bytes) -> Callable[[EndUnderTest], None]:
    """A check that a PING with these members is dropped."""

    def check(bench: EndUnderTest) -> None:
        bench.prove()
        peer = bench.peer
        bench.barrier()
        peer.auto_ping = False  # so that every PONG is one to the frame
        mark = peer.mark
        peer.frame(FrameKind.PING, **members)
        if peer.wait(lambda h: h.frame.kind is FrameKind.PONG, QUIET_MS, mark) is not None:
            raise Broken("it was answered with PONG")
        bench.barrier()

    return check


def _pong_each(bench: EndUnderTest) -> None:
    """PINGs that arrive together are PINGs all the same."""
    bench.prove()
    peer = bench.peer
    bench.barrier()
    peer.auto_ping = False
    mark = peer.mark
    peer.write(raw_frame(FrameKind.PING, sess=peer.sess) * 2)
    peer.listen(2 * QUIET_MS)
    pongs = sum(h.frame.kind is FrameKind.PONG for h in peer.heard[mark:])
    if pongs != 2:
        raise Broken(f"two PINGs in a row were answered by {pongs} PONGs")


def _short_rst(bench: EndUnderTest) -> None:
    bench.prove()
    mark = bench.peer.mark
    bench.peer.write(raw_frame(FrameKind.RST, payload=b"\x77" * 7))
    bench.peer.write(raw_frame(FrameKind.RST, payload=b"\x77" * 8, mid=1))
    bench.peer.write(raw_frame(FrameKind.RST, payload=b"\x77" * 8, sess=bench.peer.sess or 1))
    bench.barrier()
    if any(h.frame.kind is FrameKind.RSTACK for h in bench.peer.heard[mark:]):
        raise Broken("it was answered with RSTACK")


def _ack_with_payload(bench: EndUnderTest) -> None:
    """An ACK with a payload settles nothing: the hello comes again."""
    bench.peer.open(acks=False)
    heard = bench.peer.message("hello", ANSWER_MS, 0)
    if heard is None:
        raise Broken("no hello")
    mark = bench.peer.mark
    bench.peer.frame(FrameKind.ACK, mid=heard.frame.mid, payload=b"x")
    if bench.peer.message("hello", ANSWER_MS, mark) is None:
        raise Broken("it was taken for an acknowledgement: the message did not come again")


def _resynchronises(bench: EndUnderTest) -> None:
    bench.prove()
    good = raw_frame(FrameKind.PING, sess=bench.peer.sess)
    for noise in (b"\x00" * 50, b"\xff" * 300 + b"\x00", b"\x05ab\x00", good[:5] + b"\x00", b"\x01\x00"):
        bench.peer.write(noise)
        bench.barrier()
    peer = bench.peer
    peer.auto_ack = peer.auto_pong = False  # an answer between the two pieces would spoil the frame
    peer.write(good[:7])
    peer.listen(30)
    mark = peer.mark
    peer.write(good[7:])
    peer.auto_pong = True
    peer.resume_acks()
    if peer.wait(lambda h: h.frame.kind is FrameKind.PONG, ANSWER_MS, mark) is None:
        raise Broken("a frame that comes in two pieces is not taken")


def _overlong(bench: EndUnderTest) -> None:
    bench.prove()
    bench.peer.write(b"\x33" * (20 * MAX_ENCODED_BYTES) + b"\x00")
    bench.barrier()
    body = bytes((1, FrameKind.DATA, 0, bench.peer.sess, 0, bench.peer.next_mid(), 0, 1))
    bench.peer.write(cobs_encode(body + b"x" * (MAX_PAYLOAD_BYTES + 1) + b"crc!") + b"\x00")
    bench.barrier()


def _largest_message(bench: EndUnderTest) -> None:
    bench.prove()
    mark = bench.peer.say_bytes(strange(MAX_MESSAGE_BYTES))
    want_strange_error(bench, mark)


def _shuffled(bench: EndUnderTest) -> None:
    """Fragments in another order, and some of them twice: delivered once."""
    bench.prove()
    peer, mark = bench.peer, bench.peer.mark
    mid = peer.next_mid()
    a, b, c = peer.fragments(strange(2_500), mid)
    peer.write(c + a + c + a + b)
    if not peer.acked(mid, ANSWER_MS, mark):
        raise Broken("a message whose fragments came in another order is not acknowledged")
    peer.take_mid()
    want_strange_error(bench, mark)
    bench.barrier()
    if len(strange_errors(bench, mark)) != 1:
        raise Broken("the message was delivered more than once")


def _mixed_counts(bench: EndUnderTest) -> None:
    bench.prove()
    peer, mark = bench.peer, bench.peer.mark
    mid = peer.next_mid()
    first, _second, _third = peer.fragments(strange(2_500), mid)
    peer.write(first + peer.fragments(strange(1_500), mid)[1])
    bench.barrier()
    if peer.acked(mid, 0, mark):
        raise Broken("fragments with two different counts were joined")


def _repeat(bench: EndUnderTest) -> None:
    bench.prove()
    peer = bench.peer
    mark, mid = peer.mark, peer.next_mid()
    peer.say_bytes(strange())
    want_strange_error(bench, mark)
    again = peer.mark
    peer.write(b"".join(peer.fragments(strange(), mid)))
    if not peer.acked(mid, ANSWER_MS, again):
        raise Broken("a message that was delivered is not acknowledged again")
    bench.barrier()
    if strange_errors(bench, again):
        raise Broken("it was delivered again")


def _out_of_turn(bench: EndUnderTest) -> None:
    bench.prove()
    peer, mark = bench.peer, bench.peer.mark
    mid = peer.next_mid() + 1
    peer.write(b"".join(peer.fragments(strange(), mid)))
    bench.barrier()
    if peer.acked(mid, 0, mark) or strange_errors(bench, mark):
        raise Broken("a message was taken whose turn it was not")


def _sends_again(bench: EndUnderTest) -> None:
    peer = bench.peer
    peer.open(acks=False)
    first = peer.message("hello", ANSWER_MS, 0)
    if first is None:
        raise Broken("no hello")
    times = [first.at_ms]
    for _ in range(2):
        again = peer.message("hello", ANSWER_MS)
        if again is None:
            raise Broken(f"sent {len(times)} times and not again")
        if again.frame.mid != first.frame.mid or again.data != first.data:
            raise Broken("another message came before the acknowledgement of the first")
        times.append(again.at_ms)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    if not (150 <= gaps[0] <= 350 and 300 <= gaps[1] <= 650):
        raise Broken(f"sent again after {gaps[0]} ms and {gaps[1]} ms")


def _foreign_ack(bench: EndUnderTest) -> None:
    """ACKs of a message that it has not sent yet, and of one on the other channel."""
    peer = bench.peer
    peer.open(acks=False)
    first = peer.message("hello", ANSWER_MS, 0)
    if first is None:
        raise Broken("no hello")
    mid = first.frame.mid
    peer.frame(FrameKind.ACK, mid=mid + 1)
    peer.frame(FrameKind.ACK, chan=1, mid=mid)
    again = peer.message("hello", ANSWER_MS)
    if again is None or again.frame.mid != mid:
        raise Broken("a message was given up at the ACK of another one")


def _gives_up(bench: EndUnderTest) -> None:
    """Needs a message of the proven end that we do not acknowledge: an error that we provoke, or any
    message before it."""
    bench.prove()
    peer = bench.peer
    peer.listen(100)
    peer.auto_ack = False
    mark, mid = peer.mark, peer.expected_mid()
    peer.say_bytes(strange())
    reset = peer.wait(lambda h: h.frame.kind is FrameKind.RST, GIVES_UP_MS, mark)
    sendings = [
        h
        for h in peer.heard[mark:]
        if h.frame.kind is FrameKind.DATA
        and (h.frame.chan, h.frame.mid) == (0, mid)
        and h.frame.index == h.frame.count - 1
    ]
    if reset is None:
        raise Broken(f"{len(sendings)} transmissions unanswered, and no RST within {GIVES_UP_MS} ms")
    if len(sendings) != 6:
        raise Broken(f"RST after {len(sendings)} transmissions")


def _sixteen_wait(bench: EndUnderTest) -> None:
    """We acknowledge nothing while it is given cause for twenty errors: some are dropped, none ends it."""
    bench.prove()
    peer = bench.peer
    peer.listen(100)
    peer.auto_ack = False
    mark = peer.mark
    for _ in range(TWENTY):
        peer.say_bytes(strange())
    peer.resume_acks()
    peer.listen(ANSWER_MS)
    # By mid: what waits for its ACK is sent again meanwhile.
    mids = {h.frame.mid for h in strange_errors(bench, mark)}
    if len(mids) > MAX_WAITING + 1:
        raise Broken(f"{len(mids)} errors had waited")
    if any(h.frame.kind is FrameKind.RST for h in peer.heard[mark:]):
        raise Broken("the session did not survive")
    want_strange_error(bench, peer.say_bytes(strange()))


def _flood(bench: EndUnderTest) -> None:
    bench.prove()
    peer = bench.peer
    peer.write(raw_frame(FrameKind.PING, sess=peer.sess) * 400)
    mark, mid = peer.mark, peer.next_mid()
    peer.write(b"".join(peer.fragments(strange(), mid)) * 50)
    if not peer.acked(mid, 2 * ANSWER_MS, mark):
        raise Broken("no longer served after 400 PINGs and 50 copies of a message")
    peer.take_mid()
    want_strange_error(bench, mark)
    bench.barrier()
    if any(h.frame.kind is FrameKind.RST for h in peer.heard[mark:]):
        raise Broken("the session did not survive")


_DROP = "Dropped whole and counted: "
_DROPPED = "no ACK, nothing delivered, and the next sound frame is taken"


def _frame_rule(
    id_: str, why: str, make: Callable[[int, int], bytes], sound_bytes: int = 0
) -> ConformanceRule:
    return ConformanceRule(f"frame.{id_}", BYTES_SECTION, _DROP + why, _DROPPED, dropped(make, sound_bytes))


def _data(sess: int, mid: int, **members: int | bytes) -> bytes:
    merged: dict[str, Any] = {"sess": sess, "mid": mid, "payload": strange()} | members
    return raw_frame(FrameKind.DATA, **merged)


def _short_slices(sess: int, mid: int) -> bytes:
    whole = strange(TWO_FRAGMENTS)
    return _data(sess, mid, count=2, payload=whole[:20]) + _data(
        sess, mid, index=1, count=2, payload=whole[MAX_PAYLOAD_BYTES:]
    )


def _empty_last(sess: int, mid: int) -> bytes:
    # The first fragment is sound and may be kept, so it is that of the sound message which follows.
    first = strange(TWO_FRAGMENTS)[:MAX_PAYLOAD_BYTES]
    return _data(sess, mid, count=2, payload=first) + _data(sess, mid, index=1, count=2, payload=b"")


FRAME_RULES = (
    _frame_rule("bad_crc", "bad crc", lambda s, m: _data(s, m, crc_flip=1 << 20)),
    _frame_rule("version", "wrong ver", lambda s, m: _data(s, m, version=2)),
    _frame_rule("kind", "unknown kind", lambda s, m: raw_frame(3, sess=s, mid=m, payload=strange())),
    _frame_rule("channel", "unknown chan", lambda s, m: _data(s, m, chan=2)),
    _frame_rule("other_session", "other sess", lambda s, m: _data(s ^ 0x55, m)),
    _frame_rule("index", "index >= count", lambda s, m: _data(s, m, index=1)),
    _frame_rule("count", "count 0 or over 4", lambda s, m: _data(s, m, count=0) + _data(s, m, count=5)),
    _frame_rule("short_slice", "a short inner slice", _short_slices, TWO_FRAGMENTS),
    _frame_rule("empty_last", "an empty last fragment", _empty_last, TWO_FRAGMENTS),
    _frame_rule("too_long", "too long", lambda s, m: _data(s, m, payload=strange(MAX_PAYLOAD_BYTES + 1))),
    ConformanceRule(
        "frame.ping_payload",
        BYTES_SECTION,
        _DROP + "a payload in ACK, PING or PONG",
        "no PONG",
        _unanswered_ping(payload=b"x"),
    ),
    ConformanceRule(
        "frame.ping_members",
        BYTES_SECTION,
        _DROP + "a chan, sess, mid, index or count that its kind does not allow",
        "no PONG to a PING with mid 1",
        _unanswered_ping(mid=1),
    ),
    ConformanceRule(
        "session.pong_each",
        "§1 Sessions",
        "PING (answered by PONG)",
        "two PINGs in a row are answered by two PONGs",
        _pong_each,
    ),
    ConformanceRule(
        "frame.ack_payload",
        BYTES_SECTION,
        _DROP + "a payload in ACK, PING or PONG",
        "the message is sent again",
        _ack_with_payload,
    ),
    ConformanceRule(
        "frame.rst_payload",
        BYTES_SECTION,
        _DROP + "an RST payload that is not 8 bytes",
        "no RSTACK to an RST of 7 bytes, with a mid, or with a sess",
        _short_rst,
    ),
    ConformanceRule(
        "frame.resynchronises",
        BYTES_SECTION,
        "The decoder resynchronises at the next 0x00. A lone 0x00 is idle.",
        "after noise and a 0x00 the next PING is answered",
        _resynchronises,
    ),
    ConformanceRule(
        "frame.never_holds_more",
        BYTES_SECTION,
        "never holds more than one maximal frame",
        "after 20 KiB without a 0x00 the next PING is answered",
        _overlong,
    ),
    ConformanceRule(
        "message.largest",
        BYTES_SECTION,
        "A message is at most 4096 bytes.",
        "a message of 4096 bytes in 4 fragments is acknowledged and read",
        _largest_message,
    ),
    ConformanceRule(
        "message.fragments",
        CHANNEL_SECTION,
        "The whole message has arrived.",
        "fragments in another order and doubled make one message, delivered once",
        _shuffled,
    ),
    ConformanceRule(
        "message.count_changes",
        BYTES_SECTION,
        _DROP + "a count that changes inside one mid",
        "no ACK",
        _mixed_counts,
    ),
    ConformanceRule(
        "message.repeated",
        CHANNEL_SECTION,
        "a message already delivered is ACKed again and not delivered again",
        "ACK, and no second answer",
        _repeat,
    ),
    ConformanceRule(
        "message.out_of_turn",
        CHANNEL_SECTION,
        "The receiver takes only the mid after the last one delivered",
        "no ACK for the mid after the next one",
        _out_of_turn,
    ),
    ConformanceRule(
        "message.sent_again",
        CHANNEL_SECTION,
        "The timer starts when the last fragment has left the port: 200 ms, doubling to 2 s",
        "an unacknowledged hello comes again after 200 ms and after 400 ms more",
        _sends_again,
    ),
    ConformanceRule(
        "message.foreign_ack",
        CHANNEL_SECTION,
        "ACK (chan, mid, empty payload): the whole message has arrived.",
        "a hello comes again after ACKs of another mid and of the other channel",
        _foreign_ack,
    ),
    ConformanceRule(
        "message.six_transmissions",
        CHANNEL_SECTION,
        "after 6 transmissions without an answer the link is down",
        "6 transmissions, then RST",
        _gives_up,
    ),
    ConformanceRule(
        "message.sixteen_wait",
        CHANNEL_SECTION,
        "At most 16 messages wait on a channel; … a 17th status or error drops its oldest waiting one",
        "of twenty errors that wait for our ACK 17 come at most, and the session goes on",
        _sixteen_wait,
    ),
    ConformanceRule(
        "message.flood",
        CHANNEL_SECTION,
        "At most 16 messages wait on a channel.",
        "400 PINGs and 50 copies of one message: served on in the same session, delivered once",
        _flood,
    ),
)
