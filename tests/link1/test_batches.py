"""The frames of one read are handled one by one: a reset in the middle is a reset in the middle."""

from link1.frames import Frame, FrameKind, encode_frame
from tests.link1.cable import Script, make_device


def test_two_sessions_in_one_read_leave_one_hello() -> None:
    """An answer to our RST and then an RST of the peer: the hello of the first session must not survive."""
    script = Script(make_device())
    script.events += script.end.port_opened(script.now_ms)
    script.pump()
    own = next(frame.payload for frame in script.frames if frame.kind is FrameKind.RST)
    fresh_tag = b"\x77" * 8
    script.tag = fresh_tag
    both = encode_frame(Frame(FrameKind.RSTACK, payload=own + b"\x66" * 8)) + encode_frame(
        Frame(FrameKind.RST, payload=fresh_tag)
    )
    script.events += script.end.receive(both, script.now_ms)
    script.auto_ack = False
    script.pump()
    hellos = [frame for frame in script.frames if frame.kind is FrameKind.DATA]
    assert [(frame.mid, frame.sess) for frame in hellos] == [(0, 0x77)]
    script.peer_tag = next(f.payload for f in script.frames if f.kind is FrameKind.RSTACK)[8:]
    script.say(Frame(FrameKind.ACK, sess=script.peer_tag[0], mid=0))
    script.after(100)
    assert len([frame for frame in script.frames if frame.kind is FrameKind.DATA]) == 1
