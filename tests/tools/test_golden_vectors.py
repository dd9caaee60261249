"""docs/vectors/link1.json: made anew it is the same, and the real ends say and take what stands in it."""

import base64
import hashlib
import json
from typing import Any

import pytest

from link1.canonical import canonical_bytes, read_strict
from link1.envelope import RULES, MessageRefused, MessageType, Role, read_message
from link1.frames import Channel, FrameDecoder
from link1.keys import PublicKey, SigningKey
from link1.signed import Kind, verify_object
from link1.validator.desk import VerdictAnswered
from tools.kit.golden.dialogue import Dialogue, DialogueClock, golden_desk, next_frame
from tools.kit.golden.vectors import FILE, text_of, vectors

VECTORS: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))


def test_the_file_is_what_the_script_makes() -> None:
    assert text_of(vectors()) == FILE.read_text(encoding="utf-8"), "run: python -m tools.kit.golden.vectors"


def test_every_type_and_every_signed_object_of_the_cable_is_there() -> None:
    told = {(MessageType(item["type"]), Role(item["from"])) for item in VECTORS["messages"]}
    assert told == {(type_, sender) for type_, rule in RULES.items() for sender in rule.senders}
    signed = {rule.signed.member for rule in RULES.values() if rule.signed is not None}
    assert {item["member"] for item in VECTORS["signed_objects"]} == signed


@pytest.mark.parametrize("item", VECTORS["signed_objects"], ids=lambda item: item["name"])
def test_a_signed_object_holds_step_by_step(item: dict[str, Any]) -> None:
    key = VECTORS["keys"][item["signer"]]
    assert SigningKey.from_seed(bytes.fromhex(key["seed_hex"])).public.b64 == key["pub_b64"]
    assert hashlib.sha256(bytes.fromhex(key["pub_hex"])).hexdigest()[:32] == key["kid"]
    signed = item["prefix"].encode() + b"\x00" + item["rfc8785"].encode()
    assert signed.hex() == item["signed_hex"]
    assert canonical_bytes(item["object"]).decode() == item["rfc8785"]
    wrapper = read_strict(item["wrapper"].encode(), max_bytes=4096)
    public = PublicKey.from_bytes(bytes.fromhex(key["pub_hex"]))
    public.verify(signed, base64.b64decode(item["sig_b64"]))
    kind = next(kind for kind in Kind if kind.member == item["member"])
    assert verify_object(kind, wrapper, public) == item["object"]
    assert hashlib.sha256(item["wrapper"].encode()).hexdigest()[:32] == item["wrapper_ref"]


@pytest.mark.parametrize("item", VECTORS["messages"], ids=lambda item: f"{item['type']} {item['from']}")
def test_the_frames_of_a_message_carry_it(item: dict[str, Any]) -> None:
    frames = FrameDecoder().feed(bytes.fromhex("".join(item["frames"])))
    assert b"".join(frame.payload for frame in frames).decode() == item["text"]
    assert [frame.index for frame in frames] == list(range(len(item["frames"])))
    hint = item["carrier"] == "hint"
    message = read_message(item["text"].encode(), Role(item["from"]), None if hint else frames[0].chan)
    assert message.type == item["type"]
    peer = Role(item["from"]).peer.value
    assert {frame.sess for frame in frames} == {bytes.fromhex(VECTORS["tags"][peer])[0]}


def test_some_messages_fill_several_frames() -> None:
    assert {len(item["frames"]) for item in VECTORS["messages"]} >= {1, 2, 4}


def test_frames_of_the_link_decode_to_their_members() -> None:
    for item in VECTORS["frames"]:
        (frame,) = FrameDecoder().feed(bytes.fromhex(item["hex"]))
        members = (frame.kind, frame.chan, frame.sess, frame.mid, frame.index, frame.count)
        assert members == tuple(item[name] for name in ("kind", "chan", "sess", "mid", "index", "count"))
        assert frame.payload.hex() == item["payload_hex"]


def test_what_is_to_be_dropped_is_dropped_for_its_reason() -> None:
    for item in VECTORS["dropped_frames"]:
        decoder = FrameDecoder()
        assert decoder.feed(bytes.fromhex(item["hex"])) == []
        assert [reason.value for reason in decoder.dropped] == [item["why"]]


def test_what_is_to_be_refused_is_refused_with_its_code() -> None:
    for item in VECTORS["refused_messages"]:
        with pytest.raises(MessageRefused) as refused:
            read_message(bytes.fromhex(item["hex"]), Role.DEVICE, Channel.CONTROL)
        assert refused.value.code == item["code"], item["why"]


def test_the_dialogue_says_every_word_of_a_passage_in_order() -> None:
    types = [line["frame"]["type"] for line in VECTORS["dialogue"] if "type" in line["frame"]]
    wanted = ["hello", "prove", "ready", "request", "guide", "verdict", "decision", "passage", "resolve"]
    assert [word for word in dict.fromkeys(types) if word in wanted] == wanted


def test_the_real_validator_says_the_dialogue_when_it_hears_the_device() -> None:
    clock = DialogueClock()
    desk = golden_desk(clock)
    events = desk.arm(15_000, 0)
    events += desk.port_opened(0)
    for line in VECTORS["dialogue"]:
        while clock.now_ms < line["at_ms"]:
            clock.now_ms = min(line["at_ms"], desk.next_deadline_ms() or line["at_ms"])
            events += desk.tick(clock.now_ms)
        data = bytes.fromhex(line["hex"])
        if line["from"] == "device":
            events += desk.receive(data, clock.now_ms)
        else:
            assert next_frame(desk, clock.now_ms).hex() == line["hex"], line
            events += desk.sent(len(data), clock.now_ms)
    (answered,) = [event for event in events if isinstance(event, VerdictAnswered)]
    assert answered.choice.actuated
    assert desk.memory.dbd_event_seq == 1


def test_the_real_device_says_the_dialogue_when_it_hears_the_validator() -> None:
    player = Dialogue()
    device, clock = player.device, player.clock
    player.device_does(device.port_opened(0))
    for line in VECTORS["dialogue"]:
        while clock.now_ms < line["at_ms"]:
            due = [time for time in (player.verdict_due_ms, device.next_deadline_ms()) if time is not None]
            clock.now_ms = min([line["at_ms"], *due])
            player.device_does(device.tick(clock.now_ms))
            player.decide()
        if player.passed and not player.restarted and not next_frame(device, clock.now_ms):
            player.restart()
        data = bytes.fromhex(line["hex"])
        if line["from"] == "validator":
            player.device_does(device.receive(data, clock.now_ms))
        else:
            assert next_frame(device, clock.now_ms).hex() == line["hex"], line
            player.device_does(device.sent(len(data), clock.now_ms))
    assert player.restarted
