"""Problems: every error answer of the service (RFC 9457), one table of codes.

No problem ever repeats a received value; a field error names the place (a JSON pointer made of the
contract's own member names) and a code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


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


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """What is fixed about a code. `todo`: what the client does about it."""

    status: int
    title: str
    todo: str
    retryable: bool = False


KINDS: Final[Mapping[ProblemCode, ProblemKind]] = {
    ProblemCode.MALFORMED_JSON: ProblemKind(
        400,
        "The body is not valid JSON",
        "Send one JSON object in UTF-8, without duplicate names, NaN or a byte order mark.",
    ),
    ProblemCode.INVALID_REQUEST: ProblemKind(
        400,
        "A query or header parameter has the wrong format",
        "Correct the query or the header: unknown, repeated and misspelt parameters are refused.",
    ),
    ProblemCode.INVALID_CURSOR: ProblemKind(
        400,
        "The cursor does not belong to this list",
        "Begin the list again without a cursor; a cursor belongs to one list and its filters.",
    ),
    ProblemCode.UNAUTHENTICATED: ProblemKind(
        401,
        "Authentication failed",
        "Check the whole credential: key, signature, clock, environment. The reason is never given.",
    ),
    ProblemCode.FORBIDDEN: ProblemKind(
        403,
        "The credential has no access to this resource",
        "Use a device of the kind that this route is for.",
    ),
    ProblemCode.INSUFFICIENT_SCOPE: ProblemKind(
        403,
        "The API key lacks the scope of this route",
        "Use an API key that has the scope which the reference names for this route.",
    ),
    ProblemCode.LIVEMODE_MISMATCH: ProblemKind(
        403,
        "The credential belongs to the other environment",
        "Use a key of the environment in which the object was made, test or live.",
    ),
    ProblemCode.ENROLLMENT_SESSION_INVALID: ProblemKind(
        403,
        "The enrollment token is not valid",
        "Open a new session: this one is over, unknown, or for another device.",
    ),
    ProblemCode.SUBJECT_NOT_FOUND: ProblemKind(
        404,
        "No such person",
        "Drop your reference: the person was erased, never existed, or is not yours. From revokeConsent it "
        "may also mean that the purpose was never granted: see whether GET finds the person.",
    ),
    ProblemCode.DEVICE_NOT_FOUND: ProblemKind(
        404,
        "No such device",
        "Look the device up in GET /v1/devices; it is not registered in this environment.",
    ),
    ProblemCode.VERDICT_NOT_FOUND: ProblemKind(
        404,
        "No such verdict",
        "Read the id from the list of changes; verdicts are deleted after their retention.",
    ),
    ProblemCode.ENROLLMENT_SESSION_NOT_FOUND: ProblemKind(
        404, "No such enrollment session", "Open a new session; this one is not in this environment."
    ),
    ProblemCode.ERASURE_RECEIPT_NOT_FOUND: ProblemKind(
        404, "No such erasure receipt", "Read the receipt_id from the answer to the erasure."
    ),
    ProblemCode.UPDATE_NOT_FOUND: ProblemKind(
        404,
        "No such update for this device",
        "Ask for the updates again: this release is not offered to this device now.",
    ),
    ProblemCode.ROUTE_NOT_FOUND: ProblemKind(
        404, "No such route", "Correct the path; there are no redirects and no trailing slash."
    ),
    ProblemCode.METHOD_NOT_ALLOWED: ProblemKind(
        405, "The route does not take this method", "Use one of the methods in the header Allow."
    ),
    ProblemCode.EXTERNAL_REF_CONFLICT: ProblemKind(
        409, "external_ref is already used", "You have this person already: look them up with ?external_ref=."
    ),
    ProblemCode.CPF_CONFLICT: ProblemKind(
        409,
        "The CPF already belongs to another person",
        "Look the person up in your own records; which person has the CPF is not revealed.",
    ),
    ProblemCode.SUBJECT_STATE_CONFLICT: ProblemKind(
        409, "The person's state does not allow this", "Fetch the person and decide again."
    ),
    ProblemCode.ENROLLMENT_SESSION_STATE_CONFLICT: ProblemKind(
        409,
        "The session's state does not allow this",
        "Fetch the session and decide again; only an open session goes on.",
    ),
    ProblemCode.DEVICE_STATE_CONFLICT: ProblemKind(
        409,
        "The device's state does not allow this",
        "Look the device up in GET /v1/devices and decide again; new keys need the old device to be revoked.",
    ),
    ProblemCode.IDEMPOTENCY_IN_PROGRESS: ProblemKind(
        409,
        "The first request with this key is still running",
        "Wait a second and send the same request with the same key again.",
        retryable=True,
    ),
    ProblemCode.HISTORY_EXPIRED: ProblemKind(
        410,
        "The deltas asked for are no longer kept",
        "Take a snapshot, and continue with deltas from its seq.",
    ),
    ProblemCode.CURSOR_EXPIRED: ProblemKind(
        410,
        "The cursor is outside retention",
        "Begin the list again without a cursor; what was deleted in the meantime is gone.",
    ),
    ProblemCode.PAYLOAD_TOO_LARGE: ProblemKind(413, "The body is too large", "Send less in one request."),
    ProblemCode.UNSUPPORTED_MEDIA_TYPE: ProblemKind(
        415,
        "Content-Type is not application/json",
        "Send Content-Type: application/json, and no Content-Encoding.",
    ),
    ProblemCode.VALIDATION_FAILED: ProblemKind(
        422,
        "The request is outside the contract",
        "Correct the places in errors[]; unknown members are refused.",
    ),
    ProblemCode.EXTERNAL_REF_LOOKS_LIKE_CPF: ProblemKind(
        422, "external_ref carries a CPF", "Use a name of your own for the person; a CPF goes into cpf alone."
    ),
    ProblemCode.ONBOARD_REF_LOOKS_LIKE_CPF: ProblemKind(
        422, "onboard_ref carries a CPF", "Use a name of your own for the person; a CPF goes into cpf alone."
    ),
    ProblemCode.CPF_INVALID: ProblemKind(
        422, "The CPF has wrong check digits", "Have the person type the CPF again."
    ),
    ProblemCode.CONSENT_REQUIRED: ProblemKind(
        422,
        "A current consent is missing",
        "Record the consents to enrollment and identification, then send it again.",
    ),
    ProblemCode.MODEL_UNSUPPORTED: ProblemKind(
        422,
        "The gallery uses another recognition model",
        "Give the device the gallery's model, or begin an epoch with the device's.",
    ),
    ProblemCode.IDEMPOTENCY_KEY_MISMATCH: ProblemKind(
        422,
        "The Idempotency-Key was used with another body",
        "Make a key for each thing that you do; this one was used with another body.",
    ),
    ProblemCode.IDEMPOTENCY_KEY_REQUIRED: ProblemKind(
        428, "Idempotency-Key is required", "Send an Idempotency-Key, made from your own event."
    ),
    ProblemCode.RATE_LIMITED: ProblemKind(
        429,
        "Rate limit exceeded",
        "Wait the seconds of Retry-After, then send the same request again.",
        retryable=True,
    ),
    ProblemCode.INTERNAL_ERROR: ProblemKind(
        500,
        "Internal error",
        "Send the same request with the same key again; report instance when it stays so.",
        retryable=True,
    ),
    ProblemCode.NOT_IMPLEMENTED: ProblemKind(
        501, "Planned, not implemented", "Do without it: it is planned. For events poll the list of changes."
    ),
    ProblemCode.SERVICE_UNAVAILABLE: ProblemKind(
        503,
        "Temporarily unavailable",
        "Wait the seconds of Retry-After, then send the same request with the same key again.",
        retryable=True,
    ),
}


@dataclass(frozen=True, slots=True)
class FieldError:
    """One place in a request that is outside the contract."""

    pointer: str
    code: str


class Problem(Exception):
    """Ends a request with a problem answer.

    ``headers`` and ``members`` are added to the answer (``Allow``, ``Retry-After``, ``snapshot_seq``).
    ``reason`` is for the log alone, and never quotes what was received.
    """

    def __init__(
        self,
        code: ProblemCode,
        detail: str = "",
        *,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, Any] | None = None,
        reason: str = "",
    ) -> None:
        super().__init__(code.value)
        self.code = code
        self.detail = detail
        self.errors = tuple(errors)
        self.headers = dict(headers or {})
        self.members = dict(members or {})
        self.reason = reason

    @property
    def status(self) -> int:
        return KINDS[self.code].status

    def body(self, instance: str) -> dict[str, Any]:
        """The problem object; ``instance`` is the request id."""
        kind = KINDS[self.code]
        return {
            "type": f"/problems/{self.code.value}",
            "title": kind.title,
            "status": kind.status,
            "code": self.code.value,
            "detail": self.detail or kind.title,
            "instance": instance,
            "retryable": kind.retryable,
            "errors": [{"pointer": error.pointer, "code": error.code} for error in self.errors],
            **self.members,
        }


def invalid(pointer: str, code: str, *, reason: str = "") -> Problem:
    """422 ``validation_failed`` for one place."""
    return Problem(ProblemCode.VALIDATION_FAILED, errors=[FieldError(pointer, code)], reason=reason)


def unauthenticated(reason: str) -> Problem:
    """The one answer to every credential failure; the log says why."""
    return Problem(ProblemCode.UNAUTHENTICATED, headers={"WWW-Authenticate": "Bearer"}, reason=reason)


def unavailable(headers: Mapping[str, str] | None = None) -> Problem:
    """503 with Retry-After."""
    return Problem(ProblemCode.SERVICE_UNAVAILABLE, headers={"Retry-After": "1"} | dict(headers or {}))
