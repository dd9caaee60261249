"""What the service answers with: the models that answers are built from, and the OpenAPI document.

Words marked as extensible in the contract are plain strings here. What link1 signs or seals (gallery pages,
the device's status, configuration) is a plain object, shown as it was signed.
"""

from functools import cache
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from cloud_client.contract import EXTERNAL_REF, HEX_32, HEX_64, NAME_64, ONBOARD_REF
from cloud_client.reference_server.contract.bodies import Absent
from cloud_client.reference_server.contract.signed import (
    SignedDecision,
    SignedPassage,
    SignedReceipt,
    SignedVerdict,
)
from cloud_client.reference_server.contract.times import rfc3339


def _written(value: object) -> object:
    return rfc3339(value) if isinstance(value, int) else value


DateTime = Annotated[
    str,
    StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"),
    Field(json_schema_extra={"format": "date-time"}),
    BeforeValidator(_written),
]
# Columns of both engines hold 0 and 1.
Flag = Annotated[bool, BeforeValidator(lambda value: bool(value) if value in (0, 1) else value)]
Uuid = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"),
    Field(json_schema_extra={"format": "uuid"}),
]
Hex32 = Annotated[str, StringConstraints(pattern=f"^{HEX_32.pattern}$")]
Name = Annotated[str, StringConstraints(pattern=f"^{NAME_64.pattern}$")]
Hand = Literal["L", "R"]
Signed = dict[str, Any]
"""``{<name>: object, alg, signer_kid, sig_b64}``."""


class Columns(Protocol):
    """A row of the store."""

    def __getitem__(self, name: str, /) -> Any: ...


class Shown(BaseModel):
    """An object of an answer. Clients ignore members they do not know; this service adds none."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @classmethod
    def of(cls, row: Columns, **given: Any) -> Self:
        """The object of a row: a member that is not given is the column of its name (``…_ms`` for ``…_at``).

        A member that may be left out is, where its value is None.
        """
        values = {}
        for name, column, required in _columns(cls):
            value = given[name] if name in given else row[column]
            if value is not None or required:
                values[name] = value
        return cls(**values)

    def plain(self) -> dict[str, Any]:
        """As a JSON object."""
        return self.model_dump(exclude_unset=True)


@cache
def _columns(model: type[Shown]) -> list[tuple[str, str, bool]]:
    """Of each member its name, its column, and whether it must be there."""
    return [
        (name, f"{name[:-3]}_ms" if name.endswith("_at") else name, member.is_required())
        for name, member in model.model_fields.items()
    ]


class Health(Shown):
    status: str
    api_version: str
    contract_version: str
    server_time: DateTime


class SigningKey(Shown):
    kid: Hex32
    alg: Literal["ed25519"]
    use: list[str]
    pub_b64: str
    not_before: DateTime
    not_after: DateTime | None


class SigningKeys(Shown):
    keys: list[SigningKey]


class Block(Shown):
    reason: str
    since: DateTime


class EnrollmentOfSubject(Shown):
    hands: list[Hand]
    model_id: str
    enrolled_at: DateTime


class ConsentOfSubject(Shown):
    purpose: Literal["enrollment", "identification", "dataset_collection"]
    status: Literal["granted", "revoked"]


class Kyc(Shown):
    cpf_on_file: bool


class Subject(Shown):
    subject_id: Uuid
    external_ref: Annotated[str, StringConstraints(pattern=f"^{EXTERNAL_REF.pattern}$")]
    subject_ref: Hex32
    onboard_ref: Absent[Annotated[str, StringConstraints(pattern=f"^{ONBOARD_REF.pattern}$")]] = None
    status: Literal["pending_enrollment", "active", "blocked"]
    block: Block | None
    enrollment: EnrollmentOfSubject | None
    consents: list[ConsentOfSubject]
    kyc: Kyc
    gallery_seq: int | None
    created_at: DateTime
    updated_at: DateTime
    livemode: Flag


class Page(Shown):
    has_more: bool
    next_cursor: str | None


class SubjectPage(Page):
    data: list[Subject]


class Consent(Shown):
    consent_id: Uuid
    subject_id: Uuid
    purpose: Literal["enrollment", "identification", "dataset_collection"]
    status: Literal["granted", "revoked"]
    terms_version: Name
    method: Literal["device_screen", "partner_app", "paper"]
    granted_at: DateTime
    revoked_at: DateTime | None


class EnrollmentSession(Shown):
    session_id: Uuid
    subject_id: Uuid
    status: Literal["open", "completed", "expired", "cancelled", "failed", "review"]
    failure_code: str | None
    hands_required: list[Hand]
    device_id: Name | None
    completed_by_device_id: Name | None
    enrollment_id: Uuid | None
    expires_at: DateTime
    created_at: DateTime
    completed_at: DateTime | None


class CreatedEnrollmentSession(EnrollmentSession):
    token: str
    qr_payload: str
    short_code: str


class App(Shown):
    pkg: str
    version: str


class GalleryOfDevice(Shown):
    stream: str
    epoch: int
    seq: int
    synced_at: DateTime | None


class KeyOfDevice(Shown):
    purpose: Literal["verdict", "http"]
    alg: Literal["ed25519"]
    kid: Hex32


class Trust(Shown):
    attest_level: str
    verified: Flag


class Device(Shown):
    device_id: Name
    kind: Literal["access", "totem"]
    status: Literal["active", "revoked", "wiped"]
    gate_id: Name
    dbd_id: Name
    app: App
    model_id: str
    gallery: GalleryOfDevice
    keys: list[KeyOfDevice]
    trust: Trust
    health: list[str]
    last_seen_at: DateTime
    registered_at: DateTime
    revoked_at: DateTime | None
    livemode: Flag


class DevicePage(Page):
    data: list[Device]


class RecordPost(Shown):
    v: int
    rid: Hex32
    box: Literal["in", "out"]
    src: Name
    dst: Name
    seq: int
    created_ms: int
    suite: str
    ct_len: int
    ct_sha256: Annotated[str, StringConstraints(pattern=f"^{HEX_64.pattern}$")]


class SealedRecord(Shown):
    post: RecordPost
    ct_b64: str
    alg: Literal["ed25519"]
    signer_kid: Hex32
    sig_b64: Annotated[str, StringConstraints(min_length=88, max_length=88)]
    signer_cert_b64: Absent[Annotated[str, StringConstraints(min_length=140, max_length=140)]] = None


class InboxPage(Shown):
    device_id: Name
    data: list[SealedRecord]
    has_more: bool
    next_after_seq: int


class RejectedRecord(Shown):
    seq: int
    rid: Hex32
    code: str


class OutboxResult(Shown):
    device_id: Name
    accepted: list[int]
    duplicates: list[int]
    rejected: list[RejectedRecord]
    acked_upto_seq: int


class DbdDecision(Shown):
    reason: str
    outcome: str
    actuated: bool
    decision_seq: int
    decided_at: DateTime


class PassageOfVerdict(Shown):
    passed: bool
    cause: str
    at: DateTime


class Verdict(Shown):
    verdict_id: Hex32
    txn_id: Hex32
    device_id: Name
    gate_id: Name
    dbd_id: Name
    verdict_seq: int
    decision: Literal["accept", "reject", "abstain"]
    result: str
    subject_id: Absent[Uuid] = None
    external_ref: Absent[str] = None
    hand: Absent[Hand] = None
    pad_res: str
    quality_q: int
    model_id: str
    decided_at: DateTime
    received_at: DateTime
    dbd: Absent[DbdDecision] = None
    passage: Absent[PassageOfVerdict] = None
    reconciliation: Literal[
        "complete", "awaiting_decision", "awaiting_passage", "outcome_unknown", "conflict"
    ]


class VerdictPage(Page):
    data: list[Verdict]


class VerdictChangesPage(Shown):
    data: list[Verdict]
    has_more: bool
    next_cursor: str


class PublicKey(Shown):
    kid: Hex32
    alg: Literal["ed25519"]
    pub_b64: str


class Prefixes(Shown):
    verdict: str
    decision: str
    passage: str


class Verification(Shown):
    verdict_ref: Hex32
    device_verdict_key: PublicKey | None
    dbd_sign_key: PublicKey | None
    prefixes: Prefixes


class VerdictProof(Shown):
    record: Verdict
    signed_verdict: SignedVerdict
    signed_decision: Absent[SignedDecision] = None
    signed_passage: Absent[SignedPassage] = None
    verification: Verification


class Propagation(Shown):
    status: str
    devices_total: int
    devices_acknowledged: int
    fail_closed_at: DateTime


class ErasureReceipt(Shown):
    receipt_id: Uuid
    subject_id: Uuid
    signed_receipt: SignedReceipt
    propagation: Propagation


class SealKey(Shown):
    kid: Hex32
    alg: Literal["x25519"]
    pub_b64: str


class Mail(Shown):
    service_id: str
    seal_key: SealKey
    signer_certs: list[str]
    inbox_next_seq: int


class StreamEpoch(Shown):
    stream: str
    epoch: int


class Registration(Shown):
    device: Device
    tenant_id: str
    roots: list[PublicKey]
    keys: list[SigningKey]
    mail: Mail
    gallery: StreamEpoch | None
    dbd_sign_key: PublicKey | None
    terms_version: Name
    config: Signed


class Attestation(Shown):
    trust: Trust


class SignedDeviceStatus(Shown):
    device_status_obj: dict[str, Any]
    alg: Literal["ed25519"]
    signer_kid: Hex32
    sig_b64: str


class SnapshotPage(Page):
    head: Signed
    data: list[dict[str, Any]]


class DeltaPage(Shown):
    head: Signed
    data: list[dict[str, Any]]
    has_more: bool


class Rejected(Shown):
    index: int
    code: str


class BatchResult(Shown):
    accepted: list[Hex32]
    duplicates: list[Hex32]
    rejected: list[Rejected]


class RedeemedSession(Shown):
    session_id: Uuid
    token: str
    hands_required: list[Hand]
    dataset_collection: Flag
    terms_version: Name
    expires_at_ms: int


class Enrollment(Shown):
    session_id: Uuid
    status: Literal["completed"]
    enrollment_id: Uuid
    subject_ref: Hex32
    hands: list[Hand]


class EnrollmentOutcome(Shown):
    session_id: Uuid
    status: Literal["review", "failed"]


class FieldProblem(Shown):
    pointer: str
    code: str


class ProblemDocument(BaseModel):
    type: str
    title: str
    status: int
    code: str
    detail: str
    instance: str
    retryable: bool
    errors: list[FieldProblem]
