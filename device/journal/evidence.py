"""Wrong decisions and passages, kept for the service to judge (LINK/1 §4).

1. A message signed by a validator key proves something about the validator: it is kept in full, up to
   MAX_SIGNED_PER_TXN for one txn_id and MAX_SIGNED_WAITING that the service does not have yet.
2. All other messages can be forged in any number by an attacker on the cable. The last MAX_UNBACKED of each
   backing are kept, and they never displace signed ones.
"""

from dataclasses import dataclass

from device.journal.rows import Rows
from link1.canonical import JsonObject
from link1.events import Backing
from link1.signed import object_ref

MAX_SIGNED_PER_TXN = 16
MAX_SIGNED_WAITING = 4_096
MAX_UNBACKED = 16


@dataclass(slots=True)
class EvidenceRows:
    """The evidence's side of a journal."""

    rows: Rows
    beyond: int = 0
    """Signed messages since the start that exceeded the limits and were not kept."""

    def keep(
        self, kind: str, wrapper: JsonObject, txn_id: str | None, backing: Backing, operating_ms: int
    ) -> bool:
        """Runs inside the caller's transaction. False when this same message is kept already."""
        ref = object_ref(wrapper)
        if self.rows.execute("SELECT 1 FROM evidence WHERE ref = ?", (ref,)).fetchone():
            return False
        verdict = self.rows.execute("SELECT seq FROM verdicts WHERE txn_id = ?", (txn_id,)).fetchone()
        seq = verdict[0] if verdict else None
        if backing is Backing.SIGNED and not self._has_room(txn_id, seq):
            self.beyond += 1
            return True
        self.rows.execute(
            "INSERT INTO evidence (ref, kind, seq, sealed, operating_ms, txn_id, backing)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                ref,
                kind,
                seq,
                self.rows.sealed(wrapper, "evidence", ref, seq or 0),
                operating_ms,
                txn_id,
                str(backing),
            ),
        )
        if backing is not Backing.SIGNED:
            self.rows.execute(
                "DELETE FROM evidence WHERE backing = ? AND id NOT IN"
                " (SELECT id FROM evidence WHERE backing = ? ORDER BY id DESC LIMIT ?)",
                (str(backing), str(backing), MAX_UNBACKED),
            )
        return True

    def _has_room(self, txn_id: str | None, seq: int | None) -> bool:
        """Messages without a verdict can never be uploaded, so they have a separate limit."""
        of_txn = self.rows.execute(
            "SELECT count(*) FROM evidence WHERE txn_id IS ? AND backing = 'signed'", (txn_id,)
        ).fetchone()[0]
        waiting = self.rows.execute(
            "SELECT count(*) FROM evidence WHERE backing = 'signed' AND uploaded = 0"
            " AND (seq IS NULL) = (? IS NULL)",
            (seq,),
        ).fetchone()[0]
        return bool(of_txn < MAX_SIGNED_PER_TXN and waiting < MAX_SIGNED_WAITING)
