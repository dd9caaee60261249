"""The rows of the verdict journal: sealing and opening, transactions, and one kind of error."""

import contextlib
import json
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlite_utils import Database

from device.errors import JournalError
from device.journal.reserve import Reserve
from device.journal.schema import make_tables
from device.journal.seal import RowSeal, SealBroken
from device.journal.witness import JournalWitness
from link1.canonical import JsonObject, canonical_bytes
from link1.signed import Kind

_EXPECTED: Final = (
    b'"cause":"giro","dbd_event_seq":1,"passed":false,"passed":true,"actuated":false,"actuated":true,'
    b'"hand":"L","onboard_ref":"NO_MATCH","POOR_CAPTURE","SPOOF","reject","abstain",'
    b'"outcome":"BLOQUEAR","reason":"not_recognised","mech":"passive3:moire+tint+glare+frame+parallax",'
    b'{"alg":"ed25519","passage":{"at_ms":1,"cause":"","dbd_event_seq":1,"dbd_id":"","gate_id":"",'
    b'"passed":true,"txn_id":"","v":1,"verdict_ref":""},"sig_b64":"==","signer_kid":""}'
    b'{"alg":"ed25519","decision_obj":{"actuated":true,"dbd_id":"","decided_at_ms":1,"decision_seq":1,'
    b'"gate_id":"","nonce_b64":"=","outcome":"LIBERAR","reason":"ok","txn_id":"","v":1,"verdict_ref":""},'
    b'"sig_b64":"==","signer_kid":""}'
    b'{"alg":"ed25519","sig_b64":"==","signer_kid":"","verdict":{"attempts":1,"dbd_id":"","decided_at_ms":1,'
    b'"decision":"accept","device_id":"","gallery":{"epoch":1,"head16":"","seq":1,"stream":""},"gate_id":"",'
    b'"hand":"R","issued_at_ms":1,"margin_q":,"model_id":"","nonce_b64":"=","pad":{"mech":"","res":"pass",'
    b'"score_q":},"prev_ref":"","quality_q":,"result":"MATCH","score_q":,"subject_ref":"","thr_id":"",'
    b'"ttl_ms":10000,"txn_id":"","v":1,"verdict_seq":}}'
)
"""What verdicts and their answers have in common, for zlib (a preset dictionary, RFC 1950 §2.2). It is part
of the format: rows packed with another one do not open."""

_NUMBER_OF: Final = """
WITH RECURSIVE stretch (n) AS (
    SELECT max(seq) >> 10 FROM verdicts
    UNION ALL SELECT n - 1 FROM stretch WHERE n > (SELECT min(seq) >> 10 FROM verdicts)
)
SELECT seq FROM stretch JOIN verdicts INDEXED BY verdicts_txn
ON seq >> 10 = n AND substr(txn_id, 1, 4) = substr(?1, 1, 4) AND txn_id = ?1
"""
_ANSWERS: Final = (Kind.DECISION, Kind.PASSAGE)


class Rows:
    """An open journal database with its seal."""

    def __init__(self, db: Database, seal: RowSeal, reserve: Reserve | None = None) -> None:
        """`reserve`: space for when the disk is full."""
        self._db = db
        self._seal = seal
        self._reserve = reserve
        self.witness: JournalWitness | None = None
        """The second copy of what was promised; None for a journal in memory."""

    def close(self) -> None:
        self._db.close()
        self._drop_witness()

    def leave_disk(self) -> None:
        """Move the newest verdict and the mail's positions into memory, and close the file.

        The process that carries out a wipe still answers the validator (NOT_READY) and hands it the sealed
        record of the wipe. Both are numbered; the numbers need not outlive the process, because with the
        verdict key destroyed no later start can continue them. Raises JournalError.
        """
        with self.reported():
            memory = Database(sqlite3.connect(":memory:"))
            make_tables(memory)
            newest = "ORDER BY seq DESC LIMIT 1"
            for table, which in (("verdicts", newest), ("verdict_objects", newest), ("mail_state", "")):
                rows = self._db.query(f"SELECT * FROM {table} {which}")  # noqa: S608 - names from above
                memory.table(table).insert_all(rows)
            memory.execute("UPDATE verdicts SET open = 0, due = 0")
            before, self._db, self._reserve = self._db, memory, None
            before.close()
            self._drop_witness()

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._db.execute(sql, parameters)

    def sealed(
        self, wrapper: JsonObject, table: str, row_id: str, seq: int, like: JsonObject | None = None
    ) -> bytes:
        """The RFC 8785 bytes of `wrapper`, packed and sealed for this place. `like`: an object that `wrapper`
        repeats in part; `opened` needs the same."""
        packing = zlib.compressobj(zlib.Z_BEST_COMPRESSION, zdict=_dictionary(like))
        packed = packing.compress(canonical_bytes(wrapper)) + packing.flush()
        return self._seal.seal(packed, table=table, row_id=row_id, seq=seq)

    def opened(
        self, sealed: bytes, table: str, row_id: str, seq: int, like: JsonObject | None = None
    ) -> JsonObject:
        """The object sealed for this place. Raises SealBroken, which `reported` turns into JournalError."""
        packed = self._seal.open(sealed, table=table, row_id=row_id, seq=seq)
        unpacking = zlib.decompressobj(zdict=_dictionary(like))
        wrapper: JsonObject = json.loads(unpacking.decompress(packed))
        return wrapper

    def number_of(self, txn_id: bytes) -> int | None:
        """The number of the verdict on the transaction of these 16 bytes, if it is remembered."""
        row = self.execute(_NUMBER_OF, (txn_id,)).fetchone()
        return None if row is None else int(row[0])

    def has_answer(self, kind: Kind, seq: int) -> bool:
        """Whether the verdict of this number has its decision, or passage."""
        row = self.execute("SELECT 1 FROM answers WHERE id = ?", (_answer_id(kind, seq),)).fetchone()
        return row is not None

    def insert_answer(self, kind: Kind, seq: int, verdict: JsonObject, answer: JsonObject) -> None:
        sealed = self.sealed(answer, "answers", kind.member, seq, like=verdict)
        self.execute("INSERT INTO answers VALUES (?, ?)", (_answer_id(kind, seq), sealed))

    def answers(self, seq: int, verdict: JsonObject) -> dict[Kind, JsonObject]:
        """The decision and the passage on the verdict of this number, as far as they have come."""
        found = {}
        for kind in _ANSWERS:
            row = self.execute("SELECT sealed FROM answers WHERE id = ?", (_answer_id(kind, seq),)).fetchone()
            if row is not None:
                found[kind] = self.opened(row[0], "answers", kind.member, seq, like=verdict)
        return found

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """At the end all changes are durable, or none is and JournalError is raised."""
        if self._reserve is not None:
            self._reserve.ease()
        with self.reported(), self._db.atomic():
            yield

    def bring_in(self) -> None:
        """Checkpoint the write-ahead log into the file and restart the log, so that no commit depends on it.
        Raises JournalError."""
        with self.reported():
            self._db.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        with self.transaction():
            # The old frames count until the first new one; damaged ones would hide the content of the file.
            self.execute("INSERT OR REPLACE INTO meta VALUES ('log', random())")

    def keep_reserve(self) -> bool:
        """Whether space is reserved for a full disk; reserves it where possible."""
        return self._reserve is None or self._reserve.keep()

    def _drop_witness(self) -> None:
        if self.witness is not None:
            self.witness.close()
            self.witness = None

    @contextlib.contextmanager
    def reported(self) -> Iterator[None]:
        """Raise errors of the database and of the seal as JournalError."""
        try:
            yield
        except (SealBroken, UnicodeDecodeError) as error:  # the latter: SQLite's message quotes damaged bytes
            raise broken(str(error)) from error
        except sqlite3.Error as error:
            if self._reserve is not None and getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
                self._reserve.give_up()  # too late for this write, but in time for the next
            raise JournalError(
                f"the journal cannot be read or written ({error}); check the disk and its free space"
            ) from error


def _dictionary(like: JsonObject | None) -> bytes:
    return _EXPECTED if like is None else _EXPECTED + canonical_bytes(like)


def _answer_id(kind: Kind, seq: int) -> int:
    return 2 * seq + _ANSWERS.index(kind)


def broken(what: str) -> JournalError:
    """The journal holds data that this device never wrote there."""
    return JournalError(
        f"the journal is damaged: {what}; restore the state directory of this device, "
        "or register the device again with new keys"
    )
