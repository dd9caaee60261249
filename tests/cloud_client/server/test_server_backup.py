"""`palmctl cloud backup`: complete, of one moment, without blocking the server, and never half a file."""

import errno
import hashlib
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from cloud_client.reference_server.errors import OperatorError, ServerError
from cloud_client.reference_server.ops.backup import copy_database
from cloud_client.reference_server.ops.data_directory import DataDirectory
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.store.engines import open_store
from tests.cloud_client.server.server_database import on_sqlite
from tests.cloud_client.server.server_harness import Cloud
from tests.cloud_client.server.server_process import Running, new_account, post
from tests.until import until
from tools.cloud.command import cloud as command
from tools.rig.bench.many_verdicts import fill

NONCE = "INSERT INTO nonces (kid, nonce, expires_ms) VALUES ('k', :nonce, 1)"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database of some 6 MB."""
    cloud = Cloud(tmp_path / "data", database=f"sqlite:///{tmp_path / 'data' / 'cloud.db'}")
    tenant = cloud.new_tenant()
    environment = tenant.environment("test")
    cloud.operate(lambda tx, *_: fill(tx, environment, "nobody", 2000))
    cloud.close()
    return tmp_path / "data" / "cloud.db"


def checked(file: Path) -> sqlite3.Connection:
    """The copy, which must be sound."""
    copy = sqlite3.connect(file)
    assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert copy.execute("PRAGMA foreign_key_check").fetchall() == []
    return copy


def test_it_is_of_the_moment_at_which_it_begins(database: Path, tmp_path: Path) -> None:
    """Others write between any two steps; the copy does not begin again, and has nothing of that."""
    store, file, steps = open_store(database), tmp_path / "copy.db", 0
    store.write(lambda tx: tx.run(NONCE, nonce="before"))

    def write() -> None:
        nonlocal steps
        steps += 1
        store.write(lambda tx: tx.run(NONCE, nonce=f"during-{steps}"))
        # Every page of the verdicts becomes another one.
        store.write(lambda tx: tx.run("UPDATE verdicts SET quality_q = :q", q=steps), durable=False)

    copied = copy_database(database, file, write)
    store.close()
    size_pages = copied.size // 4096
    assert 2 <= steps <= size_pages // 1024 + 1
    with closing(checked(file)) as copy:
        assert copy.execute("SELECT nonce FROM nonces").fetchall() == [("before",)]
        assert copy.execute("SELECT DISTINCT quality_q FROM verdicts").fetchall() == [(80,)]
    assert copied.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert copied.size == file.stat().st_size
    assert {path.name for path in tmp_path.iterdir()} == {"data", "copy.db"}


def test_the_command(database: Path, tmp_path: Path) -> None:
    file = tmp_path / "copy.db"
    words = ["backup", str(file), "--data", str(database.parent), "--json"]
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 0, done.output
    size, sha256 = file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest()
    assert json.loads(done.stdout) == {"file": str(file), "bytes": size, "sha256": sha256}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = CliRunner().invoke(command, words)
    assert (again.exit_code, again.stdout) == (1, "")
    assert "is not overwritten" in again.stderr
    assert hashlib.sha256(file.read_bytes()).hexdigest() == sha256
    nowhere = CliRunner().invoke(command, ["backup", str(tmp_path / "x"), "--data", str(tmp_path / "none")])
    assert (nowhere.exit_code, "is not there" in nowhere.stderr) == (1, True)
    assert not (tmp_path / "none").exists()
    unnamed = CliRunner().invoke(command, ["backup", "", "--data", str(database.parent)])
    assert (unnamed.exit_code, "name of the copy is empty" in unnamed.stderr) == (1, True)
    postgresql = CliRunner().invoke(command, [*words[:-1], "--database", "postgresql://palm@nowhere/palm"])
    assert (postgresql.exit_code, "pg_dump" in postgresql.stderr) == (1, True)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_links_takes_a_copy(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", no_links)
    file = tmp_path / "copies" / "copy.db"
    file.parent.mkdir()
    copied = copy_database(database, file)
    assert [path.name for path in file.parent.iterdir()] == ["copy.db"]
    assert copied.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    checked(file).close()
    other = file.with_name("other.db")
    # Another came while the copy was made.
    with pytest.raises(OperatorError, match="is not overwritten"):
        copy_database(database, other, other.touch)
    assert other.read_bytes() == b""
    assert {path.name for path in file.parent.iterdir()} == {"copy.db", "other.db"}


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, sqlite3.OperationalError])
def test_what_ends_it_leaves_nothing(database: Path, tmp_path: Path, end: type[BaseException]) -> None:
    file = tmp_path / "copies" / "copy.db"
    file.parent.mkdir()

    def stop() -> None:
        assert (file.parent / "copy.db.part").exists()
        raise end

    with pytest.raises(ServerError if end is sqlite3.OperationalError else end):
        copy_database(database, file, stop)
    assert list(file.parent.iterdir()) == []
    copy_database(database, file)
    checked(file).close()


def test_two_at_once_do_not_mix(database: Path, tmp_path: Path) -> None:
    file = tmp_path / "copy.db"

    def another() -> None:
        with pytest.raises(OperatorError, match="another backup"):
            copy_database(database, file)

    copy_database(database, file, another)
    checked(file).close()


def test_a_signal_takes_the_unfinished_file_with_it(database: Path, tmp_path: Path) -> None:
    file = tmp_path / "copies" / "copy.db"
    file.parent.mkdir()
    words = ["-m", "tools.palmctl.main", "cloud", "backup", str(file), "--data", str(database.parent)]
    with subprocess.Popen([sys.executable, *words], stderr=subprocess.DEVNULL) as process:
        until(lambda: process.poll() is not None or list(file.parent.iterdir()), every_s=0.001)
        process.send_signal(signal.SIGTERM)
        code = process.wait()
    # It may have been quicker than the signal.
    assert [path.name for path in file.parent.iterdir()] == (["copy.db"] if code == 0 else [])


@on_sqlite
def test_nobody_waits_for_it(running: Running, tmp_path: Path) -> None:
    """People are erased and made while one copy is taken step by step; all are answered before it ends."""
    partner = running.partner(running.palmctl("tenant", "create", "acme")["tenant_id"])
    partner.timeout = 30.0
    subjects = [
        post(partner, "/v1/subjects", {"external_ref": new_account()}).json()["subject_id"] for _ in range(4)
    ]
    answered, going_on = threading.Event(), threading.Event()

    def step() -> None:
        going_on.set()
        assert answered.wait(60)

    file = tmp_path / "copy.db"
    database = DataDirectory.of(running.data).database
    thread = threading.Thread(target=copy_database, args=(database, file, step))
    thread.start()
    assert going_on.wait(60)
    for subject_id in subjects:
        assert partner.delete(f"/v1/subjects/{subject_id}").status_code == 200
        assert post(partner, "/v1/subjects", {"external_ref": new_account()}).status_code == 201
    assert not file.exists()
    answered.set()
    thread.join()
    with closing(checked(file)) as copy:
        assert copy.execute("SELECT count(*) FROM subjects").fetchone() == (4,)
    until(lambda: not (running.data / "cloud.db-wal").stat().st_size)


def test_a_store_is_restored_from_it(tmp_path: Path) -> None:
    data = DataDirectory.of(tmp_path / "data")
    store, _ = data.open(1)
    store.write(lambda tx: tx.run(NONCE, nonce="kept"))
    copy_database(data.database, tmp_path / "again.db")
    store.close()

    def nonces(tx: Tx) -> list[str]:
        return [row["nonce"] for row in tx.all("SELECT nonce FROM nonces")]

    restored = open_store(tmp_path / "again.db")
    with restored.reading() as tx:
        assert nonces(tx) == ["kept"]
    restored.close()
