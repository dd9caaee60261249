"""Names that both ends of the HTTP contract use: patterns, header names, words, limits.

Everything here is named in the partner API v1 or in the device surface; nothing else belongs here.
"""

import re
from enum import StrEnum
from typing import Final

API_VERSION: Final = "v1"
CONTRACT_VERSION: Final = "1.0.0"
DEFAULT_PORT: Final = 8710

# Header names, as they are written in answers.
REQUEST_ID_HEADER: Final = "X-Request-Id"
IDEMPOTENCY_KEY_HEADER: Final = "Idempotency-Key"
IDEMPOTENT_REPLAYED_HEADER: Final = "Idempotent-Replayed"
SERVER_TIME_HEADER: Final = "Svc-Server-Time"

JSON_TYPE: Final = "application/json"
PROBLEM_TYPE: Final = "application/problem+json"

# Device surface §2
SIGNATURE_LABEL: Final = "sig1"
SIGNATURE_TAG: Final = "svc.device.v1"
SIGNATURE_SKEW_S: Final = 300
NONCE_MEMORY_S: Final = 600
PROVISIONING_SCHEME: Final = "Provisioning"

# Patterns; each is used with ``fullmatch`` (a ``$`` would let a trailing newline through).
EXTERNAL_REF: Final = re.compile(r"[A-Za-z0-9._:@-]{1,128}")
ONBOARD_REF: Final = re.compile(r"[A-Za-z0-9._:+/=-]{1,128}")
NAME_64: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")  # device_id, gate_id, dbd_id, terms_version, request id
CPF: Final = re.compile(r"[0-9]{11}")
HEX_32: Final = re.compile(r"[0-9a-f]{32}")
HEX_64: Final = re.compile(r"[0-9a-f]{64}")
UUID: Final = re.compile(r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}")
CURSOR: Final = re.compile(r"[A-Za-z0-9_=-]{1,512}")
IDEMPOTENCY_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")

# Names that would collide with a route or that HTTP clients normalise away.
RESERVED_DEVICE_IDS: Final = frozenset({"self", "register", "attest", ".", ".."})

VECTOR_DIMENSIONS: Final = 512
MAX_VECTORS_PER_HAND: Final = 3
MAX_BATCH_ITEMS: Final = 100
MAX_DELTA_PAGE: Final = 500
DEFAULT_DELTA_PAGE: Final = 200
SNAPSHOT_PAGE: Final = 200
MAX_WAIT_S: Final = 55
GALLERY_TTL_MS: Final = 6 * 3600 * 1000
MAX_JSON_BYTES: Final = 64 * 1024
MAX_BULK_JSON_BYTES: Final = 4 * 1024 * 1024

QR_PREFIX: Final = "SVC"


def session_qr_payload(session_id: str, token: str) -> str:
    """What a session's QR code carries: ``SVC1:ENR:<session_id>:<token>``."""
    return f"{QR_PREFIX}1:ENR:{session_id}:{token}"


class Scope(StrEnum):
    """What an API key may do (partner API, Authentication)."""

    SUBJECTS_READ = "subjects:read"
    SUBJECTS_WRITE = "subjects:write"
    DEVICES_READ = "devices:read"
    DEVICES_WRITE = "devices:write"
    VERDICTS_READ = "verdicts:read"


class Purpose(StrEnum):
    """What a consent is for."""

    ENROLLMENT = "enrollment"
    IDENTIFICATION = "identification"
    DATASET_COLLECTION = "dataset_collection"


class SubjectStatus(StrEnum):
    PENDING_ENROLLMENT = "pending_enrollment"
    ACTIVE = "active"
    BLOCKED = "blocked"


class SessionStatus(StrEnum):
    OPEN = "open"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"
    REVIEW = "review"


class DeviceStatusWord(StrEnum):
    ACTIVE = "active"
    REVOKED = "revoked"
    WIPED = "wiped"


class Reconciliation(StrEnum):
    """How far a verdict, its decision and its passage agree (partner API, Verdict record)."""

    COMPLETE = "complete"
    AWAITING_DECISION = "awaiting_decision"
    AWAITING_PASSAGE = "awaiting_passage"
    OUTCOME_UNKNOWN = "outcome_unknown"
    CONFLICT = "conflict"


class BatchCode(StrEnum):
    """Why an item of a verdict batch was refused (device surface §3)."""

    MALFORMED = "malformed"
    BAD_SIGNATURE = "bad_signature"
    UNKNOWN_SIGNER = "unknown_signer"
    WRONG_DEVICE = "wrong_device"
    SEQ_CONFLICT = "seq_conflict"
    BAD_DECISION = "bad_decision"
    BAD_PASSAGE = "bad_passage"


class ProblemCode(StrEnum):
    """Stable error codes (partner API, Errors) and the two of the transport itself."""

    MALFORMED_JSON = "malformed_json"
    INVALID_REQUEST = "invalid_request"
    INVALID_CURSOR = "invalid_cursor"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    INSUFFICIENT_SCOPE = "insufficient_scope"
    LIVEMODE_MISMATCH = "livemode_mismatch"
    ENROLLMENT_SESSION_INVALID = "enrollment_session_invalid"
    SUBJECT_NOT_FOUND = "subject_not_found"
    DEVICE_NOT_FOUND = "device_not_found"
    VERDICT_NOT_FOUND = "verdict_not_found"
    ENROLLMENT_SESSION_NOT_FOUND = "enrollment_session_not_found"
    ERASURE_RECEIPT_NOT_FOUND = "erasure_receipt_not_found"
    ROUTE_NOT_FOUND = "route_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    EXTERNAL_REF_CONFLICT = "external_ref_conflict"
    CPF_CONFLICT = "cpf_conflict"
    SUBJECT_STATE_CONFLICT = "subject_state_conflict"
    ENROLLMENT_SESSION_STATE_CONFLICT = "enrollment_session_state_conflict"
    DEVICE_STATE_CONFLICT = "device_state_conflict"
    IDEMPOTENCY_IN_PROGRESS = "idempotency_in_progress"
    HISTORY_EXPIRED = "history_expired"
    CURSOR_EXPIRED = "cursor_expired"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    VALIDATION_FAILED = "validation_failed"
    EXTERNAL_REF_LOOKS_LIKE_CPF = "external_ref_looks_like_cpf"
    ONBOARD_REF_LOOKS_LIKE_CPF = "onboard_ref_looks_like_cpf"
    CPF_INVALID = "cpf_invalid"
    CONSENT_REQUIRED = "consent_required"
    MODEL_UNSUPPORTED = "model_unsupported"
    IDEMPOTENCY_KEY_MISMATCH = "idempotency_key_mismatch"
    IDEMPOTENCY_KEY_REQUIRED = "idempotency_key_required"
    RATE_LIMITED = "rate_limited"
    INTERNAL_ERROR = "internal_error"
    NOT_IMPLEMENTED = "not_implemented"
    SERVICE_UNAVAILABLE = "service_unavailable"
