"""A person's status: one rule, applied after everything that can change it.

``active`` means recognisable at a gate. A person who is enrolled but blocked by an operator, or without a
current identification consent, stays in the gallery suspended and is ``blocked``.
"""

from cloud_client.reference_server.contract.answers import BlockAnswer
from cloud_client.reference_server.contract.times import rfc3339
from cloud_client.reference_server.contract.words import SubjectStatus
from cloud_client.reference_server.domain.gallery import log as gallery_log
from cloud_client.reference_server.domain.tenancy import persons
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.store.base import Row, Tx
from cloud_client.reference_server.store.vault import Vault

CONSENT_REVOKED = "identification_consent_revoked"


def settle(tx: Tx, vault: Vault, environment: Environment, subject_id: str, now_ms: int) -> Row:
    """Bring status and suspension of a person in line with the facts; the row as it is then."""
    row = persons.row_by_id(tx, environment, subject_id)
    enrolled = row["enrolled_ms"] is not None
    suspended = enrolled and _block(tx, row) is not None
    if suspended != bool(row["suspended"]):
        tx.run(
            "UPDATE subjects SET suspended = :suspended WHERE subject_id = :subject_id",
            suspended=int(suspended),
            subject_id=subject_id,
        )
        if enrolled:
            person = persons.load(vault, row)
            gallery_log.set_suspended(tx, environment, person, suspended, now_ms)
    if row["operator_blocked_ms"] is not None or suspended:
        status = SubjectStatus.BLOCKED
    elif enrolled:
        status = SubjectStatus.ACTIVE
    else:
        status = SubjectStatus.PENDING_ENROLLMENT
    tx.run(
        "UPDATE subjects SET status = :status, updated_ms = :now_ms WHERE subject_id = :subject_id",
        status=status.value,
        now_ms=now_ms,
        subject_id=subject_id,
    )
    return persons.row_by_id(tx, environment, subject_id)


def block_object(tx: Tx, row: Row) -> BlockAnswer | None:
    """The ``block`` of a Subject: why, and since when."""
    if row["status"] != SubjectStatus.BLOCKED:
        return None
    found = _block(tx, row)
    return None if found is None else BlockAnswer(reason=found[0], since=rfc3339(found[1]))


def _block(tx: Tx, row: Row) -> tuple[str, int] | None:
    if row["operator_blocked_ms"] is not None:
        return row["operator_block_reason"], row["operator_blocked_ms"]
    held = tx.one(
        """SELECT status, revoked_ms FROM consents
           WHERE subject_id = :subject_id AND purpose = 'identification'
           ORDER BY recorded_no DESC LIMIT 1""",
        subject_id=row["subject_id"],
    )
    if held is not None and held["status"] == "granted":
        return None
    return CONSENT_REVOKED, held["revoked_ms"] if held is not None else row["created_ms"]
