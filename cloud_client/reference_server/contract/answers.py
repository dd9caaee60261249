"""What the service answers with: the models that answers are built from, and the OpenAPI document.

Words marked as extensible in the contract are plain strings here. What link1 signs or seals (gallery pages,
the device's status, configuration) is a plain object, shown as it was signed.
"""

from functools import cache
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from cloud_client.reference_server.contract.bodies import (
    A_KEY,
    A_TIME,
    A_TOKEN,
    A_UUID,
    SIGNATURE,
    Absent,
    DbdId,
    DeviceId,
    ExternalRef,
    GateId,
    Hand,
    Hex32,
    Hex64,
    Kid,
    Millis,
    ModelId,
    Name64,
    OnboardRef,
    StreamName,
    SubjectRef,
    TermsVersion,
    like,
)
from cloud_client.reference_server.contract.signed import (
    SignedDecision,
    SignedPassage,
    SignedReceipt,
    SignedVerdict,
)
from cloud_client.reference_server.contract.times import rfc3339
from cloud_client.reference_server.contract.words import API_VERSION, CONTRACT_VERSION


def _written(value: object) -> object:
    return rfc3339(value) if isinstance(value, int) else value


DateTime = Annotated[
    str,
    StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"),
    Field(json_schema_extra={"format": "date-time"}, examples=[A_TIME]),
    BeforeValidator(_written),
]
# Columns of both engines hold 0 and 1.
Flag = Annotated[bool, BeforeValidator(lambda value: bool(value) if value in (0, 1) else value)]
Uuid = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"),
    Field(json_schema_extra={"format": "uuid"}, examples=[A_UUID]),
]
Signed = dict[str, Any]
"""``{<name>: object, alg, signer_kid, sig_b64}``."""


class Columns(Protocol):
    """A row of the store."""

    def __getitem__(self, name: str, /) -> Any: ...


class AnswerObject(BaseModel):
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
        return cls.model_validate(values)

    def plain(self) -> dict[str, Any]:
        """As a JSON object."""
        return self.model_dump(exclude_unset=True)


@cache
def _columns(model: type[AnswerObject]) -> list[tuple[str, str, bool]]:
    """Of each member its name, its column, and whether it must be there."""
    return [
        (name, f"{name[:-3]}_ms" if name.endswith("_at") else name, member.is_required())
        for name, member in model.model_fields.items()
    ]


class HealthAnswer(AnswerObject, title="Health"):
    status: Annotated[str, like("ok")]
    api_version: Annotated[str, like(API_VERSION)]
    contract_version: Annotated[str, like(CONTRACT_VERSION)]
    server_time: DateTime


class ProblemType(AnswerObject):
    code: Annotated[str, like("cursor_expired")]
    status: int
    title: str
    todo: str
    retryable: bool


class ProblemTypes(AnswerObject):
    data: list[ProblemType]


class SigningKeyAnswer(AnswerObject, title="SigningKey"):
    kid: Kid
    alg: Literal["ed25519"]
    use: Annotated[list[str], like(["erasure_receipt"])]
    pub_b64: Annotated[str, like(A_KEY)]
    not_before: DateTime
    not_after: Annotated[DateTime | None, like(None)]


class SigningKeys(AnswerObject):
    keys: list[SigningKeyAnswer]


class BlockAnswer(AnswerObject, title="Block"):
    reason: Annotated[str, like("operator")]
    since: DateTime


class EnrollmentOfSubject(AnswerObject):
    hands: list[Hand]
    model_id: ModelId
    enrolled_at: DateTime


class ConsentOfSubject(AnswerObject):
    purpose: Literal["enrollment", "identification", "dataset_collection"]
    status: Literal["granted", "revoked"]


class Kyc(AnswerObject):
    cpf_on_file: bool


class Subject(AnswerObject):
    subject_id: Uuid
    external_ref: ExternalRef
    subject_ref: SubjectRef
    onboard_ref: Absent[OnboardRef] = None
    status: Literal["pending_enrollment", "active", "blocked"]
    block: Annotated[BlockAnswer | None, like(None)]
    enrollment: EnrollmentOfSubject | None
    consents: list[ConsentOfSubject]
    kyc: Kyc
    gallery_seq: int | None
    created_at: DateTime
    updated_at: DateTime
    livemode: Flag


class PageAnswer(AnswerObject):
    has_more: bool
    next_cursor: Annotated[str | None, like(None)]


class SubjectPage(PageAnswer):
    data: list[Subject]


class ConsentAnswer(AnswerObject, title="Consent"):
    consent_id: Uuid
    subject_id: Uuid
    purpose: Literal["enrollment", "identification", "dataset_collection"]
    status: Literal["granted", "revoked"]
    terms_version: TermsVersion
    method: Literal["device_screen", "partner_app", "paper"]
    granted_at: DateTime
    revoked_at: Annotated[DateTime | None, like(None)]


class EnrollmentSession(AnswerObject):
    session_id: Uuid
    subject_id: Uuid
    status: Literal["open", "completed", "expired", "cancelled", "failed", "review"]
    failure_code: Annotated[str | None, like(None)]
    hands_required: list[Hand]
    device_id: DeviceId | None
    completed_by_device_id: DeviceId | None
    enrollment_id: Uuid | None
    expires_at: DateTime
    created_at: DateTime
    completed_at: DateTime | None


class CreatedEnrollmentSession(EnrollmentSession):
    token: Annotated[str, like(A_TOKEN)]
    qr_payload: Annotated[str, like(f"SVC1:ENR:{A_UUID}:{A_TOKEN}")]
    short_code: Annotated[str, like("7KQ2-M4XD")]


class App(AnswerObject):
    pkg: Annotated[str, like("palm-access-device")]
    version: Annotated[str, like("0.1.0")]


class GalleryOfDevice(AnswerObject):
    stream: StreamName
    epoch: int
    seq: int
    synced_at: DateTime | None


class KeyOfDevice(AnswerObject):
    purpose: Literal["verdict", "http"]
    alg: Literal["ed25519"]
    kid: Kid


class TrustAnswer(AnswerObject, title="Trust"):
    attest_level: Annotated[str, like("none")]
    verified: Flag


class DeviceAnswer(AnswerObject, title="Device"):
    device_id: DeviceId
    kind: Literal["access", "totem"]
    status: Literal["active", "revoked", "wiped"]
    gate_id: GateId
    dbd_id: DbdId
    app: App
    # A device reports it, and may have a longer one than others can name.
    model_id: Annotated[str, like("palm-gen-4")]
    gallery: GalleryOfDevice
    keys: list[KeyOfDevice]
    trust: TrustAnswer
    health: Annotated[list[str], like(["KEY_UNATTESTED"])]
    last_seen_at: DateTime
    registered_at: DateTime
    revoked_at: Annotated[DateTime | None, like(None)]
    livemode: Flag


class DevicePage(PageAnswer):
    data: list[DeviceAnswer]


class RecordPost(AnswerObject):
    v: int
    rid: Hex32
    box: Literal["in", "out"]
    src: Annotated[Name64, like("svc")]
    dst: Annotated[Name64, like("gate-07")]
    seq: int
    created_ms: Millis
    suite: Annotated[str, like("hpke-x25519-sha256-chacha20poly1305")]
    ct_len: int
    ct_sha256: Hex64


class SealedRecord(AnswerObject):
    post: RecordPost
    ct_b64: Annotated[str, like("q83vASNFZ4mrze8BI0VniQ==")]
    alg: Literal["ed25519"]
    signer_kid: Kid
    sig_b64: Annotated[str, StringConstraints(min_length=88, max_length=88), like(SIGNATURE["sig_b64"])]
    signer_cert_b64: Absent[
        Annotated[str, StringConstraints(min_length=140, max_length=140), like("A" * 139 + "=")]
    ] = None


class InboxPage(AnswerObject):
    device_id: DeviceId
    data: list[SealedRecord]
    has_more: bool
    next_after_seq: int


class RejectedRecord(AnswerObject):
    seq: int
    rid: Hex32
    code: str


class OutboxResult(AnswerObject):
    device_id: DeviceId
    accepted: list[int]
    duplicates: list[int]
    rejected: list[RejectedRecord]
    acked_upto_seq: int


class DbdDecision(AnswerObject):
    reason: Annotated[str, like("ok")]
    outcome: Annotated[str, like("LIBERAR")]
    actuated: bool
    decision_seq: int
    decided_at: DateTime


class PassageOfVerdict(AnswerObject):
    passed: bool
    cause: Annotated[str, like("giro")]
    at: DateTime


class VerdictAnswer(AnswerObject, title="Verdict"):
    verdict_id: Hex32
    txn_id: Hex32
    device_id: DeviceId
    gate_id: GateId
    dbd_id: DbdId
    verdict_seq: int
    decision: Literal["accept", "reject", "abstain"]
    result: Annotated[str, like("MATCH")]
    subject_id: Absent[Uuid] = None
    external_ref: Absent[ExternalRef] = None
    hand: Absent[Hand] = None
    pad_res: Annotated[str, like("pass")]
    quality_q: int
    model_id: ModelId
    decided_at: DateTime
    received_at: DateTime
    dbd: Absent[DbdDecision] = None
    passage: Absent[PassageOfVerdict] = None
    reconciliation: Literal[
        "complete", "awaiting_decision", "awaiting_passage", "outcome_unknown", "conflict"
    ]


class VerdictPage(PageAnswer):
    data: list[VerdictAnswer]


class VerdictChangesPage(AnswerObject):
    data: list[VerdictAnswer]
    has_more: bool
    next_cursor: Annotated[str, like("AWnC8kpbMTc3MjQzOTMzMDI1MCwgIjdjOWU2Njc5In0")]


class PublicKeyAnswer(AnswerObject, title="PublicKey"):
    kid: Kid
    alg: Literal["ed25519"]
    pub_b64: Annotated[str, like(A_KEY)]


class Prefixes(AnswerObject):
    verdict: str
    decision: str
    passage: str


class VerificationAnswer(AnswerObject, title="Verification"):
    verdict_ref: Hex32
    device_verdict_key: PublicKeyAnswer | None
    dbd_sign_key: PublicKeyAnswer | None
    prefixes: Prefixes


class VerdictProof(AnswerObject):
    record: VerdictAnswer
    signed_verdict: SignedVerdict
    signed_decision: Absent[SignedDecision] = None
    signed_passage: Absent[SignedPassage] = None
    verification: VerificationAnswer


class Propagation(AnswerObject):
    status: Annotated[str, like("pending")]
    devices_total: int
    devices_acknowledged: int
    fail_closed_at: DateTime


class ErasureReceipt(AnswerObject):
    receipt_id: Uuid
    subject_id: Uuid
    signed_receipt: SignedReceipt
    propagation: Propagation


class SealKeyAnswer(AnswerObject, title="SealKey"):
    kid: Kid
    alg: Literal["x25519"]
    pub_b64: Annotated[str, like(A_KEY)]


class MailAnswer(AnswerObject, title="Mail"):
    service_id: Annotated[str, like("svc")]
    seal_key: SealKeyAnswer
    signer_certs: list[str]
    inbox_next_seq: int


class StreamEpoch(AnswerObject):
    stream: StreamName
    epoch: int


class RegistrationAnswer(AnswerObject, title="Registration"):
    device: DeviceAnswer
    tenant_id: Annotated[str, like("acme")]
    roots: list[PublicKeyAnswer]
    keys: list[SigningKeyAnswer]
    mail: MailAnswer
    gallery: StreamEpoch | None
    dbd_sign_key: PublicKeyAnswer | None
    terms_version: TermsVersion
    config: Annotated[Signed, like({"config": {}} | SIGNATURE)]


class Attestation(AnswerObject):
    trust: TrustAnswer


class SignedDeviceStatus(AnswerObject):
    device_status_obj: dict[str, Any]
    alg: Literal["ed25519"]
    signer_kid: Kid
    sig_b64: Annotated[str, like(SIGNATURE["sig_b64"])]


class OfferedUpdates(AnswerObject, title="Updates"):
    data: Annotated[list[Signed], like([{"manifest_obj": {}, "signer_cert_b64": ""} | SIGNATURE])]
    offer: Annotated[Signed, like({"offer_obj": {}} | SIGNATURE)]
    next_after_s: Annotated[int, like(900)]
    attest_due: bool


class UpdateChunk(AnswerObject):
    release_seq: Annotated[int, like(1790000000)]
    index: int
    data_b64: Annotated[str, like("AAAA")]


class SnapshotPageAnswer(PageAnswer, title="SnapshotPage"):
    head: Annotated[Signed, like({"gallery_head": {}} | SIGNATURE)]
    data: list[dict[str, Any]]


class DeltaPageAnswer(AnswerObject, title="DeltaPage"):
    head: Annotated[Signed, like({"gallery_head": {}} | SIGNATURE)]
    data: list[dict[str, Any]]
    has_more: bool


class Rejected(AnswerObject):
    index: int
    code: str


class BatchResult(AnswerObject):
    accepted: list[Hex32]
    duplicates: list[Hex32]
    rejected: list[Rejected]


class RedeemedSession(AnswerObject):
    session_id: Uuid
    token: Annotated[str, like(A_TOKEN)]
    hands_required: list[Hand]
    dataset_collection: Flag
    terms_version: TermsVersion
    expires_at_ms: Millis


class Enrollment(AnswerObject):
    session_id: Uuid
    status: Literal["completed"]
    enrollment_id: Uuid
    subject_ref: SubjectRef
    hands: list[Hand]


class EnrollmentOutcome(AnswerObject):
    session_id: Uuid
    status: Literal["review", "failed"]


class FieldProblem(AnswerObject):
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
