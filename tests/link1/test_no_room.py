"""What finds no room on a full channel: nothing that counts is lost for its session, and nothing piles up."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from link1.canonical import JsonObject
from link1.channels import MAX_WAITING, RETRANSMIT_AFTER_MS
from link1.device_end import MAX_HELD_VERDICTS, DeviceEnd
from link1.envelope import MessageType
from link1.events import Down, VerdictLeft
from link1.frames import Channel, Frame, FrameKind
from link1.link_states import DownReason
from link1.objects import ErrorCode
from link1.signed import Kind, object_ref, sign_object
from link1.validator.desk import STALE, RequestSent, ValidatorDesk
from link1.validator.memory import DeskMemory
from tests.link1.cable import (
    DEVICE_KEY,
    Script,
    device_status,
    hello,
    make_validator,
    proof,
    proven,
    request,
    seeded,
    verdict_for,
)


def end_of(script: Script) -> DeviceEnd:
    assert isinstance(script.end, DeviceEnd)
    return script.end


def signed_verdict(number: int) -> JsonObject:
    return sign_object(Kind.VERDICT, verdict_for(request(number), seq=number).to_obj(), DEVICE_KEY)


def full() -> Script:
    """A proven session in which the validator's end has stopped acknowledging: one error is in flight and
    sixteen wait."""
    script = proven()
    script.auto_ack = False
    for _ in range(MAX_WAITING + 1):
        assert end_of(script).send_error(ErrorCode.EXPIRED, MessageType.REQUEST)
        script.pump()
    return script


def acknowledge(script: Script) -> None:
    """The validator's end acknowledges what is in flight, and from here on everything."""
    script.auto_ack = True
    script.acknowledge()


def waiting(script: Script) -> int:
    return end_of(script).link.waiting[Channel.CONTROL]


def test_a_verdict_goes_out_with_the_next_ack_and_before_all_that_waits() -> None:
    script = full()
    wrapper = signed_verdict(1)
    assert end_of(script).send_verdict(wrapper)
    script.pump()
    assert waiting(script) == MAX_WAITING
    acknowledge(script)
    said = script.take_messages()
    assert said[0] == ("verdict", wrapper)
    assert [type_ for type_, _ in said[1:]] == ["error"] * MAX_WAITING


def test_the_newest_status_and_the_newest_resolve_go_out() -> None:
    script = full()
    for serving in (True, True, False):
        assert end_of(script).send_status(device_status(serving=serving))
    for ref in ("a", "b"):
        assert end_of(script).send_resolve([ref * 32])
    acknowledge(script)
    said = [(type_, body) for type_, body in script.take_messages() if type_ != "error"]
    assert [type_ for type_, _ in said] == ["status", "resolve"]
    assert said[0][1]["status_obj"]["serving"] is False
    assert said[1][1] == {"verdict_refs": ["b" * 32]}


def test_a_status_that_a_verdict_overtakes_knows_the_verdict() -> None:
    """It was signed before; as it was, it would tell the validator of a device whose storage went back."""
    script = proven()
    script.auto_ack = False
    end_of(script).send_error(ErrorCode.EXPIRED, MessageType.REQUEST)
    script.pump()
    end_of(script).send_status(device_status(last=None))
    end_of(script).send_verdict(signed_verdict(2))
    end_of(script).send_verdict(signed_verdict(1))  # asked for again
    acknowledge(script)
    said = [(type_, body) for type_, body in script.take_messages() if type_ != "error"]
    assert [type_ for type_, _ in said] == ["verdict", "verdict", "status"]
    assert said[-1][1]["status_obj"]["last"] == {
        "verdict_seq": 2,
        "verdict_ref": object_ref(signed_verdict(2)),
    }


def test_a_verdict_that_overtakes_no_status_sends_none() -> None:
    script = proven()
    end_of(script).send_status(device_status())
    script.pump()
    script.take_messages()
    end_of(script).send_verdict(signed_verdict(1))
    script.pump()
    assert [type_ for type_, _ in script.take_messages()] == ["verdict"]


def test_of_verdicts_without_room_the_newest_are_kept() -> None:
    script = full()
    made = [signed_verdict(number) for number in range(1, MAX_HELD_VERDICTS + 3)]
    for wrapper in made:
        assert end_of(script).send_verdict(wrapper)
    acknowledge(script)
    said = [body for type_, body in script.take_messages() if type_ == "verdict"]
    assert said == made[2:]


def test_nothing_of_it_goes_into_another_session() -> None:
    script = full()
    end_of(script).send_verdict(signed_verdict(1))
    end_of(script).send_status(device_status())
    end_of(script).send_resolve(["a" * 32])
    script.after(sum(RETRANSMIT_AFTER_MS))
    assert Down(DownReason.UNANSWERED, proven=True) in script.events
    again, body = Script(script.end, tag=b"\x5b" * 8), None
    again.now_ms = script.now_ms
    again.say(Frame(FrameKind.RST, payload=again.tag))
    again.after(500)  # RST goes out again
    rst = [frame for frame in again.frames if frame.kind is FrameKind.RST][-1]
    again.peer_tag = rst.payload
    again.say(Frame(FrameKind.RSTACK, payload=again.peer_tag + again.tag))
    (_, body), *_ = again.take_messages()
    again.send("hello", hello())
    again.send("prove", proof(body))
    assert end_of(script).proven
    assert [type_ for type_, _ in again.take_messages()] == ["prove"]


@settings(max_examples=60)
@given(
    st.lists(
        st.sampled_from(["verdict", "repeat", "status", "resolve", "error", "ack"]), min_size=1, max_size=120
    )
)
def test_whatever_is_said_while_acks_are_missing(steps: list[str]) -> None:
    script = proven()
    script.auto_ack = False
    end, made, statuses, asked = end_of(script), list[JsonObject](), 0, 0
    for step in steps:
        match step:
            case "verdict" if len(made) < MAX_HELD_VERDICTS:
                made.append(signed_verdict(len(made) + 1))
                assert end.send_verdict(made[-1])
            case "repeat" if made:
                assert end.send_verdict(made[0])
            case "status":
                statuses += 1
                assert end.send_status(device_status(at_ms=statuses))
            case "resolve":
                asked += 1
                assert end.send_resolve([f"{asked:032x}"])
            case "error":
                end.send_error(ErrorCode.EXPIRED, MessageType.REQUEST)
            case "ack":
                script.acknowledge()
        script.pump()
        assert waiting(script) <= MAX_WAITING
    script.auto_ack = True
    script.acknowledge()
    assert end.link.idle
    left = {event.verdict_ref for event in script.events if isinstance(event, VerdictLeft)}
    assert left == {object_ref(wrapper) for wrapper in made}, "no verdict is lost for its session"


# ---- the validator's end


class Desk:
    """A validator's desk whose device does not acknowledge, while sixteen messages wait."""

    def __init__(self) -> None:
        self.end = make_validator()
        self.desk = ValidatorDesk(
            self.end,
            decide=lambda _verdict: STALE,
            memory=DeskMemory(),
            save=lambda _memory: None,
            wall_ms=lambda: 1_700_000_000_000,
            random=seeded(7),
            turn_after_ms=None,
        )
        self.script = Script(self.desk)
        self.script.open()
        (_, validator_hello), *_ = self.script.take_messages()
        device_hello = hello(role="device", id="dev-1", kid=DEVICE_KEY.kid)
        self.script.send("hello", device_hello)
        said = sign_object(
            Kind.HELLO,
            {
                "v": 1,
                "role": "device",
                "id": "dev-1",
                "gate_id": "gate-1",
                "peer_id": "dbd-1",
                "own_nonce_b64": device_hello["nonce_b64"],
                "peer_nonce_b64": validator_hello["nonce_b64"],
            },
            DEVICE_KEY,
        )
        self.script.send("prove", said)
        assert self.end.proven
        self.script.take_messages()
        self.script.auto_ack = False
        while self.end.send_cancel("c" * 32):
            self.script.pump()

    def acknowledge_all(self) -> list[tuple[str, Any]]:
        self.script.take_messages()
        self.script.auto_ack = True
        self.script.acknowledge()
        assert self.desk.idle
        return [said for said in self.script.take_messages() if said[1] != {"txn_id": "c" * 32}]


def test_a_request_that_finds_no_room_goes_out_in_its_session() -> None:
    desk = Desk()
    assert desk.desk.arm(10_000, desk.script.now_ms) == []
    said = desk.acknowledge_all()
    assert [type_ for type_, _ in said] == ["request"]
    assert [event.again for event in desk.script.events if isinstance(event, RequestSent)] == [False]


def test_a_request_that_was_withdrawn_before_it_found_room_never_goes_out() -> None:
    desk = Desk()
    desk.desk.arm(10_000, desk.script.now_ms)
    desk.desk.cancel()
    assert desk.acknowledge_all() == []


def test_a_cancel_and_an_unknown_that_find_no_room_go_out_in_their_session() -> None:
    desk = Desk()
    desk.acknowledge_all()
    desk.desk.arm(10_000, desk.script.now_ms)
    desk.script.pump()
    (asked,) = [body for type_, body in desk.script.take_messages() if type_ == "request"]
    desk.script.auto_ack = False
    while desk.end.send_cancel("c" * 32):
        desk.script.pump()
    desk.desk.cancel()
    desk.script.send("resolve", {"verdict_refs": ["a" * 32]})
    said = desk.acknowledge_all()
    assert said == [
        ("unknown", {"verdict_refs": ["a" * 32]}),
        ("cancel", {"txn_id": asked["request"]["txn_id"]}),
    ]
