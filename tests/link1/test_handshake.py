"""The handshake as a dialogue, LINK/1 §3: one real end, the other played by hand."""

from typing import Any

import pytest

from link1.canonical import JsonObject, b64_encode, canonical_bytes
from link1.events import Down, ErrorReceived, Proven, ReadyReceived
from link1.frames import Channel, Frame, FrameKind
from link1.link_states import DownReason
from link1.objects import GuideHint
from link1.signed import Kind, sign_object, verify_object
from link1.validator.events import DeviceProven, GuideReceived
from tests.link1.cable import (
    DEVICE_KEY,
    NONCE,
    STRANGER_KEY,
    VALIDATOR_KEY,
    Cable,
    Script,
    device_status,
    greeted,
    hello,
    make_device,
    make_validator,
    pinned,
    proof,
    proven,
    request,
)


def test_both_prove_who_they_are() -> None:
    script, body = greeted()
    # >> hello
    assert set(body) == {"role", "id", "gate_id", "kid", "nonce_b64"}
    assert body["role"] == "device"
    assert body["kid"] == DEVICE_KEY.kid
    # << hello  >> prove
    script.send("hello", hello())
    ((type_, wrapper),) = script.take_messages()
    assert type_ == "prove"
    assert verify_object(Kind.HELLO, wrapper, DEVICE_KEY.public) == {
        "v": 1,
        "role": "device",
        "id": "dev-1",
        "gate_id": "gate-1",
        "peer_id": "dbd-1",
        "own_nonce_b64": body["nonce_b64"],
        "peer_nonce_b64": NONCE,
    }
    assert script.events == []
    # << prove
    script.send("prove", proof(body))
    assert script.events == [Proven(VALIDATOR_KEY.kid, NONCE)]
    assert script.take_messages() == []


def test_once_proven_the_handshake_s_time_is_over_for_good() -> None:
    script = proven()
    script.after(6_000)
    deadline_ms = script.end.next_deadline_ms()
    assert deadline_ms is not None
    assert deadline_ms > script.now_ms, "a deadline that has passed and changes nothing keeps a loop busy"
    assert script.events == []


def test_every_session_has_a_fresh_nonce() -> None:
    script, first = greeted()
    script.tag = b"\x66" * 8
    script.next_mid.clear()
    script.parts_of.clear()
    script.end.port_closed(script.now_ms)
    script.open()
    ((_, second),) = script.take_messages()
    assert first["nonce_b64"] != second["nonce_b64"]


BAD_HELLOS: dict[str, JsonObject] = {
    "role": hello(role="device"),
    "id": hello(id="dbd-2"),
    "gate_id": hello(gate_id="gate-2"),
    "kid": hello(kid=STRANGER_KEY.kid),
    "kid of the device itself": hello(kid=DEVICE_KEY.kid),
    "nonce of 31 bytes": hello(nonce_b64=b64_encode(b"n" * 31)),
    "no nonce": {name: value for name, value in hello().items() if name != "nonce_b64"},
    "role no word": hello(role=True),
}


@pytest.mark.parametrize("body", BAD_HELLOS.values(), ids=BAD_HELLOS.keys())
def test_a_wrong_hello_is_unpaired_then_a_second_of_silence_then_rst(body: JsonObject) -> None:
    script, device_hello = greeted()
    script.send("hello", body)
    refusal_is_last(script, "hello")
    nothing_served_for_a_second_then_rst(script, device_hello)


def test_a_hello_outside_the_contract_is_malformed_as_well() -> None:
    script, _ = greeted()
    script.send("hello", BAD_HELLOS["no nonce"])
    said = [(body["code"], body["about"]) for _, body in script.take_messages()]
    assert said == [("malformed", "hello"), ("unpaired", "hello")]


BAD_PROOFS: dict[str, dict[str, Any]] = {
    "role": {"role": "device"},
    "id": {"id": "dbd-2"},
    "gate_id": {"gate_id": "gate-2"},
    "peer_id": {"peer_id": "dev-2"},
    "own nonce": {"own_nonce_b64": b64_encode(b"m" * 32)},
    "peer nonce": {"peer_nonce_b64": b64_encode(b"m" * 32)},
    "v": {"v": 2},
    "v true": {"v": True},
    "another pinned key": {"key": STRANGER_KEY},
}


@pytest.mark.parametrize("changes", BAD_PROOFS.values(), ids=BAD_PROOFS.keys())
def test_a_wrong_proof_is_unpaired_then_a_second_of_silence_then_rst(changes: dict[str, Any]) -> None:
    script, body = greeted(validator_keys=pinned(VALIDATOR_KEY.public, STRANGER_KEY.public))
    script.send("hello", hello())
    script.take_messages()
    script.send("prove", proof(body, **changes))
    refusal_is_last(script, "prove")
    nothing_served_for_a_second_then_rst(script, body)


@pytest.mark.parametrize("damage", ["signature", "alg", "member", "no object"])
def test_a_damaged_proof_is_unpaired(damage: str) -> None:
    script, body = greeted()
    script.send("hello", hello())
    script.take_messages()
    wrapper = proof(body)
    match damage:
        case "signature":
            wrapper["sig_b64"] = b64_encode(bytes(64))
        case "alg":
            wrapper["alg"] = "none"
        case "member":
            wrapper["x"] = 1
        case "no object":
            wrapper["hello_obj"] = 1
    script.send("prove", wrapper)
    refusal_is_last(script, "prove")


def test_ones_own_proof_reflected_is_unpaired() -> None:
    script, body = greeted()
    script.send("hello", hello(nonce_b64=body["nonce_b64"]))
    ((_, reflected),) = script.take_messages()
    script.send("prove", reflected)
    refusal_is_last(script, "prove")


def test_a_proof_before_the_hello_is_unpaired() -> None:
    script, body = greeted()
    script.send("prove", proof(body))
    refusal_is_last(script, "prove")


def refusal_is_last(script: Script, about: str) -> None:
    assert script.take_messages()[-1] == ("error", {"code": "unpaired", "about": about})
    assert not any(isinstance(event, Proven) for event in script.events)


def nothing_served_for_a_second_then_rst(script: Script, device_hello: JsonObject) -> None:
    script.send("hello", hello())
    script.send("prove", proof(device_hello))
    script.send("ready", {"passage_sensor": False})
    script.take_frames()
    script.after(950)
    assert script.take_messages() == []
    assert FrameKind.RST not in [frame.kind for frame in script.take_frames()]
    script.after(50)
    assert [frame.kind for frame in script.take_frames()][-1] is FrameKind.RST
    assert script.events == [Down(DownReason.UNPAIRED, proven=False)]


def test_a_handshake_not_finished_in_five_seconds_is_reset() -> None:
    script, _ = greeted()
    script.send("hello", hello())
    script.take_frames()
    script.after(4_950)
    assert FrameKind.RST not in [frame.kind for frame in script.take_frames()]
    script.after(50)
    assert FrameKind.RST in [frame.kind for frame in script.take_frames()]
    assert script.events == [Down(DownReason.HANDSHAKE_TIMEOUT, proven=False)]


def test_a_second_hello_is_ignored() -> None:
    script, body = greeted()
    script.send("hello", hello())
    script.take_messages()
    script.send("hello", hello(nonce_b64=b64_encode(b"x" * 32), kid=STRANGER_KEY.kid))
    script.send("hello", {"role": "nonsense"})
    assert script.take_messages() == []
    script.send("prove", proof(body))
    assert script.events == [Proven(VALIDATOR_KEY.kid, NONCE)]
    script.send("hello", hello())
    script.send("prove", proof(body))
    assert script.take_messages() == []
    assert len(script.events) == 1


def test_before_both_proofs_nothing_else_is_served() -> None:
    script, body = greeted()
    signed = sign_object(Kind.REQUEST, request().to_obj(), VALIDATOR_KEY)
    script.send("request", signed)
    script.send("hello", hello())
    script.send("ready", {"passage_sensor": True})
    script.send("mail_pull", {"box": "out", "after_seq": 0, "offset": 0}, Channel.MAIL)
    script.send("dance", {})
    said = script.take_messages()
    assert [type_ for type_, _ in said] == ["error", "prove", "error", "error", "error"]
    assert {body["code"] for type_, body in said if type_ == "error"} == {"unpaired"}
    assert script.events == []
    script.send("error", {"code": "unpaired", "about": "prove"})
    assert script.events == [ErrorReceived("unpaired", "prove", None)]
    assert script.take_messages() == [], "an error is never answered"
    script.send("prove", proof(body))
    assert script.events[-1] == Proven(VALIDATOR_KEY.kid, NONCE)


def test_an_unreadable_message_is_acked_and_answered_malformed() -> None:
    script, _ = greeted()
    script.take_frames()
    script.send_raw(b"{")
    assert [frame.kind.name for frame in script.take_frames()] == ["ACK", "DATA"]
    assert script.take_messages() == [("error", {"code": "malformed", "about": "message"})]


def test_a_revoked_key_forces_rst() -> None:
    keys = {VALIDATOR_KEY.kid: VALIDATOR_KEY.public}
    device = make_device(validator_keys=lambda kid, _at_ms: keys.get(kid))
    script = Script(device)
    script.open()
    ((_, body),) = script.take_messages()
    script.send("hello", hello())
    script.send("prove", proof(body))
    assert device.keys_changed(script.now_ms) == []
    keys.clear()
    assert device.keys_changed(script.now_ms) == [Down(DownReason.KEY_REVOKED, proven=True)]
    script.take_frames()
    script.pump()
    assert [frame.kind for frame in script.take_frames()] == [FrameKind.RST]


def test_a_key_that_is_revoked_after_the_hello_proves_nothing() -> None:
    keys = {VALIDATOR_KEY.kid: VALIDATOR_KEY.public}
    script, body = greeted(validator_keys=lambda kid, _at_ms: keys.get(kid))
    script.send("hello", hello())
    script.take_messages()
    keys.clear()
    script.send("prove", proof(body))
    refusal_is_last(script, "prove")
    nothing_served_for_a_second_then_rst(script, body)


def test_a_peer_reset_ends_the_proven_session_and_begins_a_new_handshake() -> None:
    script = proven()
    old_tag = script.peer_tag
    script.tag = b"\x66" * 8
    script.next_mid.clear()
    script.parts_of.clear()
    script.say(Frame(FrameKind.RST, payload=script.tag))
    assert script.events == [Down(DownReason.PEER_RESET, proven=True)]
    rstack = next(frame for frame in script.frames[::-1] if frame.kind is FrameKind.RSTACK)
    assert rstack.payload[:8] == script.tag
    assert rstack.payload[8] != old_tag[0]
    script.peer_tag = rstack.payload[8:]
    ((type_, _),) = script.take_messages()
    assert type_ == "hello"


# ---- both real ends


def test_the_two_ends_meet_and_status_and_ready_follow() -> None:
    device, validator = make_device(), make_validator(passage_sensor=True)
    cable = Cable(device, validator)

    def say_status(event: object) -> None:
        if isinstance(event, Proven):
            device.send_status(device_status())

    cable.on_left = say_status
    cable.open()
    cable.run(500)
    assert [type(event).__name__ for event in cable.right_events] == ["DeviceProven", "StatusReceived"]
    assert cable.right_events[0] == DeviceProven("dev-1", DEVICE_KEY.kid)
    assert cable.left_events[1:] == [ReadyReceived(passage_sensor=True)]


def test_a_hint_is_served_after_the_proofs_alone_and_never_answered() -> None:
    script = Script(make_validator())
    script.open()
    ((_, body),) = script.take_messages()
    guide = {"v": 1, "type": "guide", "body": {"txn_id": "ab" * 16, "hint": "closer"}}

    def say_hint() -> None:
        script.say(Frame(FrameKind.HINT, sess=script.peer_tag[0], payload=canonical_bytes(guide)))

    say_hint()
    script.send("hello", hello(role="device", id="dev-1", kid=DEVICE_KEY.kid))
    say_hint()
    own = {"role": "device", "id": "dev-1", "peer_id": "dbd-1"}
    script.send("prove", proof(body, DEVICE_KEY, **own))
    assert script.events == [DeviceProven("dev-1", DEVICE_KEY.kid)]
    say_hint()
    assert script.events[1:] == [GuideReceived("ab" * 16, GuideHint.CLOSER)]
    assert [type_ for type_, _ in script.take_messages()] == ["prove", "ready"]


@pytest.mark.parametrize(
    ("device_changes", "validator_changes"),
    [
        ({"verdict_key": STRANGER_KEY}, {}),
        ({}, {"key": STRANGER_KEY}),
        ({"gate_id": "gate-2"}, {}),
        ({"dbd_id": "dbd-2"}, {}),
        ({}, {"device_id": "dev-2"}),
    ],
    ids=["device key", "validator key", "gate", "validator id", "device id"],
)
def test_ends_that_are_not_paired_never_serve_each_other(
    device_changes: dict[str, Any], validator_changes: dict[str, Any]
) -> None:
    cable = Cable(make_device(**device_changes), make_validator(**validator_changes))
    cable.open()
    cable.run(20_000)
    for events in (cable.left_events, cable.right_events):
        assert not any(isinstance(event, (Proven, DeviceProven)) for event in events) or any(
            isinstance(event, ErrorReceived) and event.code == "unpaired" for event in events
        )
    assert not cable.left.proven or not cable.right.proven  # type: ignore[attr-defined]
