"""The rows of the verdict journal: sealed in, opened out, transactions, and one kind of error."""

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from sqlite_utils import Database

from device.errors import JournalError
from device.seal import RowSeal, SealBroken
from link1.canonical import JsonObject, canonical_bytes


class Rows:
    """An open journal database with its seal."""

    def __init__(self, db: Database, seal: RowSeal) -> None:
        self._db = db
        self._seal = seal

    def close(self) -> None:
        self._db.close()

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._db.execute(sql, parameters)

    def sealed(self, wrapper: JsonObject, table: str, row_id: str, seq: int) -> bytes:
        """The RFC 8785 bytes of `wrapper`, sealed for this place."""
        return self._seal.seal(canonical_bytes(wrapper), table=table, row_id=row_id, seq=seq)

    def opened(self, sealed: bytes, table: str, row_id: str, seq: int) -> JsonObject:
        """What was sealed for this place; raises SealBroken, which `reported` turns into JournalError."""
        wrapper: JsonObject = json.loads(self._seal.open(sealed, table=table, row_id=row_id, seq=seq))
        return wrapper

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it is durable at the end, or nothing is and JournalError is raised."""
        with self.reported(), self._db.atomic():
            yield

    @contextlib.contextmanager
    def reported(self) -> Iterator[None]:
        """Errors of the database and of the seal as JournalError."""
        try:
            yield
        except SealBroken as error:
            raise broken(str(error)) from error
        except sqlite3.Error as error:
            raise JournalError(
                f"the journal cannot be read or written ({error}); check the disk and the room on it"
            ) from error


def broken(what: str) -> JournalError:
    """The journal holds something that this device never wrote there."""
    return JournalError(
        f"the journal is damaged: {what}; restore the state directory of this device, "
        "or register the device again with new keys"
    )
