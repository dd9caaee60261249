"""Request bodies: the schema of each, and how its errors are reported.

A reported pointer is made of the contract's own member names and array indices only; a member that the
contract does not know is reported at its parent, because its name is something we received.
"""

from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from cloud_client.contract import MAX_BATCH_ITEMS, NAME_64
from cloud_client.reference_server.contract.problems import FieldError, Problem, ProblemCode, invalid
from cloud_client.reference_server.contract.times import EARLIEST_MS, LATEST_MS, parse_rfc3339
from cloud_client.reference_server.contract.words import (
    CPF,
    EXTERNAL_REF,
    HEX_32,
    HEX_64,
    MAX_VECTORS_PER_HAND,
    ONBOARD_REF,
    UUID,
)
from link1.objects import VerdictResult

MAX_SAFE_INTEGER = 2**53 - 1
_MAX_ERRORS = 20
A_UUID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
A_TIME = "2026-03-02T08:15:30.250Z"
A_KEY = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="
A_TOKEN = "Zk3v0m1l7mCq0dP1YbT2Gx8nS5wR9uEaHhJ4oKfLtVs"  # noqa: S105 - an example


class Body(BaseModel):
    """A request body: no coercion, no members beyond the contract's."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class OpenBody(Body):
    """What a device says: members of later versions are ignored, at any depth."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


def instant(text: str) -> Any:
    """The epoch milliseconds of a date-time, for a validator of text. Raises ValueError."""
    at_ms = parse_rfc3339(text)
    if at_ms is None or not EARLIEST_MS <= at_ms <= LATEST_MS:
        raise ValueError
    return at_ms


def _no_repeats(items: list[str]) -> list[str]:
    if len(set(items)) != len(items):
        raise ValueError
    return items


def _not_null(value: object) -> object:
    if value is None:
        raise PydanticCustomError("null_type", "null")
    return value


def _pattern(pattern: str) -> StringConstraints:
    return StringConstraints(pattern=f"^{pattern}$")


def like(value: object) -> Any:
    """An example of a member, for the OpenAPI document and the reference page."""
    return Field(examples=[value])


SIGNATURE: Final = {
    "alg": "ed25519",
    "signer_kid": "21fe31dfa154a261626bf854046fd227",
    "sig_b64": "A" * 86 + "==",
}
"""The members of an example of a signed object, next to the object."""


T = TypeVar("T")
# A member that may be left out; null is not the same as left out.
Absent = Annotated[T | None, BeforeValidator(_not_null)]

ExternalRef = Annotated[str, _pattern(EXTERNAL_REF.pattern), like("account-17")]
OnboardRef = Annotated[str, _pattern(ONBOARD_REF.pattern), like("token+17")]
Name64 = Annotated[str, _pattern(NAME_64.pattern)]
DeviceId = Annotated[Name64, like("gate-07")]
GateId = Annotated[Name64, like("north-2")]
DbdId = Annotated[Name64, like("dbd-2")]
ModelId = Annotated[Name64, like("palm-gen-4")]
ThresholdsId = Annotated[Name64, like("palm-gen-4-t1")]
TermsVersion = Annotated[Name64, like("v1")]
StreamName = Annotated[str, like("acme:test")]
Hex32 = Annotated[str, _pattern(HEX_32.pattern), like("9f86d081884c7d659a2feaa0c55ad015")]
Kid = Annotated[str, _pattern(HEX_32.pattern), like(SIGNATURE["signer_kid"])]
SubjectRef = Annotated[str, _pattern(HEX_32.pattern), like("5d41402abc4b2a76b9719d911017c592")]
Hex64 = Annotated[str, _pattern(HEX_64.pattern), like("9f86d081884c7d65" * 4)]
Uuid = Annotated[str, _pattern(UUID.pattern), AfterValidator(str.lower), like(A_UUID)]
# Text in, epoch milliseconds inside.
Instant = Annotated[
    str, AfterValidator(instant), Field(json_schema_extra={"format": "date-time"}), like(A_TIME)
]
VersionOne = Annotated[int, Field(ge=1, le=1)]  # a literal would take true and 1.0
Millis = Annotated[int, Field(ge=0, le=MAX_SAFE_INTEGER), like(1772439330250)]
Hand = Literal["L", "R"]
PurposeWord = Literal["enrollment", "identification", "dataset_collection"]
Printable64 = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,64}$")]
Base64Text = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]*={0,2}$", max_length=4096)]


class CreateSubject(Body):
    external_ref: ExternalRef
    cpf: Absent[Annotated[str, _pattern(CPF.pattern), like("52998224725")]] = None
    onboard_ref: Absent[OnboardRef] = None


class ConsentEvidence(Body):
    method: Literal["device_screen", "partner_app", "paper"]
    terms_version: TermsVersion
    accepted_at: Instant
    evidence_sha256: Hex64


class GrantConsent(Body):
    purpose: PurposeWord
    evidence: ConsentEvidence


Hands = Annotated[
    list[Hand],
    Field(min_length=1, max_length=2, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_no_repeats),
]


def _exactly_one_of(*rules: dict[str, Any]) -> dict[str, Any]:
    # Generators of clients read a oneOf next to properties as a union of types, and drop the properties.
    return {"allOf": [{"oneOf": list(rules)}]}


class CreateEnrollmentSession(Body):
    model_config = ConfigDict(
        json_schema_extra=_exactly_one_of({"required": ["subject_id"]}, {"required": ["external_ref"]})
    )

    subject_id: Absent[Uuid] = None
    external_ref: Absent[ExternalRef] = None
    hands_required: Hands = ["L", "R"]
    device_id: Absent[DeviceId] = None
    expires_in_s: Annotated[int, Field(ge=60, le=900)] = 300
    dataset_collection: bool = False


class RevokeDevice(Body):
    reason: Literal["lost", "stolen", "decommissioned", "compromised", "other"]


class AppBody(Body):
    pkg: Annotated[Printable64, like("palm-access-device")]
    version: Annotated[Printable64, like("0.1.0")]


class DeviceKey(Body):
    purpose: Literal["verdict", "http"]
    alg: Literal["ed25519"]
    pub_b64: Annotated[Base64Text, like(A_KEY)]


class SealKeyBody(Body):
    alg: Literal["x25519"]
    pub_b64: Annotated[Base64Text, like(A_KEY)]


_TWO_KEYS: Final = [
    {"purpose": purpose, "alg": "ed25519", "pub_b64": A_KEY} for purpose in ("verdict", "http")
]


class RegistrationProof(Body):
    register_obj: dict[str, Any]
    alg: Literal["ed25519"]
    signer_kid: Kid
    sig_b64: Annotated[Base64Text, like(SIGNATURE["sig_b64"])]


class RegisterDevice(Body):
    device_id: DeviceId
    kind: Literal["access", "totem"]
    gate_id: GateId
    dbd_id: DbdId
    passage_sensor: bool
    app: AppBody
    model_id: ModelId
    keys: Annotated[list[DeviceKey], Field(min_length=2, max_length=2), like(_TWO_KEYS)]
    seal_key: SealKeyBody
    proof: RegistrationProof


_X509_EVIDENCE: dict[str, Any] = {
    "type": "object",
    "required": ["chain_b64", "sig_b64"],
    "properties": {
        "chain_b64": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 4},
        "sig_b64": {"type": "string"},
    },
    "additionalProperties": False,
}


class Attest(Body):
    # What evidence is depends on the level; attestation.py reads it.
    model_config = ConfigDict(
        json_schema_extra=_exactly_one_of(
            {"properties": {"level": {"const": "none"}, "evidence": {"type": "null"}}},
            {"properties": {"level": {"const": "x509"}, "evidence": _X509_EVIDENCE}},
        )
    )

    level: Literal["none", "x509"]
    evidence: Annotated[Any, like(None)]


class Wiped(Body):
    wipe_id: Hex32


COUNTERS: Final = frozenset(
    {
        *(f"verdicts.{result.decision}.{result}" for result in VerdictResult),
        *(f"latency_ms.le_{bound}" for bound in (50, 100, 200, 500, 1000, "inf")),
        *("pad.fail", "frames", "cable.resets", "uploads.failed", "evidence.bad_signature"),
    }
)
"""The counters that a report may carry; others are ignored."""
_MAX_COUNTERS = 128


def _known_counters(value: object) -> object:
    if not isinstance(value, dict):
        return value
    if len(value) > _MAX_COUNTERS:
        raise PydanticCustomError("too_long", "counters")
    return {name: value[name] for name in value if name in COUNTERS}


Whole = Annotated[int, Field(ge=0, le=MAX_SAFE_INTEGER)]
ReportText = Annotated[str, _pattern("[A-Za-z0-9._:+~/-]{1,128}")]
HealthWord = Annotated[str, _pattern("[A-Z0-9_]{1,32}"), like("CAMERA_FAULT")]


class AppOfReport(OpenBody):
    pkg: Annotated[ReportText, like("palm-access-device")]
    version: Annotated[ReportText, like("0.1.0")]


class GalleryOfReport(OpenBody):
    stream: Annotated[ReportText, like("acme:test")]
    epoch: Whole
    seq: Whole


class LinkOfReport(OpenBody):
    up: bool
    dbd_id: Annotated[ReportText, like("dbd-2")] | None


class QueuesOfReport(OpenBody):
    verdicts: Whole
    mail: Whole


class BoardOfReport(OpenBody):
    temperature_c: Annotated[int, Field(ge=-100, le=200)] | None
    storage_free_mib: Whole | None
    memory_free_mib: Whole | None


class CameraOfReport(OpenBody):
    fps: Whole


class UpdateOfReport(OpenBody):
    kind: Literal["app", "model"]
    name: Annotated[ReportText, like("palm-access-device")]
    release_seq: Whole
    state: Literal["receiving", "verified", "trial", "running", "failed", "withdrawn"]
    code: Absent[Annotated[str, _pattern("[a-z0-9_]{1,32}"), like("self_test")]] = None


class ReportBody(OpenBody, title="DeviceReport"):
    """How a device is (device surface §3, Reports)."""

    v: VersionOne
    boot_id: Hex32
    at_ms: Millis
    uptime_s: Whole
    serving: bool
    app: AppOfReport
    model_id: Annotated[ReportText, like("palm-gen-4")]
    thr_id: Annotated[ReportText, like("palm-gen-4-t1")]
    config_seq: Whole
    health: Annotated[list[HealthWord], Field(max_length=32)]
    gallery: GalleryOfReport | None
    link: LinkOfReport
    queues: QueuesOfReport
    board: BoardOfReport
    camera: CameraOfReport | None
    counters: Annotated[dict[str, Whole], BeforeValidator(_known_counters), like({"frames": 1200})]
    updates: Annotated[list[UpdateOfReport], Field(max_length=8)]


class VerdictBatch(Body):
    # Items are checked one by one; a bad one is refused alone.
    items: Annotated[
        list[Any],
        Field(min_length=1, max_length=MAX_BATCH_ITEMS),
        like([{"signed_verdict": {"verdict": {}} | SIGNATURE}]),
    ]


class RedeemBody(Body, title="Redeem"):
    short_code: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z-]{1,16}$"), like("7KQ2-M4XD")]


class PadBody(Body):
    res: Literal["pass", "fail", "unknown"]
    mech: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.+:-]{1,64}$"), like("texture")]
    score_q: Annotated[int, Field(ge=0, le=10_000)]


class EnrolledHand(Body):
    hand: Hand
    vector_b64: Annotated[Base64Text, like("AACAPwAA")]
    quality_q: Annotated[int, Field(ge=0, le=100)]
    pad: PadBody


class ScreenConsent(Body):
    purpose: PurposeWord
    terms_version: TermsVersion
    method: Literal["device_screen"]
    accepted_at_ms: Millis


SessionToken = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,128}$"),
    like(A_TOKEN),
]


class CompleteEnrollment(Body):
    token: SessionToken
    model_id: ModelId
    hands: Annotated[list[EnrolledHand], Field(min_length=1, max_length=2 * MAX_VECTORS_PER_HAND)]
    consents: Annotated[list[ScreenConsent], Field(max_length=3)]


class FailEnrollment(Body):
    token: SessionToken
    failed: Literal["capture_rejected"]


B = TypeVar("B", bound=Body)


def read_model(model: type[B], value: object) -> B:
    """Parse a body that the strict reader let through. Problem 422 with every place that is wrong."""
    if not isinstance(value, dict):
        raise invalid("", "object_expected")
    unknown = value.keys() - model.model_fields.keys()
    if len(unknown) > 1:
        # One of them says as much as all: each costs as much as a member that is read.
        value = {name: value[name] for name in value if name not in unknown} | {unknown.pop(): None}
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = dict.fromkeys(
            _field_error(item["type"], item["loc"])
            for item in error.errors(include_input=False, include_url=False)
        )
        raise Problem(ProblemCode.VALIDATION_FAILED, errors=list(found)[:_MAX_ERRORS]) from None


_CODES = {
    "missing": "required",
    "extra_forbidden": "unknown_member",
    "string_pattern_mismatch": "pattern",
    "literal_error": "enum",
    "value_error": "format",
}


def _field_error(kind: str, location: tuple[int | str, ...]) -> FieldError:
    if kind == "extra_forbidden":
        location = location[:-1]
    code = _CODES.get(kind)
    if code is None:
        code = "type" if kind.endswith(("_type", "_parsing")) else "range"
    return FieldError("".join(f"/{part}" for part in location), code)
