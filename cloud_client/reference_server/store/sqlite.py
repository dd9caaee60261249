"""SQLite: the engine that is inside the server, for one machine.

One file in WAL mode. A process has one writer thread; other processes (``palmctl cloud …``) write to the
same file at any time, held apart by SQLite's lock. What an erasure deletes is overwritten (secure_delete)
and the write-ahead log is emptied (``purge``) right after the commit.
"""

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from cloud_client.reference_server.errors import StoreUnavailable
from cloud_client.reference_server.store.base import WHOLE, Change, CloudStore, Tx

log = logging.getLogger("palm.cloud")
T = TypeVar("T")

POLL_S: Final = 0.05
"""How often commits of other processes are looked for."""
_BUSY_TIMEOUT_MS: Final = 2000
"""Four busy writer processes wait 0.3 s for one another at worst; beyond this another process hangs."""
_PURGE_WAIT_MS: Final = 20
_LOG_PAGES: Final = 50_000
"""A server's log is moved by a thread of its own (``tidy``); a write does it at this length, some 200 MiB."""
_PURGE_FRAMES: Final = 1000
"""Pages of the log that are moved in some hundredths of a second, while writers are kept out."""


class SqliteStore(CloudStore):
    """A connection to a database file."""

    engine = "sqlite"
    on_loop = True
    writers = 1
    readers = 2
    purge_every_s = 60.0
    tidy_every_s = 0.5

    def __init__(self, path: Path) -> None:
        # SQLite would make a file that everyone may read; its log takes the mode of the file.
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with _as_unavailable():
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._connection.row_factory = sqlite3.Row
            for pragma in (
                f"busy_timeout={_BUSY_TIMEOUT_MS}",
                "journal_mode=WAL",
                "synchronous=FULL",
                "secure_delete=ON",
                "foreign_keys=ON",
                "temp_store=MEMORY",
                f"wal_autocheckpoint={_LOG_PAGES}",
            ):
                self._connection.execute(f"PRAGMA {pragma}")
        self._durable = True
        self._path = path
        self._file = _which(path)

    def close(self) -> None:
        """Close; the log is left empty when no one else has it open."""
        self._connection.close()

    @contextlib.contextmanager
    def writing(self, *, durable: bool = True, lock: str | None = WHOLE) -> Iterator[Tx]:
        """One writer at a time, whatever is locked."""
        del lock
        with _as_unavailable():
            if durable is not self._durable:
                self._connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                self._durable = durable
            self._connection.execute("BEGIN IMMEDIATE")
            tx = Tx(self._connection.execute)
            try:
                yield tx
                # A file that was deleted or replaced under the server takes writes that are lost.
                if _which(self._path) != self._file:
                    raise StoreUnavailable("database: its file was deleted or replaced; restart the server")
                self._connection.execute("COMMIT")
            except BaseException:
                # A full disk may already have rolled back.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[Tx]:
        with _as_unavailable():
            self._connection.execute("BEGIN")
            try:
                yield Tx(self._connection.execute)
            finally:
                self._connection.execute("COMMIT")

    def read(self, work: Callable[[Tx], T]) -> T:
        """As ``reading``, without the context managers: it is in the way of every request."""
        execute = self._connection.execute
        try:
            execute("BEGIN")
            try:
                return work(Tx(execute))
            finally:
                execute("COMMIT")
        except sqlite3.DatabaseError as error:
            if isinstance(error, _OURS):
                raise
            raise _unavailable(error) from error

    def purge(self) -> bool:
        """Empty the write-ahead log into the main file, so that nothing deleted is left in it.

        Needs a moment in which no connection reads the log. SQLite keeps writers out while it waits for that,
        so it waits no longer than a short read takes; the caller waits for a long read (a backup).
        """
        try:
            with _as_unavailable():
                # Most of a long log is moved without keeping writers out.
                _, frames, moved = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                if frames - moved > _PURGE_FRAMES:
                    return False
                self._connection.execute(f"PRAGMA busy_timeout={_PURGE_WAIT_MS}")
                row = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            self._connection.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
        return bool(row[0] == 0)

    def tidy(self) -> None:
        """Move what is committed from the log into the file."""
        with _as_unavailable():
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def has_table(self, tx: Tx, table: str) -> bool:
        return tx.exists("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :table", table=table)

    def dialect(self, statement: str) -> str:
        return statement

    async def changes(self, local: asyncio.Event) -> AsyncGenerator[list[Change], None]:
        """Commits of this process at once, those of others within ``POLL_S``, by SQLite's data version."""
        seen = -1
        while True:
            try:
                with _as_unavailable():
                    (version,) = self._connection.execute("PRAGMA data_version").fetchone()
                if version != seen:
                    yield []
                    seen = version
            except StoreUnavailable as error:
                log.warning("changes are not seen: %s", error)
            try:
                async with asyncio.timeout(POLL_S):
                    await local.wait()
            except TimeoutError:
                continue
            local.clear()


def _which(path: Path) -> tuple[int, int] | None:
    """Which file is there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


_OURS: Final = (sqlite3.IntegrityError, sqlite3.ProgrammingError)
"""Mistakes of the caller; every other error means that the database cannot be used now."""


@contextlib.contextmanager
def _as_unavailable() -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        if isinstance(error, _OURS):
            raise
        raise _unavailable(error) from error


def _unavailable(error: sqlite3.DatabaseError) -> StoreUnavailable:
    # The text of these errors names no value, only what SQLite could not do.
    return StoreUnavailable(f"database: {error}")
