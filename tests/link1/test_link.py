"""Sessions and reliable messages, LINK/1 §1: the letter of every sentence, one end against a script."""

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from link1.channels import (
    MAX_WAITING,
    RETRANSMIT_AFTER_MS,
    ChannelReceiver,
    ChannelSender,
    Outgoing,
    Taken,
)
from link1.errors import FormatError
from link1.frames import Channel, DropReason, Frame, FrameDecoder, FrameKind, encode_frame
from link1.link import MAX_PENDING_REPLIES, Link
from link1.link_states import (
    DownReason,
    HintArrived,
    LinkState,
    MessageArrived,
    MessageLeft,
    SessionDown,
    SessionUp,
)
from tests.link1.cable import Cable, Script, byte_by_byte, damaging, doubled, mixed_faults, nothing, seeded

CONTROL, MAIL = Channel.CONTROL, Channel.MAIL


def up() -> tuple[Link, Script]:
    """A link with a session, and the script at its other end."""
    link = Link(seeded(1))
    script = Script(link)
    script.open()
    assert link.state is LinkState.UP
    script.take_frames()
    script.events.clear()
    return link, script


def data_of(frames: list[Frame]) -> list[tuple[Channel, int, bytes]]:
    return [(f.chan, f.mid, f.payload) for f in frames if f.kind is FrameKind.DATA]


def kinds_of(frames: list[Frame]) -> list[str]:
    return [frame.kind.name for frame in frames]


# ---- opening


def test_the_first_byte_after_opening_is_an_idle_zero_then_rst_every_500_ms() -> None:
    link = Link(seeded(1))
    link.port_opened(0)
    first = link.data_to_send(0)
    assert first[0] == 0
    link.sent(len(first), 0)
    tags = {first}
    for now_ms in (500, 1000, 1500):
        assert link.next_deadline_ms() == now_ms
        assert link.data_to_send(now_ms - 1) == b""
        link.tick(now_ms)
        again = link.data_to_send(now_ms)
        link.sent(len(again), now_ms)
        tags.add(b"\x00" + again)
    assert len(tags) == 1, "the tag stays the same until it is answered"


def test_until_rstack_every_frame_but_rst_and_rstack_is_dropped() -> None:
    link = Link(seeded(1))
    script = Script(link)
    script.events += link.port_opened(0)
    script.pump()
    tag = script.take_frames()[0].payload
    for frame in (
        Frame(FrameKind.DATA, sess=tag[0], payload=b"early"),
        Frame(FrameKind.PING, sess=tag[0]),
        Frame(FrameKind.HINT, sess=tag[0], payload=b"early"),
    ):
        script.say(frame)
    assert script.take_frames() == []
    assert script.events == []
    assert link.dropped == {DropReason.NO_SESSION: 3}


def test_a_message_cannot_be_sent_without_a_session() -> None:
    link = Link(seeded(1))
    link.port_opened(0)
    assert not link.send(CONTROL, Outgoing("x", b"x"))


# ---- RST and RSTACK


def test_rst_with_the_current_tag_gets_the_same_rstack_and_clears_nothing() -> None:
    link, script = up()
    link.send(CONTROL, Outgoing("x", b"queued"))
    script.auto_ack = False
    script.say(Frame(FrameKind.RST, payload=script.tag))
    frames = script.take_frames()
    assert frames[0] == Frame(FrameKind.RSTACK, payload=script.tag + script.peer_tag)
    assert data_of(frames) == [(CONTROL, 0, b"queued")]
    assert script.events == []


def test_rst_with_a_new_tag_clears_everything_and_a_fresh_tag_answers() -> None:
    link, script = up()
    script.auto_ack = False
    link.send(CONTROL, Outgoing("x", b"in flight"))
    link.send(CONTROL, Outgoing("x", b"waiting"))
    link.send(MAIL, Outgoing("x", b"waiting too"))
    script.pump()
    script.take_frames()
    new_tag = b"\x77" * 8
    script.say(Frame(FrameKind.RST, payload=new_tag))
    (rstack,) = script.take_frames()
    own_tag = rstack.payload[8:]
    assert rstack.payload[:8] == new_tag
    assert own_tag != script.peer_tag
    assert own_tag[0] != script.peer_tag[0]
    assert script.events == [SessionDown(DownReason.PEER_RESET), SessionUp()]
    assert link.idle
    script.say(Frame(FrameKind.DATA, sess=script.peer_tag[0], payload=b"of the old session"))
    assert link.dropped[DropReason.OTHER_SESSION] == 1
    script.say(Frame(FrameKind.DATA, sess=own_tag[0], payload=b"of the new one"))
    assert script.events[-1] == MessageArrived(CONTROL, b"of the new one")


def test_nothing_that_was_owed_in_a_session_goes_out_in_the_next() -> None:
    """An ACK of an earlier session would settle a message of this one."""
    link, script = up()
    sess = script.peer_tag[0]
    link.send_hint(b"h")
    script.pump()
    link.send_hint(b"waits its turn")
    for number in range(3):
        owed = Frame(FrameKind.DATA, Channel(number % 2), sess, number // 2, payload=b"x")
        link.receive(encode_frame(owed), script.now_ms)
    link.receive(encode_frame(Frame(FrameKind.PING, sess=sess)), script.now_ms)
    link.tick(script.now_ms + 1_000)
    link.receive(encode_frame(Frame(FrameKind.RST, payload=b"\x77" * 8)), script.now_ms)
    script.take_frames()
    script.now_ms += 400
    script.pump()
    assert kinds_of(script.take_frames()) == ["RSTACK"]


def test_while_ones_own_rst_is_unanswered_the_tag_is_kept() -> None:
    link = Link(seeded(1))
    script = Script(link)
    link.port_opened(0)
    script.pump()
    (rst,) = script.take_frames()
    script.say(Frame(FrameKind.RST, payload=b"\x01" * 8))
    script.say(Frame(FrameKind.RST, payload=b"\x02" * 8))
    assert [frame.payload for frame in script.take_frames()] == [
        b"\x01" * 8 + rst.payload,
        b"\x02" * 8 + rst.payload,
    ]
    assert script.events == []


def test_rstack_with_another_tag_changes_nothing() -> None:
    link, script = up()
    script.say(Frame(FrameKind.RSTACK, payload=b"\x99" * 16))
    assert script.events == []
    assert link.dropped == {DropReason.OTHER_SESSION: 1}
    assert link.state is LinkState.UP
    link.send(CONTROL, Outgoing("x", b"x"))
    script.pump()
    assert script.take_frames()[0].sess == script.tag[0]


@example(bytes([1, 254] * 4))  # the farthest that the first byte is moved: to the one before
@example(bytes([255, 0] * 4))  # across the end of a byte
@given(st.binary(min_size=8, max_size=8))
def test_a_fresh_tag_differs_in_its_first_byte_even_with_a_stuck_random_source(tag: bytes) -> None:
    link = Link(lambda _n: tag)
    seen = []
    now_ms = 0
    link.port_opened(now_ms)
    for _ in range(5):
        data = link.data_to_send(now_ms)
        link.sent(len(data), now_ms)
        script = Script(link, now_ms=now_ms)
        (rst,) = script.decoder.feed(data)
        seen.append(rst.payload[0])
        link.reset(now_ms, DownReason.SILENT)
    assert all(one != other for one, other in itertools.pairwise(seen))


# ---- reliable messages


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 2048, 4095, 4096])
def test_a_message_of_any_size_goes_in_full_slices(size: int) -> None:
    link, script = up()
    message = bytes(index % 251 for index in range(size))
    script.auto_ack = False
    assert link.send(CONTROL, Outgoing("x", message))
    script.pump()
    frames = script.take_frames()
    assert [frame.count for frame in frames] == [-(-size // 1024)] * len(frames)
    assert [frame.index for frame in frames] == list(range(len(frames)))
    assert all(len(frame.payload) == 1024 for frame in frames[:-1])
    assert b"".join(frame.payload for frame in frames) == message


def test_a_link_is_idle_when_nothing_waits_and_nothing_is_in_flight() -> None:
    link, script = up()
    script.auto_ack = False
    seen = [link.idle]
    link.send(CONTROL, Outgoing("x", b"waits"))
    seen.append(link.idle)
    script.pump()
    seen.append(link.idle)
    script.say(Frame(FrameKind.ACK, CONTROL, script.peer_tag[0], 0))
    assert [*seen, link.idle] == [True, False, False, True]


def test_a_message_that_the_port_does_not_take_is_repeated_once() -> None:
    """Its next timer starts when it has left again."""
    link, script = up()
    script.auto_ack = False
    link.send(CONTROL, Outgoing("x", b"x"))
    script.pump()
    for after_ms in (200, 300, 400):
        link.tick(script.now_ms + after_ms)
    script.pump()
    assert kinds_of(script.take_frames()) == ["DATA", "DATA"]


@pytest.mark.parametrize("size", [0, 4097])
def test_a_message_that_fits_no_four_fragments_is_refused_at_its_source(size: int) -> None:
    with pytest.raises(FormatError):
        Outgoing("x", bytes(size))


def test_the_next_message_waits_for_the_ack_of_the_one_before() -> None:
    link, script = up()
    script.auto_ack = False
    link.send(CONTROL, Outgoing("x", b"one", token="1"))
    link.send(CONTROL, Outgoing("x", b"two"))
    script.pump()
    assert data_of(script.take_frames()) == [(CONTROL, 0, b"one")]
    script.say(Frame(FrameKind.ACK, MAIL, script.peer_tag[0], 0))
    script.say(Frame(FrameKind.ACK, CONTROL, script.peer_tag[0], 1))
    assert data_of(script.take_frames()) == [], "an ACK of another channel or mid settles nothing"
    script.say(Frame(FrameKind.ACK, CONTROL, script.peer_tag[0], 0))
    assert data_of(script.take_frames()) == [(CONTROL, 1, b"two")]
    assert script.events == [MessageLeft("1")]


def test_what_is_delivered_is_acked_and_a_repeat_is_acked_again_and_not_delivered() -> None:
    _, script = up()
    frame = Frame(FrameKind.DATA, CONTROL, script.peer_tag[0], 0, payload=b"once")
    script.say(frame)
    script.say(frame)
    assert script.take_frames() == [Frame(FrameKind.ACK, CONTROL, script.tag[0], 0)] * 2
    assert script.events == [MessageArrived(CONTROL, b"once")]


def test_only_the_mid_after_the_last_is_taken() -> None:
    link, script = up()
    script.say(Frame(FrameKind.DATA, CONTROL, script.peer_tag[0], 1, payload=b"too early"))
    script.say(Frame(FrameKind.DATA, CONTROL, script.peer_tag[0], 65535, payload=b"never was"))
    assert script.take_frames() == []
    assert script.events == []
    assert link.dropped[DropReason.OUT_OF_TURN] == 2


@pytest.mark.parametrize("had_a_session", [False, True])
def test_a_mid_from_before_the_first_message_is_no_repeat(had_a_session: bool) -> None:
    link, script = up()
    if had_a_session:
        for mid in range(3):
            script.say(Frame(FrameKind.DATA, sess=script.peer_tag[0], mid=mid, payload=b"before"))
        script.open()
    sess = script.peer_tag[0]
    script.say(Frame(FrameKind.DATA, sess=sess, mid=0, payload=b"first"))
    script.take_frames()
    for mid in (65_535, 65_534):
        script.say(Frame(FrameKind.DATA, sess=sess, mid=mid, payload=b"never said"))
    assert script.take_frames() == []
    assert link.dropped == {DropReason.OUT_OF_TURN: 2}


def test_mids_go_on_after_65535_with_0() -> None:
    sender, receiver, message = ChannelSender(CONTROL), ChannelReceiver(), Outgoing("x", b"text")
    for number in range(65_538):
        sender.queue(message)
        frame, last = sender.take_frame(1)
        assert (frame.mid, last) == (number % 65_536, True)
        assert receiver.take(frame) == Taken(acknowledge=True, message=b"text")
        sender.acknowledged(frame.mid)
    assert receiver.take(frame) == Taken(acknowledge=True), "a repeat"


def test_fragments_doubled_or_in_any_order_make_one_message_and_one_ack_at_its_end() -> None:
    _, script = up()
    message = bytes(range(256)) * 12
    first, second, third = script.frames_of(message, 0)
    script.say(third, first, first)
    assert script.take_frames() == []
    script.say(second)
    assert kinds_of(script.take_frames()) == ["ACK"]
    assert script.events == [MessageArrived(CONTROL, message)]


def test_a_count_that_changes_inside_one_mid_is_dropped() -> None:
    link, script = up()
    sess = script.peer_tag[0]
    script.say(Frame(FrameKind.DATA, CONTROL, sess, 0, 0, 2, bytes(1024)))
    script.say(Frame(FrameKind.DATA, CONTROL, sess, 0, 2, 3, b"x"))
    assert link.dropped[DropReason.COUNT_CHANGED] == 1
    script.say(Frame(FrameKind.DATA, CONTROL, sess, 0, 1, 2, b"end"))
    assert script.events == [MessageArrived(CONTROL, bytes(1024) + b"end")]


def test_channels_are_independent() -> None:
    link, script = up()
    script.auto_ack = False
    link.send(CONTROL, Outgoing("x", b"control"))
    script.pump()
    link.send(MAIL, Outgoing("x", b"mail"))
    script.pump()
    assert data_of(script.take_frames()) == [(CONTROL, 0, b"control"), (MAIL, 0, b"mail")]


# ---- timers


def test_six_transmissions_then_the_link_is_down() -> None:
    link, script = up()
    script.auto_ack = False
    link.send(CONTROL, Outgoing("x", bytes(1500)))
    script.pump()
    sent_at = [script.now_ms]
    while link.state is LinkState.UP:
        script.after(50)
        if any(frame.kind is FrameKind.DATA for frame in script.frames[2:]):
            frames = [frame for frame in script.frames[2:] if frame.kind is FrameKind.DATA]
            assert len(frames) == 2, "the whole message is sent again"
            sent_at.append(script.now_ms)
        script.frames[2:] = [f for f in script.frames[2:] if f.kind is FrameKind.RST]
    gaps = [later - earlier for earlier, later in itertools.pairwise(sent_at)]
    assert gaps == [200, 400, 800, 1600, 2000]
    assert len(sent_at) == len(RETRANSMIT_AFTER_MS) == 6
    assert script.now_ms - sent_at[-1] == 2000
    assert script.events[-1] == SessionDown(DownReason.UNANSWERED)
    assert script.frames[-1].kind is FrameKind.RST


def test_the_timer_starts_when_the_last_fragment_has_left_the_port() -> None:
    link, script = up()
    now_ms = script.now_ms
    link.send(CONTROL, Outgoing("x", b"slow", token="slow"))
    data = link.data_to_send(now_ms)
    assert link.sent(5, now_ms) == []
    assert link.data_to_send(now_ms) == data[5:], "the rest goes first"
    assert link.sent(len(data) - 5, now_ms + 30, in_port=len(data)) == []
    assert link.waits_for_port
    assert link.sent(0, now_ms + 60, in_port=1) == []
    assert link.sent(0, now_ms + 90, in_port=0) == [MessageLeft("slow")]
    assert link.next_deadline_ms() == now_ms + 90 + 200


def test_a_port_that_never_lets_go_is_not_asked_again_once_the_link_is_down() -> None:
    """The other end's program has stopped reading: its driver may hold the message for days."""
    link, script = up()
    now_ms = script.now_ms
    link.send(CONTROL, Outgoing("x", b"stuck", token="stuck"))
    held = len(link.data_to_send(now_ms))
    link.sent(held, now_ms, in_port=held)
    waits = [link.waits_for_port]
    assert link.tick(now_ms + 2000) == [SessionDown(DownReason.SILENT)]
    waits.append(link.waits_for_port)
    assert waits == [True, False]
    assert link.sent(0, now_ms + 3000, in_port=0) == [], "it left in no session"


def test_an_ack_of_an_earlier_transmission_ends_a_repeat_in_the_middle() -> None:
    link, script = up()
    script.auto_ack = False
    link.send(CONTROL, Outgoing("x", bytes(4000)))
    script.pump()
    script.take_frames()
    now_ms = script.now_ms + 200
    link.tick(now_ms)
    data = link.data_to_send(now_ms)
    link.sent(len(data), now_ms)
    link.receive(encode_frame(Frame(FrameKind.ACK, CONTROL, script.peer_tag[0], 0)), now_ms)
    assert link.data_to_send(now_ms) == b""
    assert link.idle


def test_an_end_that_has_sent_nothing_for_500_ms_pings_and_a_ping_gets_a_pong() -> None:
    link, script = up()
    script.now_ms += 499
    link.tick(script.now_ms)
    script.pump()
    assert script.take_frames() == []
    script.now_ms += 1
    link.tick(script.now_ms)
    script.pump()
    assert script.take_frames() == [Frame(FrameKind.PING, sess=script.tag[0])]
    script.say(Frame(FrameKind.PING, sess=script.peer_tag[0]))
    assert script.take_frames() == [Frame(FrameKind.PONG, sess=script.tag[0])]


def test_two_seconds_without_a_valid_frame_and_the_link_is_down() -> None:
    link, script = up()
    start_ms = script.now_ms
    script.say(Frame(FrameKind.PONG, sess=script.peer_tag[0] ^ 1))  # of another session: not valid
    for now_ms in range(start_ms, start_ms + 2000, 100):
        assert link.tick(now_ms) == []
        script.now_ms = now_ms
        script.pump()
    assert link.tick(start_ms + 2000) == [SessionDown(DownReason.SILENT)]
    script.pump()
    assert script.take_frames()[-1].kind is FrameKind.RST


# ---- order on the wire


def test_replies_go_before_control_control_before_hint_hint_before_mail() -> None:
    link, script = up()
    script.auto_ack = False
    link.send(MAIL, Outgoing("mail", b"mail"))
    link.send_hint(b"hint")
    link.send(CONTROL, Outgoing("control", b"control"))
    sess = script.peer_tag[0]
    link.receive(
        encode_frame(Frame(FrameKind.PING, sess=sess))
        + encode_frame(Frame(FrameKind.DATA, MAIL, sess, payload=b"x")),
        script.now_ms,
    )
    script.pump()
    assert [(f.kind.name, f.payload) for f in script.take_frames()] == [
        ("ACK", b""),
        ("PONG", b""),
        ("DATA", b"control"),
        ("HINT", b"hint"),
        ("DATA", b"mail"),
    ]


def test_an_urgent_message_goes_before_everything_queued_and_after_earlier_urgent_ones() -> None:
    link, script = up()
    for name in ("in flight", "waiting"):
        link.send(CONTROL, Outgoing(name, name.encode()))
        link.data_to_send(script.now_ms)
    link.send(CONTROL, Outgoing("verdict", b"verdict 1", urgent=True))
    link.send(CONTROL, Outgoing("verdict", b"verdict 2", urgent=True))
    script.auto_ack = False
    script.pump()
    order = []
    for mid in range(4):
        order += [payload for _, _, payload in data_of(script.take_frames())]
        script.say(Frame(FrameKind.ACK, CONTROL, script.peer_tag[0], mid))
    assert order == [b"in flight", b"verdict 1", b"verdict 2", b"waiting"]


def test_sixteen_messages_wait_and_the_seventeenth_status_drops_the_oldest_one() -> None:
    link, script = up()
    script.auto_ack = False
    assert link.send(CONTROL, Outgoing("decision", b"in flight"))
    script.pump()
    script.take_frames()
    for number in range(MAX_WAITING - 1):
        assert link.send(CONTROL, Outgoing("decision", b"%d" % number))
    assert link.send(CONTROL, Outgoing("status", b"old status", droppable=True))
    assert not link.send(CONTROL, Outgoing("decision", b"one too many"))
    assert not link.send(CONTROL, Outgoing("error", b"no error to drop", droppable=True))
    assert link.send(CONTROL, Outgoing("status", b"new status", droppable=True))
    said = []
    for mid in range(MAX_WAITING + 1):
        script.say(Frame(FrameKind.ACK, CONTROL, script.peer_tag[0], mid))
        said += [payload for _, _, payload in data_of(script.take_frames())]
    assert said == [*(b"%d" % number for number in range(MAX_WAITING - 1)), b"new status"]


def test_mail_delays_a_verdict_by_at_most_two_frames() -> None:
    """A port that holds what it took: mail fills it with two frames at most, control is not held back."""
    link, script = up()
    now_ms, in_port = script.now_ms, 0
    link.send(MAIL, Outgoing("mail", bytes(4096)))
    decoder = FrameDecoder()
    mail_frames: list[Frame] = []
    while data := link.data_to_send(now_ms):
        in_port += len(data)
        link.sent(len(data), now_ms, in_port)
        mail_frames += decoder.feed(data)
    assert len(mail_frames) == 2
    assert link.waits_for_port
    link.send(CONTROL, Outgoing("verdict", b"verdict", urgent=True))
    verdict = link.data_to_send(now_ms)
    assert b"verdict" in verdict
    in_port += len(verdict)
    link.sent(len(verdict), now_ms, in_port)
    assert link.data_to_send(now_ms) == b""
    link.sent(0, now_ms + 20, in_port=len(verdict))
    more = decoder.feed(link.data_to_send(now_ms + 20))
    assert [frame.chan for frame in more] == [MAIL], "one frame unsent: one more may go"


def test_frames_go_in_one_write_as_far_as_they_may() -> None:
    """What answers and what control says goes together; a port that holds nothing gets two frames of mail."""
    link, script = up()
    link.send(MAIL, Outgoing("mail", bytes(4096)))
    link.send(CONTROL, Outgoing("resolve", bytes(2000)))
    link.receive(encode_frame(Frame(FrameKind.PING, sess=script.peer_tag[0])), script.now_ms)
    frames = FrameDecoder().feed(link.data_to_send(script.now_ms))
    assert [(frame.kind, frame.chan) for frame in frames] == [
        (FrameKind.PONG, CONTROL),
        (FrameKind.DATA, CONTROL),
        (FrameKind.DATA, CONTROL),
    ]
    link.sent(len(link.data_to_send(script.now_ms)), script.now_ms)
    frames = FrameDecoder().feed(link.data_to_send(script.now_ms))
    assert [(frame.kind, frame.chan, frame.index) for frame in frames] == [
        (FrameKind.DATA, MAIL, 0),
        (FrameKind.DATA, MAIL, 1),
    ]


def test_a_reset_gives_up_what_the_port_did_not_take_of_several_frames() -> None:
    link, script = up()
    link.send(CONTROL, Outgoing("resolve", b"x" * 2000))
    first = link.data_to_send(script.now_ms)
    link.sent(10, script.now_ms)
    link.reset(script.now_ms, DownReason.SILENT)
    taken = FrameDecoder().feed(first[:10] + link.data_to_send(script.now_ms))
    assert [frame.kind for frame in taken] == [FrameKind.RST]
    assert not link.sent(0, script.now_ms)


def test_hints_go_at_most_five_a_second_and_the_newest_counts() -> None:
    link, script = up()
    link.send_hint(b"1")
    script.pump()
    for number in (b"2", b"3", b"4"):
        link.send_hint(number)
        script.pump()
    assert [f.payload for f in script.take_frames()] == [b"1"]
    assert link.next_deadline_ms() == script.now_ms + 200
    script.now_ms += 200
    script.pump()
    assert [f.payload for f in script.take_frames()] == [b"4"]
    assert all(f.mid == 0 for f in script.frames)


def test_a_hint_that_waits_for_the_port_wakes_no_one_up() -> None:
    """Else a loop that sleeps until the next deadline spins until the port takes something."""
    link, script = up()
    link.send_hint(b"1")
    script.pump()
    link.send_hint(b"2")
    link.send(CONTROL, Outgoing("x", b"before it"))
    script.now_ms += 200
    assert link.data_to_send(script.now_ms, max_bytes=1)
    deadline_ms = link.next_deadline_ms()
    assert deadline_ms is not None
    assert deadline_ms > script.now_ms
    script.pump()
    assert [f.payload for f in script.take_frames()] == [b"1", b"before it", b"2"]


def test_a_hint_is_delivered_and_never_acknowledged() -> None:
    _, script = up()
    hint = Frame(FrameKind.HINT, sess=script.peer_tag[0], payload=b"hint")
    script.say(hint, hint)
    assert script.events == [HintArrived(b"hint"), HintArrived(b"hint")]
    assert script.take_frames() == []


# ---- ports


def test_when_the_rest_of_a_frame_is_given_up_a_zero_precedes_the_next() -> None:
    link, script = up()
    link.send(CONTROL, Outgoing("x", b"a message that gets stuck"))
    data = link.data_to_send(script.now_ms)
    link.sent(len(data) // 2, script.now_ms)
    script.decoder.feed(data[: len(data) // 2])
    link.reset(script.now_ms, DownReason.SILENT)
    after = link.data_to_send(script.now_ms)
    assert after[0] == 0
    assert [frame.kind for frame in script.decoder.feed(after)] == [FrameKind.RST]


def test_a_port_that_takes_nothing_holds_one_frame_and_the_queues_stay_bounded() -> None:
    link, script = up()
    sess = script.peer_tag[0]
    accepted = sum(link.send(CONTROL, Outgoing("x", bytes(4096))) for _ in range(100))
    stuck = link.data_to_send(script.now_ms)
    for number in range(1000):
        link.receive(encode_frame(Frame(FrameKind.PING, sess=sess)), script.now_ms)
        link.receive(
            encode_frame(Frame(FrameKind.DATA, CONTROL, sess, number % 65536, payload=b"flood")),
            script.now_ms,
        )
        link.tick(script.now_ms)
    assert accepted == MAX_WAITING
    assert link.data_to_send(script.now_ms) == stuck
    link.sent(len(stuck), script.now_ms)
    script.auto_ack = False
    script.pump()
    kinds = Counter(frame.kind for frame in script.take_frames())
    assert kinds[FrameKind.ACK] + kinds[FrameKind.PONG] <= 2 * MAX_PENDING_REPLIES


@pytest.mark.parametrize("begun", [b"\x05begun", bytes([255] * 2_000)])
def test_a_frame_begun_before_the_port_was_closed_spoils_none_after_it(begun: bytes) -> None:
    link, script = up()
    link.receive(begun, script.now_ms)
    script.open()
    assert link.state is LinkState.UP
    assert not link.dropped


def test_a_closed_port_ends_the_session_and_a_reopened_one_begins_another() -> None:
    link, script = up()
    old_tag = script.peer_tag
    assert link.port_closed(script.now_ms) == [SessionDown(DownReason.PORT_CLOSED)]
    assert link.port_closed(script.now_ms) == []
    assert link.receive(encode_frame(Frame(FrameKind.PING, sess=old_tag[0])), script.now_ms) == []
    assert link.next_deadline_ms() is None
    script.open()
    assert link.state is LinkState.UP
    assert script.peer_tag[0] != old_tag[0]


# ---- two real links


def pair() -> tuple[Cable, Link, Link]:
    left, right = Link(seeded(1)), Link(seeded(2))
    return Cable(left, right), left, right


@pytest.mark.parametrize("manipulate", [byte_by_byte, doubled], ids=["byte by byte", "doubled"])
def test_pieces_and_doubles_change_nothing(manipulate: Any) -> None:
    cable, left, right = pair()
    cable.to_left = cable.to_right = manipulate
    cable.open()
    cable.run(100)
    messages = [bytes([number]) * (1 + 400 * number) for number in range(8)]
    for message in messages:
        assert left.send(CONTROL, Outgoing("x", message))
        assert right.send(MAIL, Outgoing("x", message))
    cable.run(100)
    assert [e.data for e in cable.right_events if isinstance(e, MessageArrived)] == messages
    assert [e.data for e in cable.left_events if isinstance(e, MessageArrived)] == messages


@pytest.mark.parametrize("seed", range(5))
def test_every_message_arrives_once_and_in_order_over_a_bad_cable(seed: int) -> None:
    cable, left, _ = pair()
    cable.open()
    cable.run(100)
    cable.to_right, cable.to_left = damaging(seed, 0.1), mixed_faults(seed, 0.1)
    messages = [b"%d " % number * 300 for number in range(60)]
    pending = list(messages)
    for _ in range(400):
        while pending and left.send(CONTROL, Outgoing("x", pending[0])):
            pending.pop(0)
        cable.run(50)
    arrived = [e.data for e in cable.right_events if isinstance(e, MessageArrived)]
    assert not any(isinstance(event, SessionDown) for event in cable.left_events)
    assert arrived == messages


@pytest.mark.parametrize("cut_ms", [100, 1_000, 12_000, 300_000])
def test_after_any_outage_the_session_stands_again_within_two_seconds(cut_ms: int) -> None:
    cable, left, right = pair()
    cable.open()
    cable.run(100)
    cable.cut()
    cable.run(cut_ms)
    cable.mend()
    cable.run(2_000)
    assert left.state is right.state is LinkState.UP
    left.send(CONTROL, Outgoing("x", b"after"))
    cable.run(10)
    assert cable.right_events[-1] == MessageArrived(CONTROL, b"after")


def test_a_cable_cut_in_one_direction_only_recovers_too() -> None:
    cable, left, _ = pair()
    cable.open()
    cable.run(100)
    cable.to_right = nothing
    cable.run(20_000)
    cable.mend()
    cable.run(2_000)
    left.send(CONTROL, Outgoing("x", b"after"))
    cable.run(10)
    assert cable.right_events[-1] == MessageArrived(CONTROL, b"after")


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["reset left", "reset right", "reopen left", "reopen right", "wait"]),
            st.sampled_from(["clean", "lossy left", "lossy right", "lossy", "dead"]),
            st.integers(0, 3_000),
        ),
        max_size=8,
    ),
    st.integers(0, 1_000),
)
def test_resets_in_any_order_with_any_frames_lost_end_with_both_tags_known(
    steps: list[tuple[str, str, int]], seed: int
) -> None:
    cable, left, right = pair()
    cable.open()
    for action, quality, wait_ms in steps:
        lossy = mixed_faults(seed, 0.5)
        cable.to_left = {"dead": nothing, "lossy": lossy, "lossy left": lossy}.get(quality, lambda d: [d])
        cable.to_right = {"dead": nothing, "lossy": lossy, "lossy right": lossy}.get(quality, lambda d: [d])
        end = left if action.endswith("left") else right
        if action.startswith("reset"):
            end.reset(cable.now_ms, DownReason.SILENT)
        elif action.startswith("reopen"):
            end.port_closed(cable.now_ms)
            end.port_opened(cable.now_ms)
        cable.run(wait_ms)
    cable.mend()
    cable.run(4_500)  # at worst a silence of 2 s shows first that the tags do not fit
    assert left.state is right.state is LinkState.UP
    before = len(cable.right_events), len(cable.left_events)
    left.send(CONTROL, Outgoing("x", b"to the right"))
    right.send(CONTROL, Outgoing("x", b"to the left"))
    cable.run(2_000)
    assert cable.right_events[before[0] :] == [MessageArrived(CONTROL, b"to the right")]
    assert cable.left_events[before[1] :] == [MessageArrived(CONTROL, b"to the left")]


@settings(max_examples=150)
@given(st.lists(st.one_of(st.binary(max_size=80), st.integers(0, 6)), max_size=40), st.integers(0, 9))
def test_no_bytes_upset_a_link(script_bytes: list[bytes | int], seed: int) -> None:
    """Noise between well-formed frames of a stranger: no exception, bounded buffers, then honest service."""
    link, script = up()
    for number, item in enumerate(script_bytes):
        if isinstance(item, bytes):
            link.receive(item, script.now_ms)
        else:
            kind = list(FrameKind)[item]
            size = {FrameKind.RST: 8, FrameKind.RSTACK: 16}.get(kind, 1 if item in (0, 6) else 0)
            sess = 0 if size in (8, 16) else script.peer_tag[0]
            script.say(Frame(kind, sess=sess, payload=bytes([number + seed]) * size))
    cable = Cable(link, Link(seeded(seed)), now_ms=script.now_ms)
    cable.right_reports(cable.right.port_opened(cable.now_ms))
    link.receive(b"\x00", cable.now_ms)
    cable.run(4_500)
    link.send(CONTROL, Outgoing("x", b"honest"))
    cable.run(2_000)
    assert MessageArrived(CONTROL, b"honest") in cable.right_events
