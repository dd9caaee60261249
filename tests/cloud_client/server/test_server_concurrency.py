"""Requests that meet: each test starts them at once, on threads, against one running server."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager

import httpx
import pytest

from cloud_client.reference_server.ops.data_directory import DataDirectory
from cloud_client.reference_server.store.engines import connect_store
from tests.cloud_client.server.server_process import Board, Running, enrol, enrol_person, new_account, post
from tests.palmctl import PALMCTL

_MANY = 8


@pytest.fixture
def tenant_id(running: Running) -> str:
    made: str = running.palmctl("tenant", "create", "acme")["tenant_id"]
    return made


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(_MANY) as pool:
        yield pool


def test_one_key_is_executed_once(running: Running, tenant_id: str, threads: ThreadPoolExecutor) -> None:
    partner = running.partner(tenant_id)

    def create(_: int) -> httpx.Response:
        return partner.post("/v1/subjects", json={"external_ref": "p"}, headers={"Idempotency-Key": "k"})

    answers = list(threads.map(create, range(_MANY)))
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert len({answer.json()["subject_id"] for answer in answers if answer.status_code == 201}) == 1
    executed = [answer for answer in answers if answer.headers.get("idempotent-replayed") == "false"]
    assert len(executed) == 1
    assert len(partner.get("/v1/subjects").json()["data"]) == 1


def test_one_person_is_erased_once(running: Running, tenant_id: str, threads: ThreadPoolExecutor) -> None:
    partner = running.partner(tenant_id)
    board = Board(running, tenant_id)
    subject_id = enrol(partner, board)
    answers = list(threads.map(lambda _: partner.delete(f"/v1/subjects/{subject_id}"), range(_MANY)))
    assert sorted(answer.status_code for answer in answers) == [200] + [404] * (_MANY - 1)
    deltas = board.send("GET", "/v1/gallery/deltas?epoch=1&after_seq=0").json()["data"]
    assert [delta["op"] for delta in deltas] == ["noop", "tombstone"]


def test_erasing_during_enrolments(running: Running, tenant_id: str, threads: ThreadPoolExecutor) -> None:
    partner = running.partner(tenant_id)
    board = Board(running, tenant_id)
    ids = [post(partner, "/v1/subjects", {"external_ref": f"p{n}"}).json()["subject_id"] for n in range(4)]

    def finish(subject_id: str) -> int:
        return enrol_person(partner, board, subject_id)

    def erase(subject_id: str) -> int:
        return partner.delete(f"/v1/subjects/{subject_id}").status_code

    enrolled = [threads.submit(finish, subject_id) for subject_id in ids]
    erased = [threads.submit(erase, subject_id) for subject_id in ids]
    assert [future.result() for future in erased] == [200] * 4
    assert {future.result() for future in enrolled} <= {201, 202, 403, 404}
    snapshot = board.send("GET", "/v1/gallery/snapshot").json()
    assert (snapshot["data"], snapshot["head"]["head_obj"]["count"]) == ([], 0)


def test_four_writers_on_one_store(running: Running, tenant_id: str, threads: ThreadPoolExecutor) -> None:
    """Commands write next to the server; no write is lost, and none is refused because the store is busy."""
    partner = running.partner(tenant_id)

    def through_server(_: int) -> int:
        return post(partner, "/v1/subjects", {"external_ref": new_account()}).status_code

    words = ["token", "create", "--tenant", tenant_id, "--mode", "test", *running.where]
    beside_it = [
        subprocess.Popen(
            [*PALMCTL, "cloud", *words, "--device-id", f"d{number}"],
            stdout=subprocess.DEVNULL,
        )
        for number in range(3)
    ]
    statuses: list[int] = []
    while any(process.poll() is None for process in beside_it):
        statuses += threads.map(through_server, range(_MANY))
    assert [process.wait() for process in beside_it] == [0, 0, 0]
    # The key's own limit is the only thing that may say no.
    assert set(statuses) <= {201, 429}
    assert statuses.count(201) >= _MANY


def test_data_outlives_a_kill(running: Running, tenant_id: str) -> None:
    partner = running.partner(tenant_id)
    made = post(partner, "/v1/subjects", {"external_ref": "kept"}).json()
    running.process.kill()
    running.process.wait()
    words = ("--tenant", tenant_id, "--mode", "test", made["subject_id"])
    assert running.palmctl("subject", "block", *words)["external_ref"] == "kept"


def test_revoking_a_device_during_its_uploads(
    running: Running, tenant_id: str, threads: ThreadPoolExecutor
) -> None:
    """Each batch is taken whole or refused whole, and none is taken after the revocation was answered."""
    partner = running.partner(tenant_id)
    boards = [Board(running, tenant_id, f"gate-{number}") for number in range(4)]
    batches = [[board.batch(25) for _ in range(4)] for board in boards]

    def upload(number: int) -> list[int]:
        answers = [boards[number].send("POST", "/v1/verdicts/batch", batch) for batch in batches[number]]
        return [answer.status_code for answer in answers]

    def revoke(number: int) -> int:
        return post(partner, f"/v1/devices/gate-{number}/revoke", {"reason": "stolen"}).status_code

    uploaded = [threads.submit(upload, number) for number in range(4)]
    revoked = [threads.submit(revoke, number) for number in range(4)]
    assert [future.result() for future in revoked] == [200] * 4
    for number, future in enumerate(uploaded):
        statuses = future.result()
        taken = statuses.count(200)
        # Once refused it stays refused.
        assert statuses == [200] * taken + [401] * (4 - taken)
        listed = partner.get("/v1/verdicts", params={"device_id": f"gate-{number}", "limit": 200}).json()
        assert len(listed["data"]) == 25 * taken
        late = boards[number].send("POST", "/v1/verdicts/batch", batches[number][0])
        assert late.status_code == 401
        status = boards[number].send("GET", "/v1/devices/self/status").json()["device_status_obj"]
        assert status["wipe"]["reason"] == "stolen"


def test_four_processes_lose_no_update(running: Running, tenant_id: str) -> None:
    """Writers of one row next to the server: every one of their changes is there in the end."""
    count = 60
    # Each step reads, then writes what it has read and one: a lost update would show in the sum.
    program = (
        "import sys\n"
        "from cloud_client.reference_server.ops.data_directory import DataDirectory\n"
        "from pathlib import Path\n"
        "data, database, tenant, count = sys.argv[1:]\n"
        "store, _ = DataDirectory.of(Path(data), database or None).open(1)\n"
        "def step(tx):\n"
        "    row = tx.one('SELECT name FROM tenants WHERE tenant_id = :t', t=tenant)\n"
        "    name = str(int(row['name']) + 1)\n"
        "    tx.run('UPDATE tenants SET name = :n WHERE tenant_id = :t', n=name, t=tenant)\n"
        "for _ in range(int(count)):\n"
        "    store.write(step, lock=tenant)\n"
        "print('done')\n"
    )
    store, _ = DataDirectory.of(running.data, running.database).open(1)
    with store.writing() as tx:
        tx.run("UPDATE tenants SET name = '0' WHERE tenant_id = :tenant_id", tenant_id=tenant_id)
    words = [str(running.data), running.database or "", tenant_id, str(count)]
    writers = [
        subprocess.Popen([sys.executable, "-c", program, *words], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    partner = running.partner(tenant_id)
    statuses = []
    while any(writer.poll() is None for writer in writers):
        statuses.append(post(partner, "/v1/subjects", {"external_ref": new_account()}).status_code)
    assert [writer.communicate()[0] for writer in writers] == ["done\n"] * 4
    assert set(statuses) <= {201, 429}
    with store.reading() as tx:
        name = tx.scalar("SELECT name FROM tenants WHERE tenant_id = :tenant_id", tenant_id=tenant_id)
    store.close()
    assert name == str(4 * count)


def test_a_key_in_use_is_told_so(running: Running, tenant_id: str, threads: ThreadPoolExecutor) -> None:
    """While the first request waits for the store, the second hears 409; afterwards it gets the answer."""
    partner = running.partner(tenant_id)
    partner.timeout = httpx.Timeout(20)
    headers = {"Idempotency-Key": "held"}

    def create() -> httpx.Response:
        return partner.post("/v1/subjects", json={"external_ref": "held"}, headers=headers)

    with stopped_writers(running, tenant_id):
        pending = {threads.submit(create), threads.submit(create)}
        answered = next(as_completed(pending))
    second, first = answered.result(), (pending - {answered}).pop().result()
    assert second.json()["code"] == "idempotency_in_progress"
    assert second.json()["retryable"] is True
    assert first.status_code == 201
    again = create()
    assert (again.headers["idempotent-replayed"], again.json()) == ("true", first.json())


@contextmanager
def stopped_writers(running: Running, tenant_id: str) -> Iterator[None]:
    """Another process writes to this tenant for as long as this lasts."""
    store = connect_store(DataDirectory.of(running.data, running.database).database)
    with store.writing(lock=tenant_id):
        yield
    store.close()
