"""The device's end against a validator played by hand: order of checks, evidence, mail (LINK/1 §4, §5)."""

from typing import Any

import pytest

from link1.bodies import Box, MailAck, MailChunk, MailNone, MailPull, MailState
from link1.canonical import JsonObject, b64_encode, read_strict
from link1.device_end import DeviceEnd
from link1.envelope import MessageType
from link1.errors import FormatError
from link1.events import (
    Backing,
    CancelReceived,
    DecisionReceived,
    PassageReceived,
    ReadyReceived,
    RequestReceived,
    UnknownReceived,
    VerdictLeft,
    WrongEvidence,
)
from link1.frames import Channel, Frame, FrameKind
from link1.handshake import OncePinned
from link1.keys import PublicKey, SigningKey
from link1.objects import ErrorCode, GuideHint
from link1.signed import Kind, object_ref, sign_object, verify_object
from tests.link1.cable import (
    DEVICE_KEY,
    NONCE,
    STRANGER_KEY,
    VALIDATOR_KEY,
    Script,
    decision_for,
    device_status,
    greeted,
    hello,
    make_device,
    passage_for,
    pinned,
    proof,
    proven,
    request,
    verdict_for,
)

REF = "ab" * 16
GONE_KEY = SigningKey.from_seed(b"\x71" * 32)
"""A validator's key that was revoked."""


def end_of(script: Script) -> DeviceEnd:
    assert isinstance(script.end, DeviceEnd)
    return script.end


def signed_request(**changes: Any) -> JsonObject:
    return sign_object(Kind.REQUEST, request().to_obj() | changes, VALIDATOR_KEY)


# ---- requests


@pytest.fixture
def script() -> Script:
    return proven()


def test_a_good_request_arrives_with_its_wrapper(script: Script) -> None:
    wrapper = signed_request(extra="stays under the signature")
    script.send("request", wrapper)
    assert script.events == [RequestReceived(request(), wrapper)]
    assert script.take_messages() == []


def wrapper_without_alg() -> JsonObject:
    wrapper = signed_request()
    del wrapper["alg"]
    return wrapper


TXN = request().txn_id
BAD_REQUESTS: dict[str, tuple[JsonObject, JsonObject]] = {
    "wrapper without alg": (wrapper_without_alg(), {"code": "malformed"}),
    "wrapper with another member": (signed_request() | {"x": 1}, {"code": "malformed"}),
    "sig_b64 of 63 bytes": (signed_request() | {"sig_b64": b64_encode(bytes(63))}, {"code": "malformed"}),
    "signature": (signed_request() | {"sig_b64": b64_encode(bytes(64))}, {"code": "bad_signature"}),
    "another signer": (
        sign_object(Kind.REQUEST, request().to_obj(), STRANGER_KEY),
        {"code": "bad_signature"},
    ),
    "another prefix": (
        {"request": request().to_obj()}
        | {
            name: value
            for name, value in sign_object(Kind.PASSAGE, request().to_obj(), VALIDATOR_KEY).items()
            if name != "passage"
        },
        {"code": "bad_signature"},
    ),
    "bad signature comes before bad contract": (
        signed_request(ttl_ms=1) | {"sig_b64": b64_encode(bytes(64))},
        {"code": "bad_signature"},
    ),
    "ttl_ms 499": (signed_request(ttl_ms=499), {"code": "malformed", "txn_id": TXN}),
    "ttl_ms 60001": (signed_request(ttl_ms=60_001), {"code": "malformed", "txn_id": TXN}),
    "nonce of 15 bytes": (
        signed_request(nonce_b64=b64_encode(bytes(15))),
        {"code": "malformed", "txn_id": TXN},
    ),
    "v 2": (signed_request(v=2), {"code": "malformed", "txn_id": TXN}),
    "txn_id no hex": (signed_request(txn_id="X" * 32), {"code": "malformed"}),
    "contract comes before gate": (
        signed_request(ttl_ms=1, gate_id="gate-2"),
        {"code": "malformed", "txn_id": TXN},
    ),
    "gate": (signed_request(gate_id="gate-2"), {"code": "wrong_gate", "txn_id": TXN}),
    "dbd": (signed_request(dbd_id="dbd-2"), {"code": "wrong_gate", "txn_id": TXN}),
}


@pytest.mark.parametrize(("wrapper", "error"), BAD_REQUESTS.values(), ids=BAD_REQUESTS.keys())
def test_a_bad_request_is_answered_and_goes_no_further(wrapper: JsonObject, error: JsonObject) -> None:
    script = proven()
    script.send("request", wrapper)
    assert script.take_messages() == [("error", {"about": "request"} | error)]
    assert script.events == []


# ---- decisions and passages

VERDICT = verdict_for(request())
DECISION = decision_for(VERDICT, REF)
PASSAGE = passage_for(VERDICT, REF)


def test_decisions_and_passages_arrive(script: Script) -> None:
    decision = sign_object(Kind.DECISION, DECISION.to_obj(), VALIDATOR_KEY)
    passage = sign_object(Kind.PASSAGE, PASSAGE.to_obj(), VALIDATOR_KEY)
    script.send("decision", decision)
    script.send("passage", passage)
    assert script.events == [DecisionReceived(DECISION, decision), PassageReceived(PASSAGE, passage)]


@pytest.mark.parametrize("kind", [Kind.DECISION, Kind.PASSAGE], ids=["decision", "passage"])
def test_wrong_evidence_is_kept_and_answered_once_for_each_distinct_message(kind: Kind) -> None:
    script = proven()
    obj = DECISION.to_obj() if kind is Kind.DECISION else PASSAGE.to_obj()
    type_ = MessageType.DECISION if kind is Kind.DECISION else MessageType.PASSAGE
    wrapper = sign_object(kind, obj, STRANGER_KEY)
    script.send(type_, wrapper)
    script.send(type_, wrapper)
    assert script.events == [WrongEvidence(type_, wrapper, Backing.UNSIGNED)]
    assert script.take_messages() == [("error", {"code": "bad_decision", "about": type_})]
    other = wrapper | {"sig_b64": b64_encode(bytes(64))}
    script.send(type_, other)
    assert script.events[1:] == [WrongEvidence(type_, other, Backing.UNSIGNED)]
    assert len(script.take_messages()) == 1
    assert end_of(script).bad_signatures == 3, "the repeated one is counted, and not answered"


@pytest.mark.parametrize(("arrays", "is_kept"), [(10, True), (11, False), (13, False)])
def test_unsigned_evidence_nested_deeper_than_a_batch_is_read_is_counted_alone(
    arrays: int, is_kept: bool
) -> None:
    """13 arrays fill the 16 levels of a message; a sealed batch adds three levels to what was its body."""
    deep: list[object] = []
    for _ in range(arrays - 1):
        deep = [deep]
    unsigned = sign_object(Kind.DECISION, DECISION.to_obj() | {"x": deep}, STRANGER_KEY)
    script = proven()
    script.send("decision", unsigned)
    assert script.events == [WrongEvidence(MessageType.DECISION, unsigned, Backing.UNSIGNED)] * is_kept
    assert script.take_messages() == [("error", {"code": "bad_decision", "about": "decision"})]
    assert end_of(script).bad_signatures == 1
    own = sign_object(Kind.DECISION, DECISION.to_obj() | {"x": deep}, VALIDATOR_KEY)
    script.send("decision", own)
    assert isinstance(script.events[-1], DecisionReceived), "what the validator signs is taken"


def test_the_engine_refuses_what_does_not_fit_a_verdict_through_the_same_memory(script: Script) -> None:
    wrapper = sign_object(Kind.DECISION, DECISION.to_obj(), VALIDATOR_KEY)
    assert end_of(script).refuse_evidence(MessageType.DECISION, wrapper)
    assert not end_of(script).refuse_evidence(MessageType.DECISION, wrapper)
    script.pump()
    assert script.take_messages() == [("error", {"code": "bad_decision", "about": "decision"})]


def test_evidence_outside_the_contract_is_malformed(script: Script) -> None:
    for obj in (DECISION.to_obj() | {"decision_seq": 0}, DECISION.to_obj() | {"decided_at_ms": "now"}):
        script.send("decision", sign_object(Kind.DECISION, obj, VALIDATOR_KEY))
    script.send("decision", {"decision_obj": {}})
    assert script.take_messages() == [("error", {"code": "malformed", "about": "decision"})] * 3
    assert script.events == []


def test_evidence_is_checked_with_the_key_valid_when_it_was_made() -> None:
    """A decision of yesterday, signed by the key that has been replaced since."""
    old = STRANGER_KEY

    def keys(kid: str, at_ms: int | None) -> PublicKey | None:
        if kid == old.kid:
            return old.public if at_ms is not None and at_ms < 1_600_000_000_000 else None
        return VALIDATOR_KEY.public if kid == VALIDATOR_KEY.kid else None

    def once_pinned(kid: str) -> OncePinned | None:
        known = {old.kid: OncePinned(old.public, False), GONE_KEY.kid: OncePinned(GONE_KEY.public, True)}
        return known.get(kid, OncePinned(VALIDATOR_KEY.public, False))

    script, body = greeted(validator_keys=keys, once_pinned=once_pinned)
    script.send("hello", hello())
    script.send("prove", proof(body))
    script.events.clear()
    script.take_messages()
    yesterday = decision_for(VERDICT, REF, decided_at_ms=1_500_000_000_000)
    today = decision_for(VERDICT, REF)
    for decision in (yesterday, today):
        script.send("decision", sign_object(Kind.DECISION, decision.to_obj(), old))
    script.send("decision", sign_object(Kind.DECISION, yesterday.to_obj(), GONE_KEY))
    script.send(
        "decision", sign_object(Kind.DECISION, yesterday.to_obj(), GONE_KEY) | {"signer_kid": old.kid}
    )
    for made_at_ms in (0, 2**53 - 1):  # under the key of the session: whatever its clock says
        decided = decision_for(VERDICT, REF, decided_at_ms=made_at_ms)
        script.send("decision", sign_object(Kind.DECISION, decided.to_obj(), VALIDATOR_KEY))
    assert [event.backing if isinstance(event, WrongEvidence) else None for event in script.events] == [
        None,
        Backing.SIGNED,
        Backing.REVOKED,
        Backing.UNSIGNED,
        None,
        None,
    ]


def test_where_nothing_is_said_of_the_past_a_key_counts_as_long_as_it_is_pinned() -> None:
    script, body = greeted(validator_keys=pinned(VALIDATOR_KEY.public, STRANGER_KEY.public))
    script.send("hello", hello())
    script.send("prove", proof(body))
    script.events.clear()
    for key in (VALIDATOR_KEY, STRANGER_KEY, GONE_KEY):
        script.send("decision", sign_object(Kind.DECISION, DECISION.to_obj(), key))
    assert [event.backing if isinstance(event, WrongEvidence) else None for event in script.events] == [
        None,
        None,
        Backing.UNSIGNED,
    ]


# ---- unsigned messages


def test_cancel_ready_and_unknown_arrive_and_their_unknown_members_are_ignored(script: Script) -> None:
    script.send("cancel", {"txn_id": TXN, "later": {}})
    script.send("ready", {"passage_sensor": True, "later": 1})
    script.send("unknown", {"verdict_refs": [REF], "later": []})
    assert script.events == [CancelReceived(TXN), ReadyReceived(True), UnknownReceived((REF,))]
    assert script.take_messages() == []


@pytest.mark.parametrize(
    ("type_", "body"),
    [
        ("cancel", {}),
        ("cancel", {"txn_id": TXN.upper().replace("0", "A")}),
        ("ready", {"passage_sensor": 1}),
        ("unknown", {"verdict_refs": []}),
        ("unknown", {"verdict_refs": [REF] * 33}),
        ("unknown", {"verdict_refs": [1]}),
        ("unknown", {"verdict_refs": REF}),
    ],
)
def test_malformed_bodies(type_: str, body: JsonObject, script: Script) -> None:
    script.send(type_, body)
    assert script.take_messages() == [("error", {"code": "malformed", "about": type_})]
    assert script.events == []


def test_the_device_s_own_types_and_unknown_ones_are_not_taken_and_the_link_stays_up(script: Script) -> None:
    script.send("status", sign_object(Kind.STATUS, device_status().to_obj(), DEVICE_KEY))
    script.send("dance", {})
    script.send_raw(b'{"v":2}')
    assert [body["code"] for _, body in script.take_messages()] == [
        "unsupported_type",
        "unsupported_type",
        "unsupported_version",
    ]
    assert script.events == []
    assert end_of(script).proven


def test_an_error_is_never_answered_however_wrong(script: Script) -> None:
    for body in ({"code": "malformed", "about": "verdict"}, {}, {"code": 7, "about": "x"}):
        script.send("error", body)
    script.send("error", {"code": "malformed", "about": "message"}, Channel.MAIL)
    script.send_raw(b'{"body":{"about":"verdict","code":"malformed"},"type":"error","v":2}')
    script.send_raw(b'{"body":{},"type":"error","v":true}')
    script.send_raw(b'{"body":{},"more":1,"type":"error","v":1}')
    script.send_raw(b'{"body":null,"type":"error","v":1}')
    assert script.take_messages() == []


# ---- what the device sends


def test_a_status_is_signed_over_the_validator_s_nonce(script: Script) -> None:
    assert end_of(script).send_status(device_status(device_id="another"))
    script.pump()
    ((type_, wrapper),) = script.take_messages()
    assert type_ == "status"
    obj = verify_object(Kind.STATUS, wrapper, DEVICE_KEY.public)
    assert (obj["nonce_b64"], obj["device_id"]) == (NONCE, "dev-1")


def test_a_verdict_tells_when_it_has_left(script: Script) -> None:
    wrapper = sign_object(Kind.VERDICT, VERDICT.to_obj(), DEVICE_KEY)
    assert end_of(script).send_verdict(wrapper)
    script.pump()
    assert script.take_messages() == [("verdict", wrapper)]
    assert script.events == [VerdictLeft(object_ref(wrapper))]


def test_guide_is_a_hint_and_resolve_asks_about_1_to_32(script: Script) -> None:
    assert end_of(script).send_guide(TXN, GuideHint.CLOSER)
    end_of(script).send_resolve([REF] * 32)
    script.pump()
    hint = read_strict(script.hints[0], max_bytes=4096)
    assert hint == {"v": 1, "type": "guide", "body": {"txn_id": TXN, "hint": "closer"}}
    assert script.take_messages() == [("resolve", {"verdict_refs": [REF] * 32})]
    for refs in ([], [REF] * 33):
        with pytest.raises(FormatError):
            end_of(script).send_resolve(refs)


def test_without_a_proven_validator_nothing_is_queued() -> None:
    device = make_device()
    device.port_opened(0)
    wrapper = sign_object(Kind.VERDICT, VERDICT.to_obj(), DEVICE_KEY)
    assert not device.send_verdict(wrapper)
    assert not device.send_status(device_status())
    assert not device.send_error(ErrorCode.EXPIRED, MessageType.REQUEST, TXN)
    assert not device.send_resolve([REF])
    assert not device.send_guide(TXN, GuideHint.CLOSER)
    assert not device.send_mail_none(MailNone(0))


# ---- mail


def test_mail_arrives_and_is_answered_on_its_channel(script: Script) -> None:
    chunk = MailChunk(Box.IN, 1, 0, 5000, b"x" * 2880)
    script.send("mail", chunk.to_obj(), Channel.MAIL)
    script.send("mail_pull", {"box": "out", "after_seq": 0, "offset": 0}, Channel.MAIL)
    assert script.events == [chunk, MailPull(0, 0)]
    script.take_frames()
    ack = MailAck(1, 2880, MailState.MORE, 0)
    assert end_of(script).send_mail_ack(ack)
    script.pump()
    assert {f.chan for f in script.take_frames() if f.kind is FrameKind.DATA} == {Channel.MAIL}
    assert script.take_messages() == [
        ("mail_ack", {"box": "in", "seq": 1, "next_offset": 2880, "state": "more", "applied_seq": 0})
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"box": "out"},
        {"seq": 0},
        {"offset": 10},
        {"offset": -1},
        {"total": 9},
        {"total": 0},
        {"total": 2**31},
        {"data_b64": ""},
        {"data_b64": "x"},
        {"data_b64": b64_encode(bytes(2881)), "total": 5000},
    ],
)
def test_mail_outside_the_contract_is_malformed(changes: JsonObject, script: Script) -> None:
    body = {"box": "in", "seq": 1, "offset": 0, "total": 10, "data_b64": b64_encode(bytes(10))} | changes
    script.send("mail", body, Channel.MAIL)
    assert script.take_messages() == [("error", {"code": "malformed", "about": "mail"})]
    assert script.events == []


def test_only_the_newest_mail_question_is_answered(script: Script) -> None:
    script.auto_ack = False
    device = end_of(script)
    device.send_mail_none(MailNone(1))
    script.pump()  # this answer is on its way
    device.send_mail_none(MailNone(2))
    device.send_mail_none(MailNone(3))
    script.take_frames()
    script.say(Frame(FrameKind.ACK, Channel.MAIL, script.peer_tag[0], 0))
    (frame,) = script.take_frames()
    assert read_strict(frame.payload, max_bytes=4096)["body"]["after_seq"] == 3
