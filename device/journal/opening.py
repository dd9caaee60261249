"""Making the journal's file, and opening it only when it is undamaged and belongs to this device.

A journal is made once, when the device's keys are made, and never again for the same keys: a new journal in
place of a lost one would assign verdict_seq 1 a second time and fork the chain of prev_ref. So opening never
creates, and every problem is raised as a JournalError that says what to do.
"""

import os
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path

from sqlite_utils import Database

from device.errors import JournalError
from device.journal.migration import FORMER, migrate
from device.journal.reserve import Reserve
from device.journal.schema import APPLICATION_ID, VERSION, make_tables
from device.journal.seal import RowSeal, SealBroken
from link1.errors import FormatError
from link1.plain_file import open_plain_file, sync_folder

_WAY_OUT = (
    "restore the file from this device's own storage, or register the device again with new keys "
    "(`palmctl factory-reset`, have it revoked, then `palmctl provision`); never put an empty or older "
    "journal in its place"
)
_MAGIC = b"SQLite format 3\x00"
_QUICK_CHECK_MAX_BYTES = 16 * 1024 * 1024
"""A full check takes about a second for 100 MiB; larger journals are checked only where they are read."""
_WAL_KEPT_BYTES = 4 * 1024 * 1024
"""The log is overwritten instead of recreated: a commit into a file that does not grow is cheaper to sync."""
_AUTOCHECKPOINT_BYTES = 32 * 1024 * 1024
"""Reached only without calls of `maintain`. A checkpoint inside an append would cost it milliseconds."""
_PAGE_BYTES = 512
"""Every page that a commit touches is written whole to the log: those of a passage are sixteen (see
docs/explanation/DURABILITY.md, Wear)."""


def create_file(path: Path, *, device_id: str, verdict_kid: str, data_key: bytes) -> None:
    """Make the empty journal of new keys, whole or not at all. Raises JournalError, also when one exists."""
    for present in (path, _beside(path, "-wal")):
        if present.exists():
            raise JournalError(f"{present} already exists; a journal is never overwritten")
    partial = _beside(path, ".partial")
    try:
        for left_over in (partial, _beside(partial, "-wal"), _beside(partial, "-shm")):
            left_over.unlink(missing_ok=True)
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(partial)) as connection:
            db = Database(connection)
            db.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
            make_tables(db)
            check = RowSeal(data_key).seal(secrets.token_bytes(16), table="meta", row_id=verdict_kid, seq=0)
            facts = {"device_id": device_id, "verdict_kid": verdict_kid, "seal_check": check}
            db.table("meta").insert_all({"name": name, "value": value} for name, value in facts.items())
        descriptor = os.open(partial, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        partial.rename(path)
        sync_folder(path.parent)
    except (OSError, sqlite3.Error) as error:
        raise JournalError(
            f"the journal {path} cannot be made ({error}); "
            f"check that {path.parent} exists, belongs to this user and has room"
        ) from error


def open_file(path: Path, *, device_id: str, verdict_kid: str, data_key: bytes) -> tuple[Database, RowSeal]:
    """Open and check; a journal as it was before is brought to this one. Raises JournalError."""
    _check_file(path)
    seal = RowSeal(data_key)
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=2.0)
        try:
            db = Database(connection)
            _configure(db)
            _check_identity(db, path, device_id=device_id, verdict_kid=verdict_kid)
            _check_seal(db, path, seal, verdict_kid)
            _check_whole(db, path)
            _migrate(db, path, seal)
        except BaseException:
            connection.close()
            raise
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise JournalError(f"{path} is in use by another process; only one palmd may run") from error
        if _is_full(error):
            raise JournalError(
                f"{path} was written by earlier software, and the disk has no room to bring it to this "
                "version; make room there"
            ) from error
        if os.statvfs(path.parent).f_flag & os.ST_RDONLY:
            raise JournalError(
                f"{path} is on a read-only file system; see `dmesg` for the reason (a worn-out card causes "
                "this), remount it or replace the card, and start palmd again"
            ) from error
        for needed in (path.parent, path, _beside(path, "-wal")):
            if needed.exists() and not os.access(needed, os.W_OK):
                raise JournalError(f"{needed} cannot be written; check its owner and mode") from error
        raise JournalError(f"{path} cannot be opened ({error}); {_WAY_OUT}") from error
    except (sqlite3.DatabaseError, UnicodeDecodeError, SealBroken, FormatError) as error:
        # UnicodeDecodeError: SQLite quotes damaged bytes
        raise JournalError(f"{path} is damaged ({error}); {_WAY_OUT}") from error
    return db, seal


def _check_file(path: Path) -> None:
    try:
        with open_plain_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            magic = file.read(len(_MAGIC))
    except FileNotFoundError:
        raise JournalError(f"{path} is missing although this device has keys; {_WAY_OUT}") from None
    except OSError as error:
        raise JournalError(f"{path} cannot be read ({error.strerror}); check its owner and mode") from error
    if magic != _MAGIC:
        found = "an empty file" if size == 0 else "something else"
        raise JournalError(f"{path} is damaged: expected an SQLite database, found {found}; {_WAY_OUT}")


def _configure(db: Database) -> None:
    # Locked for the whole run: a second palmd on the same journal would sign a second chain.
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise sqlite3.OperationalError(f"this file system gives journal mode {mode}, WAL is needed")
    # After a power cut, WAL with FULL has every acknowledged commit; WAL with NORMAL may lose some.
    db.execute("PRAGMA synchronous = FULL")
    page_bytes = db.execute("PRAGMA page_size").fetchone()[0]
    db.execute(f"PRAGMA wal_autocheckpoint = {_AUTOCHECKPOINT_BYTES // page_bytes}")
    db.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT_BYTES}")
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("BEGIN EXCLUSIVE")
    db.execute("COMMIT")


def _check_identity(db: Database, path: Path, *, device_id: str, verdict_kid: str) -> None:
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise JournalError(f"{path} is another program's database; {_WAY_OUT}")
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise JournalError(
            f"{path} was written by newer software (version {version}, this one knows {VERSION}); "
            "install that software again"
        )
    if version < FORMER:
        raise JournalError(
            f"{path} was written by software that is too old (version {version}, this one knows {FORMER}); "
            f"{_WAY_OUT}"
        )
    meta = dict(db.execute("SELECT name, value FROM meta").fetchall())
    if meta.get("device_id") != device_id:
        raise JournalError(
            f"{path} belongs to another device than {device_id}; "
            "put this device's own journal there, or correct [device] id"
        )
    if meta.get("verdict_kid") != verdict_kid:
        raise JournalError(
            f"{path} belongs to another verdict key than keys/verdict.key; "
            "keys and journal belong together: restore both from the same device"
        )


def _check_seal(db: Database, path: Path, seal: RowSeal, verdict_kid: str) -> None:
    row = db.execute("SELECT value FROM meta WHERE name = 'seal_check'").fetchone()
    try:
        seal.open(row[0] if row else b"", table="meta", row_id=verdict_kid, seq=0)
    except SealBroken:
        raise JournalError(
            f"{path} is sealed with another key than keys/data.key; "
            "keys and journal belong together: restore both from the same device"
        ) from None


def _check_whole(db: Database, path: Path) -> None:
    if path.stat().st_size > _QUICK_CHECK_MAX_BYTES:
        return
    found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise JournalError(f"{path} is damaged ({' '.join(found.split())}); {_WAY_OUT}")


def _migrate(db: Database, path: Path, seal: RowSeal) -> None:
    """Into the journal's reserve where there is no room otherwise."""
    try:
        migrate(db, seal)
    except sqlite3.OperationalError as error:
        if not _is_full(error):
            raise
        Reserve(_beside(path, ".reserve")).give_up()
        migrate(db, seal)


def _is_full(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
