"""The gallery on the disk: one SQLite file, every row of a palm sealed before it is inserted.

Two tables. `template` has one row for each template; `state` has one sealed row for each thing that must
change together with templates (the device's position, what it knows about time, which snapshot is being
taken). Rows belong to a generation: a snapshot fills the next one while the current one is in use, and the
switch is one row of `state`.

In the clear: template_id (random), seq, generation, and hashes of snapshot entries while one is being taken.
Sealed: vector, subject_ref, hand, model_id, onboard_ref, suspension. A person's rows are found by a
keyed hash of subject_ref.

SQLite's VFS `unix-excl` locks the file against every other process, and lets several connections of this one
share it, with their index of the write-ahead log in memory: `gallery.reader` reads next to the writer.

WAL with synchronous=FULL: what `transaction` has committed is there after power loss. secure_delete and
`scrub` (a truncating checkpoint) overwrite what was removed, in the file and in its write-ahead log; on
flash memory that is a logical erasure, as the medium itself may keep old pages.
"""

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sqlite_utils import Database

from gallery.errors import StoreError
from gallery.records import Held
from gallery.seal import PACKED_MOST, Sealer, Template, pack_template, template_table, unpack_template
from gallery.stream import Pause, at_once
from gallery.witness import FILE_NAME as WITNESS_NAME
from gallery.witness import Witness
from link1.canonical import JsonObject, canonical_bytes, read_strict
from link1.errors import FormatError
from link1.plain_file import sync_folder

FILE_NAME: Final = "gallery.db"

_SCHEMA_VERSION: Final = 1
_MAX_STATE_BYTES: Final = 65_536
ROWS_A_PIECE: Final = 256
"""Rows that are read between two pauses: about a millisecond."""
_ROWS_A_DELETE: Final = 2_048
"""About 3 MiB of write-ahead log: dropping an old generation needs no second copy of it on the disk."""
_SCHEMA: Final = """
CREATE TABLE state (name TEXT PRIMARY KEY, seq INTEGER NOT NULL, sealed BLOB NOT NULL);
CREATE TABLE template (
    number INTEGER PRIMARY KEY,
    generation INTEGER NOT NULL,
    template_id BLOB NOT NULL,
    person BLOB NOT NULL,
    seq INTEGER NOT NULL,
    sealed BLOB NOT NULL
);
CREATE UNIQUE INDEX template_by_id ON template (generation, template_id);
CREATE INDEX template_by_person ON template (generation, person);
CREATE TABLE staged (template_id BLOB PRIMARY KEY, sha256 BLOB NOT NULL) WITHOUT ROWID;
"""

_log = logging.getLogger(__name__)


class Store:
    """The single writer of one gallery file; used by one thread at a time (its owner holds a lock)."""

    def __init__(self, folder: Path, sealer: Sealer) -> None:
        """Open the file in `folder`, making both where absent. Raises StoreError."""
        self._folder = folder
        self._sealer = sealer
        self.scrub_due = True
        """Something that was deleted may still be found in the write-ahead log, also from before a power cut:
        the first write after a start overwrites it."""
        self.rows_due = False
        """Rows that `keep_only` should delete are there still."""
        try:
            self._db = _opened(folder)
            try:
                self.witness = Witness(folder, sealer)
            except BaseException:
                self._db.close()
                raise
        except (sqlite3.Error, UnicodeDecodeError, OSError) as error:
            raise StoreError(
                f"the gallery store in {folder} cannot be opened ({error}); if another palmd is running, "
                "stop it; if the file is damaged, remove the folder, and the device takes a fresh snapshot"
            ) from error

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Whatever SQLite raises inside comes out as StoreError."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: its message quotes damaged bytes
            raise StoreError(
                f"the gallery store cannot be read or written ({error}); check the disk and its free space"
            ) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything done inside is on the disk when this returns, or none of it."""
        with self._db.atomic():
            yield

    def state(self, name: str) -> JsonObject | None:
        """The object saved under a name, or None."""
        row = self._db.execute("SELECT seq, sealed FROM state WHERE name = ?", [name]).fetchone()
        if row is None:
            return None
        plain = self._sealer.open(b"state\x00", name.encode(), row[0], row[1])
        try:
            return read_strict(plain, max_bytes=_MAX_STATE_BYTES)
        except FormatError as error:
            raise StoreError(f"the {name} of the gallery store is not readable: {error}") from error

    def save_state(self, name: str, seq: int, obj: JsonObject) -> None:
        """Replace the state saved under a name."""
        sealed = self._sealer.seal(b"state\x00", name.encode(), seq, canonical_bytes(obj))
        self._db.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", [name, seq, sealed])

    def keep_witness(self, held: Held) -> None:
        """Let the witness have what was committed. Raises StoreError."""
        try:
            self.witness.keep(held)
        except OSError as error:
            raise StoreError(f"the gallery's witness cannot be written ({error}); check the disk") from error

    def drop_state(self, name: str) -> None:
        """Delete the state saved under a name."""
        self._db.execute("DELETE FROM state WHERE name = ?", [name])

    def put(self, generation: int, template: Template, seq: int) -> tuple[int, bool]:
        """Insert a template, or replace the one with its id; returns its row and whether it replaced one."""
        person = self._sealer.person(template.subject_ref)
        plain = pack_template(template)
        sealed = self._sealer.seal(template_table(generation), template.template_id, seq, plain)
        known = self._db.execute(
            "SELECT number FROM template WHERE generation = ? AND template_id = ?",
            [generation, template.template_id],
        ).fetchone()
        if known is not None:
            self._db.execute(
                "UPDATE template SET person = ?, seq = ?, sealed = ? WHERE number = ?",
                [person, seq, sealed, known[0]],
            )
            return int(known[0]), True
        cursor = self._db.execute(
            "INSERT INTO template (generation, template_id, person, seq, sealed) VALUES (?, ?, ?, ?, ?)",
            [generation, template.template_id, person, seq, sealed],
        )
        return int(cursor.lastrowid or 0), False

    def of_person(self, generation: int, subject_ref: bytes) -> list[tuple[int, Template]]:
        """Every template of one person, with the number of its row."""
        rows = self._db.execute(
            "SELECT number, template_id, seq, sealed FROM template WHERE generation = ? AND person = ?",
            [generation, self._sealer.person(subject_ref)],
        )
        return list(self._unsealed(generation, rows))

    def remove(self, number: int) -> None:
        self._db.execute("DELETE FROM template WHERE number = ?", [number])

    def first_model(self, generation: int) -> str | None:
        """The model_id of the first template of a generation, None while there is none. Raises StoreError."""
        templates = self._unsealed(generation, self._rows(generation))
        return next((template.model_id for _, template in templates), None)

    def packed(self, generation: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint8]]]:
        """Every row of a generation, `ROWS_A_PIECE` at a time: numbers (n,), and `pack_template`'s bytes
        (n, PACKED_MOST), which the next piece overwrites. Raises StoreError at a bad one."""
        table, cursor = template_table(generation), self._rows(generation)
        packed = np.zeros((ROWS_A_PIECE, PACKED_MOST), dtype=np.uint8)
        try:
            while rows := cursor.fetchmany(ROWS_A_PIECE):
                self._sealer.open_templates(table, rows, packed)
                yield np.array([row[0] for row in rows], dtype=np.int64), packed[: len(rows)]
        finally:
            packed.fill(0)

    def newest_generation(self) -> int:
        """The largest generation that has rows; 0 when none has."""
        found = self._db.execute(
            # Damage may have made one text.
            "SELECT max(generation) FROM template WHERE typeof(generation) = 'integer'"
        )
        return int(found.fetchone()[0] or 0)

    def stage(self, template_id: bytes, sha256: bytes) -> None:
        """Note the hash of an entry of the snapshot being taken."""
        self._db.execute("INSERT INTO staged VALUES (?, ?)", [template_id, sha256])

    def last_staged(self) -> bytes:
        """The largest staged template_id; empty when nothing is staged."""
        return bytes(self._db.execute("SELECT max(template_id) FROM staged").fetchone()[0] or b"")

    def staged_between(self, first: bytes, last: bytes) -> dict[bytes, bytes]:
        """Hashes of the staged entries from one template_id to another, both included, by template_id."""
        rows = self._db.execute(
            "SELECT template_id, sha256 FROM staged WHERE template_id BETWEEN ? AND ?", [first, last]
        )
        return dict(rows.fetchall())

    def staged_hashes(self) -> list[bytes]:
        """Hashes of all staged entries by rising template_id."""
        return [row[0] for row in self._db.execute("SELECT sha256 FROM staged ORDER BY template_id")]

    def drop_staged(self) -> None:
        """Forget the hashes of staged entries."""
        self._db.execute("DELETE FROM staged")

    def keep_only(self, in_use: int, staged: int | None, pause: Pause = at_once) -> None:
        """Delete the rows of every generation but these, some at a time, and leave no trace of them.

        `pause` is called between the times. What a full disk does not let go stays, and `rows_due` is set.
        """
        self.rows_due = True
        try:
            self._keep_only(in_use, staged, pause)
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_FULL:
                raise
            _log.warning("the disk is full: rows that the gallery no longer uses stay until there is room")
        else:
            self.rows_due = False

    def _keep_only(self, in_use: int, staged: int | None, pause: Pause) -> None:
        dropped = staged is None and bool(self.last_staged())
        if dropped:
            self.drop_staged()
        statement = (
            "DELETE FROM template WHERE number IN"
            " (SELECT number FROM template WHERE generation NOT IN (?, ?) LIMIT ?)"
        )
        while self._db.execute(statement, [in_use, staged or in_use, _ROWS_A_DELETE]).rowcount > 0:
            dropped = True
            pause()
        if dropped:
            self.scrub()

    def scrub(self) -> None:
        """Overwrite what was deleted, in the write-ahead log too; `scrub_due` stays set where that fails.

        Waits up to a second for searches that are reading.
        """
        self.scrub_due = True
        busy, _, _ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        self.scrub_due = bool(busy)

    def close(self) -> None:
        """Close the files; what is committed stays."""
        self._db.close()
        self.witness.close()

    def destroy(self) -> None:
        """Close the store and delete its files; they are gone once this returns."""
        self.close()
        for suffix in ("", "-wal", "-shm", "-journal"):
            (self._folder / (FILE_NAME + suffix)).unlink(missing_ok=True)
        (self._folder / WITNESS_NAME).unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # a technician has moved the folder away
            sync_folder(self._folder)

    def _rows(self, generation: int) -> sqlite3.Cursor:
        # The plus keeps SQLite from walking the index: rows are read as they lie, not by random ids.
        return self._db.execute(
            "SELECT number, template_id, seq, sealed FROM template WHERE +generation = ? ORDER BY number",
            [generation],
        )

    def _unsealed(self, generation: int, rows: sqlite3.Cursor) -> Iterator[tuple[int, Template]]:
        table = template_table(generation)
        for number, template_id, seq, sealed in rows:
            plain = self._sealer.open(table, template_id, seq, sealed)
            yield number, unpack_template(template_id, plain)


def connected(path: Path) -> sqlite3.Connection:
    """A connection to the file; from its first use on no other process opens it. Raises sqlite3.Error."""
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?vfs=unix-excl",
        uri=True,
        timeout=1.0,
        isolation_level=None,
        check_same_thread=False,
    )


def _opened(folder: Path) -> Database:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / FILE_NAME
    # The file is made here, so that it never has other permissions, not even for a moment.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    sync_folder(folder)
    sync_folder(folder.parent)  # else a power cut takes the folder, and with it every page that was applied
    connection = connected(path)
    try:
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON"):
            connection.execute(f"PRAGMA {pragma}")
        database = Database(connection)
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            with database.atomic():
                for statement in _SCHEMA.split(";")[:-1]:
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        elif version != _SCHEMA_VERSION:
            raise sqlite3.DatabaseError(f"its format is {version}, this software knows {_SCHEMA_VERSION}")
    except BaseException:
        connection.close()
        raise
    return database
