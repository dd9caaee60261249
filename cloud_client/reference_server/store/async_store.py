"""The store as the server uses it: its threads, and the thread that purges."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from cloud_client.reference_server.errors import StoreUnavailable
from cloud_client.reference_server.store.base import WHOLE, Change, CloudStore, Database, Tx
from cloud_client.reference_server.store.engines import connect_store, open_store

log = logging.getLogger("palm.cloud")
T = TypeVar("T")

_PURGE_AGAIN_S: Final = 0.02
_PURGE_AGAIN_MOST_S: Final = 1.0
_PURGE_WARN_S: Final = 60.0


class _Crew:
    """Threads with a connection each, which they make when their first work comes."""

    def __init__(self, database: Database, threads: int, name: str) -> None:
        self._database = database
        self._executor = ThreadPoolExecutor(threads, name)
        self._own = threading.local()
        self._opened: list[CloudStore] = []
        self.queued = 0
        """Work given and not yet done."""

    async def run(self, work: Callable[[CloudStore], T]) -> T:
        """Do ``work`` on one of the threads. Once begun it is finished, even if the caller is cancelled."""
        self.queued += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, self._do, work)
        finally:
            self.queued -= 1

    def _do(self, work: Callable[[CloudStore], T]) -> T:
        store: CloudStore | None = getattr(self._own, "store", None)
        if store is None:
            store = self._own.store = connect_store(self._database)
            self._opened.append(store)
        return work(store)

    def close(self) -> None:
        """Finish what was given, then end the threads and close their connections."""
        self._executor.shutdown()
        for store in self._opened:
            store.close()


class _Purger:
    """A thread that purges when it is asked; where the engine wants it, at its start and regularly too.

    In between it tidies.
    """

    def __init__(self, database: Database, every_s: float | None, tidy_every_s: float | None) -> None:
        self._database = database
        self._every_s = every_s
        self._tidy_every_s = tidy_every_s
        self._asked = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="store-purger", daemon=True)
        if every_s is not None:
            self._asked.set()
        self._thread.start()

    def ask(self) -> None:
        self._asked.set()

    def close(self) -> None:
        """Try once more, then end."""
        self._ending.set()
        self._asked.set()
        self._thread.join()

    def _serve(self) -> None:
        store: CloudStore | None = None
        ended = False
        while not ended:
            self._await_asked(store)
            self._asked.clear()
            pause_s, since_s = _PURGE_AGAIN_S, time.monotonic()
            while True:
                ended = self._ending.is_set()
                try:
                    if store is None:
                        store = connect_store(self._database)
                    if store.purge():
                        break
                except StoreUnavailable as error:
                    log.warning("nothing can be purged: %s", error)
                if ended:
                    break
                self._ending.wait(pause_s)
                pause_s = min(pause_s * 2, _PURGE_AGAIN_MOST_S)
                if time.monotonic() - since_s > _PURGE_WARN_S:
                    since_s = time.monotonic()
                    log.warning("what was deleted is still in the write-ahead log: a reader holds it")
        if store is not None:
            store.close()

    def _await_asked(self, store: CloudStore | None) -> None:
        """Until it is asked, or it is time again; tidies meanwhile."""
        since_s = time.monotonic()
        while not self._asked.wait(self._tidy_every_s):
            try:
                if store is not None:
                    store.tidy()
            except StoreUnavailable as error:
                log.warning("the store is not tidied: %s", error)
            if self._every_s is not None and time.monotonic() - since_s >= self._every_s:
                return


class AsyncStore:
    """The store as the server uses it.

    On SQLite short reads run on the loop (a read by key takes some ten microseconds, less than handing it to
    a thread), writes in the one writer thread, long reads in a reader thread. On PostgreSQL all of them run
    in a few threads with a connection each.
    """

    def __init__(self, database: Database) -> None:
        self._store = open_store(database)
        if not self._store.on_loop:
            self._store.close()  # it has made the tables; each thread opens its connection
        self._writers = _Crew(database, self._store.writers, "store-writer")
        self._readers = _Crew(database, self._store.readers, "store-reader")
        self._purger = _Purger(database, self._store.purge_every_s, self._store.tidy_every_s)
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

        def committed(store: CloudStore) -> T:
            result = store.write(noted, durable=durable, lock=lock)
            # Here, not where it is waited for: the client may have gone away.
            if done is not None and done.purge_after_commit:
                self._purger.ask()
            return result

        result = await self._writers.run(committed)
        if done is not None and done.announced:
            self._changed.set()
        return result

    async def read(self, work: Callable[[Tx], T]) -> T:
        """Run a short read."""
        if self._store.on_loop:
            return self._store.read(work)
        return await self.read_aside(work)

    async def read_aside(self, work: Callable[[Tx], T]) -> T:
        """Run a long read in a thread."""
        return await self._readers.run(lambda store: store.read(work))

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
