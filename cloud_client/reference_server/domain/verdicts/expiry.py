"""The end of verdicts: 13 months after the service received them, by its own clock.

A gate may rest for longer than that, and its next verdict names the one before. So the number and the
reference of the last verdict of each key that was deleted stay: a hash, which says nothing about a person.
"""

from typing import Final

from cloud_client.reference_server.contract.times import months_before
from cloud_client.reference_server.store.base import Row, Tx

VERDICT_MONTHS: Final = 13
"""How long verdicts are kept, from when the service received them: a gate's clock may be years off."""


def delete_expired(tx: Tx, now_ms: int, most: int) -> int:
    """Delete at most ``most`` verdicts that are expired at ``now_ms``; their number."""
    deleted = tx.all(
        """DELETE FROM verdicts WHERE verdict_id IN
           (SELECT verdict_id FROM verdicts WHERE received_ms <= :limit_ms LIMIT :most)
           RETURNING signer_kid, verdict_seq, verdict_id""",
        limit_ms=months_before(now_ms, VERDICT_MONTHS),
        most=most,
    )
    last: dict[str, Row] = {}
    for row in deleted:
        if row["signer_kid"] not in last or last[row["signer_kid"]]["verdict_seq"] < row["verdict_seq"]:
            last[row["signer_kid"]] = row
    for row in last.values():
        tx.run(
            """INSERT INTO chain_marks (signer_kid, verdict_seq, verdict_id)
               VALUES (:kid, :seq, :verdict_id)
               ON CONFLICT (signer_kid) DO UPDATE
               SET verdict_seq = excluded.verdict_seq, verdict_id = excluded.verdict_id
               WHERE excluded.verdict_seq > chain_marks.verdict_seq""",
            kid=row["signer_kid"],
            seq=row["verdict_seq"],
            verdict_id=row["verdict_id"],
        )
    return len(deleted)


def deleted_before(tx: Tx, kid: str, seq: int) -> Row | None:
    """``verdict_id`` of a key's verdict before number ``seq``, where it is the last that was deleted."""
    return tx.one(
        "SELECT verdict_id FROM chain_marks WHERE signer_kid = :kid AND verdict_seq = :before",
        kid=kid,
        before=seq - 1,
    )
