"""Enrollment sessions as the partner sees them, and how they end."""

import json
import secrets
import uuid
from typing import Any

from cloud_client.reference_server.contract import answers as shown
from cloud_client.reference_server.contract.bodies import CreateEnrollmentSession
from cloud_client.reference_server.contract.problems import Problem, ProblemCode, invalid
from cloud_client.reference_server.contract.words import (
    DeviceStatusWord,
    SessionStatus,
    SubjectStatus,
    session_qr_payload,
)
from cloud_client.reference_server.domain.call import ApiAnswer, Call
from cloud_client.reference_server.domain.devices.records import row_by_id as device_row
from cloud_client.reference_server.domain.tenancy import persons
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.domain.tenancy.rows import own_row
from cloud_client.reference_server.store.base import Row, Tx
from cloud_client.reference_server.store.vault import Vault, seal, token_hash

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_READ_AS = str.maketrans({"I": "1", "L": "1", "O": "0", "-": None})


def create_session(call: Call, tx: Tx) -> ApiAnswer:
    """createEnrollmentSession: a token, a QR payload and a short code, returned only here."""
    body: CreateEnrollmentSession = call.body
    environment, vault = call.environment, call.vault
    row = _subject(call, tx, body)
    if body.device_id is not None:
        device = device_row(tx, environment, body.device_id)
        if device["status"] != DeviceStatusWord.ACTIVE:
            raise Problem(ProblemCode.DEVICE_STATE_CONFLICT)
    if row["status"] == SubjectStatus.BLOCKED:
        raise Problem(ProblemCode.SUBJECT_STATE_CONFLICT)
    for open_session in tx.all(  # an expired one stays what its partner was shown
        """SELECT session_id FROM sessions
           WHERE subject_id = :subject_id AND status = 'open' AND expires_ms > :now_ms""",
        subject_id=row["subject_id"],
        now_ms=call.now_ms,
    ):
        end(tx, open_session["session_id"], SessionStatus.CANCELLED)
    session_id, token = str(uuid.uuid4()), secrets.token_urlsafe(32)
    short_code = _new_short_code(tx, vault, environment)
    made = tx.row(
        """INSERT INTO sessions (session_id, tenant_id, livemode, subject_id, status, hands_required,
                                 device_id, token_hash, token_ct, short_code_mac, dataset_collection,
                                 expires_ms, created_ms)
           VALUES (:session_id, :tenant_id, :livemode, :subject_id, 'open', :hands, :device_id, :token_hash,
                   :token_ct, :short_code_mac, :dataset_collection, :expires_ms, :now_ms) RETURNING *""",
        session_id=session_id,
        subject_id=row["subject_id"],
        hands=json.dumps(body.hands_required),
        device_id=body.device_id,
        token_hash=token_hash(token),
        token_ct=seal(token_key(vault, short_code), token.encode(), session_id.encode()),
        short_code_mac=short_code_mac(vault, environment, short_code),
        dataset_collection=int(body.dataset_collection),
        expires_ms=call.now_ms + body.expires_in_s * 1000,
        now_ms=call.now_ms,
        **environment.params,
    )
    session = shown.CreatedEnrollmentSession.of(
        made,
        token=token,
        qr_payload=session_qr_payload(session_id, token),
        short_code=short_code,
        **_of_now(made, call.now_ms),
    )
    location = {"Location": f"/v1/enrollment-sessions/{session_id}"}
    return ApiAnswer(201, session, location, subject_id=row["subject_id"])


def get_session(call: Call, tx: Tx) -> ApiAnswer:
    row = row_by_id(tx, call.environment, call.path["session_id"])
    return ApiAnswer(200, session_object(row, call.now_ms))


def _subject(call: Call, tx: Tx, body: CreateEnrollmentSession) -> Row:
    if body.subject_id is not None and body.external_ref is None:
        return persons.row_by_id(tx, call.environment, body.subject_id)
    if body.external_ref is None or body.subject_id is not None:
        raise invalid("", "exactly_one_of_subject_id_and_external_ref")
    row = persons.row_by_external_ref(tx, call.vault, call.environment, body.external_ref)
    if row is None:
        raise Problem(ProblemCode.SUBJECT_NOT_FOUND)
    return row


def row_by_id(tx: Tx, environment: Environment, session_id: str) -> Row:
    """A session's row. Problem 404 (missing, other tenant) or 403 (other environment)."""
    missing = ProblemCode.ENROLLMENT_SESSION_NOT_FOUND
    return own_row(tx, environment, "sessions", missing, session_id=session_id)


def status_of(row: Row, now_ms: int) -> SessionStatus:
    """The status as of now: an open session past its end is expired, whether or not anyone wrote it down."""
    status = SessionStatus(row["status"])
    if status is SessionStatus.OPEN and now_ms >= row["expires_ms"]:
        return SessionStatus.EXPIRED
    return status


def end(tx: Tx, session_id: str, status: SessionStatus, *, failure_code: str | None = None) -> None:
    """End a session without an enrolment; its token, short code and held palms are gone."""
    tx.run(
        """UPDATE sessions SET status = :status, failure_code = :failure_code, token_hash = NULL,
                  token_ct = NULL, short_code_mac = NULL, review_ct = NULL
           WHERE session_id = :session_id""",
        status=status.value,
        failure_code=failure_code,
        session_id=session_id,
    )


def expire(tx: Tx, now_ms: int) -> int:
    """Write down that sessions have expired, and drop their codes; how many."""
    return tx.run(
        """UPDATE sessions SET status = 'expired', token_hash = NULL, token_ct = NULL, short_code_mac = NULL
           WHERE status = 'open' AND expires_ms <= :now_ms""",
        now_ms=now_ms,
    )


def counts(tx: Tx, now_ms: int, environment: Environment | None = None) -> dict[str, int]:
    """``{open, review}``: sessions that have not ended; of all tenants where none is given."""
    rows = tx.all(
        f"""SELECT status, count(*) AS n FROM sessions
            WHERE status IN ('open', 'review') AND (status = 'review' OR expires_ms > :now_ms)
            {"" if environment is None else "AND tenant_id = :tenant_id AND livemode = :livemode"}
            GROUP BY status""",  # noqa: S608 - fixed parts
        now_ms=now_ms,
        **({} if environment is None else environment.params),
    )
    return {"open": 0, "review": 0} | {row["status"]: row["n"] for row in rows}


def session_object(row: Row, now_ms: int) -> shown.EnrollmentSession:
    """The EnrollmentSession of the contract, without what only its creator receives."""
    return shown.EnrollmentSession.of(row, **_of_now(row, now_ms))


def _of_now(row: Row, now_ms: int) -> dict[str, Any]:
    return {"status": status_of(row, now_ms).value, "hands_required": json.loads(row["hands_required"])}


def normal_short_code(text: str) -> str:
    """A typed short code as it was issued: upper case, letters that Crockford leaves out read as digits."""
    code = text.upper().translate(_READ_AS)
    return f"{code[:4]}-{code[4:]}"


def short_code_mac(vault: Vault, environment: Environment, short_code: str) -> bytes:
    """What a session is found by when its short code is typed."""
    return vault.mac(
        "short-code", environment.tenant_id.encode(), environment.mode.encode(), short_code.encode()
    )


def token_key(vault: Vault, short_code: str) -> bytes:
    """The key, derived from the short code, that a session's token is kept under."""
    return vault.derive("enrollment-token", short_code.encode())


def _new_short_code(tx: Tx, vault: Vault, environment: Environment) -> str:
    while True:
        letters = "".join(secrets.choice(_CROCKFORD) for _ in range(8))
        code = f"{letters[:4]}-{letters[4:]}"
        taken = tx.exists(
            "SELECT 1 FROM sessions WHERE tenant_id = :tenant_id AND short_code_mac = :mac",
            tenant_id=environment.tenant_id,
            mac=short_code_mac(vault, environment, code),
        )
        if not taken:
            return code
