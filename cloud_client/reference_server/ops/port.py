"""Moving a store from SQLite to PostgreSQL, with a proof that nothing was lost.

All of it is one transaction on either side: no process writes to the file meanwhile, and a target that is not
complete and equal is not committed. The proof is, for each table, the number of rows and one hash over all
of them in the order of the primary key, taken while reading the source and again by reading the target back.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg

from cloud_client.reference_server.errors import OperatorError
from cloud_client.reference_server.ops.data_directory import DataDirectory
from cloud_client.reference_server.store.base import Row, Tx
from cloud_client.reference_server.store.engines import open_store
from cloud_client.reference_server.store.migrations import VERSION_TABLE, migrate_within
from cloud_client.reference_server.store.postgresql import PostgresStore, PostgresTx, check_encoding

_NEVER_PORTED: Final = frozenset({VERSION_TABLE})


@dataclass(frozen=True, slots=True)
class Table:
    """A table as the source has it."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    refers_to: frozenset[str]

    @property
    def rows_sql(self) -> str:
        columns, key = ", ".join(self.columns), ", ".join(self.key)
        return f"SELECT {columns} FROM {self.name} ORDER BY {key}"  # noqa: S608 - names of our own schema


@dataclass(frozen=True, slots=True)
class Proof:
    """What a table holds."""

    rows: int
    sha256: str


def port(source: Path, url: str) -> dict[str, Proof]:
    """Copy every table of a SQLite file into an empty PostgreSQL database; what each of them holds.

    OperatorError when there is no source, when a server runs on it (what it wrote afterwards would be lost),
    or when the target holds anything; nothing is left behind then.
    """
    if not source.is_file():
        raise OperatorError(f"{source} is not there: give --data the directory of the SQLite store")
    old = open_store(source)
    new = PostgresStore(url)
    try:
        with DataDirectory(source.parent, source).served(), old.writing() as read, new.writing() as write:
            check_encoding(write)
            write.run("SET LOCAL statement_timeout = 0")
            write.run("SET LOCAL idle_in_transaction_session_timeout = 0")
            migrate_within(new, write)
            tables = ordered(list(_tables(read)))
            for table in tables:
                if write.exists(f"SELECT 1 FROM {table.name}"):  # noqa: S608 - a name of our own schema
                    raise OperatorError(
                        f"the target is not empty (table {table.name}): give --database an empty one"
                    )
            proofs = {table.name: _copy(table, read, write) for table in tables}
            for table in tables:
                found = prove(table, write)
                if found != proofs[table.name]:
                    raise OperatorError(
                        f"table {table.name} has {found.rows} rows in the target, "
                        f"{proofs[table.name].rows} in the source, or other contents: nothing was kept"
                    )
            write.run("ANALYZE")
        return proofs
    except psycopg.Error as error:
        raise OperatorError(
            f"PostgreSQL refused the copy ({type(error).__name__}): nothing was kept in the target"
        ) from error
    finally:
        old.close()
        new.close()


def prove(table: Table, tx: Tx) -> Proof:
    """What a table holds, on either engine."""
    digest, rows = hashlib.sha256(), 0
    for row in tx.each(table.rows_sql):
        digest.update(_encoded(row[name] for name in table.columns))
        rows += 1
    return Proof(rows, digest.hexdigest())


def ordered(tables: list[Table]) -> list[Table]:
    """Tables in an order in which each follows those it refers to."""
    done: list[Table] = []
    waiting = tables
    while waiting:
        names = {table.name for table in waiting}
        ready = [table for table in waiting if not (table.refers_to - {table.name}) & names]
        if not ready:
            raise OperatorError(f"tables refer to one another in a ring: {', '.join(sorted(names))}")
        done += sorted(ready, key=lambda table: table.name)
        waiting = [table for table in waiting if table not in ready]
    return done


def _copy(table: Table, read: Tx, write: PostgresTx) -> Proof:
    digest, rows = hashlib.sha256(), 0

    def values() -> Iterator[tuple[Any, ...]]:
        nonlocal rows
        for row in read.each(table.rows_sql):
            found = tuple(row[name] for name in table.columns)
            digest.update(_encoded(found))
            rows += 1
            yield found

    write.copy_in(table.name, table.columns, values())
    return Proof(rows, digest.hexdigest())


def _encoded(values: Iterable[Any]) -> bytes:
    """A row so that different rows never come out alike: each value with its kind and length."""
    parts = []
    for value in values:
        match value:
            case None:
                kind, data = b"N", b""
            case int():
                kind, data = b"I", str(value).encode()
            case float():
                kind, data = b"R", struct.pack(">d", value)
            case str():
                kind, data = b"T", value.encode()
            case _:
                kind, data = b"B", bytes(value)
        parts += [kind, struct.pack(">Q", len(data)), data]
    return b"".join(parts)


def _tables(tx: Tx) -> Iterator[Table]:
    names = [
        row["name"]
        for row in tx.all("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        if not row["name"].startswith("sqlite_") and row["name"] not in _NEVER_PORTED
    ]
    for name in names:
        columns = tx.all("SELECT name, pk FROM pragma_table_info(:name)", name=name)
        keyed: list[Row] = sorted((row for row in columns if row["pk"]), key=lambda row: int(row["pk"]))
        refers_to = tx.all('SELECT "table" AS name FROM pragma_foreign_key_list(:name)', name=name)
        yield Table(
            name,
            tuple(row["name"] for row in columns),
            tuple(row["name"] for row in keyed),
            frozenset(row["name"] for row in refers_to),
        )
