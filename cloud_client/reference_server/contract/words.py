"""Words, patterns and limits of the partner API v1 and the device surface that only the server uses."""

import re
from enum import StrEnum
from typing import Final

from cloud_client.contract import QR_PREFIX

API_VERSION: Final = "v1"
CONTRACT_VERSION: Final = "1.0.0"
DEFAULT_PORT: Final = 8710
IDEMPOTENT_REPLAYED_HEADER: Final = "Idempotent-Replayed"
REQUEST_ID_HEADER: Final = "X-Request-Id"
NONCE_MEMORY_S: Final = 600

# Patterns; each is used with ``fullmatch`` (a ``$`` would let a trailing newline through).
EXTERNAL_REF: Final = re.compile(r"[A-Za-z0-9._:@-]{1,128}")
ONBOARD_REF: Final = re.compile(r"[A-Za-z0-9._:+/=-]{1,128}")
CPF: Final = re.compile(r"[0-9]{11}")
HEX_32: Final = re.compile(r"[0-9a-f]{32}")
HEX_64: Final = re.compile(r"[0-9a-f]{64}")
UUID: Final = re.compile(r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}")
IDEMPOTENCY_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")

# Names that would collide with a route or that HTTP clients normalise away.
RESERVED_DEVICE_IDS: Final = frozenset({"self", "register", "attest", ".", ".."})

VECTOR_DIMENSIONS: Final = 512
MAX_VECTORS_PER_HAND: Final = 3
MAX_DELTA_PAGE: Final = 500
SNAPSHOT_PAGE: Final = 200
MAX_SERVICE_KEYS: Final = 64
"""In one list: a device takes none that is longer."""
GALLERY_TTL_MS: Final = 6 * 3600 * 1000
MAX_JSON_BYTES: Final = 64 * 1024
MAX_REPORT_BYTES: Final = 8 * 1024
MAX_BULK_JSON_BYTES: Final = 4 * 1024 * 1024


class Purpose(StrEnum):
    """What a consent is for."""

    ENROLLMENT = "enrollment"
    IDENTIFICATION = "identification"
    DATASET_COLLECTION = "dataset_collection"


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
