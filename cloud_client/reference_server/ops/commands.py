"""What an operator does to a store while the server runs: the functions behind ``palmctl cloud …``.

Each runs in one write transaction and answers with the object that the command prints.
"""

import secrets
import string
import uuid
from collections.abc import Callable
from typing import Any, Final, get_args

from cloud_client.contract import NAME_64
from cloud_client.reference_server.contract.bodies import RevokeDevice
from cloud_client.reference_server.contract.problems import Problem, ProblemCode
from cloud_client.reference_server.contract.times import rfc3339
from cloud_client.reference_server.contract.words import RESERVED_DEVICE_IDS, UUID, Scope, SessionStatus
from cloud_client.reference_server.domain.devices import config as device_config
from cloud_client.reference_server.domain.devices import reports
from cloud_client.reference_server.domain.devices.records import device_object, revoke, row_by_id
from cloud_client.reference_server.domain.gallery import log as gallery_log
from cloud_client.reference_server.domain.people import enrollments, sessions, subjects
from cloud_client.reference_server.domain.people import status as standing
from cloud_client.reference_server.domain.people.cpf import carries_cpf
from cloud_client.reference_server.domain.tenancy import persons, signers, tenants
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.errors import OperatorError
from cloud_client.reference_server.store.base import Row, Tx
from cloud_client.reference_server.store.vault import Vault, token_hash
from link1.errors import FormatError
from link1.keys import PublicKey

_KEY_ID_LETTERS = string.digits + string.ascii_lowercase
_SECRET_LETTERS = string.digits + string.ascii_letters
_NAME_CHARACTERS = 200
_REASON_CHARACTERS = 200
MAX_OFFLINE_AFTER_S = 365 * 24 * 3600
_KEYS = """SELECT key_id, livemode, scopes, created_ms, revoked_ms FROM api_keys
    WHERE tenant_id = :tenant_id"""
_REVOKE_REASONS: Final[tuple[str, ...]] = get_args(RevokeDevice.model_fields["reason"].annotation)
_NO_SUCH_KEY = "no such key of this tenant: `key list` prints the key_id to give here"

Printed = dict[str, Any]


def create_tenant(tx: Tx, vault: Vault, name: str, now_ms: int) -> Printed:
    if not 1 <= len(name) <= _NAME_CHARACTERS or not name.isprintable():
        raise OperatorError(f"a tenant's name has 1 to {_NAME_CHARACTERS} printable characters")
    tenant_id = str(uuid.uuid4())
    tenants.create(tx, vault, tenant_id, name, now_ms)
    return {"tenant_id": tenant_id}


def list_tenants(tx: Tx) -> Printed:
    rows = tx.all("SELECT tenant_id, name, created_ms FROM tenants ORDER BY created_ms, tenant_id")
    return {
        "data": [
            {"tenant_id": row["tenant_id"], "name": row["name"], "created_at_ms": row["created_ms"]}
            for row in rows
        ]
    }


def set_tenant(
    tx: Tx,
    vault: Vault,
    tenant_id: str,
    *,
    terms_version: str | None,
    duplicate_cosine: float | None,
    offline_after_s: int | None,
) -> Printed:
    if offline_after_s is not None and not 1 <= offline_after_s <= MAX_OFFLINE_AFTER_S:
        raise OperatorError(f"--offline-after-s lies between 1 and {MAX_OFFLINE_AFTER_S}")
    if terms_version is not None and not NAME_64.fullmatch(terms_version):
        raise OperatorError("a terms_version has 1 to 64 of the characters A-Z a-z 0-9 . _ : -")
    if duplicate_cosine is not None and not -1 <= duplicate_cosine <= 1:
        raise OperatorError("a duplicate cosine lies between -1 and 1")
    tenant = tenants.change(
        tx,
        vault,
        tenant_id,
        terms_version=terms_version,
        duplicate_cosine=duplicate_cosine,
        offline_after_s=offline_after_s,
    )
    return {
        "tenant_id": tenant.tenant_id,
        "terms_version": tenant.terms_version,
        "duplicate_cosine": tenant.duplicate_cosine,
        "offline_after_s": tenant.offline_after_s,
    }


def create_key(tx: Tx, environment: Environment, scopes: list[str], now_ms: int) -> Printed:
    """``key create``: the only time the secret is seen."""
    check_environment(tx, environment)
    known = {scope.value for scope in Scope}
    if not scopes or not set(scopes) <= known:
        raise OperatorError(f"give at least one --scope out of {', '.join(sorted(known))}")
    key_id = "".join(secrets.choice(_KEY_ID_LETTERS) for _ in range(12))
    secret = "".join(secrets.choice(_SECRET_LETTERS) for _ in range(40))
    tx.run(
        """INSERT INTO api_keys (key_id, tenant_id, livemode, scopes, secret_sha256, created_ms)
           VALUES (:key_id, :tenant_id, :livemode, :scopes, :secret_sha256, :now_ms)""",
        key_id=key_id,
        scopes=" ".join(sorted(set(scopes))),
        secret_sha256=token_hash(secret),
        now_ms=now_ms,
        **environment.params,
    )
    return {"key_id": key_id, "api_key": f"svc_{environment.mode}_{key_id}_{secret}"}


def list_keys(tx: Tx, tenant_id: str) -> Printed:
    """``key list``: the keys of both environments, without their secrets."""
    check_tenant(tx, tenant_id)
    rows = tx.all(f"{_KEYS} ORDER BY created_ms, key_id", tenant_id=tenant_id)
    return {"data": [_key_object(row) for row in rows]}


def show_key(tx: Tx, tenant_id: str, key_id: str) -> Printed:
    """``key show``: one of them."""
    check_tenant(tx, tenant_id)
    row = tx.one(f"{_KEYS} AND key_id = :key_id", tenant_id=tenant_id, key_id=key_id)
    if row is None:
        raise OperatorError(_NO_SUCH_KEY)
    return _key_object(row)


def _key_object(row: Row) -> Printed:
    return {
        "key_id": row["key_id"],
        "mode": "live" if row["livemode"] else "test",
        "scopes": row["scopes"].split(),
        "created_at_ms": row["created_ms"],
        "revoked_at_ms": row["revoked_ms"],
    }


def show_device(tx: Tx, environment: Environment, device_id: str, now_ms: int) -> Printed:
    """``device show``: the Device of the contract, and what the device reported last."""
    row = _device(tx, environment, device_id)
    return {"device": device_object(tx, row, now_ms).plain(), **reports.shown_report(tx, row)}


def revoke_device(
    tx: Tx, vault: Vault, environment: Environment, device_id: str, *, reason: str, now_ms: int
) -> Printed:
    """``device revoke``: it is wiped at its next contact; a second time changes nothing."""
    if reason not in _REVOKE_REASONS:
        raise OperatorError(f"--reason is one of {', '.join(_REVOKE_REASONS)}")
    row = revoke(tx, vault, _device(tx, environment, device_id), reason, now_ms)
    return device_object(tx, row, now_ms).plain()


def revoke_key(tx: Tx, tenant_id: str, key_id: str, now_ms: int) -> Printed:
    """``key revoke``: from the next request on; a second time changes nothing."""
    row = tx.one(
        """UPDATE api_keys SET revoked_ms = coalesce(revoked_ms, :now_ms)
           WHERE key_id = :key_id AND tenant_id = :tenant_id RETURNING revoked_ms""",
        now_ms=now_ms,
        key_id=key_id,
        tenant_id=tenant_id,
    )
    if row is None:
        raise OperatorError(_NO_SUCH_KEY)
    return {"key_id": key_id, "revoked_at_ms": row["revoked_ms"]}


def create_token(tx: Tx, environment: Environment, device_id: str, expires_in_s: int, now_ms: int) -> Printed:
    """``token create``: a provisioning token for one device_id."""
    check_environment(tx, environment)
    if not NAME_64.fullmatch(device_id) or device_id in RESERVED_DEVICE_IDS:
        raise OperatorError(
            "a device_id has 1 to 64 of the characters A-Z a-z 0-9 . _ : - "
            f"and is none of {', '.join(sorted(RESERVED_DEVICE_IDS))}"
        )
    token = secrets.token_urlsafe(32)
    expires_ms = now_ms + expires_in_s * 1000
    tx.run(
        """INSERT INTO provisioning_tokens (token_hash, tenant_id, livemode, device_id, expires_ms)
           VALUES (:token_hash, :tenant_id, :livemode, :device_id, :expires_ms)""",
        token_hash=token_hash(token),
        device_id=device_id,
        expires_ms=expires_ms,
        **environment.params,
    )
    return {"token": token, "expires_at_ms": expires_ms}


def add_dbd(tx: Tx, environment: Environment, dbd_id: str, pub_b64: str, now_ms: int) -> Printed:
    """``dbd add``: a validator's key."""
    check_environment(tx, environment)
    if not NAME_64.fullmatch(dbd_id):
        raise OperatorError("a dbd_id has 1 to 64 of the characters A-Z a-z 0-9 . _ : -")
    try:
        key = PublicKey.from_b64(pub_b64)
    except FormatError as error:
        raise OperatorError(f"--pub-b64 is no Ed25519 public key: {error}") from None
    device_config.add_dbd_key(tx, environment, dbd_id, key, now_ms)
    return {"dbd_id": dbd_id, "kid": key.kid}


def block_subject(
    tx: Tx, vault: Vault, environment: Environment, subject_id: str, *, reason: str | None, now_ms: int
) -> Printed:
    """``subject block``: suspended at every gate until unblocked; a second time only changes the reason."""
    if reason and (len(reason) > _REASON_CHARACTERS or not reason.isprintable() or carries_cpf(reason)):
        raise OperatorError(
            f"--reason has at most {_REASON_CHARACTERS} printable characters and no CPF: partners see it"
        )
    row = _subject(tx, environment, subject_id)
    tx.run(
        """UPDATE subjects SET operator_block_reason = :reason,
                  operator_blocked_ms = coalesce(operator_blocked_ms, :now_ms)
           WHERE subject_id = :subject_id""",
        reason=reason or row["operator_block_reason"] or "operator",
        now_ms=now_ms,
        subject_id=row["subject_id"],
    )
    settled = standing.settle(tx, vault, environment, row["subject_id"], now_ms)
    return subjects.subject_object(tx, vault, settled).plain()


def reference_of(tx: Tx, environment: Environment, subject_id: str) -> str:
    """The subject_ref by which gates know a person."""
    reference: str = _subject(tx, environment, subject_id)["subject_ref"]
    return reference


def newest_people(tx: Tx, vault: Vault, environment: Environment, most: int) -> list[Printed]:
    """Up to `most` people, the newest first, by the names that partner, API and gates have for them."""
    rows = tx.all(
        """SELECT * FROM subjects WHERE tenant_id = :tenant_id AND livemode = :livemode
           ORDER BY created_ms DESC, subject_id DESC LIMIT :most""",
        most=most,
        **environment.params,
    )
    return [
        {
            "subject_id": row["subject_id"],
            "external_ref": persons.load(vault, row).external_ref,
            "subject_ref": row["subject_ref"],
            "status": row["status"],
        }
        for row in rows
    ]


def unblock_subject(
    tx: Tx, vault: Vault, environment: Environment, subject_id: str, *, now_ms: int
) -> Printed:
    row = _subject(tx, environment, subject_id)
    if row["operator_blocked_ms"] is None:
        raise OperatorError(
            f"{ProblemCode.SUBJECT_STATE_CONFLICT}: the person is not blocked by an operator, nothing to undo"
        )
    tx.run(
        """UPDATE subjects SET operator_block_reason = NULL, operator_blocked_ms = NULL
           WHERE subject_id = :subject_id""",
        subject_id=row["subject_id"],
    )
    settled = standing.settle(tx, vault, environment, row["subject_id"], now_ms)
    return subjects.subject_object(tx, vault, settled).plain()


def cancel_session(tx: Tx, environment: Environment, session_id: str, now_ms: int) -> Printed:
    """``session cancel``: of a session that is open or in review."""
    row = _session(tx, environment, session_id)
    if sessions.status_of(row, now_ms) not in (SessionStatus.OPEN, SessionStatus.REVIEW):
        raise OperatorError("the session has ended: only an open session, or one in review, can be cancelled")
    sessions.end(tx, row["session_id"], SessionStatus.CANCELLED)
    tx.purge_after_commit = True  # palms may have been held
    return sessions.session_object(_session(tx, environment, session_id), now_ms).plain()


def approve_session(tx: Tx, vault: Vault, environment: Environment, session_id: str, now_ms: int) -> Printed:
    """``session approve``: the palms that were held are enrolled."""
    _session(tx, environment, session_id)
    row = enrollments.approve(tx, vault, environment, session_id.lower(), now_ms)
    return sessions.session_object(row, now_ms).plain()


def reject_session(tx: Tx, environment: Environment, session_id: str, now_ms: int) -> Printed:
    """``session reject``: the session ends without enrolment."""
    _session(tx, environment, session_id)
    row = enrollments.reject(tx, environment, session_id.lower())
    return sessions.session_object(row, now_ms).plain()


def new_epoch(
    tx: Tx, environment: Environment, model_id: str | None, now_ms: int, *, enrol_again: bool = False
) -> Printed:
    """``epoch new``: devices take the gallery again, by snapshot. ``model_id``: None for the one in use."""
    check_environment(tx, environment)
    before = gallery_log.state_of_stream(tx, environment)
    model_id = model_id or before.model_id
    if model_id is None:
        raise OperatorError("no device has registered here, so no model is in use: say which by --model-id")
    if not NAME_64.fullmatch(model_id):
        raise OperatorError("a model_id has 1 to 64 of the characters A-Z a-z 0-9 . _ : -")
    enrolled = tx.scalar(
        """SELECT count(*) FROM subjects
           WHERE tenant_id = :tenant_id AND livemode = :livemode AND model_id IS NOT NULL""",
        **environment.params,
    )
    if enrolled and model_id != before.model_id and not enrol_again:
        raise OperatorError(
            f"with {model_id} the palms made with {before.model_id} go, and everyone enrolled ({enrolled})"
            " has to enrol again: if that is meant, say --enrol-again"
        )
    state = gallery_log.new_epoch(tx, environment, model_id, now_ms)
    return {"stream": state.stream, "epoch": state.epoch, "seq": state.seq}


def rotate_signer(tx: Tx, vault: Vault, use: str, in_s: int, now_ms: int) -> Printed:
    """``signer rotate``: published now, signing from ``in_s`` seconds on."""
    if use not in signers.USES:
        raise OperatorError(f"--use is one of {', '.join(signers.USES)}")
    row = signers.rotate(tx, vault, use, now_ms + in_s * 1000, now_ms)
    return {"kid": row["kid"], "not_before": rfc3339(row["not_before_ms"])}


def show_root(vault: Vault) -> Printed:
    """``root show``: what devices pin."""
    return {"pub_b64": vault.root.public.b64, "kid": vault.root.kid}


def check_environment(tx: Tx, environment: Environment) -> None:
    """OperatorError when there is no such tenant."""
    check_tenant(tx, environment.tenant_id)


def check_tenant(tx: Tx, tenant_id: str) -> None:
    """OperatorError when there is no such tenant."""
    if not tx.exists("SELECT 1 FROM tenants WHERE tenant_id = :tenant_id", tenant_id=tenant_id):
        raise OperatorError("no such tenant: `palmctl cloud tenant create` prints the tenant_id to give here")


def _device(tx: Tx, environment: Environment, device_id: str) -> Row:
    check_environment(tx, environment)
    try:
        return row_by_id(tx, environment, device_id)
    except Problem:
        raise OperatorError("no such device in this environment: look at --tenant and --mode") from None


def _subject(tx: Tx, environment: Environment, subject_id: str) -> Row:
    return _found(lambda: persons.row_by_id(tx, environment, subject_id.lower()), subject_id, "person")


def _session(tx: Tx, environment: Environment, session_id: str) -> Row:
    return _found(lambda: sessions.row_by_id(tx, environment, session_id.lower()), session_id, "session")


def _found(find: Callable[[], Row], identifier: str, what: str) -> Row:
    if not UUID.fullmatch(identifier):
        raise OperatorError(f"a {what} is named by its UUID")
    try:
        return find()
    except Problem:
        raise OperatorError(f"no such {what} in this environment: look at --tenant and --mode") from None
