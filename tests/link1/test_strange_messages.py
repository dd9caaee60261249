"""Whatever a proven peer says, only answers come of it: no exception, and honest service afterwards."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from link1.canonical import JsonObject
from link1.envelope import RULES, MessageType, Role
from link1.events import RequestReceived
from link1.frames import Channel
from link1.signed import Kind, sign_object
from tests.link1.cable import (
    DEVICE_KEY,
    VALIDATOR_KEY,
    Cable,
    device_status,
    make_device,
    make_validator,
    proven,
    request,
    send_as,
    verdict_for,
)

values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**53) + 1, 2**53 - 1),
        st.text(max_size=40),
        st.sampled_from(
            ["in", "out", "a" * 32, "AAAAAAAAAAAAAAAAAAAAAA==", "show_hand", "device", "ed25519"]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=12), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = (
    *("role", "id", "gate_id", "kid", "nonce_b64", "request", "decision_obj", "passage", "alg", "signer_kid"),
    *("sig_b64", "txn_id", "hint", "code", "about", "verdict_refs", "passage_sensor", "box", "seq", "offset"),
    *("total", "data_b64", "after_seq", "v", "ttl_ms", "decided_at_ms", "at_ms"),
)
bodies = st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text(max_size=8)), values, max_size=8)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.sampled_from(MessageType), bodies, st.booleans(), st.sampled_from(Channel)), max_size=6
    )
)
def test_no_message_upsets_the_device_end(said: list[tuple[MessageType, JsonObject, bool, Channel]]) -> None:
    script = proven()
    for type_, body, signed, channel in said:
        kind = RULES[type_].signed
        script.send(type_, sign_object(kind, body, VALIDATOR_KEY) if signed and kind else body, channel)
    script.events.clear()
    wrapper = sign_object(Kind.REQUEST, request().to_obj(), VALIDATOR_KEY)
    script.send("request", wrapper)
    assert script.events == [RequestReceived(request(), wrapper)]


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(MessageType), bodies, st.booleans()), max_size=6))
def test_no_message_upsets_the_validator_end(said: list[tuple[MessageType, JsonObject, bool]]) -> None:
    device, validator = make_device(), make_validator()
    cable = Cable(device, validator)
    cable.open()
    cable.run(500)
    for type_, body, signed in said:
        rule = RULES[type_]
        if Role.DEVICE not in rule.senders:
            continue
        wrap = signed and rule.signed is not None
        send_as(device, type_, sign_object(rule.signed, body, DEVICE_KEY) if wrap and rule.signed else body)
        cable.run(20)
    device.send_verdict(sign_object(Kind.VERDICT, verdict_for(request()).to_obj(), DEVICE_KEY))
    cable.run(50)
    assert type(cable.right_events[-1]).__name__ == "VerdictReceived"
    device.send_status(device_status())
    cable.run(50)
    assert type(cable.right_events[-1]).__name__ == "StatusReceived"
