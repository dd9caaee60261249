"""Requests that meet: each test starts them at once, on threads, against one running server."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from server_process import Board, Running, enrol, enrol_person, post

from cloud_client.http_signature import new_nonce

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
    """Commands write beside the server; nobody loses, nobody is told that the store is busy."""
    partner = running.partner(tenant_id)

    def through_server(_: int) -> int:
        return post(partner, "/v1/subjects", {"external_ref": new_nonce()}).status_code

    words = ["token", "create", "--tenant", tenant_id, "--mode", "test", "--data", str(running.data)]
    beside_it = [
        subprocess.Popen(
            [sys.executable, "-m", "tools.palmctl", "cloud", *words, "--device-id", f"d{number}"],
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
