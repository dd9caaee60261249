"""A journal of an earlier software, brought to this one, and the way back."""

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlite_utils import Database

from device.config.config import load_config
from device.errors import JournalError
from device.journal import migration
from device.journal.journal import Journal
from device.journal.reserve import Reserve
from device.journal.schema import run
from device.journal.seal import RowSeal
from device.trust.credentials import key_source
from device.trust.keystore import KeyStore
from link1.canonical import read_strict
from tests.archives import unpack_kept
from tests.device.core import former_state
from tests.device.core.small_disk import fill, small_disk
from tests.device.core_makers import HandClock

_OBJECTS = """SELECT 'verdicts', ref, seq, sealed FROM verdicts
UNION ALL SELECT 'answers', ref, seq, sealed FROM answers"""


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    """The state of a device that has served, unpacked into `tmp_path`; its keys."""
    unpack_kept(Path(former_state.__file__).with_name(former_state.ARCHIVE), tmp_path)
    path = tmp_path / "device.toml"
    path.write_text(path.read_text().replace(str(former_state.FOLDER), str(tmp_path)))
    return KeyStore.load(key_source(load_config(path).keys_dir))


@pytest.fixture
def path(tmp_path: Path, keys: KeyStore) -> Path:
    """Its journal, with a decision that was wrong, and once more as one on an unheard-of request."""
    path = tmp_path / "state" / "journal.db"
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        seal = RowSeal(keys.data_key)
        ref, seq, sealed = db.execute("SELECT ref, seq, sealed FROM answers LIMIT 1").fetchone()
        plain = seal.open(sealed, table="answers", row_id=ref, seq=seq)
        for row_id, number in ((ref, seq), ("0" * 64, None)):
            again = seal.seal(plain, table="evidence", row_id=row_id, seq=number or 0)
            db.execute(
                "INSERT INTO evidence (ref, kind, seq, sealed, operating_ms) VALUES (?, 'decision', ?, ?, 0)",
                (row_id, number, again),
            )
    return path


def objects(path: Path, keys: KeyStore) -> list[Any]:
    """What version 3 holds, as signed."""
    seal = RowSeal(keys.data_key)
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (migration.FORMER,)
        return [
            read_strict(seal.open(sealed, table=table, row_id=ref, seq=seq), max_bytes=10_000)
            for table, ref, seq, sealed in db.execute(_OBJECTS)
        ]


@contextlib.contextmanager
def opened(path: Path, keys: KeyStore) -> Iterator[Journal]:
    journal = Journal(
        path,
        device_id="palm-bench",
        verdict_kid=keys.verdict.kid,
        data_key=keys.data_key,
        clock=HandClock(),
    )
    with contextlib.closing(journal):
        yield journal


def test_every_object_and_every_flag_is_kept(path: Path, keys: KeyStore) -> None:
    before = objects(path, keys)
    with opened(path, keys) as journal:
        found = list[Any]()
        while (batch := journal.next_upload(10)).items:
            found += batch.items
            journal.uploaded(batch.tickets)
        last = journal.last()
        assert last is not None
        assert last.verdict_seq == former_state.VERDICTS
        (wrong,) = (item for item in found[former_state.VERDICTS :])
    told = [
        signed for item in found[: former_state.VERDICTS] for name, signed in item.items() if "signed" in name
    ]
    assert sorted(map(str, told)) == sorted(map(str, before))
    assert wrong["signed_decision"] in before
    with contextlib.closing(sqlite3.connect(path)) as db:
        names = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        assert not {name for name in names if "former" in name}
        assert {"verdicts_txn", "verdicts_open", "verdicts_due"} <= names
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_what_stops_it_leaves_the_journal_of_before(
    path: Path, keys: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = objects(path, keys)

    def until_the_last(db: Database, statements: str) -> None:
        if "DROP TABLE" in statements:
            raise sqlite3.OperationalError("disk I/O error")
        run(db, statements)

    with monkeypatch.context() as cut_off:
        cut_off.setattr(migration, "run", until_the_last)
        with pytest.raises(JournalError, match="disk I/O error"), opened(path, keys):
            pass
    assert objects(path, keys) == before
    with opened(path, keys) as journal:
        assert journal.pending_uploads() == former_state.VERDICTS


def as_first_of_version_4(path: Path) -> None:
    """Give a journal the table and indexes of verdicts that the first of its version had."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.executescript(
            """
            DROP VIEW whole_verdicts; DROP INDEX verdicts_txn;
            DROP INDEX verdicts_open; DROP INDEX verdicts_due;
            ALTER TABLE verdicts RENAME TO newer;
            CREATE TABLE verdicts (
                seq INTEGER PRIMARY KEY, ref TEXT NOT NULL, txn_id BLOB NOT NULL UNIQUE,
                request_ref TEXT NOT NULL, operating_ms INTEGER NOT NULL, open INTEGER NOT NULL DEFAULT 1,
                decided INTEGER NOT NULL DEFAULT 0, unknown INTEGER NOT NULL DEFAULT 0,
                revision INTEGER NOT NULL DEFAULT 1, due INTEGER NOT NULL DEFAULT 1
            );
            INSERT INTO verdicts SELECT * FROM newer;
            DROP TABLE newer;
            CREATE INDEX verdicts_open ON verdicts (ref) WHERE open;
            CREATE INDEX verdicts_due ON verdicts (seq) WHERE due;
            CREATE VIEW whole_verdicts AS
                SELECT v.*, coalesce(o.sealed, x'') AS sealed
                FROM verdicts v LEFT JOIN verdict_objects o USING (seq);
            """
        )


def test_the_first_of_version_4_is_indexed_again(
    path: Path, keys: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path, keys):
        pass  # brought to this version
    with contextlib.closing(sqlite3.connect(path)) as db:
        tables = db.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        rows = db.execute("SELECT * FROM whole_verdicts").fetchall()
        assert len(rows) == former_state.VERDICTS
    as_first_of_version_4(path)

    def until_the_last(db: Database, statements: str) -> None:
        run(db, statements)
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as cut_off:
        cut_off.setattr(migration, "run", until_the_last)
        with pytest.raises(JournalError, match="disk I/O error"), opened(path, keys):
            pass
    with contextlib.closing(sqlite3.connect(path)) as db:
        names = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        assert "verdicts_txn" not in names and not {name for name in names if "former" in name}
        assert db.execute("SELECT * FROM whole_verdicts").fetchall() == rows
    with opened(path, keys) as journal:
        assert journal.pending_uploads() == former_state.VERDICTS
        for row in rows:
            memory = journal.find_txn(row[2].hex())
            assert memory is not None
            assert memory.verdict is not None
            assert memory.verdict.seq == row[0]
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall() == tables
        assert db.execute("SELECT * FROM whole_verdicts").fetchall() == rows
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_on_a_full_disk_it_takes_the_reserve(path: Path, keys: KeyStore, tmp_path: Path) -> None:
    with opened(path, keys):
        pass  # brought to this version
    as_first_of_version_4(path)
    with small_disk(tmp_path / "small", 64) as disk:
        for file in (path, path.with_name("journal.db.witness")):
            shutil.copy(file, disk)
        fill(disk)
        with pytest.raises(JournalError, match=r"make room there$"), opened(disk / path.name, keys):
            pass
        (disk / "ballast").unlink()
        reserve = Reserve(disk / "journal.db.reserve")
        assert reserve.keep()
        fill(disk)
        with opened(disk / path.name, keys) as journal:
            assert journal.pending_uploads() == former_state.VERDICTS
        assert not reserve.held


def test_the_first_of_version_4_goes_on_with_this_journal(path: Path, keys: KeyStore) -> None:
    """What that software asks of it, for the way back (docs/decisions/28-the-way-back.md)."""
    with opened(path, keys):
        pass  # brought to this version
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        (seq, txn_id) = db.execute("SELECT max(seq), txn_id FROM verdicts").fetchone()
        found = db.execute(
            "SELECT request_ref, seq, ref, sealed FROM whole_verdicts WHERE txn_id = ?", (txn_id,)
        )
        assert [row[1] for row in found] == [seq]
        db.execute(
            "INSERT INTO verdicts (seq, ref, txn_id, request_ref, operating_ms) VALUES (?, 'r', ?, 'q', 0)",
            (seq + 1, b"of the way back."),
        )
        db.execute("INSERT INTO verdict_objects VALUES (?, ?)", (seq + 1, b""))
        db.execute(
            "UPDATE verdicts SET decided = 1, open = 0, revision = revision + 1, due = 1 WHERE seq = ?",
            (seq,),
        )
        db.execute("DELETE FROM verdicts WHERE seq = ?", (seq + 1,))
    with opened(path, keys) as journal:
        memory = journal.find_txn(txn_id.hex())
        assert memory is not None
        assert memory.verdict is not None
        assert memory.verdict.seq == seq
        assert journal.find_txn(b"of the way back.".hex()) is None


@pytest.mark.parametrize(
    "damage", ["UPDATE answers SET sealed = zeroblob(99)", "UPDATE answers SET kind = 'decisioo'"]
)
def test_a_row_that_this_device_did_not_write_is_damage(path: Path, keys: KeyStore, damage: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute(damage)
    with pytest.raises(JournalError, match="damaged"), opened(path, keys):
        pass
