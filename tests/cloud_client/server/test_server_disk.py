"""A store that cannot be written: 503 with Retry-After, nothing half-written, and all well afterwards."""

import json
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.cloud_client.server.server_database import on_sqlite
from tests.cloud_client.server.server_process import (
    Board,
    Running,
    enrol,
    new_account,
    no_file_may_grow,
    post,
    start,
)

pytestmark = on_sqlite


@pytest.fixture
def served(running: Running) -> tuple[httpx.Client, Board]:
    tenant = running.palmctl("tenant", "create", "acme")["tenant_id"]
    partner = running.partner(tenant)
    partner.timeout = httpx.Timeout(20)
    return partner, Board(running, tenant)


def create(partner: httpx.Client, name: str) -> httpx.Response:
    return partner.post(
        "/v1/subjects", json={"external_ref": name}, headers={"Idempotency-Key": f"key-{name}"}
    )


def check_unavailable(answer: httpx.Response) -> None:
    problem = answer.json()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert (problem["code"], problem["retryable"]) == ("service_unavailable", True)
    assert problem["detail"] == problem["title"]


def names(partner: httpx.Client) -> set[str]:
    return {person["external_ref"] for person in partner.get("/v1/subjects?limit=200").json()["data"]}


def check_whole(running: Running) -> None:
    database = sqlite3.connect(running.data / "cloud.db")
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert database.execute("PRAGMA foreign_key_check").fetchall() == []
    alone = "SELECT count(*) FROM idempotency WHERE answer_ct IS NULL"
    assert database.execute(alone).fetchone() == (0,), "a request that failed still holds its key"
    database.close()


def test_a_full_disk(running: Running, served: tuple[httpx.Client, Board]) -> None:
    partner, board = served
    kept = {f"before-{number}" for number in range(3)}
    for name in kept:
        assert create(partner, name).status_code == 201
    with no_file_may_grow(running):
        refused = [f"during-{number}" for number in range(5)]
        for name in refused:
            check_unavailable(create(partner, name))
        check_unavailable(board.send("GET", "/v1/devices/self/status"))
        # What only reads goes on.
        assert names(partner) == kept
    for name in refused:
        again = create(partner, name)
        assert (again.status_code, again.headers["idempotent-replayed"]) == (201, "false")
    assert names(partner) == kept | set(refused)
    assert board.send("GET", "/v1/devices/self/status").status_code == 200
    check_whole(running)


def test_an_erasure_on_a_full_disk(running: Running, served: tuple[httpx.Client, Board]) -> None:
    """It is not said to be done before it is."""
    partner, board = served
    subject_id = enrol(partner, board)
    with no_file_may_grow(running):
        check_unavailable(partner.delete(f"/v1/subjects/{subject_id}"))
        assert partner.get(f"/v1/subjects/{subject_id}").json()["status"] == "active"
    assert partner.delete(f"/v1/subjects/{subject_id}").status_code == 200
    snapshot = board.send("GET", "/v1/gallery/snapshot").json()
    assert snapshot["data"] == []
    check_whole(running)


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """A file system of 16 mebibytes, for those who may mount one."""
    place = tmp_path / "small"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(words, check=False).returncode:
        pytest.skip("a small file system can be mounted by root only")
    running = None
    try:
        running = start(place / "data", tmp_path / "server.log", None, "--rate-scale", "1000")
        tenant = running.palmctl("tenant", "create", "acme")["tenant_id"]
        partner = running.partner(tenant)
        assert create(partner, "first").status_code == 201
        ballast = place / "ballast"
        with ballast.open("wb", buffering=0) as file:
            while True:
                try:
                    file.write(bytes(4096))
                except OSError:
                    break
        answers = [create(partner, f"p-{number}") for number in range(40)]
        failed = [answer for answer in answers if answer.status_code != 201]
        assert failed
        for answer in failed:
            check_unavailable(answer)
        made = {answer.json()["external_ref"] for answer in answers if answer.status_code == 201}
        assert names(partner) == {"first"} | made
        ballast.unlink()
        for number in range(40):
            again = create(partner, f"p-{number}")
            assert again.status_code == 201
            assert again.headers["idempotent-replayed"] == str(f"p-{number}" in made).lower()
        check_whole(running)
    finally:
        if running is not None:
            running.process.kill()
            running.process.communicate()
        subprocess.run(["umount", "-l", str(place)], check=False)


def test_a_locked_database(running: Running, served: tuple[httpx.Client, Board]) -> None:
    partner, board = served
    other = sqlite3.connect(running.data / "cloud.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    check_unavailable(create(partner, "locked"))
    content = json.dumps({"items": [{"signed_verdict": {}}]}).encode()
    check_unavailable(board.send("POST", "/v1/verdicts/batch", content))
    assert names(partner) == set()
    other.execute("ROLLBACK")
    other.close()
    again = create(partner, "locked")
    assert (again.status_code, again.headers["idempotent-replayed"]) == (201, "false")
    assert post(partner, "/v1/subjects", {"external_ref": new_account()}).status_code == 201
    check_whole(running)
