"""The frames of one read are handled one by one: a reset in the middle is a reset in the middle."""

from link1.canonical import JsonObject, canonical_bytes, read_strict
from link1.events import DecisionReceived, Down
from link1.frames import Channel, Frame, FrameKind, encode_frame
from link1.link_states import DownReason
from link1.signed import Kind, object_ref, sign_object
from tests.link1.cable import (
    DEVICE_KEY,
    VALIDATOR_KEY,
    Script,
    decision_for,
    greeted,
    hello,
    make_device,
    proof,
    proven,
    request,
    verdict_for,
)


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


def said_and_reset_in_one_read(script: Script, type_: str, body: JsonObject) -> None:
    """A message of the proven session, and the RST that ends it."""
    message = canonical_bytes({"v": 1, "type": type_, "body": body})
    said = b"".join(
        encode_frame(frame) for frame in script.frames_of(message, script.next_mid[Channel.CONTROL])
    )
    script.tag = b"\x33" * 8
    script.events += script.end.receive(
        said + encode_frame(Frame(FrameKind.RST, payload=script.tag)), script.now_ms
    )


def test_a_decision_and_a_reset_in_one_read_are_judged_in_that_order() -> None:
    """Under the key that proved itself in the session the time that a decision names does not count."""
    counts_now_alone = {VALIDATOR_KEY.kid: VALIDATOR_KEY.public}
    script, body = greeted(
        validator_keys=lambda kid, at_ms: counts_now_alone.get(kid) if at_ms is None else None
    )
    script.send("hello", hello())
    script.send("prove", proof(body))
    script.events.clear()
    verdict = verdict_for(request())
    decision = decision_for(verdict, object_ref(sign_object(Kind.VERDICT, verdict.to_obj(), DEVICE_KEY)))
    wrapper = sign_object(Kind.DECISION, decision.to_obj(), VALIDATOR_KEY)
    said_and_reset_in_one_read(script, "decision", wrapper)
    assert script.events == [DecisionReceived(decision, wrapper), Down(DownReason.PEER_RESET, proven=True)]


def test_no_answer_to_a_session_goes_into_the_one_after_it() -> None:
    script = proven()
    script.take_frames()
    script.auto_ack = False
    said_and_reset_in_one_read(script, "cancel", {"txn_id": "no number"})
    script.pump()
    script.peer_tag = next(f.payload for f in script.frames if f.kind is FrameKind.RSTACK)[8:]
    script.acknowledge()
    sent = [frame.payload for frame in script.frames if frame.kind is FrameKind.DATA]
    assert [read_strict(message, max_bytes=4096)["type"] for message in sent] == ["hello"]
