"""Retention: what is kept how long, and the sweep that deletes what is past it."""

from typing import Final

from cloud_client.reference_server.contract.times import DAY_MS, months_before
from cloud_client.reference_server.domain.gallery import log as gallery_log
from cloud_client.reference_server.domain.mailbox import inbox as mail_inbox
from cloud_client.reference_server.domain.people import sessions
from cloud_client.reference_server.domain.verdicts.records import VERDICT_MONTHS
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.web.api import idempotency

EVENT_MS: Final = 30 * DAY_MS
TOKEN_MS: Final = 30 * DAY_MS
"""Provisioning tokens that have expired are kept this long, to explain why a token was refused."""


def sweep(tx: Tx, now_ms: int) -> dict[str, int]:
    """Delete what is expired at ``now_ms`` and count it."""
    counts = {
        "idempotency": tx.run(
            "DELETE FROM idempotency WHERE started_ms <= :limit_ms", limit_ms=now_ms - idempotency.KEEP_MS
        ),
        "deltas": tx.run(
            "DELETE FROM deltas WHERE created_ms <= :limit_ms", limit_ms=now_ms - gallery_log.KEEP_DELTAS_MS
        ),
        "events": tx.run("DELETE FROM events WHERE created_ms <= :limit_ms", limit_ms=now_ms - EVENT_MS),
        "verdicts": _delete_verdicts(tx, months_before(now_ms, VERDICT_MONTHS)),
        "sessions": sessions.expire(tx, now_ms),
    }
    tx.run("DELETE FROM nonces WHERE expires_ms <= :now_ms", now_ms=now_ms)
    tx.run("DELETE FROM challenges WHERE expires_ms <= :now_ms", now_ms=now_ms)
    tx.run("DELETE FROM snapshots WHERE expires_ms <= :now_ms", now_ms=now_ms)
    tx.run(
        "DELETE FROM provisioning_tokens WHERE expires_ms <= :limit_ms AND keys_digest IS NULL",
        limit_ms=now_ms - TOKEN_MS,
    )
    mail_inbox.sweep(tx, now_ms)
    # Replaced templates are kept only for snapshots that were open when they were replaced.
    tx.run(
        """DELETE FROM templates WHERE removed_seq IS NOT NULL AND NOT EXISTS
               (SELECT 1 FROM snapshots s
                WHERE s.stream = templates.stream AND s.seq < templates.removed_seq)"""
    )
    tx.purge_after_commit = True
    return counts


def _delete_verdicts(tx: Tx, limit_ms: int) -> int:
    """Environment by environment, as the index has them: the table is too large to be read through."""
    return sum(
        tx.run(
            """DELETE FROM verdicts
               WHERE tenant_id = :tenant_id AND livemode = :livemode AND decided_ms <= :limit_ms""",
            tenant_id=row["tenant_id"],
            livemode=row["livemode"],
            limit_ms=limit_ms,
        )
        for row in tx.all("SELECT tenant_id, livemode FROM streams")
    )
