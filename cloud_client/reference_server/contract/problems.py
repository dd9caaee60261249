"""Problems: every error answer of the service (RFC 9457), one table of codes.

No problem ever repeats a received value; a field error names the place (a JSON pointer made of the
contract's own member names) and a code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cloud_client.contract import ProblemCode as Code


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """What is fixed about a code."""

    status: int
    title: str
    retryable: bool = False


KINDS: Final[Mapping[Code, ProblemKind]] = {
    Code.MALFORMED_JSON: ProblemKind(400, "The body is not valid JSON"),
    Code.INVALID_REQUEST: ProblemKind(400, "A query or header parameter has the wrong format"),
    Code.INVALID_CURSOR: ProblemKind(400, "The cursor does not belong to this list"),
    Code.UNAUTHENTICATED: ProblemKind(401, "Authentication failed"),
    Code.FORBIDDEN: ProblemKind(403, "The credential has no access to this resource"),
    Code.INSUFFICIENT_SCOPE: ProblemKind(403, "The API key lacks the scope of this route"),
    Code.LIVEMODE_MISMATCH: ProblemKind(403, "The credential belongs to the other environment"),
    Code.ENROLLMENT_SESSION_INVALID: ProblemKind(403, "The enrollment token is not valid"),
    Code.SUBJECT_NOT_FOUND: ProblemKind(404, "No such person"),
    Code.DEVICE_NOT_FOUND: ProblemKind(404, "No such device"),
    Code.VERDICT_NOT_FOUND: ProblemKind(404, "No such verdict"),
    Code.ENROLLMENT_SESSION_NOT_FOUND: ProblemKind(404, "No such enrollment session"),
    Code.ERASURE_RECEIPT_NOT_FOUND: ProblemKind(404, "No such erasure receipt"),
    Code.UPDATE_NOT_FOUND: ProblemKind(404, "No such update for this device"),
    Code.ROUTE_NOT_FOUND: ProblemKind(404, "No such route"),
    Code.METHOD_NOT_ALLOWED: ProblemKind(405, "The route does not take this method"),
    Code.EXTERNAL_REF_CONFLICT: ProblemKind(409, "external_ref is already used"),
    Code.CPF_CONFLICT: ProblemKind(409, "The CPF already belongs to another person"),
    Code.SUBJECT_STATE_CONFLICT: ProblemKind(409, "The person's state does not allow this"),
    Code.ENROLLMENT_SESSION_STATE_CONFLICT: ProblemKind(409, "The session's state does not allow this"),
    Code.DEVICE_STATE_CONFLICT: ProblemKind(409, "The device's state does not allow this"),
    Code.IDEMPOTENCY_IN_PROGRESS: ProblemKind(
        409, "The first request with this key is still running", retryable=True
    ),
    Code.HISTORY_EXPIRED: ProblemKind(410, "The deltas asked for are no longer kept"),
    Code.CURSOR_EXPIRED: ProblemKind(410, "The cursor is outside retention"),
    Code.PAYLOAD_TOO_LARGE: ProblemKind(413, "The body is too large"),
    Code.UNSUPPORTED_MEDIA_TYPE: ProblemKind(415, "Content-Type is not application/json"),
    Code.VALIDATION_FAILED: ProblemKind(422, "The request is outside the contract"),
    Code.EXTERNAL_REF_LOOKS_LIKE_CPF: ProblemKind(422, "external_ref carries a CPF"),
    Code.ONBOARD_REF_LOOKS_LIKE_CPF: ProblemKind(422, "onboard_ref carries a CPF"),
    Code.CPF_INVALID: ProblemKind(422, "The CPF has wrong check digits"),
    Code.CONSENT_REQUIRED: ProblemKind(422, "A current consent is missing"),
    Code.MODEL_UNSUPPORTED: ProblemKind(422, "The gallery uses another recognition model"),
    Code.IDEMPOTENCY_KEY_MISMATCH: ProblemKind(422, "The Idempotency-Key was used with another body"),
    Code.IDEMPOTENCY_KEY_REQUIRED: ProblemKind(428, "Idempotency-Key is required"),
    Code.RATE_LIMITED: ProblemKind(429, "Rate limit exceeded", retryable=True),
    Code.INTERNAL_ERROR: ProblemKind(500, "Internal error", retryable=True),
    Code.NOT_IMPLEMENTED: ProblemKind(501, "Planned, not implemented"),
    Code.SERVICE_UNAVAILABLE: ProblemKind(503, "Temporarily unavailable", retryable=True),
}


@dataclass(frozen=True, slots=True)
class FieldError:
    """One place in a request that is outside the contract."""

    pointer: str
    code: str


class Problem(Exception):
    """Ends a request with a problem answer.

    ``headers`` and ``members`` are added to the answer (``Allow``, ``Retry-After``, ``snapshot_seq``).
    """

    def __init__(
        self,
        code: Code,
        detail: str = "",
        *,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(code.value)
        self.code = code
        self.detail = detail
        self.errors = tuple(errors)
        self.headers = dict(headers or {})
        self.members = dict(members or {})

    @property
    def status(self) -> int:
        return KINDS[self.code].status

    def body(self, instance: str) -> dict[str, Any]:
        """The problem object; ``instance`` is the request id."""
        kind = KINDS[self.code]
        return {
            "type": f"urn:svc:problem:{self.code.value}",
            "title": kind.title,
            "status": kind.status,
            "code": self.code.value,
            "detail": self.detail or kind.title,
            "instance": instance,
            "retryable": kind.retryable,
            "errors": [{"pointer": error.pointer, "code": error.code} for error in self.errors],
            **self.members,
        }


def invalid(pointer: str, code: str) -> Problem:
    """422 ``validation_failed`` for one place."""
    return Problem(Code.VALIDATION_FAILED, errors=[FieldError(pointer, code)])


def unauthenticated() -> Problem:
    """The one answer to every credential failure."""
    return Problem(Code.UNAUTHENTICATED, headers={"WWW-Authenticate": "Bearer"})


def unavailable(retry_after_s: int = 1, headers: Mapping[str, str] | None = None) -> Problem:
    """503 with Retry-After."""
    retry = {"Retry-After": str(retry_after_s)}
    return Problem(Code.SERVICE_UNAVAILABLE, headers=retry | dict(headers or {}))
