"""Ways to break the device that a power cut must bring to light: the test of the test."""

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from device.journal import opening as journal_open
from device.platform import files
from device.trust import keystore
from gallery.gallery import Gallery

BROKEN = ("sync-normal", "no-folder-sync", "told-early", "no-sync-aside", "two-commits")
"""`told-early` is the workload's own: it tells a verdict before its commit."""
BROKEN_WITH_DAMAGE = "unsynced-witness"
"""Shows only where the journal's log is damaged as well."""


def break_it(how: str) -> None:
    """Leave out what keeps a promise through a power cut."""
    if how == "sync-normal":

        class HastyDatabase(Database):
            def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
                return super().execute(sql.replace("synchronous = FULL", "synchronous = NORMAL"), *parameters)

        setattr(journal_open, "Database", HastyDatabase)  # noqa: B010 - mypy takes an import for private
    elif how == "no-folder-sync":
        for module in (files, journal_open, keystore):
            setattr(module, "sync_folder", lambda _folder: None)  # noqa: B010 - three modules, one name
    elif how == "no-sync-aside":

        def write_unsynced(path: Path | str, data: bytes, *, mode: int, **_: Any) -> None:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data)

        files.write_synced = write_unsynced
    elif how == BROKEN_WITH_DAMAGE:
        setattr(os, "fdatasync", lambda _descriptor: None)  # noqa: B010 - mypy wants the parameter's name
    elif how == "two-commits":

        def apply_deltas(self: Gallery, page_bytes: bytes, now: Any) -> Any:
            """Each statement by itself: what a page looks like without its transaction."""
            self._store.transaction = contextlib.nullcontext  # type: ignore[method-assign,assignment]
            return real(self, page_bytes, now)

        real, Gallery.apply_deltas = Gallery.apply_deltas, apply_deltas  # type: ignore[method-assign]
