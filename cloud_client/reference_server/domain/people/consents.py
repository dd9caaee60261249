"""Consents: granted and revoked, and what that does to a person."""

import uuid

from cloud_client.reference_server.contract import answers as shown
from cloud_client.reference_server.contract.bodies import GrantConsent
from cloud_client.reference_server.contract.problems import Problem, ProblemCode, invalid
from cloud_client.reference_server.contract.words import Purpose
from cloud_client.reference_server.domain.call import ApiAnswer, Call
from cloud_client.reference_server.domain.gallery import log as gallery_log
from cloud_client.reference_server.domain.mail import gallery as mail_gallery
from cloud_client.reference_server.domain.people import status as standing
from cloud_client.reference_server.domain.tenancy import persons
from cloud_client.reference_server.store.base import Row, Tx

FUTURE_TOLERANCE_MS = 5 * 60 * 1000


def grant_consent(call: Call, tx: Tx) -> ApiAnswer:
    """grantConsent: 201 for a new consent, 200 with the current one when there is one."""
    body: GrantConsent = call.body
    accepted_ms: int = body.evidence.accepted_at  # type: ignore[assignment]
    row = persons.row_by_id(tx, call.environment, call.path["subject_id"])
    if accepted_ms > call.now_ms + FUTURE_TOLERANCE_MS:
        raise invalid("/evidence/accepted_at", "future")
    subject_id = row["subject_id"]
    held = current(tx, subject_id, body.purpose)
    if held is not None:
        return ApiAnswer(200, shown.ConsentAnswer.of(held), subject_id=subject_id)
    granted = record(
        tx,
        subject_id,
        body.purpose,
        terms_version=body.evidence.terms_version,
        method=body.evidence.method,
        granted_ms=accepted_ms,
        evidence_sha256=body.evidence.evidence_sha256,
    )
    standing.settle(tx, call.vault, call.environment, subject_id, call.now_ms)
    return ApiAnswer(201, shown.ConsentAnswer.of(granted), subject_id=subject_id)


def revoke_consent(call: Call, tx: Tx) -> ApiAnswer:
    """revokeConsent: the consent, revoked; without enrollment consent the templates are destroyed."""
    row = persons.row_by_id(tx, call.environment, call.path["subject_id"])
    subject_id, purpose = row["subject_id"], call.path["purpose"]
    held = latest(tx, subject_id, purpose)
    if held is None:
        raise Problem(ProblemCode.SUBJECT_NOT_FOUND, "No consent for this purpose was ever recorded")
    destroyed = held["status"] == "granted" and purpose == Purpose.ENROLLMENT
    if held["status"] == "granted":
        held = tx.row(
            """UPDATE consents SET status = 'revoked', revoked_ms = :now_ms
               WHERE consent_id = :consent_id RETURNING *""",
            now_ms=call.now_ms,
            consent_id=held["consent_id"],
        )
        if destroyed:
            _destroy_enrollment(call, tx, row)
        standing.settle(tx, call.vault, call.environment, subject_id, call.now_ms)
    return ApiAnswer(
        200,
        shown.ConsentAnswer.of(held),
        subject_id=subject_id,
        forgets=subject_id if destroyed else None,
    )


def _destroy_enrollment(call: Call, tx: Tx, row: Row) -> None:
    subject_id = row["subject_id"]
    gallery_log.remove_templates(
        tx, call.environment, persons.load(call.vault, row), call.now_ms, destroy=True
    )
    mail_gallery.withdraw(tx, call.vault, call.environment, call.now_ms)
    # A session that waits, for the palm or for an operator, has lost its purpose.
    tx.run(
        """UPDATE sessions
           SET status = CASE WHEN status = 'open' AND expires_ms <= :now_ms THEN 'expired'
                             ELSE 'cancelled' END,
               token_hash = NULL, token_ct = NULL, short_code_mac = NULL, review_ct = NULL
           WHERE subject_id = :subject_id AND status IN ('open', 'review')""",
        subject_id=subject_id,
        now_ms=call.now_ms,
    )
    tx.run(
        """UPDATE subjects SET model_id = NULL, hands = NULL, enrolled_ms = NULL
           WHERE subject_id = :subject_id""",
        subject_id=subject_id,
    )


def record(
    tx: Tx,
    subject_id: str,
    purpose: str,
    *,
    terms_version: str,
    method: str,
    granted_ms: int,
    evidence_sha256: str | None,
) -> Row:
    """Add a granted consent; the caller has seen that there is no current one."""
    return tx.row(
        """INSERT INTO consents (consent_id, subject_id, purpose, status, terms_version, method,
                                 evidence_sha256, granted_ms, recorded_no)
           SELECT :consent_id, :subject_id, :purpose, 'granted', :terms_version, :method, :evidence_sha256,
                  :granted_ms, coalesce(max(recorded_no), 0) + 1
           FROM consents WHERE subject_id = :subject_id RETURNING *""",
        consent_id=str(uuid.uuid4()),
        subject_id=subject_id,
        purpose=purpose,
        terms_version=terms_version,
        method=method,
        evidence_sha256=evidence_sha256,
        granted_ms=granted_ms,
    )


def current(tx: Tx, subject_id: str, purpose: str) -> Row | None:
    """The consent in force for a purpose."""
    return tx.one(
        """SELECT * FROM consents
           WHERE subject_id = :subject_id AND purpose = :purpose AND status = 'granted'""",
        subject_id=subject_id,
        purpose=purpose,
    )


def latest(tx: Tx, subject_id: str, purpose: str) -> Row | None:
    """The consent recorded last for a purpose, granted or revoked."""
    return tx.one(
        """SELECT * FROM consents WHERE subject_id = :subject_id AND purpose = :purpose
           ORDER BY recorded_no DESC LIMIT 1""",
        subject_id=subject_id,
        purpose=purpose,
    )
