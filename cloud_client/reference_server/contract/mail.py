"""The bodies of mail: what the outbox route takes, and what records carry inside.

Faults in the shape of a record (types, lengths, base64, hex) end the request with 422; who signed it, for
whom, and what is inside is judged record by record. What a device puts inside a record may have members of
later versions; what an operator sends may not.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, StringConstraints, ValidationInfo, model_validator

from cloud_client.contract import MAX_CHUNK_BYTES, NAME_64
from cloud_client.reference_server.contract.bodies import (
    MAX_SAFE_INTEGER,
    Absent,
    AppOfReport,
    Base64Text,
    Body,
    DbdId,
    Hex32,
    Hex64,
    Kid,
    Millis,
    Name64,
    OpenBody,
    ReportBody,
    ReportText,
    StreamName,
    ThresholdsId,
    VersionOne,
    instant,
    like,
    read_model,
)
from cloud_client.reference_server.contract.words import GALLERY_TTL_MS, MAX_SERVICE_KEYS
from link1.canonical import b64_decode, b64_encode
from link1.errors import FormatError
from link1.keys import PublicKey, SealPublicKey
from link1.sealed import CERTIFICATE_BYTES, OUTBOX_CT_MAX_BYTES

MAX_RECORDS = 32
_MAX_LISTED = 256


def base64_of(low: int, high: int) -> Any:
    """Standard base64 with padding of ``low`` to ``high`` bytes, in its one spelling."""

    def check(text: str) -> str:
        try:
            data = b64_decode(text)
        except FormatError:
            raise ValueError from None
        if not low <= len(data) <= high:
            raise ValueError
        return text

    constraints = StringConstraints(
        pattern=_one_spelling(low if low == high else None),
        min_length=(low + 2) // 3 * 4,
        max_length=(high + 2) // 3 * 4,
    )
    return Annotated[str, constraints, AfterValidator(check), like(b64_encode(bytes(low)))]


def _one_spelling(size: int | None) -> str:
    """The pattern of canonical base64 (no stray bits before the ``=``), of ``size`` bytes where fixed."""
    letter = "[A-Za-z0-9+/]"
    tails = ("", f"{letter}[AQgw]==", f"{letter}{{2}}[AEIMQUYcgkosw048]=")
    if size is None:
        return f"^({letter}{{4}})*({tails[1]}|{tails[2]})?$"
    return f"^{letter}{{{size // 3 * 4}}}{tails[size % 3]}$"


Seq = Annotated[int, Field(ge=1, le=MAX_SAFE_INTEGER)]
Count = Annotated[int, Field(ge=0, le=MAX_SAFE_INTEGER)]


class PostOfRecord(Body):
    v: Count
    rid: Hex32
    box: Annotated[Literal["in", "out"], like("out")]
    src: Annotated[Name64, like("gate-07")]
    dst: Annotated[Name64, like("svc")]
    seq: Seq
    created_ms: Millis
    suite: Annotated[
        str, StringConstraints(min_length=1, max_length=64), like("hpke-x25519-sha256-chacha20poly1305")
    ]
    ct_len: Count
    ct_sha256: Hex64


class OutboxRecordBody(Body, title="OutboxRecord"):
    post: PostOfRecord
    ct_b64: base64_of(1, OUTBOX_CT_MAX_BYTES)  # type: ignore[valid-type]
    alg: Literal["ed25519"]
    signer_kid: Kid
    sig_b64: base64_of(64, 64)  # type: ignore[valid-type]
    # Devices have no certificate; the member is ignored.
    signer_cert_b64: Absent[base64_of(CERTIFICATE_BYTES, CERTIFICATE_BYTES)] = None  # type: ignore[valid-type]


class SubmitOutbox(Body):
    records: Annotated[list[OutboxRecordBody], Field(min_length=1, max_length=MAX_RECORDS)]


class RefusedRecordBody(OpenBody, title="RefusedRecord"):
    seq: Seq
    code: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]{1,32}$")]


class ReportedGallery(OpenBody):
    stream: Annotated[StreamName, StringConstraints(pattern=f"^{NAME_64.pattern}$")]
    epoch: Count
    seq: Count


class ReportedMail(OpenBody):
    in_applied_seq: Count


class DeviceReport(OpenBody):
    health: Annotated[
        list[Annotated[str, StringConstraints(pattern=r"^[A-Z0-9_]{1,32}$")]], Field(max_length=_MAX_LISTED)
    ]
    refused: Annotated[list[RefusedRecordBody], Field(max_length=_MAX_LISTED)]
    # A totem has no gallery.
    gallery: ReportedGallery | None
    mail: ReportedMail
    app: Absent[AppOfReport] = None
    model_id: Absent[ReportText] = None


@dataclass(frozen=True, slots=True)
class MailedReport:
    """A report by mail; ``complete`` where it has a boot_id, and so every member of a report by route."""

    mailed: DeviceReport
    complete: ReportBody | None


def read_report(value: object) -> MailedReport:
    """The body of ``svc.device.report``. Problem 422."""
    complete = isinstance(value, dict) and "boot_id" in value
    return MailedReport(read_model(DeviceReport, value), read_model(ReportBody, value) if complete else None)


class WipeDone(OpenBody):
    wipe_id: Hex32


Cosine = Annotated[int, Field(ge=0, le=10_000)]
Percent = Annotated[int, Field(ge=0, le=100)]
Wait = Annotated[int, Field(ge=1, le=600_000)]


class ThresholdsObject(Body):
    """Cosines × 10000, qualities 0..100; ``thr_id`` names this set in every verdict made with it."""

    thr_id: ThresholdsId
    accept_q: Cosine
    margin_q: Annotated[int, Field(ge=0, le=20_000)]
    quality_q: Percent
    pad_q: Cosine
    enrol_quality_q: Percent


class ConfigObject(Body):
    """config_obj (device surface §6)."""

    v: VersionOne
    config_seq: Seq
    thresholds: ThresholdsObject
    attempts: Annotated[int, Field(ge=1, le=100)]
    decision_timeout_ms: Wait
    passage_timeout_ms: Wait
    gallery_ttl_ms: Annotated[int, Field(ge=1, le=GALLERY_TTL_MS)]


Moment = Annotated[str, StringConstraints(pattern=r"^[^tz]*$"), AfterValidator(instant)]
"""A date-time as devices read it: in capital letters."""


class KeyOfBundle(Body):
    """A public key and its name."""

    kind: ClassVar[type[PublicKey | SealPublicKey]] = PublicKey
    kid: Kid
    pub_b64: Base64Text

    @model_validator(mode="after")
    def has_its_name(self) -> Self:
        """Raises ValueError."""
        try:
            kid = self.kind.from_b64(self.pub_b64).kid
        except FormatError:
            raise ValueError from None
        if kid != self.kid:
            raise ValueError
        return self


class RootOfBundle(KeyOfBundle):
    """A root; a new one with the signature of a pinned one."""

    alg: Literal["ed25519"]
    root_sig_b64: Absent[base64_of(64, 64)] = None  # type: ignore[valid-type]


class SigningKeyOfBundle(KeyOfBundle):
    """An item of listSigningKeys."""

    alg: Literal["ed25519"]
    use: Annotated[
        list[Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,32}$")]], Field(min_length=1, max_length=16)
    ]
    not_before: Moment
    not_after: Moment | None


class SealKeyOfBundle(KeyOfBundle):
    kind: ClassVar = SealPublicKey
    alg: Literal["x25519"]


class DbdKeyOfBundle(KeyOfBundle):
    """A window of a validator's key."""

    dbd_id: DbdId
    not_before_ms: Millis
    not_after_ms: Millis | None


K = TypeVar("K", bound=KeyOfBundle)
Keys = Annotated[list[K], Field(max_length=MAX_SERVICE_KEYS)]
MAX_VALIDATOR_KEYS: Final = 4_096
"""Those of every gate of the environment: a device takes so many, and keeps its own."""


class TrustBundleObject(Body):
    """bundle_obj (device surface §6)."""

    v: VersionOne
    bundle_seq: Seq
    issued_at_ms: Millis
    roots: Keys[RootOfBundle]
    keys: Keys[SigningKeyOfBundle]
    seal_keys: Keys[SealKeyOfBundle]
    revoked_kids: Annotated[list[Hex32], Field(max_length=_MAX_LISTED)]
    dbd_keys: Annotated[list[DbdKeyOfBundle], Field(max_length=MAX_VALIDATOR_KEYS)]


def _check_chunk_count(count: int, read: ValidationInfo) -> int:
    """As many chunks as the members before make."""
    size, chunk_size = read.data.get("size"), read.data.get("chunk_size")
    if size is not None and chunk_size is not None and count != -(-size // chunk_size):
        raise ValueError
    return count


class UpdateManifestObject(Body):
    """manifest_obj (device surface §6)."""

    v: VersionOne
    kind: Literal["app", "model"]
    name: Name64
    version: Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,64}$")]
    size: Seq
    sha256: Hex64
    chunk_size: Annotated[int, Field(ge=1, le=MAX_CHUNK_BYTES)]
    chunk_count: Annotated[Seq, AfterValidator(_check_chunk_count)]
    min_app_version: Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,64}$")]
    release_seq: Seq


class UpdateChunkBody(Body):
    release_seq: Seq
    index: Count
    data_b64: base64_of(1, MAX_CHUNK_BYTES)  # type: ignore[valid-type]
