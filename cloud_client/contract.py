"""Names that both ends of the HTTP contract use: patterns, header names, words, limits.

Everything here is named in the partner API v1 or in the device surface; nothing else belongs here.
"""

import re
from enum import StrEnum
from typing import Final

# Header names, as they are written in answers.
IDEMPOTENCY_KEY_HEADER: Final = "Idempotency-Key"
SERVER_TIME_HEADER: Final = "Svc-Server-Time"

JSON_TYPE: Final = "application/json"
PROBLEM_TYPE: Final = "application/problem+json"

# Device surface §2
SIGNATURE_LABEL: Final = "sig1"
SIGNATURE_TAG: Final = "svc.device.v1"
SIGNATURE_SKEW_S: Final = 300
PROVISIONING_SCHEME: Final = "Provisioning"

# Patterns; each is used with ``fullmatch`` (a ``$`` would let a trailing newline through).
NAME_64: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")  # device_id, gate_id, dbd_id, terms_version, request id
CURSOR: Final = re.compile(r"[A-Za-z0-9_=-]{1,512}")

MAX_BATCH_ITEMS: Final = 100
DEFAULT_DELTA_PAGE: Final = 200
MAX_WAIT_S: Final = 55

QR_PREFIX: Final = "SVC"


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
    UPDATE_NOT_FOUND = "update_not_found"
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
