"""Rows of the gallery as searches need them, read from the disk without waiting for the writer.

A search found row numbers in an index that was made when the stream was at some seq. Meanwhile pages may
have been committed. A row is what the index knew exactly when it is there, in the generation of that index,
and was written at that seq or before: every change of a row gives it the seq of the delta that asked for it,
and a number is used again only for a later one. Any other row was erased, replaced, suspended or resumed, or
its generation is gone. Scoring what is left would make the lead over the second person too large, and what
is there now was not in the gallery whose position the answer names; so the whole search is given up as
`Overtaken`, and the search begins again in the index that has the change.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Final

from gallery.errors import Overtaken, StoreError
from gallery.seal import Sealer, Template, template_table, unpack_template
from gallery.store import FILE_NAME, connected

_ROWS_A_READ: Final = 512
"""One statement, under a millisecond or two: no checkpoint waits longer for a reader."""


class RowReader:
    """A read-only connection next to that of an open Store; for any thread, one at a time."""

    def __init__(self, folder: Path, sealer: Sealer) -> None:
        """Raises sqlite3.Error."""
        self._sealer = sealer
        self._lock = Lock()
        self._closed = False
        self._connection = connected(folder / FILE_NAME)
        self._connection.execute("PRAGMA query_only = ON")
        # Rows are read here and there: the kernel's cache serves them as well, and is given back when needed.
        self._connection.execute("PRAGMA cache_size = -64")

    def read(self, generation: int, seq: int, numbers: Sequence[int]) -> list[Template]:
        """The templates of these rows, each number once, as they were when the stream was at `seq`.

        Raises Overtaken when one of them has changed since, StoreError when one cannot be read.
        """
        rows = []
        for start in range(0, len(numbers), _ROWS_A_READ):
            rows += self._select(generation, seq, numbers[start : start + _ROWS_A_READ])
        if len(rows) != len(numbers):
            raise Overtaken("the gallery was changed again and again while it was searched; try again")
        table = template_table(generation)
        return [
            unpack_template(template_id, self._sealer.open(table, template_id, written_seq, sealed))
            for template_id, written_seq, sealed in rows
        ]

    def close(self) -> None:
        """Close the connection, after a read that is under way; nothing can be read from here on."""
        with self._lock:
            self._closed = True
            self._connection.close()

    def _select(self, generation: int, seq: int, numbers: Sequence[int]) -> list[tuple[bytes, int, bytes]]:
        marks = ", ".join("?" * len(numbers))
        with self._lock:
            if self._closed:
                raise StoreError("the gallery is closed; open it again to search it")
            try:
                # The plus keeps SQLite from walking an index over the generation.
                return self._connection.execute(
                    "SELECT template_id, seq, sealed FROM template "  # noqa: S608 - only question marks are put in
                    f"WHERE number IN ({marks}) AND +generation = ? AND seq <= ?",
                    [*numbers, generation, seq],
                ).fetchall()
            except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: damaged bytes in its message
                raise StoreError(
                    f"the gallery store cannot be read ({error}); check the disk; if the file is damaged, "
                    "remove the gallery folder, and the device takes a fresh snapshot"
                ) from error
