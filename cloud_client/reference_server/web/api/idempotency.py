"""Idempotency-Key: a request is executed once, and a repetition gets the same answer.

Kept of a request: a MAC of its scope (credential, method, concrete path), a MAC of the key, a MAC of the
raw body, and the answer, sealed under a key derived from the server key AND the Idempotency-Key itself.
The database alone can therefore neither show an answer (an enrollment token, say) nor the key.

Claim, effects and answer are committed together, so that a request that ends half-way leaves nothing and may
be repeated at once; answers with a status of 500 and above leave nothing either. A claim that
is nevertheless without an answer means "still running" for 60 s; after that the next request takes it over
by compare-and-set on the time it was made.
"""

import json
from dataclasses import dataclass, replace

from cloud_client.reference_server.contract.problems import Problem, ProblemCode
from cloud_client.reference_server.contract.words import IDEMPOTENT_REPLAYED_HEADER
from cloud_client.reference_server.contract.written import encode
from cloud_client.reference_server.domain.call import ApiAnswer
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.store.vault import Vault, seal, unseal

TAKEOVER_MS = 60_000
KEEP_MS = 24 * 3600 * 1000
_CONTEXT = b"idempotent answer"


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to execute a keyed request."""

    scope_hash: bytes
    key_mac: bytes
    answer_key: bytes
    started_ms: int


def claim(
    tx: Tx,
    vault: Vault,
    *,
    credential: str,
    method: str,
    path: str,
    key: str,
    body: bytes,
    now_ms: int,
    newest_only: bool = False,
) -> Claim | ApiAnswer:
    """Claim a request, or the recorded answer of the first request with the key.

    ``newest_only`` forgets the earlier requests of the scope. Problem 409 while the first is running,
    422 when its body was different.
    """
    scope_hash = vault.mac("idempotency-scope", credential.encode(), method.encode(), path.encode())
    key_mac = vault.mac("idempotency-key", key.encode())
    body_mac = vault.mac("idempotency-body", body)
    answer_key = vault.derive("idempotent-answer", key.encode())
    mine = Claim(scope_hash, key_mac, answer_key, now_ms)
    inserted = tx.run(
        """INSERT INTO idempotency (scope_hash, key_mac, body_mac, started_ms)
           VALUES (:scope_hash, :key_mac, :body_mac, :now_ms) ON CONFLICT DO NOTHING""",
        scope_hash=scope_hash,
        key_mac=key_mac,
        body_mac=body_mac,
        now_ms=now_ms,
    )
    if inserted:
        if newest_only:
            tx.run(
                "DELETE FROM idempotency WHERE scope_hash = :scope_hash AND key_mac <> :key_mac",
                scope_hash=scope_hash,
                key_mac=key_mac,
            )
        return mine
    row = tx.one(
        """SELECT body_mac, started_ms, answer_ct FROM idempotency
           WHERE scope_hash = :scope_hash AND key_mac = :key_mac""",
        scope_hash=scope_hash,
        key_mac=key_mac,
    )
    if row is None:
        raise Problem(ProblemCode.IDEMPOTENCY_IN_PROGRESS)
    age_ms = now_ms - row["started_ms"]
    expired = age_ms >= KEEP_MS
    if not expired:
        if row["body_mac"] != body_mac:
            raise Problem(ProblemCode.IDEMPOTENCY_KEY_MISMATCH)
        if row["answer_ct"] is not None:
            return _read_answer(unseal(answer_key, row["answer_ct"], _CONTEXT))
        if age_ms < TAKEOVER_MS:
            raise Problem(ProblemCode.IDEMPOTENCY_IN_PROGRESS)
    taken = tx.run(
        """UPDATE idempotency SET started_ms = :now_ms, body_mac = :body_mac, answer_ct = NULL,
                  subject_id = NULL
           WHERE scope_hash = :scope_hash AND key_mac = :key_mac AND started_ms = :seen_ms""",
        scope_hash=scope_hash,
        key_mac=key_mac,
        body_mac=body_mac,
        seen_ms=row["started_ms"],
        now_ms=now_ms,
    )
    if not taken:
        raise Problem(ProblemCode.IDEMPOTENCY_IN_PROGRESS)
    return mine


def record(tx: Tx, claimed: Claim, answer: ApiAnswer) -> ApiAnswer:
    """Keep the answer of a claimed request, in the transaction that made its effects; the first answer."""
    body = b"" if answer.body is None else encode(answer.body)
    head = json.dumps({"status": answer.status, "headers": dict(answer.headers)}).encode()
    # The answer goes out in the bytes that are recorded: it is encoded once.
    sealed = seal(claimed.answer_key, b'%s,"body":%s}' % (head[:-1], body or b"null"), _CONTEXT)
    tx.run(
        """UPDATE idempotency SET answer_ct = :sealed, subject_id = :subject_id
           WHERE scope_hash = :scope_hash AND key_mac = :key_mac AND started_ms = :started_ms""",
        sealed=sealed,
        subject_id=answer.subject_id,
        scope_hash=claimed.scope_hash,
        key_mac=claimed.key_mac,
        started_ms=claimed.started_ms,
    )
    headers = {**answer.headers, IDEMPOTENT_REPLAYED_HEADER: "false"}
    return replace(answer, headers=headers, encoded=body)


def _read_answer(data: bytes) -> ApiAnswer:
    content = json.loads(data)
    headers = {**content["headers"], IDEMPOTENT_REPLAYED_HEADER: "true"}
    return ApiAnswer(content["status"], content["body"], headers)
