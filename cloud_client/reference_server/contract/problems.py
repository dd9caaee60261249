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
    """What is fixed about a code. `todo`: what the client does about it."""

    status: int
    title: str
    todo: str
    retryable: bool = False


KINDS: Final[Mapping[Code, ProblemKind]] = {
    Code.MALFORMED_JSON: ProblemKind(
        400,
        "The body is not valid JSON",
        "Send one JSON object in UTF-8, without duplicate names, NaN or a byte order mark.",
    ),
    Code.INVALID_REQUEST: ProblemKind(
        400,
        "A query or header parameter has the wrong format",
        "Correct the query or the header: unknown, repeated and misspelt parameters are refused.",
    ),
    Code.INVALID_CURSOR: ProblemKind(
        400,
        "The cursor does not belong to this list",
        "Begin the list again without a cursor; a cursor belongs to one list and its filters.",
    ),
    Code.UNAUTHENTICATED: ProblemKind(
        401,
        "Authentication failed",
        "Check the whole credential: key, signature, clock, environment. The reason is never given.",
    ),
    Code.FORBIDDEN: ProblemKind(
        403,
        "The credential has no access to this resource",
        "Use a device of the kind that this route is for.",
    ),
    Code.INSUFFICIENT_SCOPE: ProblemKind(
        403,
        "The API key lacks the scope of this route",
        "Use an API key that has the scope which the reference names for this route.",
    ),
    Code.LIVEMODE_MISMATCH: ProblemKind(
        403,
        "The credential belongs to the other environment",
        "Use a key of the environment in which the object was made, test or live.",
    ),
    Code.ENROLLMENT_SESSION_INVALID: ProblemKind(
        403,
        "The enrollment token is not valid",
        "Open a new session: this one is over, unknown, or for another device.",
    ),
    Code.SUBJECT_NOT_FOUND: ProblemKind(
        404, "No such person", "Drop your reference: the person was erased, never existed, or is not yours."
    ),
    Code.DEVICE_NOT_FOUND: ProblemKind(
        404,
        "No such device",
        "Look the device up in GET /v1/devices; it is not registered in this environment.",
    ),
    Code.VERDICT_NOT_FOUND: ProblemKind(
        404,
        "No such verdict",
        "Read the id from the list of changes; verdicts are deleted after their retention.",
    ),
    Code.ENROLLMENT_SESSION_NOT_FOUND: ProblemKind(
        404, "No such enrollment session", "Open a new session; this one is not in this environment."
    ),
    Code.ERASURE_RECEIPT_NOT_FOUND: ProblemKind(
        404, "No such erasure receipt", "Read the receipt_id from the answer to the erasure."
    ),
    Code.UPDATE_NOT_FOUND: ProblemKind(
        404,
        "No such update for this device",
        "Ask for the updates again: this release is not offered to this device now.",
    ),
    Code.ROUTE_NOT_FOUND: ProblemKind(
        404, "No such route", "Correct the path; there are no redirects and no trailing slash."
    ),
    Code.METHOD_NOT_ALLOWED: ProblemKind(
        405, "The route does not take this method", "Use one of the methods in the header Allow."
    ),
    Code.EXTERNAL_REF_CONFLICT: ProblemKind(
        409, "external_ref is already used", "You have this person already: look them up with ?external_ref=."
    ),
    Code.CPF_CONFLICT: ProblemKind(
        409,
        "The CPF already belongs to another person",
        "Look the person up in your own records; which person has the CPF is not revealed.",
    ),
    Code.SUBJECT_STATE_CONFLICT: ProblemKind(
        409, "The person's state does not allow this", "Fetch the person and decide again."
    ),
    Code.ENROLLMENT_SESSION_STATE_CONFLICT: ProblemKind(
        409,
        "The session's state does not allow this",
        "Fetch the session and decide again; only an open session goes on.",
    ),
    Code.DEVICE_STATE_CONFLICT: ProblemKind(
        409,
        "The device's state does not allow this",
        "Fetch the device and decide again; new keys need the old device to be revoked.",
    ),
    Code.IDEMPOTENCY_IN_PROGRESS: ProblemKind(
        409,
        "The first request with this key is still running",
        "Wait a second and send the same request with the same key again.",
        retryable=True,
    ),
    Code.HISTORY_EXPIRED: ProblemKind(
        410,
        "The deltas asked for are no longer kept",
        "Take a snapshot, and continue with deltas from its seq.",
    ),
    Code.CURSOR_EXPIRED: ProblemKind(
        410,
        "The cursor is outside retention",
        "Begin the list again without a cursor; what was deleted in the meantime is gone.",
    ),
    Code.PAYLOAD_TOO_LARGE: ProblemKind(413, "The body is too large", "Send less in one request."),
    Code.UNSUPPORTED_MEDIA_TYPE: ProblemKind(
        415,
        "Content-Type is not application/json",
        "Send Content-Type: application/json, and no Content-Encoding.",
    ),
    Code.VALIDATION_FAILED: ProblemKind(
        422,
        "The request is outside the contract",
        "Correct the places in errors[]; unknown members are refused.",
    ),
    Code.EXTERNAL_REF_LOOKS_LIKE_CPF: ProblemKind(
        422, "external_ref carries a CPF", "Use a name of your own for the person; a CPF goes into cpf alone."
    ),
    Code.ONBOARD_REF_LOOKS_LIKE_CPF: ProblemKind(
        422, "onboard_ref carries a CPF", "Use a name of your own for the person; a CPF goes into cpf alone."
    ),
    Code.CPF_INVALID: ProblemKind(
        422, "The CPF has wrong check digits", "Have the person type the CPF again."
    ),
    Code.CONSENT_REQUIRED: ProblemKind(
        422,
        "A current consent is missing",
        "Record the consents to enrollment and identification, then send it again.",
    ),
    Code.MODEL_UNSUPPORTED: ProblemKind(
        422,
        "The gallery uses another recognition model",
        "Give the device the gallery's model, or begin an epoch with the device's.",
    ),
    Code.IDEMPOTENCY_KEY_MISMATCH: ProblemKind(
        422,
        "The Idempotency-Key was used with another body",
        "Make a key for each thing that you do; this one was used with another body.",
    ),
    Code.IDEMPOTENCY_KEY_REQUIRED: ProblemKind(
        428, "Idempotency-Key is required", "Send an Idempotency-Key, made from your own event."
    ),
    Code.RATE_LIMITED: ProblemKind(
        429,
        "Rate limit exceeded",
        "Wait the seconds of Retry-After, then send the same request again.",
        retryable=True,
    ),
    Code.INTERNAL_ERROR: ProblemKind(
        500,
        "Internal error",
        "Send the same request with the same key again; report instance when it stays so.",
        retryable=True,
    ),
    Code.NOT_IMPLEMENTED: ProblemKind(
        501, "Planned, not implemented", "Do without it: it is planned. For events poll the list of changes."
    ),
    Code.SERVICE_UNAVAILABLE: ProblemKind(
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
