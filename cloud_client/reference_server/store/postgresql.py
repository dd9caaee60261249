"""PostgreSQL: for more than one machine; several server processes over one database.

- Writing transactions are READ COMMITTED under an advisory lock, shared for the database and exclusive for
  one tenant (or exclusive for the database), so that what is read before a write still holds at the write,
  in every process. Reads are one REPEATABLE READ view and do not wait.
- Changes that concern other processes go by NOTIFY, in the transaction that made them; each process has one
  connection that listens. A waiting device holds none.
- Text is compared by its bytes (COLLATE "C"), as SQLite does, so that lists and hashes come out alike.
"""

import asyncio
import contextlib
import hashlib
import itertools
import logging
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

import psycopg
from psycopg.rows import dict_row, tuple_row

from cloud_client.reference_server.errors import OperatorError, StoreUnavailable
from cloud_client.reference_server.store.base import (
    MISSED,
    UNLOCKED,
    WHOLE,
    Change,
    CloudStore,
    Cursor,
    Row,
    Tx,
)

log = logging.getLogger("palm.cloud")
T = TypeVar("T")

CHANNEL: Final = "palm_cloud"
_APPLICATION: Final = "palm-cloud"
_CONNECT_TIMEOUT_S: Final = 5
_LOCK_TIMEOUT_MS: Final = 5000
"""Longer than any write of ours takes; beyond this another process hangs, and the client gets a 503."""
_STATEMENT_TIMEOUT_MS: Final = 60_000
_LISTEN_S: Final = 30.0
"""After so long a silence of the listening connection every stream is looked at."""
_RECONNECT_S: Final = 0.5
_ATTEMPTS: Final = 4
_SERVER_OPTIONS: Final = (
    f"-c lock_timeout={_LOCK_TIMEOUT_MS} -c statement_timeout={_STATEMENT_TIMEOUT_MS} "
    f"-c idle_in_transaction_session_timeout={_STATEMENT_TIMEOUT_MS} -c timezone=UTC "
    # Lists are walked along an index; the default was made for disks that turn.
    "-c random_page_cost=1.1"
)

# Advisory locks live in one space per database, a class and a key in it.
_LOCK_CLASS_WHOLE: Final = 0x50414C4D
_LOCK_CLASS_TENANT: Final = 0x50414C54

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")
_WORDS: Final = {"BLOB": "BYTEA", "REAL": "DOUBLE PRECISION", "TEXT": 'TEXT COLLATE "C"'}
_PERSONAL: Final = ("subjects", "consents", "sessions", "templates", "deltas", "suspensions", "idempotency")
"""The tables that rows of a person are deleted from."""

_Connection = psycopg.Connection[Any]
# What may succeed when it is started again: a deadlock, and two transactions that inserted the same row at
# once under different locks; the second then sees the first's.
_AGAIN: Final = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.UniqueViolation,
)


@lru_cache(maxsize=1024)
def translated(sql: str) -> str:
    """SQL with ``:name`` parameters in the driver's form."""
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


def connect(url: str) -> _Connection:
    """A new connection. StoreUnavailable when there is no server, no database, or no way in."""
    try:
        with _as_unavailable():
            return psycopg.connect(url, **_settings())
    except psycopg.ProgrammingError:
        # libpq quotes what it could not read, which may be the password.
        raise OperatorError(
            "--database is no URL of PostgreSQL: postgresql://USER@HOST:PORT/NAME?sslmode=verify-full is one"
        ) from None


def _settings() -> dict[str, Any]:
    return {
        "autocommit": True,
        "row_factory": dict_row,
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "application_name": _APPLICATION,
        "client_encoding": "utf8",
        "options": _SERVER_OPTIONS,
        # A database machine that is gone without a word is noticed in some 20 s.
        "keepalives_idle": 5,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 20_000,
    }


class PostgresTx(Tx):
    """A transaction on PostgreSQL."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._cursors = itertools.count(1)
        super().__init__(self._execute_portable)

    def _execute_portable(self, sql: str, params: Mapping[str, Any]) -> Cursor:
        return self._connection.execute(translated(sql), params or None)

    def each(self, sql: str, **params: Any) -> Iterator[Row]:
        with self._connection.cursor(f"each_{next(self._cursors)}") as cursor:
            cursor.itersize = 1000
            cursor.execute(translated(sql), params or None)
            yield from cursor

    def scalar(self, sql: str, **params: Any) -> Any:
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(translated(sql), params or None).fetchone()
        return None if row is None else row[0]

    def copy_in(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Insert many rows at once."""
        into = f"COPY {table} ({', '.join(columns)}) FROM STDIN"
        with self._connection.cursor() as cursor, cursor.copy(into) as copy:
            for row in rows:
                copy.write_row(row)

    def announce(self, kind: str, *words: str) -> None:
        text = Change(kind, words).to_text()
        self.run("SELECT pg_notify(:channel, :text)", channel=CHANNEL, text=text)


class PostgresStore(CloudStore):
    """A connection to a database, made again when it is lost."""

    engine = "postgresql"
    on_loop = False
    writers = 4
    readers = 4
    purge_every_s = tidy_every_s = None

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection = connect(url)

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def writing(self, *, durable: bool = True, lock: str | None = WHOLE) -> Iterator[PostgresTx]:
        with _as_unavailable():
            self._begin(_begin_writing(durable=durable, lock=lock))
            tx = PostgresTx(self._connection)
            yield from self._ended(tx)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Tx]:
        with _as_unavailable():
            self._begin("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield from self._ended(PostgresTx(self._connection))

    def write(self, work: Callable[[Tx], T], *, durable: bool = True, lock: str | None = WHOLE) -> T:
        for _ in range(_ATTEMPTS - 1):
            try:
                return super().write(work, durable=durable, lock=lock)
            except _AGAIN as error:
                log.info("a transaction starts again: %s", type(error).__name__)
            except StoreUnavailable as error:
                if not isinstance(error.__cause__, _AGAIN):
                    raise
        return super().write(work, durable=durable, lock=lock)

    def _begin(self, statement: str) -> None:
        try:
            self._connection.execute(statement)
        except psycopg.Error:
            if not self._connection.closed:
                self._roll_back()
                raise
            # The server was restarted while this connection lay idle; nothing was begun, so nothing is lost.
            self._connection = connect(self._url)
            self._connection.execute(statement)

    def _ended(self, tx: PostgresTx) -> Iterator[PostgresTx]:
        try:
            yield tx
            self._connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        # A connection that cannot even do this is of no more use; the next transaction makes another.
        try:
            self._connection.execute("ROLLBACK")
        except psycopg.Error:
            self._connection.close()

    def purge(self) -> bool:
        """Let the space of deleted rows be used again, at once rather than when autovacuum comes by.

        PostgreSQL does not overwrite what it deletes: until pages, log and backups are reused, ciphertexts
        remain in them. What makes them unreadable is that the person's key is gone from the tables. So
        nothing that was promised depends on this, and its failure is only logged.
        """
        if self._connection.closed:
            self._connection = connect(self._url)
        try:
            self._connection.execute(f"VACUUM (SKIP_LOCKED) {', '.join(_PERSONAL)}")
        except psycopg.Error as error:
            log.warning("not vacuumed after an erasure, autovacuum will: %s", _text(error))
        return not self._connection.closed

    def tidy(self) -> None:
        """PostgreSQL has processes of its own for that."""

    def has_table(self, tx: Tx, table: str) -> bool:
        return tx.scalar("SELECT to_regclass(:table)::text", table=table) is not None

    def dialect(self, statement: str) -> str:
        return re.sub(r"\b(BLOB|REAL|TEXT)\b", lambda found: _WORDS[found.group()], statement)

    async def changes(self, local: asyncio.Event) -> AsyncGenerator[list[Change], None]:
        """What any process has committed, this one included, by LISTEN on a separate connection."""
        del local
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(self._url, **_settings()) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    yield [MISSED]
                    while True:
                        notes = connection.notifies(timeout=_LISTEN_S, stop_after=1)
                        yield _changes([note.payload async for note in notes])
            except psycopg.Error as error:
                log.warning("changes are not heard: %s", _text(error))
            await asyncio.sleep(_RECONNECT_S)


def _changes(texts: list[str]) -> list[Change]:
    try:
        return [Change.from_text(text) for text in texts]
    except (ValueError, TypeError):
        return []  # a notification that is not ours: look at everything


def check_encoding(tx: Tx) -> None:
    """OperatorError unless the database can hold every text."""
    encoding = tx.scalar("SHOW server_encoding")
    if encoding != "UTF8":
        raise OperatorError(f"the database has encoding {encoding}: create one with ENCODING 'UTF8'")


def _begin_writing(*, durable: bool, lock: str | None) -> str:
    statement = "BEGIN ISOLATION LEVEL READ COMMITTED"
    if not durable:
        statement += "; SET LOCAL synchronous_commit = off"
    if lock is UNLOCKED:
        return statement
    whole = f"({_LOCK_CLASS_WHOLE}, 0)"
    if lock == WHOLE:
        return f"{statement}; SELECT pg_advisory_xact_lock{whole}"
    key = int.from_bytes(hashlib.sha256(lock.encode()).digest()[:4], "big", signed=True)
    return (
        f"{statement}; SELECT pg_advisory_xact_lock_shared{whole}; "
        f"SELECT pg_advisory_xact_lock({_LOCK_CLASS_TENANT}, {key})"
    )


@contextlib.contextmanager
def _as_unavailable() -> Iterator[None]:
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError) as error:
        raise StoreUnavailable(f"database: {_text(error)}") from error


def _text(error: psycopg.Error) -> str:
    """What went wrong, without the values that the detail of an error quotes."""
    said = error.diag.message_primary or str(error).splitlines()[0]
    return f"{type(error).__name__}: {said}"
