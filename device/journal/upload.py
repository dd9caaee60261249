"""The upload queue: journal entries that the service does not have yet (POST /v1/verdicts/batch).

Every verdict has a revision, which increases with each outcome recorded for it, and is due until the service
has the newest. An item is the verdict with everything known at the time; its ticket carries the revision, so
an acknowledgement never covers what is recorded later. The order does not matter to the service and repeating
is safe, so a batch may be lost, repeated or answered late.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from device.journal.rows import Rows
from link1.canonical import JsonObject


@dataclass(frozen=True, slots=True)
class Ticket:
    """One item of an upload and the revision of it that was sent."""

    table: str
    row_id: int
    revision: int


@dataclass(frozen=True, slots=True)
class UploadBatch:
    """Items of POST /v1/verdicts/batch; `tickets[i]` belongs to `items[i]`."""

    items: tuple[JsonObject, ...] = field(repr=False)
    tickets: tuple[Ticket, ...]


def next_batch(rows: Rows, limit: int, *, for_mail: bool = False) -> UploadBatch:
    """The oldest items, at most `limit`. Evidence follows when no verdict is left, so that a batch refused
    because of wrong evidence delays no verdict.

    `for_mail`: without items already in the outbox and without verdicts whose outcome is still awaited: an
    item is mailed once, and a few seconds of delay do not matter.
    """
    with rows.reported():
        found = rows.execute(
            "SELECT seq, revision, ref, sealed, unknown AND (NOT decided OR open)"
            " FROM whole_verdicts v WHERE due AND (NOT ?"
            " OR (NOT open OR unknown) AND NOT EXISTS (SELECT 1 FROM outbox_items i"
            " WHERE i.kind = 'verdicts' AND i.row_id = v.seq AND i.revision >= v.revision))"
            " ORDER BY seq LIMIT ?",
            (for_mail, limit),
        ).fetchall()
        if not found:
            return _next_evidence(rows, limit, for_mail=for_mail)
        items = tuple(_item(rows, seq, ref, sealed, bool(unknown)) for seq, _, ref, sealed, unknown in found)
        return UploadBatch(items, tuple(Ticket("verdicts", row[0], row[1]) for row in found))


def mark(rows: Rows, tickets: Sequence[Ticket]) -> None:
    """Inside the caller's transaction: what a batch carried is done with, unless it has changed since."""
    for ticket in tickets:
        if ticket.table == "evidence":
            rows.execute("UPDATE evidence SET uploaded = 1 WHERE id = ?", (ticket.row_id,))
        else:
            rows.execute(
                "UPDATE verdicts SET due = 0 WHERE seq = ? AND revision = ?", (ticket.row_id, ticket.revision)
            )


def _item(rows: Rows, seq: int, ref: str, sealed: bytes, unknown: bool) -> JsonObject:
    verdict = rows.opened(sealed, "verdicts", ref, seq)
    item: JsonObject = {"signed_verdict": verdict}
    item |= {f"signed_{kind.name.lower()}": answer for kind, answer in rows.answers(seq, verdict).items()}
    if unknown:
        item["outcome_unknown"] = True
    return item


def _next_evidence(rows: Rows, limit: int, *, for_mail: bool) -> UploadBatch:
    """Wrong answers with the verdict they claim to answer, which the journal must hold; signed ones first."""
    found = rows.execute(
        "SELECT e.id, e.ref, e.kind, e.sealed, v.seq, v.ref, v.sealed"
        " FROM evidence e JOIN whole_verdicts v USING (seq)"
        " WHERE e.uploaded = 0 AND (NOT ? OR NOT EXISTS (SELECT 1 FROM outbox_items i"
        " WHERE i.kind = 'evidence' AND i.row_id = e.id)) ORDER BY e.backing <> 'signed', e.id LIMIT ?",
        (for_mail, limit),
    ).fetchall()
    items = tuple(
        {
            "signed_verdict": rows.opened(verdict, "verdicts", verdict_ref, seq),
            f"signed_{kind}": rows.opened(sealed, "evidence", ref, seq),
        }
        for _, ref, kind, sealed, seq, verdict_ref, verdict in found
    )
    return UploadBatch(items, tuple(Ticket("evidence", row[0], 1) for row in found))
