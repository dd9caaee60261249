"""The signed objects that answers of the partner surface carry, as models: their members are the contract's.

What a device or a validator signed is shown as it was signed. A later version of theirs may have more
members, which are kept, because the signature covers them.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints

from cloud_client.reference_server.contract.bodies import (
    SIGNATURE,
    Absent,
    DbdId,
    DeviceId,
    GateId,
    Hex32,
    Kid,
    Millis,
    ModelId,
    StreamName,
    SubjectRef,
    ThresholdsId,
    like,
)

Signature = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9+/]{85}[AQgw]==$"), like(SIGNATURE["sig_b64"])
]


class Wrapper(BaseModel):
    """Something signed with its signature; a subclass adds the member that the signature covers."""

    model_config = ConfigDict(extra="forbid", strict=True)

    alg: Literal["ed25519"]
    signer_kid: Kid
    sig_b64: Signature


class Part(BaseModel):
    """A part of something that was signed."""

    model_config = ConfigDict(extra="allow", strict=True)


class Inner(Part):
    """Something that was signed."""

    v: int


class PadObject(Part):
    res: Annotated[str, like("pass")]
    mech: Annotated[str, like("texture")]
    score_q: int


class GalleryMarkObject(Part):
    stream: StreamName
    epoch: int
    seq: int
    head16: Annotated[str, like("9f86d081884c7d65")]


class VerdictObject(Inner):
    txn_id: Hex32
    gate_id: GateId
    dbd_id: DbdId
    nonce_b64: Annotated[str, like("gq8m0JtVY3Hk1xS7pQb2Zw==")]
    issued_at_ms: Millis
    ttl_ms: Millis
    decided_at_ms: Millis
    device_id: DeviceId
    decision: Literal["accept", "reject", "abstain"]
    result: Annotated[str, like("MATCH")]
    verdict_seq: int
    prev_ref: Hex32
    subject_ref: Absent[SubjectRef] = None
    onboard_ref: Absent[str] = None
    hand: Absent[Literal["L", "R"]] = None
    score_q: int
    margin_q: int
    quality_q: int
    pad: PadObject
    attempts: int
    model_id: ModelId
    thr_id: ThresholdsId
    gallery: GalleryMarkObject


class DecisionObject(Inner):
    txn_id: Hex32
    gate_id: GateId
    dbd_id: DbdId
    nonce_b64: Annotated[str, like("gq8m0JtVY3Hk1xS7pQb2Zw==")]
    verdict_ref: Hex32
    reason: Annotated[str, like("ok")]
    outcome: Annotated[str, like("LIBERAR")]
    actuated: bool
    decision_seq: int
    decided_at_ms: Millis


class PassageObject(Inner):
    txn_id: Hex32
    dbd_id: DbdId
    gate_id: GateId
    verdict_ref: Hex32
    passed: bool
    cause: Annotated[str, like("giro")]
    at_ms: Millis
    dbd_event_seq: int


class ReceiptGallery(Part):
    stream: StreamName
    epoch: int
    seq: int


class ReceiptObject(Inner):
    receipt_id: str
    tenant_id: Annotated[str, like("acme")]
    subject_id: str
    requested_at_ms: Millis
    erased_at_ms: Millis
    erased: Annotated[list[str], like(["templates", "cpf_hmac", "cpf_ciphertext", "external_ref"])]
    gallery: ReceiptGallery
    retained: Absent[Annotated[list[str], like(["verdict_proofs"])]] = None


class SignedVerdict(Wrapper):
    verdict: VerdictObject


class SignedDecision(Wrapper):
    decision_obj: DecisionObject


class SignedPassage(Wrapper):
    passage: PassageObject


class SignedReceipt(Wrapper):
    receipt: ReceiptObject
