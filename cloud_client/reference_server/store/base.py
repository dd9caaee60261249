"""The database: access to the tables, on either engine.

Invariants
1. SQL is written once, with ``:name`` parameters and in the dialect that SQLite and PostgreSQL share
   (ON CONFLICT, RETURNING, row values, partial indexes); whatever differs is in ``sqlite`` and
   ``postgresql``, and in ``migrations`` for the tables.
2. Work that reads and then writes never meets other work on the same rows. SQLite has one writer at a time
   (BEGIN IMMEDIATE). On PostgreSQL a writing transaction holds a lock: of one tenant when the caller names
   it, else of the whole database.
3. A process never fails half-way because another one wrote in between: it waits, or starts again.
4. What an erasure deletes is cleared from the files too, as far as the engine can (``CloudStore.purge``):
   after the commit, alongside other work, tried until it is done. A server begins with it, so that what
   another process left undone is completed.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeVar

T = TypeVar("T")

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
    """A change that other connections are notified of when a transaction commits.

    ``stream`` (stream): a gallery stream has moved. ``device`` (tenant_id, device_id): a device must look
    again. ``wait`` (tenant_id, device_id, turn): a device has begun to wait. ``palm`` (stream, subject_id):
    a person's templates are to be forgotten. ``missed``: any of these may not have been heard.
    """

    kind: str
    words: tuple[str, ...]

    def to_text(self) -> str:
        return json.dumps([self.kind, *self.words])

    @classmethod
    def from_text(cls, text: str) -> Self:
        kind, *words = json.loads(text)
        return cls(kind, tuple(words))


MISSED: Final = Change("missed", ())


class Tx:
    """One transaction: the only way to the tables. Parameters are always passed by name."""

    def __init__(self, execute: Callable[[str, Mapping[str, Any]], Cursor]) -> None:
        self.execute = execute
        self.purge_after_commit = False
        """Set when a person's data is deleted: the store's owner then calls ``CloudStore.purge``."""
        self.announced = False
        """Whether waiting devices may have to be woken."""

    def run(self, sql: str, **params: Any) -> int:
        """Execute one statement; the number of rows it changed."""
        return self.execute(sql, params).rowcount

    def one(self, sql: str, **params: Any) -> Row | None:
        """The first row, or None."""
        row: Row | None = self.execute(sql, params).fetchone()
        return row

    def row(self, sql: str, **params: Any) -> Row:
        """The first row, which is there. LookupError when it is not."""
        row = self.one(sql, **params)
        if row is None:
            raise LookupError(sql)
        return row

    def all(self, sql: str, **params: Any) -> list[Row]:
        """Every row."""
        return self.execute(sql, params).fetchall()

    def each(self, sql: str, **params: Any) -> Iterator[Row]:
        """Rows one by one, for answers that are too long to hold at once."""
        yield from self.execute(sql, params)

    def exists(self, sql: str, **params: Any) -> bool:
        """Whether there is a row."""
        return self.execute(sql, params).fetchone() is not None

    def scalar(self, sql: str, **params: Any) -> Any:
        """The first column of the first row, None without a row."""
        row = self.execute(sql, params).fetchone()
        return None if row is None else row[0]

    def announce(self, kind: str, *words: str) -> None:
        """Tell the server processes of a ``Change`` when this commits.

        On SQLite the one server process then looks itself at what has changed.
        """
        del kind, words
        self.announced = True


class CloudStore(ABC):
    """One connection to a database; used by one thread at a time."""

    engine: str
    """``sqlite`` or ``postgresql``."""
    on_loop: bool
    """Short reads take less than handing them to a thread."""
    writers: int
    readers: int
    """Transactions of either kind that a server process runs at once."""
    purge_every_s: float | None
    """How often a server purges without being asked, for what other processes deleted; None: never."""
    tidy_every_s: float | None
    """How often a server tidies; None: never."""

    @abstractmethod
    def writing(self, *, durable: bool = True, lock: str | None = WHOLE) -> AbstractContextManager[Tx]:
        """A transaction that may change rows; committed at the end, rolled back on any exception.

        ``durable=False`` lets a power loss take it back (never used for what a client was promised).
        ``lock`` is the tenant whose rows may be read and changed, WHOLE, or UNLOCKED.
        """

    @abstractmethod
    def reading(self) -> AbstractContextManager[Tx]:
        """One consistent view of the database."""

    def write(self, work: Callable[[Tx], T], *, durable: bool = True, lock: str | None = WHOLE) -> T:
        """Run ``work`` in a writing transaction; more than once where an engine makes it start again."""
        with self.writing(durable=durable, lock=lock) as tx:
            return work(tx)

    def read(self, work: Callable[[Tx], T]) -> T:
        """Run ``work`` on one consistent view of the database."""
        with self.reading() as tx:
            return work(tx)

    @abstractmethod
    def purge(self) -> bool:
        """Clear deleted rows from the files, as far as the engine can; False when it must be tried again.

        Blocks other work for no more than some hundredths of a second.
        """

    @abstractmethod
    def tidy(self) -> None:
        """Do what else a write would have to do in its turn; blocks no other work."""

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
