"""A copy of a SQLite database as it is at one moment, taken while others read and write it.

The copy is made from one snapshot, in steps, so that it can be interrupted. It blocks no one: in SQLite's
WAL mode a reader stops neither readers nor writers. It only delays the emptying of the write-ahead log until
the copy is complete. Steps that release the snapshot in between would not delay that, but would start again
after each write of another process, and a server writes all the time.
"""

import hashlib
import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cloud_client.reference_server.errors import OperatorError, ServerError
from cloud_client.reference_server.store.base import Database
from link1.plain_file import sync_folder

_STEP_PAGES: Final = 1024
_READ_BYTES: Final = 1 << 20
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Copied:
    """A complete copy."""

    size: int
    sha256: str


def copy_database(database: Database, file: Path, on_step: Callable[[], None] = lambda: None) -> Copied:
    """Copy a database into a new file of mode 0600; ``on_step`` is called between the steps.

    OperatorError when there is nothing to copy or the file is there; ServerError when the copy fails.
    Whatever ends it leaves no file behind, but for a kill or a power cut, which may leave ``FILE.part``.
    """
    if not isinstance(database, Path):
        raise OperatorError(
            "a PostgreSQL database is copied by its own program: "
            "pg_dump --format=custom --exclude-table-data=rate_buckets --file FILE URL"
        )
    if not file.name:
        raise OperatorError("the name of the copy is empty: name a file that is not there yet")
    if not database.is_file():
        raise OperatorError(f"{database} is not there: give --data the data directory of the server")
    part = file.with_name(f"{file.name}.part")
    # A signal that ends the program comes while nothing is there yet, or where the part is removed.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        _make(part, file)
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            _copy(database, part, on_step)
            copied = _sum_and_sync(part)
            _give_name(part, file)
        except FileExistsError:
            raise _there(file) from None
        except OSError as error:
            raise ServerError(f"{file} cannot be written ({error.strerror})") from error
        except sqlite3.Error as error:
            raise ServerError(f"the database cannot be copied: {error}") from error
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
            for name in (part.name, f"{part.name}-journal"):
                with suppress(FileNotFoundError):
                    part.with_name(name).unlink()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    sync_folder(file.parent)
    return copied


def _make(part: Path, file: Path) -> None:
    if file.exists():
        raise _there(file)
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise OperatorError(
            f"{part} is there: another backup is making it, or one was killed; remove it in that case"
        ) from None
    except OSError as error:
        raise OperatorError(f"{part} cannot be made ({error.strerror}): name a file elsewhere") from error


def _give_name(part: Path, file: Path) -> None:
    try:
        os.link(part, file)  # unlike a rename, this never takes the place of a file that came meanwhile
    except FileExistsError:
        raise
    except OSError:  # a file system without links, as on a stick or a network share
        if os.path.lexists(file):
            raise _there(file) from None
        part.rename(file)


def _there(file: Path) -> OperatorError:
    return OperatorError(f"{file} is there and is not overwritten: name another file")


def _copy(database: Path, part: Path, on_step: Callable[[], None]) -> None:
    with (
        closing(sqlite3.connect(database, isolation_level=None)) as source,
        closing(sqlite3.connect(part, isolation_level=None)) as target,
    ):
        # The file is not used until it is complete; it is synced then.
        target.execute("PRAGMA synchronous=OFF")
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_master").fetchone()
        source.backup(target, pages=_STEP_PAGES, progress=lambda *_: on_step(), sleep=0)
        source.execute("COMMIT")
        # One file for every reader: without the mark of a database with a write-ahead log.
        target.execute("PRAGMA journal_mode=DELETE")


def _sum_and_sync(path: Path) -> Copied:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        os.fsync(file.fileno())
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
        return Copied(file.tell(), digest.hexdigest())
