"""A journal without a file, for the last minutes of a device that is being wiped.

The process that carries out the wipe still answers the validator (NOT_READY) and hands it the sealed record
of the wipe. Both are numbered, so the numbers move into memory, and nothing else does. They need not outlive
the process: with the verdict key destroyed, no later start can continue them.
"""

import sqlite3

from sqlite_utils import Database

from device.journal.rows import Rows
from device.journal.schema import migrate


def leave_disk(rows: Rows) -> None:
    """Move the newest verdict and the mail's positions into memory. Raises JournalError."""
    with rows.reported():
        memory = Database(sqlite3.connect(":memory:"))
        migrate(memory)
        for table, which in (("verdicts", "ORDER BY seq DESC LIMIT 1"), ("mail_state", "")):
            columns = [row[1] for row in rows.execute(f"PRAGMA table_info({table})")]
            listed, marks = ", ".join(columns), ", ".join("?" * len(columns))
            with memory.atomic():
                for row in rows.execute(f"SELECT {listed} FROM {table} {which}"):  # noqa: S608 - names from this module
                    memory.execute(f"INSERT INTO {table} ({listed}) VALUES ({marks})", row)  # noqa: S608
        memory.execute("UPDATE verdicts SET awaits = NULL, uploaded = revision")
        rows.move_to(memory)
