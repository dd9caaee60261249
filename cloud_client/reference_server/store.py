"""The database: one small class over SQLite, and its asynchronous face for the server.

Invariants
1. Every change happens in a transaction that was begun for writing (BEGIN IMMEDIATE), so that a
   transaction never fails half-way because another process wrote in between.
2. A process has one writer thread; other processes (``palmctl cloud …``) write to the same file at any
   time, held apart by SQLite's lock.
3. SQL is written once, with ``:name`` parameters and in the dialect that SQLite and PostgreSQL share
   (ON CONFLICT, RETURNING, row values, partial indexes); whatever differs between engines is in this file.
4. What an erasure deletes is overwritten (secure_delete) and the write-ahead log is emptied
   (``purge``) before the answer goes out.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

from cloud_client.reference_server.errors import StoreUnavailable
from cloud_client.reference_server.schema import MIGRATIONS

T = TypeVar("T")
Row = sqlite3.Row

_BUSY_TIMEOUT_MS = 2000
"""Four busy writer processes wait 0.3 s for one another at worst; beyond this somebody hangs."""

_PURGE_ATTEMPTS = 50


class Tx:
    """One transaction: the only way to the tables. Parameters are always passed by name."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.purge_after_commit = False
        """Set by whoever deletes a person's data: the write-ahead log is emptied after the commit."""

    def run(self, sql: str, **params: Any) -> int:
        """Execute one statement; the number of rows it changed."""
        return self._connection.execute(sql, params).rowcount

    def one(self, sql: str, **params: Any) -> Row | None:
        """The first row, or None."""
        row: Row | None = self._connection.execute(sql, params).fetchone()
        return row

    def all(self, sql: str, **params: Any) -> list[Row]:
        """Every row."""
        return self._connection.execute(sql, params).fetchall()

    def each(self, sql: str, **params: Any) -> Iterator[Row]:
        """Rows one by one, for answers that are too long to hold at once."""
        yield from self._connection.execute(sql, params)

    def exists(self, sql: str, **params: Any) -> bool:
        """Whether there is a row."""
        return self._connection.execute(sql, params).fetchone() is not None

    def scalar(self, sql: str, **params: Any) -> Any:
        """The first column of the first row, None without a row."""
        row = self._connection.execute(sql, params).fetchone()
        return None if row is None else row[0]


class Store:
    """One connection to the database of a data directory; used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
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
            ):
                self._connection.execute(f"PRAGMA {pragma}")
        self._durable = True

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the database file, made and migrated if necessary."""
        store = cls(path)
        store._migrate()
        return store

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[Tx]:
        """A transaction that may change rows; committed at the end, rolled back on any exception.

        ``durable=False`` lets a power loss take it back (never used for what somebody was promised).
        """
        with _as_unavailable():
            if durable is not self._durable:
                self._connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                self._durable = durable
            self._connection.execute("BEGIN IMMEDIATE")
            tx = Tx(self._connection)
            try:
                yield tx
                self._connection.execute("COMMIT")
            except BaseException:
                # A full disk may already have rolled back.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        if tx.purge_after_commit:
            self.purge()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Tx]:
        """One consistent view of the database."""
        with _as_unavailable():
            self._connection.execute("BEGIN")
            try:
                yield Tx(self._connection)
            finally:
                self._connection.execute("COMMIT")

    def purge(self) -> None:
        """Empty the write-ahead log into the main file, so that nothing deleted is left in it."""
        for _ in range(_PURGE_ATTEMPTS):
            with _as_unavailable():
                row = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if row[0] == 0:
                return
            time.sleep(0.01)  # a reader of another process still looks at the old pages
        raise StoreUnavailable("the write-ahead log could not be emptied: a reader holds it open")

    def data_version(self) -> int:
        """A number that changes when another connection has committed."""
        with _as_unavailable():
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def _migrate(self) -> None:
        with self.writing() as tx:
            tx.run("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)")
            version = int(tx.scalar("SELECT coalesce(max(version), 0) FROM schema_version"))
            for number, statements in enumerate(MIGRATIONS[version:], version + 1):
                for statement in statements:
                    tx.run(statement)
                tx.run("INSERT INTO schema_version (version) VALUES (:number)", number=number)


@contextlib.contextmanager
def _as_unavailable() -> Iterator[None]:
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.DatabaseError) as error:
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
            raise
        # The text of these errors names no value, only what SQLite could not do.
        raise StoreUnavailable(f"database: {error}") from error


class AsyncStore:
    """The store as the server uses it: short reads on the loop, writes in the one writer thread.

    A read by key takes some ten microseconds, less than handing it to a thread; reads that go through
    many rows use ``read_aside``. ``on_change`` is called on the loop after every commit of this process.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = Store.open(path)
        self._writer = Store(path)
        self._aside = Store(path)
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        self._aside_thread = ThreadPoolExecutor(1, thread_name_prefix="store-reader")
        self.on_change: Callable[[], None] = lambda: None

    async def write(self, work: Callable[[Tx], T], *, durable: bool = True) -> T:
        """Run ``work`` in a write transaction; its result once it is committed."""

        def transact() -> T:
            with self._writer.writing(durable=durable) as tx:
                return work(tx)

        result = await asyncio.get_running_loop().run_in_executor(self._write_thread, transact)
        self.on_change()
        return result

    def read(self, work: Callable[[Tx], T]) -> T:
        """Run a short read now, on the calling thread (the loop's)."""
        with self._reader.reading() as tx:
            return work(tx)

    async def read_aside(self, work: Callable[[Tx], T]) -> T:
        """Run a long read in the reader thread."""

        def transact() -> T:
            with self._aside.reading() as tx:
                return work(tx)

        return await asyncio.get_running_loop().run_in_executor(self._aside_thread, transact)

    def data_version(self) -> int:
        """Changes when any other connection, of this process or another, has committed."""
        return self._reader.data_version()

    def close(self) -> None:
        """Finish what is running and close; the log is left empty when no one else has it open."""
        self._write_thread.shutdown()
        self._aside_thread.shutdown()
        for store in (self._aside, self._reader, self._writer):
            store.close()
