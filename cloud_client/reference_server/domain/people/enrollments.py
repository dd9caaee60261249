"""What devices do with an enrollment session: redeem its short code, complete it, report its failure."""

import json
import uuid
from dataclasses import dataclass

from cloud_client.reference_server.contract import answers as shown
from cloud_client.reference_server.contract.bodies import (
    Body,
    CompleteEnrollment,
    FailEnrollment,
    Hand,
    RedeemBody,
    read_model,
)
from cloud_client.reference_server.contract.problems import Problem, ProblemCode, invalid
from cloud_client.reference_server.contract.words import MAX_VECTORS_PER_HAND, Purpose, SessionStatus
from cloud_client.reference_server.domain.call import ApiAnswer, Call
from cloud_client.reference_server.domain.gallery import log as gallery_log
from cloud_client.reference_server.domain.gallery.palm_index import PalmProbe, PalmsFound
from cloud_client.reference_server.domain.people import consents, sessions
from cloud_client.reference_server.domain.people import status as standing
from cloud_client.reference_server.domain.tenancy import persons, tenants
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.errors import OperatorError
from cloud_client.reference_server.store.async_store import AsyncStore
from cloud_client.reference_server.store.base import Row, Tx
from cloud_client.reference_server.store.vault import Vault, seal, token_hash, unseal
from gallery.stream import read_vector
from link1.canonical import b64_decode, b64_encode
from link1.errors import FormatError

_NEEDED = (Purpose.ENROLLMENT, Purpose.IDENTIFICATION)


@dataclass(frozen=True, slots=True)
class Palms:
    """Accepted captures: (hand, 2,048 bytes of vector) pairs made with one model."""

    model_id: str
    vectors: tuple[tuple[Hand, bytes], ...]

    @property
    def hands(self) -> list[Hand]:
        return sorted({hand for hand, _ in self.vectors})


def read_enrollment(value: object) -> Body:
    """The body of ``POST /v1/enrollments``: a completion, or the report of a failure."""
    if isinstance(value, dict) and "failed" in value:
        return read_model(FailEnrollment, value)
    return read_model(CompleteEnrollment, value)


def redeem_short_code(call: Call, tx: Tx) -> ApiAnswer:
    """The session of a typed short code, and its token; repeatable while the session is open."""
    body: RedeemBody = call.body
    code = sessions.normal_short_code(body.short_code)
    found = tx.one(
        "SELECT * FROM sessions WHERE tenant_id = :tenant_id AND short_code_mac = :mac",
        tenant_id=call.environment.tenant_id,
        mac=sessions.short_code_mac(call.vault, call.environment, code),
    )
    row = _opened(call, found)
    token = unseal(sessions.token_key(call.vault, code), row["token_ct"], row["session_id"].encode())
    tenant = tenants.load(tx, call.vault, call.environment.tenant_id)
    session = shown.RedeemedSession.of(
        row,
        token=token.decode(),
        hands_required=json.loads(row["hands_required"]),
        terms_version=tenant.terms_version,
        expires_at_ms=row["expires_ms"],
    )
    return ApiAnswer(200, session, subject_id=row["subject_id"])


async def search_ahead(call: Call, store: AsyncStore) -> PalmsFound | None:
    """The 1:N search of an enrolment, while others write; None where there is nothing to search for.

    Problem where the enrolment will be refused.
    """
    environment, index = call.environment, call.service.palms
    probe = await store.read_aside(lambda tx: _probe(call, tx))
    if probe is None:
        return None
    async with index.turn(environment.stream):
        while await store.read_aside(lambda tx: index.catch_up(tx, call.vault, environment)):
            pass
        return await store.read_aside(lambda tx: index.search(tx, call.vault, environment, probe))


def _probe(call: Call, tx: Tx) -> PalmProbe | None:
    body: CompleteEnrollment | FailEnrollment = call.body
    if isinstance(body, FailEnrollment):
        return None
    row = _session_of_token(call, tx, body.token)
    return _probe_of(call, tx, row["subject_id"], _read_palms(body, json.loads(row["hands_required"])))


def _probe_of(call: Call, tx: Tx, subject_id: str, palms: Palms) -> PalmProbe:
    tenant = tenants.load(tx, call.vault, call.environment.tenant_id)
    return PalmProbe(subject_id, tuple(vector for _, vector in palms.vectors), tenant.duplicate_cosine)


def conclude_enrollment(call: Call, tx: Tx) -> ApiAnswer:
    """``POST /v1/enrollments``."""
    body: CompleteEnrollment | FailEnrollment = call.body
    row = _session_of_token(call, tx, body.token)
    session_id, subject_id = row["session_id"], row["subject_id"]
    if isinstance(body, FailEnrollment):
        sessions.end(tx, session_id, SessionStatus.FAILED, failure_code=body.failed)
        return ApiAnswer(
            200, shown.EnrollmentOutcome(session_id=session_id, status="failed"), subject_id=subject_id
        )
    palms = _read_palms(body, json.loads(row["hands_required"]))
    if palms.model_id != gallery_log.state_of_stream(tx, call.environment).model_id:
        raise Problem(ProblemCode.MODEL_UNSUPPORTED)
    _take_consents(call, tx, body, row)
    person = persons.load_by_id(tx, call.vault, call.environment, subject_id)
    tx.run(
        """UPDATE sessions SET token_hash = NULL, token_ct = NULL, short_code_mac = NULL,
                  completed_by_device_id = :device_id
           WHERE session_id = :session_id""",
        session_id=session_id,
        device_id=call.caller.device_id,
    )
    if call.service.palms.resembles_another(
        tx, call.vault, call.environment, _probe_of(call, tx, subject_id, palms), call.ahead
    ):
        held = {"model_id": palms.model_id, "vectors": [[h, b64_encode(v)] for h, v in palms.vectors]}
        tx.run(
            "UPDATE sessions SET status = 'review', review_ct = :review_ct WHERE session_id = :session_id",
            session_id=session_id,
            review_ct=seal(person.key, json.dumps(held).encode(), session_id.encode()),
        )
        return ApiAnswer(
            202, shown.EnrollmentOutcome(session_id=session_id, status="review"), subject_id=subject_id
        )
    enrollment_id = _enrol(tx, call.vault, call.environment, row, palms=palms, now_ms=call.now_ms)
    enrolled = shown.Enrollment(
        session_id=session_id,
        status="completed",
        enrollment_id=enrollment_id,
        subject_ref=person.subject_ref,
        hands=palms.hands,
    )
    return ApiAnswer(201, enrolled, subject_id=subject_id)


def approve(tx: Tx, vault: Vault, environment: Environment, session_id: str, now_ms: int) -> Row:
    """End a review by enrolling what was held. OperatorError when the session is in no review."""
    row = _in_review(tx, environment, session_id)
    person = persons.load_by_id(tx, vault, environment, row["subject_id"])
    held = json.loads(unseal(person.key, row["review_ct"], session_id.encode()))
    if held["model_id"] != gallery_log.state_of_stream(tx, environment).model_id:
        raise OperatorError(
            "the palms were taken with a model the gallery no longer uses: reject the session"
        )
    for purpose in _NEEDED:
        if consents.current(tx, row["subject_id"], purpose) is None:
            raise OperatorError(f"the person has revoked the {purpose} consent since: reject the session")
    palms = Palms(held["model_id"], tuple((hand, b64_decode(vector)) for hand, vector in held["vectors"]))
    _enrol(tx, vault, environment, row, palms=palms, now_ms=now_ms)
    return sessions.row_by_id(tx, environment, session_id)


def reject(tx: Tx, environment: Environment, session_id: str) -> Row:
    """End a review without enrolment; the held palms are deleted."""
    _in_review(tx, environment, session_id)
    sessions.end(tx, session_id, SessionStatus.FAILED)
    tx.purge_after_commit = True
    return sessions.row_by_id(tx, environment, session_id)


def _in_review(tx: Tx, environment: Environment, session_id: str) -> Row:
    row = sessions.row_by_id(tx, environment, session_id)
    if row["status"] != SessionStatus.REVIEW:
        raise OperatorError(
            "the session is not in review: only a session in review can be approved or rejected"
        )
    return row


def _session_of_token(call: Call, tx: Tx, token: str) -> Row:
    """The open session that a token is for."""
    digest = token_hash(token)
    return _opened(call, tx.one("SELECT * FROM sessions WHERE token_hash = :token_hash", token_hash=digest))


def _opened(call: Call, row: Row | None) -> Row:
    """The session; one refusal for a code or token that is wrong, used, expired, or for another device."""
    if (
        row is None
        or row["tenant_id"] != call.environment.tenant_id
        or row["livemode"] != call.environment.livemode
        or sessions.status_of(row, call.now_ms) is not SessionStatus.OPEN
        or row["device_id"] not in (None, call.caller.device_id)
    ):
        raise Problem(ProblemCode.ENROLLMENT_SESSION_INVALID)
    return row


def _read_palms(body: CompleteEnrollment, hands_required: list[str]) -> Palms:
    vectors = []
    for index, item in enumerate(body.hands):
        try:
            vectors.append((item.hand, read_vector(item.vector_b64)))
        except FormatError:
            raise invalid(f"/hands/{index}/vector_b64", "vector") from None
    palms = Palms(body.model_id, tuple(vectors))
    counts = {hand: sum(1 for found, _ in vectors if found == hand) for hand in palms.hands}
    if set(counts) != set(hands_required) or max(counts.values()) > MAX_VECTORS_PER_HAND:
        raise invalid("/hands", "hands_required")
    return palms


def _take_consents(call: Call, tx: Tx, body: CompleteEnrollment, row: Row) -> None:
    """Record what was accepted on the screen. Problem 422 when a needed consent is neither there nor held."""
    subject_id = row["subject_id"]
    for index, given in enumerate(body.consents):
        if given.purpose == "dataset_collection" and not row["dataset_collection"]:
            raise invalid(f"/consents/{index}/purpose", "not_asked_for")
        if consents.current(tx, subject_id, given.purpose) is None:
            consents.record(
                tx,
                subject_id,
                given.purpose,
                terms_version=given.terms_version,
                method=given.method,
                # A device's clock may be ahead; no consent is later than now.
                granted_ms=min(given.accepted_at_ms, call.now_ms),
                evidence_sha256=None,
            )
    if any(consents.current(tx, subject_id, purpose) is None for purpose in _NEEDED):
        raise Problem(ProblemCode.CONSENT_REQUIRED)
    # Before a review begins, too: a suspended person has given consent again, whatever becomes of the palms.
    standing.settle(tx, call.vault, call.environment, subject_id, call.now_ms)


def _enrol(tx: Tx, vault: Vault, environment: Environment, session: Row, *, palms: Palms, now_ms: int) -> str:
    """Replace a person's templates by ``palms`` and complete the session; the enrollment_id."""
    subject_id = session["subject_id"]
    person = persons.load_by_id(tx, vault, environment, subject_id)
    gallery_log.remove_templates(tx, environment, person, now_ms, destroy=False)
    gallery_log.add_templates(tx, environment, person, palms.model_id, palms.vectors, now_ms=now_ms)
    tx.run(
        """UPDATE subjects SET model_id = :model_id, hands = :hands, enrolled_ms = :now_ms
           WHERE subject_id = :subject_id""",
        model_id=palms.model_id,
        hands=json.dumps(palms.hands),
        now_ms=now_ms,
        subject_id=subject_id,
    )
    standing.settle(tx, vault, environment, subject_id, now_ms)
    enrollment_id = str(uuid.uuid4())
    tx.run(
        """UPDATE sessions SET status = 'completed', enrollment_id = :enrollment_id, completed_ms = :now_ms,
                  review_ct = NULL
           WHERE session_id = :session_id""",
        enrollment_id=enrollment_id,
        now_ms=now_ms,
        session_id=session["session_id"],
    )
    # Palms that were held before these, and approved after them, would take their place.
    tx.run(
        """UPDATE sessions SET status = 'cancelled', review_ct = NULL
           WHERE subject_id = :subject_id AND status = 'review' AND created_ms <= :created_ms""",
        subject_id=subject_id,
        created_ms=session["created_ms"],
    )
    return enrollment_id
