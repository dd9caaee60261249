"""The store, on both engines: what everything above it relies on."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from pathlib import Path
from typing import TypeVar

import psycopg
import pytest

from cloud_client.reference_server.errors import StoreUnavailable
from cloud_client.reference_server.store import migrations, schema
from cloud_client.reference_server.store.async_store import AsyncStore
from cloud_client.reference_server.store.base import MISSED, UNLOCKED, Change, CloudStore, Database, Tx
from cloud_client.reference_server.store.engines import connect_store, open_store
from tests.cloud_client.server.server_database import cluster, query
from tests.cloud_client.server.server_harness import Cloud

T = TypeVar("T")
INSERT = "INSERT INTO nonces (kid, nonce, expires_ms) VALUES ('k', :nonce, 1)"
COUNT = "SELECT count(*) FROM nonces"


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return tmp_path / "cloud.db" if request.param == "sqlite" else cluster().new_database()


@pytest.fixture
def store(database: Database) -> Iterator[CloudStore]:
    store = open_store(database)
    yield store
    store.close()


def reading(store: CloudStore, work: Callable[[Tx], T]) -> T:
    with store.reading() as tx:
        return work(tx)


def test_a_file_is_its_owners_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with closing(open_store(tmp_path / "cloud.db")) as store:
        store.write(lambda tx: tx.run(INSERT, nonce="a"))
        assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
            "cloud.db": 0o600,
            "cloud.db-wal": 0o600,
            "cloud.db-shm": 0o600,
        }


def test_all_or_nothing(store: CloudStore) -> None:
    def half_way(tx: Tx) -> None:
        tx.run(INSERT, nonce="a")
        raise KeyError

    with pytest.raises(KeyError):
        store.write(half_way)
    assert reading(store, lambda tx: tx.scalar(COUNT)) == 0
    assert store.write(lambda tx: tx.run(INSERT, nonce="b"), durable=False) == 1
    assert reading(store, lambda tx: tx.scalar(COUNT)) == 1


def test_every_way_to_read(store: CloudStore) -> None:
    with store.writing(lock=UNLOCKED) as tx:
        for number in range(2500):
            tx.run(INSERT, nonce=f"{number:04}")
        once_more = tx.run(f"{INSERT} ON CONFLICT DO NOTHING", nonce="0000")
    ordered = "SELECT nonce, expires_ms FROM nonces ORDER BY nonce"
    with store.reading() as tx:
        each = [row["nonce"] for row in tx.each(ordered)]
        row = tx.one(ordered)
        assert row is not None
        assert (once_more, len(each), each == sorted(each)) == (0, 2500, True)
        assert (dict(row), list(row.keys())) == ({"nonce": "0000", "expires_ms": 1}, ["nonce", "expires_ms"])
        assert [row["nonce"] for row in tx.all(ordered)] == each
        assert (tx.exists(ordered), tx.exists("SELECT 1 FROM nonces WHERE kid = ''")) == (True, False)
        assert (
            tx.one("SELECT 1 FROM nonces WHERE kid = ''"),
            tx.scalar("SELECT kid FROM nonces WHERE 1 = 0"),
        ) == (
            None,
            None,
        )


def test_an_older_database_is_brought_up(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = schema.MIGRATIONS
    monkeypatch.setattr(migrations, "MIGRATIONS", newest[:1])
    open_store(database).close()
    monkeypatch.setattr(migrations, "MIGRATIONS", (*newest, ("CREATE TABLE next (a BLOB)", "not SQL")))
    with pytest.raises((StoreUnavailable, psycopg.errors.SyntaxError)):
        open_store(database)
    monkeypatch.undo()
    # All of the failed one is undone, those before it as well; then what is right is done, once.
    versions = "SELECT version FROM schema_version ORDER BY version"
    for _ in range(2):
        store = open_store(database)
        with store.reading() as tx:
            assert [row["version"] for row in tx.all(versions)] == list(range(1, len(newest) + 1))
            assert not store.has_table(tx, "next")
        store.close()


def test_text_is_ordered_by_its_bytes(store: CloudStore) -> None:
    names = ["-", "0", "A", "Z", "_", "a", "é", "\N{OBJECT REPLACEMENT CHARACTER}", "\N{GRINNING FACE}"]
    with store.writing() as tx:
        for name in reversed(names):
            tx.run(INSERT, nonce=name)
        assert [row["nonce"] for row in tx.all("SELECT nonce FROM nonces ORDER BY nonce")] == names


def test_one_view_for_a_whole_read(database: Database, store: CloudStore) -> None:
    other = connect_store(database)
    with store.reading() as tx:
        assert tx.scalar(COUNT) == 0
        other.write(lambda writer: writer.run(INSERT, nonce="a"))
        assert tx.scalar(COUNT) == 0
    assert reading(store, lambda tx: tx.scalar(COUNT)) == 1
    other.close()


def test_what_is_read_before_a_write_holds_at_the_write(database: Database, store: CloudStore) -> None:
    """Counting and then inserting the count loses nothing, however many do the same."""

    def add(tx: Tx) -> int:
        return tx.run(INSERT, nonce=f"{tx.scalar(COUNT):04}")

    def many(_: int) -> None:
        mine = connect_store(database)
        for _ in range(25):
            mine.write(add, durable=False, lock="a tenant")
        mine.close()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(many, range(4)))
    assert reading(store, lambda tx: tx.scalar("SELECT max(nonce) FROM nonces")) == "0099"


def test_the_whole_waits_for_every_tenant(database: Database, store: CloudStore) -> None:
    other = connect_store(database)
    began, order = threading.Event(), []

    def whole() -> None:
        began.set()
        with other.writing():
            order.append("whole")

    thread = threading.Thread(target=whole)
    with store.writing(lock="a tenant"):
        thread.start()
        began.wait()
        thread.join(0.1)
        order.append("tenant")
    thread.join()
    assert order == ["tenant", "whole"]
    other.close()


async def test_changes_of_another_connection_are_heard(database: Database) -> None:
    first = [] if isinstance(database, Path) else [MISSED]  # either way: look at everything once
    store = AsyncStore(database)
    async with aclosing(store.changes()) as changes:
        assert await anext(changes) == first
        async with asyncio.timeout(10):
            waiting = asyncio.ensure_future(anext(changes))
            await asyncio.to_thread(announce, database)
            heard = await waiting
    store.close()
    assert heard == ([] if isinstance(database, Path) else [Change("device", ("t", "d"))])


def announce(database: Database) -> None:
    other = connect_store(database)
    with other.writing() as tx:
        tx.run(INSERT, nonce="a")
        tx.announce("device", "t", "d")
    other.close()


def test_connections_that_were_cut_are_made_anew(tmp_path: Path) -> None:
    url = cluster().new_database()
    cloud = Cloud(tmp_path, database=url)
    partner = cloud.new_tenant().partner()
    for _ in range(4):
        assert partner.send("GET", "/v1/subjects").status_code == 200
    cut = """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()"""
    assert query(url, cut)[0][0] >= 2
    assert [partner.send("GET", "/v1/subjects").status_code for _ in range(8)] == [200] * 8
    assert partner.send("POST", "/v1/subjects", {"external_ref": "p"}).status_code == 201
    cloud.close()
