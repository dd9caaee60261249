"""The database: what the tables are reached through, on either engine.

Invariants
1. SQL is written once, with ``:name`` parameters and in the dialect that SQLite and PostgreSQL share
   (ON CONFLICT, RETURNING, row values, partial indexes); whatever differs is in ``store_sqlite`` and
   ``store_postgresql``, and in ``migrations`` for the tables.
2. Work that reads and then writes never meets other work on the same rows. SQLite has one writer at a time
   (BEGIN IMMEDIATE). On PostgreSQL a writing transaction holds a lock: of one tenant when the caller names
   it, else of the whole database.
3. A process never fails half-way because another one wrote in between: it waits, or begins anew.
4. What an erasure deletes is cleared from the files too, as far as the engine can (``Store.purge``): after
   the commit, beside the work of others, tried until it is done. A server begins with it, so that what
   another process left undone is not forgotten.
"""

import asyncio
import contextlib
import json
import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeVar

from cloud_client.reference_server.errors import StoreUnavailable

log = logging.getLogger("palm.cloud")
T = TypeVar("T")

_PURGE_AGAIN_S: Final = 0.02
_PURGE_AGAIN_MOST_S: Final = 1.0
_PURGE_WARN_S: Final = 60.0

Database = Path | str
"""A SQLite file, or the ``postgresql://`` URL of a database."""

WHOLE: Final = ""
"""The lock of a transaction that may change rows of any tenant."""
UNLOCKED: Final = None
"""For work whose every statement is right by itself, whatever others write meanwhile."""


class Row(Protocol):
    """A row; columns by name."""

    def __getitem__(self, name: str, /) -> Any: ...

    def keys(self) -> Iterable[str]: ...


class Cursor(Protocol):
    """What both drivers answer an execution with."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


@dataclass(frozen=True, slots=True)
class Change:
    """Something that other connections are told of when a transaction commits.

    ``stream`` (stream): a gallery stream has moved. ``device`` (tenant_id, device_id): a device must look
    again. ``wait`` (tenant_id, device_id, turn): a device has begun to wait. ``palm`` (stream, subject_id):
    a person's templates are to be forgotten.
    """

    kind: str
    words: tuple[str, ...]

    def to_text(self) -> str:
        return json.dumps([self.kind, *self.words])

    @classmethod
    def from_text(cls, text: str) -> Self:
        kind, *words = json.loads(text)
        return cls(kind, tuple(words))


class Tx:
    """One transaction: the only way to the tables. Parameters are always passed by name."""

    def __init__(self, execute: Callable[[str, Mapping[str, Any]], Cursor]) -> None:
        self._execute = execute
        self.purge_after_commit = False
        """Set by whoever deletes a person's data: the store's owner is to ``Store.purge`` then."""
        self.announced = False
        """Whether there is something that waiting devices may have to be told."""

    def run(self, sql: str, **params: Any) -> int:
        """Execute one statement; the number of rows it changed."""
        return self._execute(sql, params).rowcount

    def one(self, sql: str, **params: Any) -> Row | None:
        """The first row, or None."""
        row: Row | None = self._execute(sql, params).fetchone()
        return row

    def all(self, sql: str, **params: Any) -> list[Row]:
        """Every row."""
        return self._execute(sql, params).fetchall()

    def each(self, sql: str, **params: Any) -> Iterator[Row]:
        """Rows one by one, for answers that are too long to hold at once."""
        yield from self._execute(sql, params)

    def exists(self, sql: str, **params: Any) -> bool:
        """Whether there is a row."""
        return self._execute(sql, params).fetchone() is not None

    def scalar(self, sql: str, **params: Any) -> Any:
        """The first column of the first row, None without a row."""
        row = self._execute(sql, params).fetchone()
        return None if row is None else row[0]

    def announce(self, kind: str, *words: str) -> None:
        """Tell the server processes of a ``Change`` when this commits.

        On SQLite the one server process then looks itself at what has changed.
        """
        del kind, words
        self.announced = True


class Store(ABC):
    """One connection to a database; used by one thread at a time."""

    @staticmethod
    def connect(database: Database) -> "Store":
        """A connection to a database whose tables are there. StoreUnavailable when there is none."""
        if isinstance(database, Path):
            from cloud_client.reference_server.store_sqlite import SqliteStore

            return SqliteStore(database)
        from cloud_client.reference_server.store_postgresql import PostgresStore

        return PostgresStore(database)

    @staticmethod
    def open(database: Database) -> "Store":
        """A connection to a database, made and migrated if necessary."""
        from cloud_client.reference_server.migrations import migrate

        store = Store.connect(database)
        try:
            migrate(store)
        except BaseException:
            store.close()
            raise
        return store

    engine: str
    """``sqlite`` or ``postgresql``."""
    on_loop: bool
    """Short reads take less than handing them to a thread."""
    writers: int
    readers: int
    """Transactions of either kind that a server process runs at once."""
    purge_every_s: float | None
    """How often a server purges without being asked, for what other processes deleted; None: never."""

    @abstractmethod
    def writing(self, *, durable: bool = True, lock: str | None = WHOLE) -> AbstractContextManager[Tx]:
        """A transaction that may change rows; committed at the end, rolled back on any exception.

        ``durable=False`` lets a power loss take it back (never used for what somebody was promised).
        ``lock`` is the tenant whose rows may be read and changed, WHOLE, or UNLOCKED.
        """

    @abstractmethod
    def reading(self) -> AbstractContextManager[Tx]:
        """One consistent view of the database."""

    def write(self, work: Callable[[Tx], T], *, durable: bool = True, lock: str | None = WHOLE) -> T:
        """Run ``work`` in a writing transaction; more than once where an engine makes it begin anew."""
        with self.writing(durable=durable, lock=lock) as tx:
            return work(tx)

    def read(self, work: Callable[[Tx], T], *, single: bool = False) -> T:
        """Run ``work`` on one consistent view of the database; ``single`` says that it is one statement."""
        del single
        with self.reading() as tx:
            return work(tx)

    @abstractmethod
    def purge(self) -> bool:
        """Clear deleted rows from the files, as far as the engine can; False when it must be tried again.

        Holds nobody up for more than some hundredths of a second.
        """

    @abstractmethod
    def has_table(self, tx: Tx, table: str) -> bool:
        """Whether a table of ours is there."""

    @abstractmethod
    def dialect(self, statement: str) -> str:
        """A statement of the schema in the engine's own words."""

    @abstractmethod
    def changes(self, local: asyncio.Event) -> AsyncGenerator[list[Change], None]:
        """What has been committed, as it comes; an empty list: something, look at everything.

        ``local`` is set by every commit of this process. Never ends; waits while the database is away.
        """

    @abstractmethod
    def close(self) -> None:
        """Give the connection back."""


class _Crew:
    """Threads with a connection each, which they make when the first work comes.

    A queue and a future of the loop, and no executor: handing work over and back costs half of what it costs
    there, and it is in the way of every write.
    """

    def __init__(self, database: Database, threads: int, name: str) -> None:
        self._database = database
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, name=f"{name}-{n}", daemon=True) for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()
        self.queued = 0
        """Work given and not yet done."""

    async def run(self, work: Callable[[Store], T]) -> T:
        """Do ``work`` on one of the threads. Once given it is done, even if nobody waits for it any more."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self.queued += 1
        try:
            self._jobs.put(_Job(work, loop, done))
            return await done
        finally:
            self.queued -= 1

    def _serve(self) -> None:
        store: Store | None = None
        while (job := self._jobs.get()) is not None:
            result, error = None, None
            try:
                if store is None:
                    store = Store.connect(self._database)
                result = job.work(store)
            except BaseException as raised:  # noqa: BLE001 - it is the waiting request's, whatever it is
                error = raised
            # A loop that is closed has no request waiting any more.
            with contextlib.suppress(RuntimeError):
                job.loop.call_soon_threadsafe(_settle, job.done, result, error)
        if store is not None:
            store.close()

    def close(self) -> None:
        """Finish what was given, then end the threads and close their connections."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()


@dataclass(frozen=True, slots=True)
class _Job:
    work: Callable[[Store], Any]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]


def _settle(done: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if done.done():
        return  # nobody waits any more
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)


class _Purger:
    """A thread that purges when it is asked; where the engine wants it, at its start and regularly too."""

    def __init__(self, database: Database, every_s: float | None) -> None:
        self._database = database
        self._every_s = every_s
        self._asked = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="store-purger", daemon=True)
        if every_s is not None:
            self._asked.set()
        self._thread.start()

    def ask(self) -> None:
        self._asked.set()

    def close(self) -> None:
        """Try once more if something is left to do, then end."""
        self._ending.set()
        self._asked.set()
        self._thread.join()

    def _serve(self) -> None:
        store: Store | None = None
        while not self._ending.is_set():
            self._asked.wait(self._every_s)
            self._asked.clear()
            pause_s, since_s = _PURGE_AGAIN_S, time.monotonic()
            while True:
                try:
                    if store is None:
                        store = Store.connect(self._database)
                    if store.purge():
                        break
                except StoreUnavailable as error:
                    log.warning("nothing can be purged: %s", error)
                if self._ending.wait(pause_s):
                    break
                pause_s = min(pause_s * 2, _PURGE_AGAIN_MOST_S)
                if time.monotonic() - since_s > _PURGE_WARN_S:
                    since_s = time.monotonic()
                    log.warning("what was deleted is still in the write-ahead log: a reader holds it")
        if store is not None:
            store.close()


class AsyncStore:
    """The store as the server uses it.

    On SQLite short reads run on the loop (a read by key takes some ten microseconds, less than handing it to
    a thread), writes in the one writer thread, long reads in a reader thread. On PostgreSQL all of them run
    in a few threads with a connection each.
    """

    def __init__(self, database: Database) -> None:
        self._store = Store.open(database)
        if not self._store.on_loop:
            self._store.close()  # it has seen to the tables; the threads have connections of their own
        self._writers = _Crew(database, self._store.writers, "store-writer")
        self._readers = _Crew(database, self._store.readers, "store-reader")
        self._purger = _Purger(database, self._store.purge_every_s)
        self._changed = asyncio.Event()
        self.engine = self._store.engine

    async def write(self, work: Callable[[Tx], T], *, durable: bool = True, lock: str | None = WHOLE) -> T:
        """Run ``work`` in a write transaction (see ``Store.writing``); its result once it is committed."""
        done: Tx | None = None

        def noted(tx: Tx) -> T:
            nonlocal done
            result = work(tx)
            done = tx
            return result

        def committed(store: Store) -> T:
            result = store.write(noted, durable=durable, lock=lock)
            # Here, not where it is waited for: the client may have gone away.
            if done is not None and done.purge_after_commit:
                self._purger.ask()
            return result

        result = await self._writers.run(committed)
        if done is not None and done.announced:
            self._changed.set()
        return result

    async def read(self, work: Callable[[Tx], T], *, single: bool = False) -> T:
        """Run a short read; ``single`` says that it is one statement."""
        if self._store.on_loop:
            return self._store.read(work, single=single)
        return await self.read_aside(work)

    async def read_aside(self, work: Callable[[Tx], T]) -> T:
        """Run a long read in a thread."""

        def transact(store: Store) -> T:
            with store.reading() as tx:
                return work(tx)

        return await self._readers.run(transact)

    @property
    def queued(self) -> dict[str, int]:
        """Work given and not yet done: ``{write, read}``."""
        return {"write": self._writers.queued, "read": self._readers.queued}

    def changes(self) -> AsyncGenerator[list[Change], None]:
        """See ``Store.changes``; for one task of the process."""
        return self._store.changes(self._changed)

    def close(self) -> None:
        """Finish what is running and close."""
        self._writers.close()
        self._readers.close()
        self._purger.close()
        self._store.close()
