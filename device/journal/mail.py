"""The positions of the device's mail and its outbox, in the journal's database (device surface §5).

1. Records of the outbox are numbered from 1 without a gap, as long as the verdict key lives; a number is used
   only together with its record.
2. A record stays until a verified receipt covers its number; then the record and the uploads it carries are
   settled in one transaction.
3. The inbox position advances by one, after the effect of the record is durable.
4. A damaged write-ahead log takes no number back: the witness holds them, and an outbox record is in the
   database file, not only in its log, before it is sent.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from device.errors import JournalError
from device.journal.restore import keep_numbers, next_turn
from device.journal.rows import Rows, broken
from device.journal.upload import Ticket, UploadBatch, mark, next_batch
from device.values.status import MailStatus, RefusedMail

_IN_APPLIED: Final = "in_applied_seq"
_OUT: Final = "out_seq"
_OUT_ACKED: Final = "out_acked_seq"
_REFUSED_SEQ: Final = "refused_seq"
_REFUSED_CODE: Final = "refused_code"
_SHA256: Final = "sha256 "
"""With the number of a record: the hash of its bytes. Absent in records of earlier versions."""


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """A sealed record of the outbox: the RFC 8785 bytes of its JSON."""

    seq: int
    data: bytes


class MailBoxes:
    """The mail's part of a journal. One thread owns it; disk errors are raised as JournalError."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._in_file_seq = self.position().out_seq
        """Outbox records up to this number are in the database file and their numbers in the witness."""

    def position(self) -> MailStatus:
        with self._rows.reported():
            state = dict(self._rows.execute("SELECT name, value FROM mail_state").fetchall())
        applied = int(state.get(_IN_APPLIED, 0))
        refused_seq = int(state.get(_REFUSED_SEQ, 0))
        return MailStatus(
            in_applied_seq=applied,
            out_seq=int(state.get(_OUT, 0)),
            out_acked_seq=int(state.get(_OUT_ACKED, 0)),
            refused=RefusedMail(refused_seq, str(state[_REFUSED_CODE])) if refused_seq > applied else None,
        )

    def begin_inbox(self, next_seq: int) -> None:
        """`next_seq` is the first record for these keys, according to the registration."""
        with self._rows.transaction():
            self._raise(_IN_APPLIED, next_seq - 1)
            next_turn(self._rows)
        keep_numbers(self._rows, self._rows.witness)

    def applied(self, seq: int, *, acked_upto_seq: int = 0) -> None:
        """Inbox record `seq` has taken effect; with a receipt, the outbox up to `acked_upto_seq` is settled.

        May be repeated after an error. Raises JournalError when `seq` is neither the next one nor the last.
        """
        if seq == self.position().in_applied_seq:
            # Noted already: then the witness could not be written, and nothing was acknowledged yet.
            keep_numbers(self._rows, self._rows.witness)
            return
        with self._rows.transaction():
            position = self.position()
            if seq != position.in_applied_seq + 1:
                raise JournalError(f"inbox record {seq} does not follow {position.in_applied_seq}")
            self._raise(_IN_APPLIED, seq)
            # A receipt beyond the last record shows a journal that was rolled back: those numbers are used.
            self._raise(_OUT, acked_upto_seq)
            carried = self._rows.execute(
                "SELECT kind, row_id, revision FROM outbox_items WHERE out_seq <= ?", (acked_upto_seq,)
            ).fetchall()
            mark(self._rows, [Ticket(*row) for row in carried])
            self._rows.execute("DELETE FROM outbox_items WHERE out_seq <= ?", (acked_upto_seq,))
            self._rows.execute("DELETE FROM outbox WHERE seq <= ?", (acked_upto_seq,))
            self._rows.execute(
                "DELETE FROM mail_state WHERE name LIKE ? AND CAST(substr(name, ?) AS INTEGER) <= ?",
                (_SHA256 + "%", len(_SHA256) + 1, acked_upto_seq),
            )
            self._raise(_OUT_ACKED, acked_upto_seq)
            next_turn(self._rows)
        keep_numbers(self._rows, self._rows.witness)

    def refused(self, seq: int, code: str) -> None:
        """Inbox record `seq` is rejected. The inbox stays blocked at it until a valid replacement arrives."""
        with self._rows.transaction():
            self._put(_REFUSED_SEQ, seq)
            self._put(_REFUSED_CODE, code)

    def append(self, record: OutboxEntry, type_: str, carries: Sequence[Ticket] = ()) -> None:
        """Append a sealed record to the outbox. Raises JournalError when its seq is not the next."""
        with self._rows.transaction():
            if record.seq != self.position().out_seq + 1:
                raise JournalError(f"outbox record {record.seq} is not the next one")
            self._rows.execute("INSERT INTO outbox VALUES (?, ?, ?)", (record.seq, type_, record.data))
            self._put(f"{_SHA256}{record.seq}", hashlib.sha256(record.data).hexdigest())
            for ticket in carries:
                self._rows.execute(
                    "INSERT OR REPLACE INTO outbox_items (kind, row_id, revision, out_seq)"
                    " VALUES (?, ?, ?, ?)",
                    (ticket.table, ticket.row_id, ticket.revision, record.seq),
                )
            self._put(_OUT, record.seq)
            next_turn(self._rows)
        self._bring_in(record.seq)

    def _bring_in(self, seq: int) -> None:
        """Before outbox record `seq` is sent: let neither it nor its number depend on the log."""
        if self._rows.witness is not None:
            self._rows.bring_in()
            keep_numbers(self._rows, self._rows.witness)
        self._in_file_seq = seq

    def next_record(self, after_seq: int) -> OutboxEntry | None:
        """The first outbox record after `after_seq`. Raises JournalError, also when it is damaged."""
        with self._rows.reported():
            row = self._rows.execute(
                "SELECT seq, record FROM outbox WHERE seq > ? ORDER BY seq LIMIT 1", (after_seq,)
            ).fetchone()
            if row is None:
                return None
            sha256 = self._rows.execute(
                "SELECT value FROM mail_state WHERE name = ?", (f"{_SHA256}{row[0]}",)
            ).fetchone()
        if sha256 is not None and sha256[0] != hashlib.sha256(row[1]).hexdigest():
            raise broken(f"the bytes of outbox record {row[0]} have changed")
        if row[0] > self._in_file_seq:
            self._bring_in(row[0])  # this failed when the record was made
        return OutboxEntry(*row)

    def unmailed(self, limit: int) -> UploadBatch:
        """The oldest uploads, at most `limit`, that no outbox record carries."""
        return next_batch(self._rows, limit, for_mail=True)

    def _raise(self, name: str, value: int) -> None:
        self._rows.execute(
            "INSERT INTO mail_state VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)",
            (name, value),
        )

    def _put(self, name: str, value: int | str) -> None:
        self._rows.execute(
            "INSERT INTO mail_state VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )
