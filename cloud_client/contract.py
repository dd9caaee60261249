"""Names that both ends of the HTTP contract use: patterns, header names, words, limits.

Everything here is named in the partner API v1 or in the device surface; nothing else belongs here.
"""

import re
from enum import StrEnum
from ipaddress import ip_address
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
_HOST: Final = re.compile(rb"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")
CURSOR: Final = re.compile(r"[A-Za-z0-9_=-]{1,512}")

MAX_BATCH_ITEMS: Final = 100
MAX_CHUNK_BYTES: Final = 256 * 1024  # of a release: 342 KiB in base64, and a sealed record carries 512
DEFAULT_DELTA_PAGE: Final = 200
MAX_WAIT_S: Final = 55

QR_PREFIX: Final = "SVC"


def is_loopback(host: str) -> bool:
    """Whether a host can only be reached from its own machine: no other one is spoken to without TLS."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_host(host: str) -> bool:
    """Whether a resolver would look it up: labels of 1 to 63 bytes (RFC 1035), or an address."""
    try:
        name = host.encode("idna")
        name.decode("idna")  # raises for a label that only looks like an encoded one
    except UnicodeError:
        return False
    return _HOST.fullmatch(name) is not None


class ServiceCode(StrEnum):
    """The error codes of the service (partner API, Errors) that a device acts upon; others may come."""

    INVALID_CURSOR = "invalid_cursor"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    LIVEMODE_MISMATCH = "livemode_mismatch"
    UPDATE_NOT_FOUND = "update_not_found"
    ROUTE_NOT_FOUND = "route_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    DEVICE_STATE_CONFLICT = "device_state_conflict"
    IDEMPOTENCY_IN_PROGRESS = "idempotency_in_progress"
    HISTORY_EXPIRED = "history_expired"
    CURSOR_EXPIRED = "cursor_expired"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    VALIDATION_FAILED = "validation_failed"
    IDEMPOTENCY_KEY_MISMATCH = "idempotency_key_mismatch"
    IDEMPOTENCY_KEY_REQUIRED = "idempotency_key_required"
    NOT_IMPLEMENTED = "not_implemented"
