"""An erasure is answered when it is committed; the write-ahead log is emptied as soon as readers let it."""

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from cloud_client.reference_server.store.async_store import AsyncStore
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.store.sqlite import SqliteStore
from tests.cloud_client.server.server_database import on_sqlite
from tests.cloud_client.server.server_process import Running, new_account, post, start
from tests.until import run, until

pytestmark = on_sqlite


_READER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
print(connection.execute("SELECT count(*) FROM subjects").fetchone(), flush=True)
sys.stdin.read()
"""


_HOLDER = f"""{_READER.rpartition("sys.stdin.read()")[0]}
sys.stdin.readline()
connection.execute("COMMIT")
print("ended", flush=True)
sys.stdin.read()
"""


@contextmanager
def long_reader(running: Running) -> Iterator[None]:
    """A reader of the database that does not end.

    In a separate process: this one opens and closes the files, which would take SQLite's locks away.
    """
    words = [sys.executable, "-c", _READER, str(running.data / "cloud.db")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield
        process.communicate()


def person(partner: httpx.Client) -> str:
    subject_id: str = post(partner, "/v1/subjects", {"external_ref": new_account()}).json()["subject_id"]
    return subject_id


def wal(running: Running) -> Path:
    return running.data / "cloud.db-wal"


def await_emptied(running: Running) -> None:
    until(lambda: not wal(running).stat().st_size)


def log_lacks(running: Running, key: bytes) -> bool:
    return key not in wal(running).read_bytes()


def stored_key(running: Running, subject_id: str) -> bytes:
    with closing(sqlite3.connect(running.data / "cloud.db")) as connection:
        row = connection.execute(
            "SELECT person_key_ct FROM subjects WHERE subject_id = ?", (subject_id,)
        ).fetchone()
    key: bytes = row[0]
    return key


@pytest.fixture
def partner(running: Running) -> httpx.Client:
    partner = running.partner(running.palmctl("tenant", "create", "acme")["tenant_id"])
    partner.timeout = httpx.Timeout(30)
    return partner


def test_a_long_reader_delays_no_answer(running: Running, partner: httpx.Client) -> None:
    def erase(subject_id: str) -> float:
        began = time.monotonic()
        answer = partner.delete(f"/v1/subjects/{subject_id}")
        assert (answer.status_code, answer.json()["subject_id"]) == (200, subject_id)
        return time.monotonic() - began

    subjects = [person(partner) for _ in range(9)]
    keys = [stored_key(running, subject_id) for subject_id in subjects]
    alone = sorted(erase(subject_id) for subject_id in subjects[:4])
    await_emptied(running)
    with long_reader(running):
        together = sorted(erase(subject_id) for subject_id in subjects[4:8])
        # Writers go on, too.
        person(partner)
        assert wal(running).stat().st_size > 0
    assert together[1] < 5 * alone[1] + 0.1
    await_emptied(running)
    files = b"".join(path.read_bytes() for path in running.data.glob("cloud.db*"))
    assert [key in files for key in keys] == [False] * 8 + [True]


def test_what_a_server_leaves_the_next_one_does(tmp_path: Path) -> None:
    running = start(tmp_path / "data", tmp_path / "one.log", None)
    try:
        partner = running.partner(running.palmctl("tenant", "create", "acme")["tenant_id"])
        subject_id = person(partner)
        key = stored_key(running, subject_id)
        with long_reader(running):
            partner.delete(f"/v1/subjects/{subject_id}").raise_for_status()
            running.process.kill()
            running.process.communicate()
            files = b"".join(path.read_bytes() for path in running.data.glob("cloud.db*"))
            assert key in files
            running = start(running.data, tmp_path / "two.log", None)
            assert wal(running).stat().st_size > 0
        await_emptied(running)
        files = b"".join(path.read_bytes() for path in running.data.glob("cloud.db*"))
        assert key not in files
    finally:
        running.process.kill()
        running.process.communicate()


def test_a_server_that_stops_tries_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader has just ended, and its process goes on to hold the database: the log would stay as it is."""
    path, content = tmp_path / "cloud.db", b"what was deleted"
    purge, tries = SqliteStore.purge, list[bool]()

    def tried(store: SqliteStore) -> bool:
        tries.append(purge(store))
        return tries[-1]

    monkeypatch.setattr(SqliteStore, "purge", tried)
    store = AsyncStore(path)

    def write(tx: Tx) -> None:
        tx.run("INSERT INTO key_marks (name, mark) VALUES ('k', :content)", content=content.decode())
        tx.purge_after_commit = True

    words = [sys.executable, "-c", _HOLDER, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline()
        run(lambda: store.write(write))
        until(lambda: tries.count(False) > 5)  # by now half a second passes between two of them
        process.stdin.write("end\n")
        process.stdin.flush()
        assert process.stdout.readline()
        store.close()
        left = path.with_name("cloud.db-wal").read_bytes()
        process.communicate()
    assert content not in left


def test_the_log_is_emptied_under_load(running: Running, partner: httpx.Client) -> None:
    """Short reads and writes that never pause do not hold it off."""
    ended = threading.Event()
    reading = (
        "import sqlite3, sys\n"
        "c = sqlite3.connect(sys.argv[1])\n"
        "while True: c.execute('SELECT count(*) FROM subjects').fetchone()\n"
    )

    def load(number: int) -> None:
        with httpx.Client(base_url=running.url, headers=partner.headers, trust_env=False) as mine:
            while not ended.is_set():
                mine.get("/v1/subjects?limit=20").raise_for_status()
                if number == 0:
                    person(mine)

    threads = [threading.Thread(target=load, args=(number,)) for number in range(2)]
    reader = subprocess.Popen([sys.executable, "-c", reading, str(running.data / "cloud.db")])
    try:
        for thread in threads:
            thread.start()
        for _ in range(3):
            subject_id = person(partner)
            key = stored_key(running, subject_id)
            partner.delete(f"/v1/subjects/{subject_id}").raise_for_status()
            until(partial(log_lacks, running, key))
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        reader.kill()
        reader.wait()
