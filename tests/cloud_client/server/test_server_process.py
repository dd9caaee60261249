"""The server as a process: real HTTP, commands next to it, long-poll, a locked database, its end."""

import asyncio
import json
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from cloud_client.http_signature import content_digest
from cloud_client.reference_server.contract.times import DAY_MS, system_now_ms
from cloud_client.reference_server.errors import OperatorError
from cloud_client.reference_server.ops import retention, serve
from cloud_client.reference_server.ops.data_directory import DataDirectory
from cloud_client.reference_server.ops.serve import ServeOptions
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.store.engines import connect_store
from link1.bodies import Box
from link1.canonical import JsonObject, b64_encode
from link1.keys import SigningKey
from link1.sealed import SERVICE_ID, seal_record
from link1.signed import Kind
from tests.cloud_client.server.server_process import Board, Running, enrol, post
from tests.palmctl import printed, ran
from tests.until import until
from tools.cloud.command import cloud as command
from tools.cloud.store import opened_store
from tools.palmctl.main import main


def test_the_log_alone_says_why_a_credential_is_refused(running: Running) -> None:
    """A developer of a device or a back office sees nothing but the same 401."""
    board = Board(running, running.palmctl("tenant", "create", "acme")["tenant_id"])
    stranger = httpx.get(f"{running.url}/v1/subjects", trust_env=False)
    changed = board.send("POST", "/v1/devices/self/report", b"{}", {"Content-Digest": content_digest(b"[]")})
    board.host = "another.example"
    elsewhere = board.send("GET", "/v1/devices/self/status")
    assert {answer.status_code for answer in (stranger, changed, elsewhere)} == {401}
    assert len({json.dumps(answer.json() | {"instance": ""}) for answer in (stranger, elsewhere)}) == 1
    unsigned = "signature does not verify: signature does not hold"
    reasons = ((stranger, "no Authorization header, or several"), (changed, unsigned), (elsewhere, unsigned))
    lines = [f"{answer.headers['X-Request-Id']}: {reason}\n" for answer, reason in reasons]
    until(lambda: all(line in running.log.read_text() for line in lines))


def test_the_log_says_what_is_wrong_with_what_a_device_hands_in(running: Running) -> None:
    """The code "malformed" alone leaves a developer to guess; by mail there is not even that."""
    tenant = running.palmctl("tenant", "create", "acme")["tenant_id"]
    partner, board = running.partner(tenant), Board(running, tenant)
    wrong = board.verdict()
    wrong["verdict"] |= {"quality_q": 101}
    wrong["sig_b64"] = b64_encode(board.verdict_key.sign(Kind.VERDICT.signed_bytes(wrong["verdict"])))
    items: JsonObject = {"items": [{"signed_verdict": wrong}]}
    assert board.send("POST", "/v1/verdicts/batch", json.dumps(items).encode()).json()["rejected"]
    bodies: list[tuple[str, JsonObject]] = [
        ("svc.verdicts.batch", items),
        ("svc.device.wiped", {"wipe_id": 5}),
    ]
    records = [
        seal_record(
            box=Box.OUT,
            src=board.device_id,
            dst=SERVICE_ID,
            seq=seq,
            rid=f"{seq:032x}",
            created_ms=1,
            type_=type_,
            body=body,
            to=board.mail_seal_key,
            signer=board.verdict_key,
        )
        for seq, (type_, body) in enumerate(bodies, 1)
    ]
    for record in records:
        post(partner, f"/v1/devices/{board.device_id}/outbox", {"records": [record]}).raise_for_status()
    lines = [
        "gate-1: 1 refused: item 0 malformed: member quality_q is not an integer from 0 to 100\n",
        "gate-1: 1 refused: record 1 item 0 malformed: member quality_q is not an integer from 0 to 100\n",
        "gate-1: 1 refused: record 2 malformed: the contents are outside the contract: /wipe_id (type)\n",
    ]
    until(lambda: all(line in running.log.read_text() for line in lines))


def test_a_waiting_device_hears_of_everything(running: Running) -> None:
    tenant = running.palmctl("tenant", "create", "acme")["tenant_id"]
    partner, board = running.partner(tenant), Board(running, tenant)
    waiting = "/v1/gallery/deltas?epoch=1&after_seq={}&wait_s=20"
    with ThreadPoolExecutor(2) as threads:
        # A change through the API.
        pending = threads.submit(board.send, "GET", waiting.format(0))
        subject_id = enrol(partner, board)
        assert [delta["op"] for delta in pending.result(10).json()["data"]] == ["upsert"]
        # A change by another process.
        pending = threads.submit(board.send, "GET", waiting.format(1))
        where = ("--tenant", tenant, "--mode", "test")
        blocked = running.palmctl("subject", "block", *where, subject_id, "--reason", "lost")
        assert blocked["block"]["reason"] == "lost"
        assert [delta["op"] for delta in pending.result(10).json()["data"]] == ["suspend"]
        # A newer wait ends the older one, with no data.
        older = threads.submit(board.send, "GET", waiting.format(2))
        newer = None
        while not older.done():
            newer = board.send("GET", waiting.format(2).replace("wait_s=20", "wait_s=0"))
        assert newer is None or newer.status_code == 200
        assert older.result(10).json()["data"] == []
        # Erasure reaches it at once.
        pending = threads.submit(board.send, "GET", waiting.format(2))
        began_s = time.monotonic()
        partner.delete(f"/v1/subjects/{subject_id}").raise_for_status()
        assert [delta["op"] for delta in pending.result(10).json()["data"]] == ["tombstone"]
        assert time.monotonic() - began_s < 5
        # Revocation ends a wait with 401, by another process too.
        other = Board(running, tenant, "gate-2")
        pending = threads.submit(other.send, "GET", waiting.format(3))
        running.palmctl("device", "revoke", *where, "gate-2", "--reason", "stolen")
        assert pending.result(10).status_code == 401
        pending = threads.submit(board.send, "GET", waiting.format(3))
        post(partner, "/v1/devices/gate-1/revoke", {"reason": "lost"}).raise_for_status()
        assert pending.result(10).status_code == 401
    status = board.send("GET", "/v1/devices/self/status").json()["device_status_obj"]
    assert status["wipe"]["reason"] == "lost"


def test_the_end_and_the_logs(running: Running) -> None:
    tenant = running.palmctl("tenant", "create", "acme")["tenant_id"]
    partner = running.partner(tenant)
    made = post(partner, "/v1/subjects", {"external_ref": "needle-ref"}).json()
    partner.get(f"/v1/subjects/{made['subject_id']}", params={"cpf": "needle-query"})
    with ThreadPoolExecutor(1) as threads:
        board = Board(running, tenant)
        pending = threads.submit(board.send, "GET", "/v1/gallery/deltas?epoch=1&after_seq=0&wait_s=50")
        while httpx.get(f"{running.url}/v1/health", trust_env=False).status_code != 200:
            pass
        running.process.send_signal(signal.SIGTERM)
        assert pending.result(10).status_code == 200
    out, _ = running.process.communicate(timeout=15)
    err = running.log.read_text()
    assert (running.process.returncode, out) == (0, "")
    assert "GET /v1/subjects/{subject_id} 400" in err
    for needle in ("needle", made["subject_id"], partner.headers["Authorization"].split("_")[-1]):
        assert needle not in err
    assert not (running.data / "cloud.db-wal").exists()


def test_a_locked_database_is_a_503(running: Running) -> None:
    tenant = running.palmctl("tenant", "create", "acme")["tenant_id"]
    partner = running.partner(tenant)
    partner.timeout = httpx.Timeout(20)
    other = connect_store(DataDirectory.of(running.data, running.database).database)
    with other.writing():
        response = post(partner, "/v1/subjects", {"external_ref": "p-1"})
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert partner.get("/v1/subjects").status_code == 200
    other.close()
    assert post(partner, "/v1/subjects", {"external_ref": "p-1"}).status_code == 201


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        words = ["serve", "--data", str(tmp_path), "--port", str(taken.getsockname()[1])]
        done = ran("cloud", *words, timeout_s=30)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be listened on" in done.stderr


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"host": "0.0.0.0"}, True),
        ({"host": "10.0.0.1", "behind_tls_proxy": True}, False),
        ({"host": "::1"}, False),
        ({"host": "localhost"}, False),
        ({"tls_cert": Path("c")}, True),
        ({"rate_scale": 1e6}, False),
        ({"rate_scale": float("inf")}, True),
        ({"rate_scale": float("nan")}, True),
        ({"rate_scale": 0.25}, False),
        ({"rate_scale": 0.2}, True),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, options: dict[str, Any], refused: bool) -> None:
    asked = ServeOptions(DataDirectory.of(tmp_path), **options)
    if not refused:
        asked.check()
        return
    with pytest.raises(OperatorError):
        asked.check()


@pytest.mark.parametrize(
    "words",
    [
        ["key", "create", "--tenant", "x", "--mode", "test", "--scope", "subjects:read"],
        ["token", "create", "--tenant", "x", "--mode", "test", "--device-id", "d"],
        ["tenant", "set", "--tenant", "x"],
        ["signer", "rotate", "--use", "x"],
        ["subject", "block", "--tenant", "x", "--mode", "test", "00000000-0000-4000-8000-000000000000"],
        ["session", "approve", "--tenant", "x", "--mode", "test", "y"],
        ["tenant", "create", ""],
    ],
)
def test_commands_say_what_is_wrong(tmp_path: Path, words: list[str]) -> None:
    done = CliRunner().invoke(main, ["cloud", *words, "--data", str(tmp_path), "--json"])
    assert (done.exit_code, set(json.loads(done.stdout))) == (1, {"error"})
    assert done.stderr.startswith("palmctl: ")


def test_commands_print_what_is_promised(tmp_path: Path) -> None:
    def palmctl(*words: str) -> set[str]:
        return set(printed("cloud", *words, "--data", str(tmp_path)))

    made = printed("cloud", "tenant", "create", "acme", "--data", str(tmp_path))
    tenant = ("--tenant", made["tenant_id"])
    mode = ("--mode", "live")
    key = SigningKey.generate().public.b64
    assert palmctl("dbd", "add", *tenant, *mode, "--dbd-id", "d", "--pub-b64", key) == {"dbd_id", "kid"}
    assert palmctl("token", "create", *tenant, *mode, "--device-id", "d") == {"token", "expires_at_ms"}
    refused = ["epoch", "new", *tenant, *mode, "--data", str(tmp_path)]
    assert "say which by --model-id" in CliRunner().invoke(command, refused).stderr
    assert palmctl("epoch", "new", *tenant, *mode, "--model-id", "m") == {"stream", "epoch", "seq"}
    assert palmctl("signer", "rotate", "--use", "gallery") == {"kid", "not_before"}
    assert palmctl("root", "show") == {"pub_b64", "kid"}
    assert palmctl("tenant", "set", *tenant, "--terms-version", "v2") >= {"tenant_id", "terms_version"}
    assert palmctl("sweep", "--now", "2030-01-01T00:00:00Z") == {
        "idempotency",
        "deltas",
        "events",
        "verdicts",
        "sessions",
    }
    secrets = tmp_path / "secrets"
    assert {path.stat().st_mode & 0o777 for path in secrets.iterdir()} == {0o600}
    assert secrets.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["server.key", "root.key", "kms.key"])
def test_a_lost_key_file_is_not_replaced(tmp_path: Path, name: str) -> None:
    """Another key would find no person again, or be a root that no device pins."""
    words = ["root", "show", "--data", str(tmp_path), "--json"]
    root = CliRunner().invoke(command, words).stdout
    lost = tmp_path / "secrets" / name
    key, others = lost.read_bytes(), sorted({*lost.parent.iterdir()} - {lost})
    lost.unlink()
    for _ in range(2):
        refused = CliRunner().invoke(command, words)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert f"{lost} is missing" in refused.stderr
        assert "from the backup" in refused.stderr
        assert sorted(lost.parent.iterdir()) == others
    lost.write_bytes(key)
    assert CliRunner().invoke(command, words).stdout == root


def test_a_lost_key_is_named_after_a_rotation_as_well(tmp_path: Path) -> None:
    words = ["--data", str(tmp_path), "--json"]
    key_id = json.loads(CliRunner().invoke(command, ["secret", "rotate", *words]).stdout)["key_id"]
    lost, first = (tmp_path / "secrets" / name for name in (f"kms-{key_id}.key", "kms.key"))
    key = lost.read_bytes()
    lost.unlink()
    # The key before is not missing, whether a copy of it is there or not.
    for there in (False, True):
        if there:
            first.write_bytes(key)
        refused = CliRunner().invoke(command, ["root", "show", *words])
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert f"{lost} or .uri is missing" in refused.stderr
    first.unlink()
    lost.write_bytes(key)
    assert CliRunner().invoke(command, ["root", "show", *words]).exit_code == 0
    # The database is lost, and its keys are there.
    for path in tmp_path.glob("cloud.db*"):
        path.unlink()
    refused = CliRunner().invoke(command, ["root", "show", *words])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "this database is empty" in refused.stderr
    assert not first.exists()


@pytest.mark.parametrize("name", ["server.key", "root.key"])
def test_the_key_of_another_store_is_refused(tmp_path: Path, name: str) -> None:
    words = ["root", "show", "--data", str(tmp_path), "--json"]
    root = CliRunner().invoke(command, words).stdout
    file = tmp_path / "secrets" / name
    key = file.read_bytes()
    file.write_bytes(bytes(32))
    refused = CliRunner().invoke(command, words)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert f"secrets/{name} of --data is not the one" in refused.stderr
    file.write_bytes(key)
    assert CliRunner().invoke(command, words).stdout == root


def test_a_first_start_that_was_cut_off_keeps_the_keys_that_it_made(tmp_path: Path) -> None:
    made = tmp_path / "secrets" / "server.key"
    made.parent.mkdir()
    made.write_bytes(bytes(32))
    CliRunner().invoke(command, ["root", "show", "--data", str(tmp_path)], catch_exceptions=False)
    assert made.read_bytes() == bytes(32)
    assert {path.name for path in made.parent.iterdir()} == {"kms.key", "root.key", "server.key"}


def test_it_sweeps_on_after_an_error_of_any_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "SWEEP_EVERY_S", 0.01)
    swept: list[int] = []

    def broken(_tx: Tx, now_ms: int) -> retention.Swept:
        swept.append(now_ms)
        if len(swept) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        raise LookupError

    monkeypatch.setattr(retention, "sweep", broken)
    options = ServeOptions(DataDirectory.of(tmp_path), port=0)
    asyncio.run(asyncio.wait_for(serve.serve(options, lambda *_: None), 20))
    assert len(swept) >= 3


def test_a_clock_that_leapt_deletes_nothing_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Verdicts of thirteen months would be gone before anyone could set it."""
    monkeypatch.setattr(serve, "SWEEP_EVERY_S", 0.01)
    monkeypatch.setattr(retention, "DOUBTED_S", 0.05)
    with opened_store(tmp_path, None) as (store, _, _):
        store.write(lambda tx: retention.note_sweep(tx, system_now_ms() - 8 * DAY_MS))
    lines_at_sweep: list[int] = []

    def swept(_tx: Tx, _now_ms: int) -> retention.Swept:
        lines_at_sweep.append(len(caplog.messages))
        os.kill(os.getpid(), signal.SIGTERM)
        return retention.Swept({}, more=False)

    monkeypatch.setattr(retention, "sweep", swept)
    options = ServeOptions(DataDirectory.of(tmp_path), port=0)
    asyncio.run(asyncio.wait_for(serve.serve(options, lambda *_: None), 20))
    doubts = [line for line in caplog.messages if "the clock stands 8 days after the last sweep" in line]
    assert doubts and lines_at_sweep[0] >= len(doubts)


def test_who_sweeps_by_hand_vouches_for_the_clock(tmp_path: Path) -> None:
    def since_last_ms() -> int:
        with opened_store(tmp_path, None) as (store, _, _):
            return store.read(lambda tx: retention.since_last(tx, system_now_ms()))

    with opened_store(tmp_path, None) as (store, _, _):
        store.write(lambda tx: retention.note_sweep(tx, system_now_ms() - 8 * DAY_MS))
    for words in (["sweep", "--now", "2020-01-31T00:00:00Z"], ["sweep"]):
        assert since_last_ms() >= 8 * DAY_MS
        assert CliRunner().invoke(command, [*words, "--data", str(tmp_path)]).exit_code == 0
    assert since_last_ms() < DAY_MS
