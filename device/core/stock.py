"""What a factory reset would destroy, in numbers: read beside a running daemon, without any key."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from device.config.config import DeviceConfig
from device.trust.keystore import KeyStore
from gallery.store import FILE_NAME as GALLERY_FILE

_WAITING = "SELECT count(*) FROM verdicts WHERE uploaded < revision"


@dataclass(frozen=True, slots=True)
class Stock:
    """None where a number could not be read. `uploads_waiting`: what the service does not have yet."""

    keys: bool
    uploads_waiting: int | None
    verdicts: int | None
    templates: int | None


def take_stock(config: DeviceConfig) -> Stock:
    """Count what is there; a file that is absent or damaged counts as unknown."""
    gallery = config.gallery_dir / GALLERY_FILE
    return Stock(
        keys=KeyStore.exists(config.keys_dir),
        uploads_waiting=_first(config.journal_path, _WAITING),
        verdicts=_first(config.journal_path, "SELECT count(*) FROM verdicts"),
        templates=_first(gallery, "SELECT count(*) FROM template"),
    )


def journal_in_use(config: DeviceConfig) -> bool:
    """Whether another process holds the journal, as a running palmd does for as long as it lives."""
    if not config.journal_path.is_file():
        return False
    try:
        with closing(sqlite3.connect(_read_only(config.journal_path), uri=True, timeout=0)) as db:
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        return error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
    return False


def _read_only(path: Path) -> str:
    return f"{path.absolute().as_uri()}?mode=ro"


def _first(path: Path, query: str) -> int | None:
    """The number that the query answers; the file is not changed."""
    if not path.is_file():
        return None
    try:
        with closing(sqlite3.connect(_read_only(path), uri=True, timeout=0)) as db:
            return int(db.execute(query).fetchone()[0])
    except (sqlite3.Error, TypeError):
        return None
