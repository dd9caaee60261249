"""PostgreSQL: two server processes over one database, a database that goes away, and moving there.

The whole suite runs on PostgreSQL with PALM_TEST_ENGINE=postgresql; what only PostgreSQL can show is here and
runs whenever PostgreSQL is installed.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import psycopg
import pytest
from click.testing import CliRunner

from cloud_client.http_signature import new_nonce, sign_request
from cloud_client.reference_server.domain.gallery.palm_index import PalmProbe
from cloud_client.reference_server.domain.gallery.waiters import Woken
from cloud_client.reference_server.domain.tenancy.callers import DeviceCaller
from cloud_client.reference_server.errors import OperatorError, StoreUnavailable
from cloud_client.reference_server.ops import port
from cloud_client.reference_server.ops.data_directory import DataDirectory
from cloud_client.reference_server.store.engines import connect_store, open_store
from cloud_client.reference_server.store.postgresql import translated
from cloud_client.reference_server.web.api import changes
from tests.cloud_client.server.server_database import Cluster, cluster, everything_in, query
from tests.cloud_client.server.server_harness import Cloud, Partner, SimDevice, Tenant, decision, vector
from tests.cloud_client.server.server_process import Board, Running, enrol, new_account, post, start
from tests.cloud_client.server.test_server_lists import Noted
from tests.palmctl import printed
from tests.until import until
from tools.palmctl.main import main

Pair = tuple[Running, Running]


@pytest.fixture(scope="module")
def postgresql() -> Cluster:
    return cluster()


@pytest.fixture(scope="module")
def servers(postgresql: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two processes with the same keys over one database."""
    folder = tmp_path_factory.mktemp("two")
    url = postgresql.new_database()
    # Both at once: each finds an empty database and makes the tables, or waits for the other to have done it.
    with ThreadPoolExecutor(2) as threads:
        pair = list(threads.map(lambda name: start(folder / "data", folder / name, url), ("a.log", "b.log")))
    with pair[0] as one, pair[1] as other:
        yield one, other


@pytest.fixture
def tenant_id(servers: Pair) -> str:
    made: str = servers[0].palmctl("tenant", "create", "acme")["tenant_id"]
    return made


def at(server: Running, partner: httpx.Client) -> httpx.Client:
    """The same partner at another server."""
    return httpx.Client(base_url=server.url, headers=partner.headers, trust_env=False, timeout=20)


def test_a_waiting_device_hears_of_what_other_processes_do(servers: Pair, tenant_id: str) -> None:
    here, there = servers
    partner, board = here.partner(tenant_id), Board(here, tenant_id)
    waiting = "/v1/gallery/deltas?epoch=1&after_seq={}&wait_s=20"
    with ThreadPoolExecutor(2) as threads:
        pending = threads.submit(board.at(there).send, "GET", waiting.format(0))
        subject_id = enrol(partner, board)
        assert [delta["op"] for delta in pending.result(10).json()["data"]] == ["upsert"]
        # A command, which is a third process.
        pending = threads.submit(board.at(there).send, "GET", waiting.format(1))
        here.palmctl("subject", "block", "--tenant", tenant_id, "--mode", "test", subject_id)
        assert [delta["op"] for delta in pending.result(10).json()["data"]] == ["suspend"]
        # A newer wait at one process ends the older one at the other.
        older = threads.submit(board.at(there).send, "GET", waiting.format(2))
        began_s = time.monotonic()
        while not older.done():
            board.send("GET", waiting.format(2).replace("wait_s=20", "wait_s=1"))
        assert older.result().json()["data"] == []
        assert time.monotonic() - began_s < 15
        # Revocation ends a wait with 401.
        pending = threads.submit(board.at(there).send, "GET", waiting.format(2))
        post(partner, "/v1/devices/gate-1/revoke", {"reason": "lost"}).raise_for_status()
        assert pending.result(10).status_code == 401


def test_one_key_is_executed_once(servers: Pair, tenant_id: str) -> None:
    partner = servers[0].partner(tenant_id)
    clients = [partner, at(servers[1], partner)]

    def create(number: int) -> httpx.Response:
        body = {"external_ref": "p"}
        return clients[number % 2].post("/v1/subjects", json=body, headers={"Idempotency-Key": "k"})

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(create, range(16)))
    assert {answer.status_code for answer in answers} <= {201, 409}
    executed = [answer for answer in answers if answer.headers.get("idempotent-replayed") == "false"]
    assert len(executed) == 1
    assert len({answer.json()["subject_id"] for answer in answers if answer.status_code == 201}) == 1
    assert create(0).content == create(1).content == executed[0].content


def test_one_person_is_erased_once(servers: Pair, tenant_id: str) -> None:
    partner, board = servers[0].partner(tenant_id), Board(servers[0], tenant_id)
    clients = [partner, at(servers[1], partner)]
    subject_id = enrol(partner, board)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: clients[n % 2].delete(f"/v1/subjects/{subject_id}"), range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] + [404] * 7
    deltas = board.at(servers[1]).send("GET", "/v1/gallery/deltas?epoch=1&after_seq=0").json()["data"]
    assert [delta["op"] for delta in deltas] == ["noop", "tombstone"]


def test_enrolments_at_both_keep_one_chain(servers: Pair, tenant_id: str) -> None:
    partner, board = servers[0].partner(tenant_id), Board(servers[0], tenant_id)
    pairs = [(partner, board), (at(servers[1], partner), board.at(servers[1]))]
    # The same palm for every person: the second is a duplicate, whichever process enrols it.
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: enrol_anybody(*pairs[n % 2]), range(6)))
    answer = board.send("GET", "/v1/gallery/deltas?epoch=1&after_seq=0").json()
    assert [delta["seq"] for delta in answer["data"]] == [1]
    assert answer["head"]["head_obj"]["count"] == 1


def enrol_anybody(partner: httpx.Client, board: Board) -> None:
    try:
        enrol(partner, board)
    except AssertionError:
        return  # 202: held for review


def test_a_rate_limit_holds_for_all_processes(servers: Pair, tenant_id: str) -> None:
    partner = servers[0].partner(tenant_id)
    clients = itertools.cycle([partner, at(servers[1], partner)])
    began_s = time.monotonic()
    with ThreadPoolExecutor(4) as threads:
        answers = list(
            threads.map(
                lambda client: post(client, "/v1/subjects", {"external_ref": new_account()}),
                itertools.islice(clients, 90),
            )
        )
    took_s = time.monotonic() - began_s
    done = sum(1 for answer in answers if answer.status_code == 201)
    assert {answer.status_code for answer in answers} <= {201, 429}
    assert min(40, 90) <= done <= 40 + 20 * took_s + 1
    refused = [answer for answer in answers if answer.status_code == 429]
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)


def test_a_nonce_is_good_once_at_all_processes(servers: Pair, tenant_id: str) -> None:
    board = Board(servers[0], tenant_id)
    authority, path = board.url.removeprefix("http://"), "/v1/devices/self/status"
    headers = sign_request(
        "GET",
        authority,
        path,
        "",
        None,
        key=board.http_key,
        created_s=int(time.time()),
        nonce=new_nonce(),
    ) | {"Host": authority}
    answers = [
        httpx.get(server.url + path, headers=headers, trust_env=False).status_code for server in servers
    ]
    assert answers == [200, 401]


def test_a_revoked_key_opens_nothing_anywhere(servers: Pair, tenant_id: str) -> None:
    partner = servers[0].partner(tenant_id)
    other = at(servers[1], partner)
    assert other.get("/v1/subjects").status_code == 200
    key_id = str(partner.headers["Authorization"]).split("_")[2]
    servers[0].palmctl("key", "revoke", "--tenant", tenant_id, key_id)
    assert [client.get("/v1/subjects").status_code for client in (partner, other)] == [401, 401]


def test_listening_outlives_a_restart_of_the_database(
    postgresql: Cluster, servers: Pair, tenant_id: str
) -> None:
    here, there = servers
    partner, board = here.partner(tenant_id), Board(here, tenant_id)

    def wait() -> httpx.Response:
        while True:
            answer = board.at(there).send("GET", "/v1/gallery/deltas?epoch=1&after_seq=0&wait_s=25")
            if answer.status_code != 503:  # the database went away before it had begun to wait
                return answer

    with ThreadPoolExecutor(1) as threads:
        pending = threads.submit(wait)
        synced = f"SELECT 1 FROM devices WHERE tenant_id = '{tenant_id}' AND synced_ms IS NOT NULL"
        while not query(str(here.database), synced):
            pass
        postgresql.stop()
        postgresql.start()
        enrol(partner, board)
        assert [delta["op"] for delta in pending.result(15).json()["data"]] == ["upsert"]


@pytest.fixture
def on_postgresql(postgresql: Cluster, tmp_path: Path) -> Iterator[Cloud]:
    cloud = Cloud(tmp_path / "data", database=postgresql.new_database())
    yield cloud
    cloud.close()


def test_after_a_loss_of_its_listening_connection_a_process_looks_at_everything(
    on_postgresql: Cloud, tmp_path: Path
) -> None:
    """A device that waits is woken, and no palm stays in memory whose erasure may not have been heard."""
    tenant, service = on_postgresql.new_tenant(), on_postgresql.api.service
    partner, device, environment = tenant.partner(), tenant.device(), tenant.environment("test")
    device.enrol(partner, partner.person()["subject_id"])
    url = str(on_postgresql.data.database)
    other = Cloud(tmp_path / "data", database=url)
    listening = "FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"

    def reads() -> int:
        """How many palms a search has to read."""
        with closing(connect_store(url)) as store, store.reading() as tx:
            noted = Noted(tx)
            probe = PalmProbe("nobody", (vector(9),), 0.9)
            service.palms.search(noted, service.vault, environment, probe)
        return sum("vector_ct" in sql for sql, _ in noted.asked)

    def unheard() -> None:
        assert query(url, f"SELECT pg_terminate_backend(pid) {listening}") == [(True,)]
        elsewhere = Partner(other, partner.api_key, partner.key_id)
        elsewhere.post(f"/v1/devices/{device.device_id}/revoke", {"reason": "lost"}, 200)

    async def run() -> Woken:
        async with changes.followed(service, on_postgresql.api.store):
            await asyncio.to_thread(until, lambda: query(url, f"SELECT 1 {listening}"))
            await asyncio.to_thread(until, lambda: reads() == 0)  # it begins with a loss
            async with service.waiters.at_work:
                turn = service.waiters.enter(DeviceCaller(device.device_id, environment, "access"))
                service.waiters.look(turn)
                cut = asyncio.create_task(asyncio.to_thread(unheard))
                woken = await service.waiters.wait(turn, 15)
                await cut
            return woken

    assert on_postgresql.run(run()) is Woken.CHANGED
    assert reads() == 2
    other.close()


def test_a_database_that_is_away_is_a_503(postgresql: Cluster, on_postgresql: Cloud) -> None:
    tenant = on_postgresql.new_tenant()
    partner = tenant.partner()
    postgresql.stop()
    try:
        for method, path, body in (
            ("GET", "/v1/subjects", None),
            ("POST", "/v1/subjects", {"external_ref": "p"}),
        ):
            response = partner.send(method, path, body, key="k")
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        with pytest.raises(StoreUnavailable, match="database: "):
            tenant.partner()
        assert on_postgresql.send("GET", "/v1/health").status_code in {200, 503}
    finally:
        postgresql.start()
    # Every connection is made again, and nothing was half-written.
    assert [partner.send("GET", "/v1/subjects").status_code for _ in range(8)] == [200] * 8
    assert partner.send("POST", "/v1/subjects", {"external_ref": "p"}, key="k").status_code == 201


def test_mail_is_listed_while_another_tenant_writes(on_postgresql: Cloud) -> None:
    writer, tenant = on_postgresql.new_tenant(), on_postgresql.new_tenant()
    partner, device = tenant.partner(), tenant.device()
    partner.post(f"/v1/devices/{device.device_id}/revoke", {"reason": "other"}, 200)
    on_postgresql.operate(lambda tx, *_: tx.run("UPDATE inbox SET listed = 0"))
    with closing(connect_store(on_postgresql.data.database)) as store, store.writing(lock=writer.tenant_id):
        page = partner.get(f"/v1/devices/{device.device_id}/inbox")
    assert page["data"]
    assert on_postgresql.operate(lambda tx, *_: tx.exists("SELECT 1 FROM inbox WHERE listed = 0")) is False


def test_an_erased_person_is_in_no_table_and_readable_in_no_file(
    postgresql: Cluster, on_postgresql: Cloud
) -> None:
    tenant = on_postgresql.new_tenant()
    partner, device = tenant.partner(), tenant.device()
    person = partner.person("zq-needle-ref", cpf="52998224725", onboard_ref="zq-needle-onboard")
    device.enrol(partner, person["subject_id"])
    url = str(on_postgresql.data.database)
    where = f"WHERE subject_id = '{person['subject_id']}'"
    (wrapped_key,) = query(url, f"SELECT person_key_ct FROM subjects {where}")[0]
    assert wrapped_key in everything_in(url)
    partner.delete(f"/v1/subjects/{person['subject_id']}")
    tables = [
        name
        for (name,) in query(
            url,
            """
        SELECT table_name FROM information_schema.columns
        WHERE column_name = 'subject_id' AND table_schema = 'public'""",
        )
    ]
    assert {name for name in tables if query(url, f"SELECT 1 FROM {name} {where}")} == {"erasures"}
    assert wrapped_key not in everything_in(url)
    # The files still hold deleted rows and the log: nothing in them was ever plain.
    needles = [b"zq-needle", b"52998224725", vector(2)[:64], vector(3)[:64]]
    for path in postgresql.directory.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not [needle for needle in needles if needle in content], path


def filled(cloud: Cloud) -> tuple[Tenant, SimDevice, str]:
    """A store with something in most tables; an API key of its tenant."""
    tenant = cloud.new_tenant()
    dbd = tenant.add_dbd()
    partner, device = tenant.partner(), tenant.device()
    people = [partner.person(f"p-{number}", onboard_ref="tok") for number in range(3)]
    for seed, person in enumerate(people, 1):
        device.enrol(partner, person["subject_id"], seed)
    verdict = device.verdict(people[0]["subject_ref"])
    device.upload({"signed_verdict": verdict, "signed_decision": decision(verdict, dbd)})
    partner.delete(f"/v1/subjects/{people[2]['subject_id']}")
    device.get("/v1/gallery/snapshot")
    return tenant, device, partner.api_key


def test_moving_from_sqlite_loses_nothing(postgresql: Cluster, tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, database=f"sqlite:///{tmp_path / 'cloud.db'}")
    tenant, device, api_key = filled(cloud)
    reads = ("/v1/subjects", "/v1/verdicts", "/v1/devices")
    headers = {"Authorization": f"Bearer {api_key}"}
    stream = device.get("/v1/gallery/deltas?epoch=1&after_seq=0")
    before = [cloud.send("GET", path, headers=headers).json() for path in reads]
    cloud.close()
    url = postgresql.new_database()
    words = ["cloud", "port-db", "--data", str(tmp_path), "--database", url]
    with cloud.data.served():
        with_a_server = CliRunner().invoke(main, words)
    assert (with_a_server.exit_code, with_a_server.stdout) == (1, "")
    assert "stop it first" in with_a_server.stderr
    told = printed(*words)
    assert told["tables"]["subjects"]["rows"] == 2
    assert told["tables"]["deltas"]["rows"] == stream["head"]["head_obj"]["seq"]
    assert told["rows"] == sum(table["rows"] for table in told["tables"].values())
    moved = Cloud(tmp_path, database=url)
    moved.clock.ms = cloud.clock.ms
    device.cloud = moved
    assert [moved.send("GET", path, headers=headers).json() for path in reads] == before
    after = device.get("/v1/gallery/deltas?epoch=1&after_seq=0")
    assert after["data"] == stream["data"]
    device.enrol(Tenant(moved, tenant.tenant_id).partner(), before[0]["data"][0]["subject_id"], 9)
    moved.close()
    again = CliRunner().invoke(main, words)
    assert (again.exit_code, again.stdout) == (1, "")
    assert "not empty" in again.stderr


def test_a_copy_that_is_not_equal_is_not_kept(
    postgresql: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cloud(tmp_path, database=f"sqlite:///{tmp_path / 'cloud.db'}").close()
    url = postgresql.new_database()
    monkeypatch.setattr(port, "prove", lambda table, _tx: port.Proof(7, "0" * 64))
    with pytest.raises(OperatorError, match="nothing was kept"):
        port.port(tmp_path / "cloud.db", url)
    assert query(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]
    with pytest.raises(OperatorError, match="not there"):
        port.port(tmp_path / "other.db", url)


def test_keys_of_another_store_are_refused(on_postgresql: Cloud, tmp_path: Path) -> None:
    other = DataDirectory(tmp_path / "other", on_postgresql.data.database)
    with pytest.raises(OperatorError, match="copy secrets/"):
        other.open(0)


def test_a_newer_schema_is_refused(on_postgresql: Cloud) -> None:
    url = str(on_postgresql.data.database)
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO schema_version (version) VALUES (999)")
    with pytest.raises(OperatorError, match="schema version 999"):
        open_store(url)


def test_a_migration_may_take_long(postgresql: Cluster) -> None:
    url = postgresql.new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in (
            "CREATE TABLE limits (statement_timeout TEXT)",
            """CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS
               $$ BEGIN INSERT INTO limits VALUES (current_setting('statement_timeout')); END $$""",
            "CREATE EVENT TRIGGER note ON ddl_command_start EXECUTE FUNCTION note()",
        ):
            connection.execute(statement)
    with closing(open_store(url)) as store:
        assert query(url, "SELECT DISTINCT statement_timeout FROM limits") == [("0",)]
        # What comes after it has its limit again.
        assert store.read(lambda tx: tx.scalar("SHOW statement_timeout")) == "1min"


def test_limits_hold_after_the_clock_of_the_database_was_put_back(
    postgresql: Cluster, tmp_path: Path
) -> None:
    cloud = Cloud(tmp_path / "data", rate_scale=1.0, database=postgresql.new_database())
    partner = cloud.new_tenant().partner()
    cloud.clock.forward(s=86_400)
    assert partner.send("GET", "/v1/devices").status_code == 200
    cloud.clock.forward(s=-86_400)
    answers = [partner.send("GET", "/v1/devices") for _ in range(201)]
    assert [answer.status_code for answer in answers] == [200] * 199 + [429] * 2
    cloud.clock.forward(s=int(answers[-1].headers["retry-after"]))
    assert partner.send("GET", "/v1/devices").status_code == 200
    cloud.close()


def test_two_that_make_the_same_at_once(on_postgresql: Cloud) -> None:
    """Under different locks the second finds out at the write, and starts again with the first's in sight."""
    tenant = on_postgresql.new_tenant()
    store = connect_store(on_postgresql.data.database)
    runs = []

    def work(tx: object) -> bool:
        runs.append(1)
        seen: bool = tx.exists("SELECT 1 FROM tenants WHERE tenant_id = 't'")  # type: ignore[attr-defined]
        if not seen:
            query(
                str(on_postgresql.data.database),
                f"""INSERT INTO tenants SELECT 't', name, tenant_key_ct, terms_version, duplicate_cosine,
                    created_ms FROM tenants WHERE tenant_id = '{tenant.tenant_id}' RETURNING 1""",
            )
            tx.run(  # type: ignore[attr-defined]
                """INSERT INTO tenants SELECT 't', name, tenant_key_ct, terms_version, duplicate_cosine,
                   created_ms FROM tenants WHERE tenant_id = :from_id""",
                from_id=tenant.tenant_id,
            )
        return seen

    assert store.write(work, lock="another")
    assert len(runs) == 2
    store.close()


def test_parameters_are_translated() -> None:
    assert (
        translated("SELECT :a_b, 'x%' WHERE c = :d1::text") == "SELECT %(a_b)s, 'x%%' WHERE c = %(d1)s::text"
    )


def test_unusable_databases(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="postgresql://"):
        DataDirectory.of(tmp_path, "mysql://x")
    with pytest.raises(StoreUnavailable):
        DataDirectory.of(tmp_path, f"postgresql:///x?host={tmp_path}").open(0)
    with pytest.raises(OperatorError, match="no URL of PostgreSQL") as refused:
        DataDirectory.of(tmp_path, "postgresql://u:secret@h/d?nonsense=1").open(0)
    assert "secret" not in str(refused.value)
    assert "secret" not in repr(DataDirectory.of(tmp_path, "postgresql://u:secret@h/d"))
