"""Fixed keys, nonces and objects from which the golden vectors are made (`tools.kit.golden.vectors`).

Nothing here is secret and nothing here may ever be used: the seeds are printed in docs/vectors.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from link1.bodies import Box, ErrorBody, Guide, Hello, MailAck, MailChunk, MailNone, MailPull, MailState
from link1.canonical import JsonObject, b64_encode
from link1.envelope import MessageType, Role
from link1.keys import SigningKey
from link1.objects import (
    PREV_REF_OF_FIRST,
    AppVersion,
    Decision,
    DeviceStatus,
    GalleryMark,
    GuideHint,
    LastVerdict,
    MailMarks,
    Pad,
    Passage,
    Request,
    Verdict,
    VerdictResult,
)
from link1.signed import Kind, object_ref, sign_object

DEVICE_ID, DBD_ID, GATE_ID = "palm-1", "dbd-1", "gate-1"
DEVICE_KEY = SigningKey.from_seed(bytes(range(0x20, 0x40)))
VALIDATOR_KEY = SigningKey.from_seed(bytes(range(0x20)))
DEVICE_TAG = bytes(range(0x01, 0x09))
VALIDATOR_TAG = bytes(range(0x11, 0x19))
TAGS = {Role.DEVICE: DEVICE_TAG, Role.VALIDATOR: VALIDATOR_TAG}
KEYS = {Role.DEVICE: DEVICE_KEY, Role.VALIDATOR: VALIDATOR_KEY}
AT_MS = 1_700_000_000_000
"""The wall clock of all objects begins here; the monotonic clock of the dialogue at 0."""


def counted(label: str) -> Callable[[int], bytes]:
    """A random source that gives the same bytes in every run: SHA-256 over the label and a counter."""
    drawn = 0

    def random(count: int) -> bytes:
        nonlocal drawn
        out = b""
        while len(out) < count:
            out += hashlib.sha256(f"{label} {drawn}".encode("ascii")).digest()
            drawn += 1
        return out[:count]

    return random


_nonces = counted("golden nonce")
DEVICE_NONCE_B64, VALIDATOR_NONCE_B64 = b64_encode(_nonces(32)), b64_encode(_nonces(32))
REQUEST = Request(
    txn_id=bytes(range(16)).hex(),
    gate_id=GATE_ID,
    dbd_id=DBD_ID,
    nonce_b64=b64_encode(bytes(range(16))),
    issued_at_ms=AT_MS,
    ttl_ms=15_000,
)
GALLERY = GalleryMark("main", 1, 7, "0123456789abcdef")


def status_of(nonce_b64: str, at_ms: int, last: LastVerdict | None = None) -> DeviceStatus:
    return DeviceStatus(
        device_id=DEVICE_ID,
        nonce_b64=nonce_b64,
        serving=True,
        health=("KEY_UNATTESTED",),
        app=AppVersion("palm-access-device", "1.0.0"),
        model_id="palm-1",
        thr_id="thr-1",
        gallery=GALLERY,
        last=last,
        mail=MailMarks(0, 0, 0),
        at_ms=at_ms,
    )


def verdict_on(request: Request, result: VerdictResult, decided_at_ms: int) -> Verdict:
    """The first verdict of the device about `request`."""
    accepted = result is VerdictResult.MATCH
    return Verdict(
        txn_id=request.txn_id,
        gate_id=request.gate_id,
        dbd_id=request.dbd_id,
        nonce_b64=request.nonce_b64,
        issued_at_ms=request.issued_at_ms,
        ttl_ms=request.ttl_ms,
        decided_at_ms=decided_at_ms,
        device_id=DEVICE_ID,
        result=result,
        verdict_seq=1,
        prev_ref=PREV_REF_OF_FIRST,
        score_q=8_214 if accepted else 2_107,
        margin_q=4_002 if accepted else 120,
        quality_q=88,
        pad=Pad("pass", "texture+motion", 9_120),
        attempts=1 if accepted else 3,
        model_id="palm-1",
        thr_id="thr-1",
        gallery=GALLERY,
        subject_ref=b"5ubject0".hex() * 2 if accepted else None,
        hand="L" if accepted else None,
    )


_VERDICT = verdict_on(REQUEST, VerdictResult.MATCH, AT_MS + 900)
VERDICT_WRAPPER = sign_object(Kind.VERDICT, _VERDICT.to_obj(), DEVICE_KEY)
VERDICT_REF = object_ref(VERDICT_WRAPPER)


def _hello_obj(role: Role) -> JsonObject:
    ids = {Role.DEVICE: DEVICE_ID, Role.VALIDATOR: DBD_ID}
    nonces = {Role.DEVICE: DEVICE_NONCE_B64, Role.VALIDATOR: VALIDATOR_NONCE_B64}
    return {
        "v": 1,
        "role": role.value,
        "id": ids[role],
        "gate_id": GATE_ID,
        "peer_id": ids[role.peer],
        "own_nonce_b64": nonces[role],
        "peer_nonce_b64": nonces[role.peer],
    }


@dataclass(frozen=True, slots=True)
class GoldenObject:
    """One signed object: what it is called here, its kind, who signs it, and its inner object."""

    name: str
    kind: Kind
    signer: Role
    obj: JsonObject

    @property
    def wrapper(self) -> JsonObject:
        return sign_object(self.kind, self.obj, KEYS[self.signer])


_DECISION = Decision(
    txn_id=REQUEST.txn_id,
    gate_id=GATE_ID,
    dbd_id=DBD_ID,
    nonce_b64=REQUEST.nonce_b64,
    verdict_ref=VERDICT_REF,
    reason="ok",
    outcome="LIBERAR",
    actuated=True,
    decision_seq=1,
    decided_at_ms=AT_MS + 920,
)
_PASSAGE = Passage(
    txn_id=REQUEST.txn_id,
    dbd_id=DBD_ID,
    gate_id=GATE_ID,
    verdict_ref=VERDICT_REF,
    passed=True,
    cause="giro",
    at_ms=AT_MS + 2_100,
    dbd_event_seq=1,
)

SIGNED_OBJECTS = (
    GoldenObject("prove of the device", Kind.HELLO, Role.DEVICE, _hello_obj(Role.DEVICE)),
    GoldenObject("prove of the validator", Kind.HELLO, Role.VALIDATOR, _hello_obj(Role.VALIDATOR)),
    GoldenObject("status", Kind.STATUS, Role.DEVICE, status_of(VALIDATOR_NONCE_B64, AT_MS).to_obj()),
    GoldenObject("request", Kind.REQUEST, Role.VALIDATOR, REQUEST.to_obj()),
    GoldenObject("verdict, accept", Kind.VERDICT, Role.DEVICE, _VERDICT.to_obj()),
    GoldenObject(
        "verdict, reject",
        Kind.VERDICT,
        Role.DEVICE,
        verdict_on(REQUEST, VerdictResult.NO_MATCH, AT_MS + 900).to_obj(),
    ),
    GoldenObject("decision", Kind.DECISION, Role.VALIDATOR, _DECISION.to_obj()),
    GoldenObject("passage", Kind.PASSAGE, Role.VALIDATOR, _PASSAGE.to_obj()),
)
_WRAPPERS = {item.name: item.wrapper for item in SIGNED_OBJECTS}
_MANY_REFS = [counted(f"golden ref {number}")(16).hex() for number in range(32)]
_MAIL_DATA = counted("golden mail")(2_880)

MESSAGES: tuple[tuple[MessageType, Role, JsonObject], ...] = (
    (
        MessageType.HELLO,
        Role.DEVICE,
        Hello(Role.DEVICE, DEVICE_ID, GATE_ID, DEVICE_KEY.kid, DEVICE_NONCE_B64).to_obj(),
    ),
    (
        MessageType.HELLO,
        Role.VALIDATOR,
        Hello(Role.VALIDATOR, DBD_ID, GATE_ID, VALIDATOR_KEY.kid, VALIDATOR_NONCE_B64).to_obj(),
    ),
    (MessageType.PROVE, Role.DEVICE, _WRAPPERS["prove of the device"]),
    (MessageType.PROVE, Role.VALIDATOR, _WRAPPERS["prove of the validator"]),
    (MessageType.STATUS, Role.DEVICE, _WRAPPERS["status"]),
    (MessageType.READY, Role.VALIDATOR, {"passage_sensor": True}),
    (MessageType.REQUEST, Role.VALIDATOR, _WRAPPERS["request"]),
    (MessageType.GUIDE, Role.DEVICE, Guide(REQUEST.txn_id, GuideHint.HOLD_STILL).to_obj()),
    (MessageType.CANCEL, Role.VALIDATOR, {"txn_id": REQUEST.txn_id}),
    (MessageType.VERDICT, Role.DEVICE, _WRAPPERS["verdict, accept"]),
    (MessageType.VERDICT, Role.DEVICE, _WRAPPERS["verdict, reject"]),
    (MessageType.DECISION, Role.VALIDATOR, _WRAPPERS["decision"]),
    (MessageType.PASSAGE, Role.VALIDATOR, _WRAPPERS["passage"]),
    (MessageType.RESOLVE, Role.DEVICE, {"verdict_refs": _MANY_REFS}),
    (MessageType.UNKNOWN, Role.VALIDATOR, {"verdict_refs": _MANY_REFS[:1]}),
    (MessageType.ERROR, Role.DEVICE, ErrorBody("expired", "request", REQUEST.txn_id).to_obj()),
    (MessageType.ERROR, Role.VALIDATOR, ErrorBody("unsupported_type", "message").to_obj()),
    (MessageType.MAIL, Role.VALIDATOR, MailChunk(Box.IN, 1, 0, 4_000, _MAIL_DATA).to_obj()),
    (MessageType.MAIL_ACK, Role.DEVICE, MailAck(1, 2_880, MailState.MORE, 0).to_obj()),
    (MessageType.MAIL_PULL, Role.VALIDATOR, MailPull(0, 0).to_obj()),
    (MessageType.MAIL, Role.DEVICE, MailChunk(Box.OUT, 1, 0, 300, _MAIL_DATA[:300]).to_obj()),
    (MessageType.MAIL_NONE, Role.DEVICE, MailNone(1).to_obj()),
)
"""Every type of the contract, from every role that sends it; `resolve` and `mail` fill several frames."""
