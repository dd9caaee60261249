"""A rollout as an operator drives it: `palmctl cloud release` next to a server process."""

import hashlib
import json
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from link1.canonical import b64_decode
from tests.cloud_client.server.rollout_harness import report
from tests.cloud_client.server.server_process import Board, Running
from tests.until import until
from tools.cloud.command import cloud as command


@pytest.fixture
def software(tmp_path: Path) -> Path:
    """A folder as the package installs it, with little in it."""
    folder = tmp_path / "2.0"
    (folder / "bin").mkdir(parents=True)
    (folder / "VERSION").write_text("2.0\n", encoding="ascii")
    (folder / "bin" / "palmd").write_text("#!/bin/sh\n", encoding="ascii")
    return folder


def refused(running: Running, *words: str) -> str:
    done = CliRunner().invoke(command, [*words, *running.where, "--json"])
    assert done.exit_code == 1
    return done.stderr


def test_an_operator_rolls_a_release_out_and_a_silent_device_halts_it(
    running: Running, software: Path
) -> None:
    tenant = running.palmctl("tenant", "create", "acme")["tenant_id"]
    place = ("--tenant", tenant, "--mode", "test")
    board = Board(running, tenant)

    def made() -> Any:
        return running.palmctl("release", "create", *place, "--kind", "app", "--from", str(software))

    first = made()
    assert first.keys() == {
        *("release_seq", "kind", "name", "version", "size", "sha256", "chunk_count", "devices", "out")
    }
    assert (first["version"], first["devices"], first["out"]) == ("2.0", [], None)
    seq = str(first["release_seq"])
    again = (*place, "--kind", "app", "--from", str(software), "--release-seq", seq)
    assert "above" in refused(running, "release", "create", *again)
    assert "no such rollout" in refused(running, "release", "status", seq, *place)
    plan = ("--waves", "50,100", "--soak-s", "0")
    shown = running.palmctl("release", "rollout", seq, *place, *plan)
    assert shown == {
        "release_seq": first["release_seq"],
        "kind": "app",
        "name": "palm-access-device",
        "version": "2.0",
        "state": "running",
        "reason": None,
        "wave": 1,
        "waves": [
            {"percent": percent, "devices": int(percent == 50), "running": 0, "failed": 0, "silent": 0}
            for percent in (50, 100)
        ],
    }
    answer = board.send("GET", "/v1/devices/self/updates").json()
    (manifest,) = [item["manifest_obj"] for item in answer["data"]]
    chunks = [
        b64_decode(board.send("GET", f"/v1/updates/{seq}/chunks/{index}").json()["data_b64"])
        for index in range(manifest["chunk_count"])
    ]
    payload = b"".join(chunks)
    assert hashlib.sha256(payload).hexdigest() == first["sha256"]
    with tarfile.open(fileobj=BytesIO(payload), mode="r:xz") as archive:
        assert archive.getnames() == ["VERSION", "bin/palmd"]
    second = made()
    assert second["release_seq"] > first["release_seq"]
    assert "one app at a time" in refused(running, "release", "rollout", str(second["release_seq"]), *place)

    def say(release: Any, state: str) -> None:
        entry = {
            "kind": "app",
            "name": release["name"],
            "release_seq": release["release_seq"],
            "state": state,
        }
        body = json.dumps(report(updates=[entry])).encode()
        assert board.send("POST", "/v1/devices/self/report", body).status_code == 204

    def state_of(release: Any) -> Any:
        return running.palmctl("release", "status", str(release["release_seq"]), *place)["state"]

    # The report opens the second wave; that it is done too the server sees by its own clock.
    say(first, "running")
    until(lambda: state_of(first) == "done", within_s=40, every_s=0.5)
    running.palmctl("release", "rollout", str(second["release_seq"]), *place, "--silence-s", "1")
    say(second, "receiving")
    until(lambda: state_of(second) == "halted", within_s=30, every_s=0.5)
    shown = running.palmctl("release", "status", str(second["release_seq"]), *place, "--devices")
    assert shown["reason"] == "1 of 1 devices are bad: 0 failed, 1 silent"
    assert shown["devices"] == [{"device_id": "gate-1", "wave": 1, "state": "receiving"}]
    assert board.send("GET", f"/v1/updates/{second['release_seq']}/chunks/0").status_code == 404
    for words, state in ((("resume",), "running"), (("pause",), "paused"), (("halt",), "halted")):
        shown = running.palmctl("release", *words, str(second["release_seq"]), *place)
        assert shown["state"] == state


@pytest.mark.parametrize(
    "waves", ["1,10,50", "100,100", "50,10,100", "0,100", "101", "", "1,,100", "1.5,100", "-1,100"]
)
def test_waves_that_are_none(tmp_path: Path, waves: str) -> None:
    place = ("--tenant", "t", "--mode", "test", "--data", str(tmp_path / "data"))
    done = CliRunner().invoke(command, ["release", "rollout", "1", "--waves", waves, *place])
    assert done.exit_code in (1, 2)


def test_what_is_listed_and_shown(running: Running) -> None:
    one, two = (running.palmctl("tenant", "create", name)["tenant_id"] for name in ("acme", "metro"))
    listed = running.palmctl("tenant", "list")["data"]
    assert [(tenant["tenant_id"], tenant["name"]) for tenant in listed] == [(one, "acme"), (two, "metro")]
    place = ("--tenant", one, "--mode", "test")
    made = running.palmctl("key", "create", *place, "--scope", "devices:read")
    running.palmctl("key", "revoke", made["key_id"], "--tenant", one)
    running.palmctl("key", "create", "--tenant", one, "--mode", "live", "--scope", "verdicts:read")
    listed = running.palmctl("key", "list", "--tenant", one)["data"]
    assert [(key["mode"], key["scopes"]) for key in listed] == [
        ("test", ["devices:read"]),
        ("live", ["verdicts:read"]),
    ]
    assert listed[0]["revoked_at_ms"] >= listed[0]["created_at_ms"]
    assert made["api_key"].rpartition("_")[2] not in str(listed)
    assert running.palmctl("key", "show", made["key_id"], "--tenant", one) == listed[0]
    assert running.palmctl("key", "list", "--tenant", two) == {"data": []}
    assert "no such key" in refused(running, "key", "show", made["key_id"], "--tenant", two)
    board = Board(running, one)
    body = json.dumps(report(health=[])).encode()
    assert board.send("POST", "/v1/devices/self/report", body).status_code == 204
    shown = running.palmctl("device", "show", board.device_id, *place)
    assert shown.keys() == {"device", "report", "received_at_ms", "counters"}
    assert (shown["report"], shown["counters"]) == (json.loads(body), {"frames": 10})
    assert (
        running.palmctl("tenant", "set", "--tenant", one, "--offline-after-s", "60")["offline_after_s"] == 60
    )
    assert "between" in refused(running, "tenant", "set", "--tenant", one, "--offline-after-s", "0")
    assert "no such device" in refused(running, "device", "show", "gate-9", *place)
    assert "no such tenant" in refused(running, "key", "list", "--tenant", "x")
