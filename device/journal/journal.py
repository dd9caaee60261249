"""The verdict journal: promises to a validator, on the disk before they are sent.

1. A verdict is durable when `append_verdict` returns. Its number and prev_ref are assigned inside the
   transaction that inserts it, so the numbers have no gap and no duplicate, whenever the power fails.
2. A txn_id has at most one verdict, ever. Verdicts and ended transactions are remembered for at least 30 days
   of running; a verdict stays until the service has it.
3. A verdict's outcome (decision, passage, outcome_unknown) is added to it and raises its revision; an upload
   acknowledges the revision it carried, so that nothing that arrives meanwhile is lost.
4. Personal data is sealed before it is written (`device.journal.seal`).
5. A damaged write-ahead log takes back no number: verdicts and the mail's numbers are also in a second file
   (`device.journal.witness`), from which a start restores what is missing; otherwise the journal halts.
6. One thread owns a journal. Disk errors are raised as JournalError, and then nothing was recorded.

    journal = Journal(path, device_id=…, verdict_kid=…, data_key=…, clock=…)
    stored = journal.append_verdict(txn_id, request_ref, lambda seq, prev_ref: sign(…))
"""

import logging
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from device.errors import JournalError, SequenceHalted
from device.journal.mail import MailBoxes
from device.journal.opening import create_file, open_file
from device.journal.reserve import Reserve
from device.journal.restore import insert_verdict, keep_numbers, restore
from device.journal.rows import Rows, broken
from device.journal.upload import Ticket, UploadBatch, mark, next_batch
from device.journal.witness import VERDICTS, JournalWitness, PromisedVerdict
from device.platform.clock import Clock
from device.values.transactions import StoredVerdict, TxnMemory
from link1.canonical import JsonObject
from link1.events import Backing
from link1.objects import PREV_REF_OF_FIRST, ErrorCode, LastVerdict
from link1.signed import Kind, object_ref

MEMORY_MS = 30 * 24 * 3600 * 1000
"""LINK/1 §4: a txn_id is remembered for 30 days at least."""
PURGE_ROWS = 100
"""Rows deleted in one call, so that a verdict never waits long for the thread."""
MAX_SIGNED_PER_TXN = 16
MAX_SIGNED_WAITING = 4_096
"""Wrong decisions and passages signed by a validator key prove something about the validator (LINK/1 §4): so
many are kept in full for one txn_id, and so many that the service does not have yet."""
MAX_UNBACKED = 16
"""All others can be forged in any number by an attacker on the cable: so many of each backing are kept, the
newest, and they never displace signed ones."""
_PROBE_BYTES = 64 * 1024
_CHECKED_AT_START = 16
"""So many of the newest verdicts are opened and their chain is checked before a new one is added."""

_log = logging.getLogger(__name__)


class Journal:
    """The journal of one device and one verdict key."""

    create = staticmethod(create_file)

    def __init__(
        self, path: Path, *, device_id: str, verdict_kid: str, data_key: bytes, clock: Clock
    ) -> None:
        """Open the journal that `create` made. Raises JournalError, which says what to do."""
        db, seal = open_file(path, device_id=device_id, verdict_kid=verdict_kid, data_key=data_key)
        self._in_log = 0
        """Verdicts that may be only in the write-ahead log."""
        self._rows = rows = Rows(db, seal, Reserve(path.with_name(path.name + ".reserve")))
        try:
            rows.witness = JournalWitness(path, seal)
            with rows.reported():
                restore(rows, rows.witness)
                _check_newest(rows)
                halted = rows.execute("SELECT value FROM meta WHERE name = 'halted'").fetchone()
                (operated_ms,) = rows.execute(
                    "SELECT max(coalesce((SELECT operating_ms FROM verdicts ORDER BY seq DESC LIMIT 1), 0),"
                    " coalesce((SELECT max(operating_ms) FROM ended), 0))"
                ).fetchone()
            self._operated_ms = int(operated_ms)
            self.mail = MailBoxes(rows)
            """Inbox position and outbox: a receipt and the rows it settles change in one transaction."""
            self._bring_in()
        except (TypeError, ValueError) as error:
            rows.close()
            raise broken("a column holds another type than this device writes") from error
        except BaseException:
            rows.close()
            raise
        self.evidence_beyond = 0
        """Signed messages since the start that exceeded the limits and were not kept."""
        self.halted: str = halted[0] if halted else ""
        """Why no further verdict is numbered; empty while the journal is not halted."""
        self._clock = clock
        self._started_ms = clock.monotonic_ms()

    def close(self) -> None:
        self._rows.close()

    def leave_disk(self) -> None:
        """The device is being wiped: close the file and continue in memory, with only the numbers."""
        self._rows.leave_disk()

    def halt(self, why: str) -> None:
        """Number no further verdict, also after a restart. Raises JournalError; then a restart forgets it."""
        self.halted = self.halted or why
        with self._rows.transaction():
            self._execute("INSERT OR IGNORE INTO meta VALUES ('halted', ?)", (self.halted,))
        keep_numbers(self._rows, self._rows.witness)

    # Verdicts and transactions

    def append_verdict(
        self, txn_id: str, request_ref: str, build: Callable[[int, str], JsonObject]
    ) -> StoredVerdict:
        """Number the next verdict, have it signed by `build(verdict_seq, prev_ref)`, make it durable.

        Raises JournalError when the txn_id has ended or has a verdict, or when the disk fails. Then no number
        was used, unless it is the witness that cannot be written.
        """
        if self.halted:
            raise SequenceHalted(self.halted)
        if self._in_log >= VERDICTS - 1:
            self._bring_in()
        with self._rows.transaction():
            last = self.last()
            seq = last.verdict_seq + 1 if last else 1
            prev_ref = last.verdict_ref if last else PREV_REF_OF_FIRST
            if self.find_txn(txn_id) is not None:
                raise JournalError("this txn_id has ended or already has a verdict; it gets no other")
            wrapper = build(seq, prev_ref)
            verdict = wrapper["verdict"]
            if (verdict["verdict_seq"], verdict["prev_ref"], verdict["txn_id"]) != (seq, prev_ref, txn_id):
                raise JournalError("the signed verdict has another number, prev_ref or txn_id than requested")
            promised = PromisedVerdict(seq, request_ref, self._now_ms(), wrapper)
            ref = insert_verdict(self._rows, promised)
        self._in_log += 1
        if self._rows.witness is not None:
            self._rows.witness.keep_verdict(promised)
        return StoredVerdict(seq, ref, wrapper)

    def find_txn(self, txn_id: str) -> TxnMemory | None:
        """The journal's memory of `txn_id`. Raises JournalError."""
        with self._rows.reported():
            # An end counts although there is a verdict: see `remember_end`.
            row = self._execute("SELECT request_ref, code FROM ended WHERE txn_id = ?", (txn_id,)).fetchone()
            if row is None and (found := self._verdict_of(txn_id)) is not None:
                request_ref, verdict = found
                answers = self._rows.answers(verdict.seq, verdict.wrapper)
                refs = {kind: object_ref(answer) for kind, answer in answers.items()}
                return TxnMemory(
                    txn_id,
                    request_ref,
                    verdict=verdict,
                    decision_ref=refs.get(Kind.DECISION),
                    passage_ref=refs.get(Kind.PASSAGE),
                )
            try:
                return TxnMemory(txn_id, row[0], ended=ErrorCode(row[1])) if row else None
            except ValueError as error:
                raise broken("a transaction ended with a code that this device does not write") from error

    def _verdict_of(self, txn_id: str) -> tuple[str, StoredVerdict] | None:
        """The ref of the request, and the verdict on it."""
        seq = self._rows.number_of(bytes.fromhex(txn_id))
        if seq is None:
            return None
        row = self._execute("SELECT request_ref, ref, sealed FROM whole_verdicts WHERE seq = ?", (seq,))
        request_ref, ref, sealed = row.fetchone()
        return request_ref, StoredVerdict(seq, ref, self._rows.opened(sealed, "verdicts", ref, seq))

    def remember_end(self, txn_id: str, request_ref: str, code: ErrorCode) -> bool:
        """Note durably that `txn_id` ended without a verdict; the first end counts. Returns whether this is
        the first. Raises JournalError.

        A verdict that was stored although `append_verdict` failed, in the witness, was not said and never
        will be: no answer to it is awaited, and the service gets it as one without an outcome.
        """
        with self._rows.transaction():
            inserted = self._execute(
                "INSERT OR IGNORE INTO ended (txn_id, request_ref, code, operating_ms) VALUES (?, ?, ?, ?)",
                (txn_id, request_ref, str(code), self._now_ms()),
            )
            unsaid = self._rows.number_of(bytes.fromhex(txn_id)) if inserted.rowcount == 1 else None
            if unsaid is not None:
                self._revise(unsaid, unknown=1)
                self._set(unsaid, "open", False)
        return inserted.rowcount == 1

    def last(self) -> LastVerdict | None:
        """The newest verdict."""
        with self._rows.reported():
            row = self._execute("SELECT seq, ref FROM verdicts ORDER BY seq DESC LIMIT 1").fetchone()
            return LastVerdict(*row) if row else None

    # Outcomes of verdicts

    def record_decision(self, ref: str, wrapper: JsonObject, *, awaits_passage: bool) -> bool:
        """Record the validator's decision on verdict `ref`. Returns whether it was: only the first is, and
        none on a destroyed verdict. Raises JournalError.

        `awaits_passage`: the gate acted upon it and a turn sensor will report the passage.
        """
        with self._rows.transaction():
            if (verdict := self._answered(Kind.DECISION, ref, wrapper)) is not None:
                self._revise(verdict.seq, decided=1, unknown=0)
                awaits_passage = awaits_passage and not self._rows.has_answer(Kind.PASSAGE, verdict.seq)
                self._set(verdict.seq, "open", awaits_passage)
        return verdict is not None

    def record_passage(self, ref: str, wrapper: JsonObject) -> bool:
        """Record the turn sensor's report on verdict `ref`; the rest as with a decision."""
        with self._rows.transaction():
            if (verdict := self._answered(Kind.PASSAGE, ref, wrapper)) is not None:
                self._revise(verdict.seq)
                self._execute("UPDATE verdicts SET open = 0 WHERE seq = ? AND decided", (verdict.seq,))
        return verdict is not None

    def _answered(self, kind: Kind, ref: str, wrapper: JsonObject) -> StoredVerdict | None:
        """The verdict, if this is the first answer of its kind to it."""
        _, verdict = self._verdict_of(wrapper[kind.member]["txn_id"]) or (None, None)
        if verdict is None or verdict.ref != ref or self._rows.has_answer(kind, verdict.seq):
            return None
        self._rows.insert_answer(kind, verdict.seq, verdict.wrapper, wrapper)
        return verdict

    def record_outcome_unknown(self, ref: str) -> bool:
        """No answer came in time; a later one still completes the verdict. Returns whether one was awaited
        still. Raises JournalError."""
        with self._rows.transaction():
            row = self._execute(
                "SELECT seq FROM verdicts WHERE ref = ? AND open AND NOT unknown", (ref,)
            ).fetchone()
            if row is not None:
                self._revise(row[0], unknown=1)
        return row is not None

    def record_disowned(self, refs: Sequence[str]) -> None:
        """The validator has not acted on these verdicts and never will; they are not asked about again."""
        with self._rows.transaction():
            for ref in refs:
                row = self._execute(
                    "SELECT seq, unknown FROM verdicts WHERE ref = ? AND open AND NOT decided", (ref,)
                ).fetchone()
                if row is None:
                    continue
                seq, unknown = row
                if not unknown:
                    self._revise(seq, unknown=1)
                self._set(seq, "open", False)

    def _revise(self, seq: int, **flags: int) -> None:
        """Change what an upload says about a verdict."""
        changes = "".join(f"{flag} = {value}, " for flag, value in flags.items())
        self._execute(f"UPDATE verdicts SET {changes}revision = revision + 1 WHERE seq = ?", (seq,))  # noqa: S608 - from above
        self._set(seq, "due", True)

    def _set(self, seq: int, flag: str, value: bool) -> None:
        """Set `open` or `due` where it changes: naming it writes its index."""
        self._execute(f"UPDATE verdicts SET {flag} = ? WHERE seq = ? AND {flag} <> ?", (value, seq, value))  # noqa: S608 - from above

    def record_evidence(
        self, kind: str, wrapper: JsonObject, txn_id: str | None, backing: Backing = Backing.SIGNED
    ) -> bool:
        """Keep a wrong decision or passage, within the limits above; False when this same message is kept
        already.

        `txn_id`: the transaction it names, if any. Raises JournalError.
        """
        with self._rows.transaction():
            ref = object_ref(wrapper)
            if self._execute("SELECT 1 FROM evidence WHERE ref = ?", (ref,)).fetchone():
                return False
            seq = self._rows.number_of(bytes.fromhex(txn_id)) if txn_id is not None else None
            if backing is Backing.SIGNED and not self._has_room_for(txn_id, seq):
                self.evidence_beyond += 1
                return True
            self._execute(
                "INSERT INTO evidence (ref, kind, seq, sealed, operating_ms, txn_id, backing)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    ref,
                    kind,
                    seq,
                    self._rows.sealed(wrapper, "evidence", ref, seq or 0),
                    self._now_ms(),
                    txn_id,
                    str(backing),
                ),
            )
            if backing is not Backing.SIGNED:
                self._execute(
                    "DELETE FROM evidence WHERE backing = ? AND id NOT IN"
                    " (SELECT id FROM evidence WHERE backing = ? ORDER BY id DESC LIMIT ?)",
                    (str(backing), str(backing), MAX_UNBACKED),
                )
            return True

    def _has_room_for(self, txn_id: str | None, seq: int | None) -> bool:
        """Messages without a verdict can never be uploaded, so they have a separate limit."""
        # The plus keeps SQLite from walking all signed ones of 30 days.
        of_txn = self._execute(
            "SELECT count(*) FROM evidence WHERE txn_id IS ? AND +backing = 'signed'", (txn_id,)
        ).fetchone()[0]
        waiting = self._execute(
            "SELECT count(*) FROM evidence WHERE uploaded = 0 AND +backing = 'signed'"
            " AND (seq IS NULL) = (? IS NULL)",
            (seq,),
        ).fetchone()[0]
        return bool(of_txn < MAX_SIGNED_PER_TXN and waiting < MAX_SIGNED_WAITING)

    def close_open_outcomes(self) -> int:
        """After a start: answers still awaited from before did not come in time. Returns how many."""
        with self._rows.transaction():
            return self._execute(
                "UPDATE verdicts SET unknown = 1, revision = revision + 1, due = 1 WHERE open AND NOT unknown"
            ).rowcount

    def unacknowledged(self, *, after_seq: int, upto_seq: int, limit: int) -> list[LastVerdict]:
        """Verdicts that still await a decision, or the passage after it, by increasing number."""
        with self._rows.reported():
            rows = self._execute(
                "SELECT seq, ref FROM verdicts INDEXED BY verdicts_open"
                " WHERE open AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?",
                (after_seq, upto_seq, limit),
            ).fetchall()
            return [LastVerdict(*row) for row in rows]

    # Upload (device.journal.upload)

    def pending_uploads(self) -> int:
        """How many verdicts the service lacks, or has in an older revision."""
        with self._rows.reported():
            count = self._execute("SELECT count(*) FROM verdicts WHERE due").fetchone()[0]
            return int(count)

    def next_upload(self, limit: int) -> UploadBatch:
        """The oldest items to upload, at most `limit`; the batch is empty when there are none."""
        return next_batch(self._rows, limit)

    def uploaded(self, tickets: Sequence[Ticket]) -> None:
        """The service has these, or refuses them. An item is sent again only after something new is recorded
        for it. Raises JournalError."""
        with self._rows.transaction():
            mark(self._rows, tickets)

    def maintain(self) -> int:
        """Delete what is older than 30 days of running, and checkpoint the write-ahead log into the file.

        Call it regularly, when no hand is in view, and again while it returns `PURGE_ROWS` or more: so many
        rows were deleted, and there may be more. Raises JournalError.
        """
        before_ms = self._now_ms() - MEMORY_MS
        with self._rows.reported():
            with self._rows.transaction():
                forgotten = self._execute(
                    "DELETE FROM ended WHERE txn_id IN"
                    " (SELECT txn_id FROM ended WHERE operating_ms < ? LIMIT ?)",
                    (before_ms, PURGE_ROWS),
                ).rowcount
                # The lowest numbers are the oldest, and the first that the service gets.
                old = self._execute(
                    "SELECT seq, lower(hex(txn_id)) AS txn"
                    " FROM (SELECT * FROM verdicts ORDER BY seq LIMIT ?) v"
                    " WHERE operating_ms < ? AND NOT due AND seq < (SELECT max(seq) FROM verdicts)"
                    " AND NOT EXISTS (SELECT 1 FROM evidence e"
                    " WHERE e.txn_id = txn AND e.seq = v.seq AND NOT e.uploaded)",
                    (PURGE_ROWS, before_ms),
                ).fetchall()
                for seq, txn_id in old:
                    self._execute("DELETE FROM evidence WHERE txn_id = ? AND seq = ?", (txn_id, seq))
                    self._execute("DELETE FROM answers WHERE id BETWEEN ? AND ?", (2 * seq, 2 * seq + 1))
                    for table in ("verdict_objects", "verdicts"):
                        self._execute(f"DELETE FROM {table} WHERE seq = ?", (seq,))  # noqa: S608 - from above
                # What has no verdict is never uploaded, and the index of that is short.
                self._execute(
                    "DELETE FROM evidence WHERE uploaded = 0 AND seq IS NULL AND operating_ms < ?",
                    (before_ms,),
                )
            self._rows.bring_in()
        self._in_log = 0
        return forgotten + len(old)

    def probe(self) -> None:
        """Check that there is room for several passages, by writing as many bytes. Raises JournalError."""
        with self._rows.transaction():
            self._execute("INSERT OR REPLACE INTO meta VALUES ('probe', randomblob(?))", (_PROBE_BYTES,))
        if (witness := self._rows.witness) is not None and witness.numbers is not None:
            witness.keep_numbers(witness.numbers)

    def keep_reserve(self) -> bool:
        """Whether space is reserved for a full disk; reserves it where possible (see `reserve`)."""
        return self._rows.keep_reserve()

    def _bring_in(self) -> None:
        """Checkpoint, so that at most as many verdicts depend on the log as the witness holds. A failure does
        not stop passages."""
        self._in_log = 0
        try:
            self._rows.bring_in()
        except JournalError as error:
            _log.warning("the write-ahead log cannot be checkpointed: %s", error)

    def _now_ms(self) -> int:
        """Milliseconds this device has run since the journal was made, as far as its entries show."""
        return self._operated_ms + self._clock.monotonic_ms() - self._started_ms

    def _execute(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._rows.execute(sql, parameters)


def _check_newest(rows: Rows) -> None:
    """Check the chain of the newest verdicts, so that nothing is appended to a broken one."""
    expected: tuple[int, str] | None = None
    for seq, ref, sealed in rows.execute(
        "SELECT seq, ref, sealed FROM whole_verdicts ORDER BY seq DESC LIMIT ?", (_CHECKED_AT_START,)
    ).fetchall():
        # The chain restarts below a gap: older verdicts that were uploaded have been deleted.
        if expected is not None and seq == expected[0] and ref != expected[1]:
            raise broken(f"the chain of verdicts breaks below verdict_seq {seq + 1}")
        wrapper = rows.opened(sealed, "verdicts", ref, seq)
        if object_ref(wrapper) != ref or wrapper["verdict"]["verdict_seq"] != seq:
            raise broken(f"the verdict with verdict_seq {seq} is another one")
        expected = (seq - 1, wrapper["verdict"]["prev_ref"])
