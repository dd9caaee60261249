"""The rows of the verdict journal: sealing and opening, transactions, and one kind of error."""

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from sqlite_utils import Database

from device.errors import JournalError
from device.journal.reserve import Reserve
from device.journal.schema import migrate
from device.journal.seal import RowSeal, SealBroken
from device.journal.witness import JournalWitness
from link1.canonical import JsonObject, canonical_bytes


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
            migrate(memory)
            for table, which in (("verdicts", "ORDER BY seq DESC LIMIT 1"), ("mail_state", "")):
                rows = self._db.query(f"SELECT * FROM {table} {which}")  # noqa: S608 - names from above
                memory.table(table).insert_all(rows)
            memory.execute("UPDATE verdicts SET awaits = NULL, uploaded = revision")
            before, self._db, self._reserve = self._db, memory, None
            before.close()
            self._drop_witness()

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._db.execute(sql, parameters)

    def sealed(self, wrapper: JsonObject, table: str, row_id: str, seq: int) -> bytes:
        """The RFC 8785 bytes of `wrapper`, sealed for this place."""
        return self._seal.seal(canonical_bytes(wrapper), table=table, row_id=row_id, seq=seq)

    def opened(self, sealed: bytes, table: str, row_id: str, seq: int) -> JsonObject:
        """The object sealed for this place. Raises SealBroken, which `reported` turns into JournalError."""
        wrapper: JsonObject = json.loads(self._seal.open(sealed, table=table, row_id=row_id, seq=seq))
        return wrapper

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


def broken(what: str) -> JournalError:
    """The journal holds data that this device never wrote there."""
    return JournalError(
        f"the journal is damaged: {what}; restore the state directory of this device, "
        "or register the device again with new keys"
    )
