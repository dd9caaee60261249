"""The signed objects that answers of the partner surface carry, as models: their members are the contract's.

What a device or a validator signed is shown as it was signed. A later version of theirs may have more
members, which are kept, because the signature covers them.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints

from cloud_client.contract import HEX_32, NAME_64
from cloud_client.reference_server.contract.bodies import Absent

Hex32 = Annotated[str, StringConstraints(pattern=f"^{HEX_32.pattern}$")]
Name = Annotated[str, StringConstraints(pattern=f"^{NAME_64.pattern}$")]
Signature = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]{85}[AQgw]==$")]


class Wrapper(BaseModel):
    """Something signed with its signature; a subclass adds the member that the signature covers."""

    model_config = ConfigDict(extra="forbid", strict=True)

    alg: Literal["ed25519"]
    signer_kid: Hex32
    sig_b64: Signature


class Part(BaseModel):
    """A part of something that was signed."""

    model_config = ConfigDict(extra="allow", strict=True)


class Inner(Part):
    """Something that was signed."""

    v: int


class PadObject(Part):
    res: str
    mech: str
    score_q: int


class GalleryMarkObject(Part):
    stream: str
    epoch: int
    seq: int
    head16: str


class VerdictObject(Inner):
    txn_id: Hex32
    gate_id: Name
    dbd_id: Name
    nonce_b64: str
    issued_at_ms: int
    ttl_ms: int
    decided_at_ms: int
    device_id: Name
    decision: Literal["accept", "reject", "abstain"]
    result: str
    verdict_seq: int
    prev_ref: Hex32
    subject_ref: Absent[Hex32] = None
    onboard_ref: Absent[str] = None
    hand: Absent[Literal["L", "R"]] = None
    score_q: int
    margin_q: int
    quality_q: int
    pad: PadObject
    attempts: int
    model_id: Name
    thr_id: Name
    gallery: GalleryMarkObject


class DecisionObject(Inner):
    txn_id: Hex32
    gate_id: Name
    dbd_id: Name
    nonce_b64: str
    verdict_ref: Hex32
    reason: str
    outcome: str
    actuated: bool
    decision_seq: int
    decided_at_ms: int


class PassageObject(Inner):
    txn_id: Hex32
    dbd_id: Name
    gate_id: Name
    verdict_ref: Hex32
    passed: bool
    cause: str
    at_ms: int
    dbd_event_seq: int


class ReceiptGallery(Part):
    stream: str
    epoch: int
    seq: int


class ReceiptObject(Inner):
    receipt_id: str
    tenant_id: str
    subject_id: str
    requested_at_ms: int
    erased_at_ms: int
    erased: list[str]
    gallery: ReceiptGallery
    retained: Absent[list[str]] = None


class SignedVerdict(Wrapper):
    verdict: VerdictObject


class SignedDecision(Wrapper):
    decision_obj: DecisionObject


class SignedPassage(Wrapper):
    passage: PassageObject


class SignedReceipt(Wrapper):
    receipt: ReceiptObject
