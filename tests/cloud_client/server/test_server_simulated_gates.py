"""`palmctl cloud simulate` at the command line, against a server in another process."""

import json
import os
import signal
import stat
import subprocess
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from cloud_client.client import Answer, CloudClient
from cloud_client.errors import CloudUnreachable
from device.platform.files import shred
from tests.cloud_client.server.server_process import post, start
from tests.cloud_client.server.simulated_site import Json, SimulatedSite
from tests.palmctl import PALMCTL
from tests.until import until
from tools.palmctl.main import main


def test_a_gate_is_made_once_in_test_mode_and_in_private(site: SimulatedSite) -> None:
    assert site.device("gate-1")["status"] == "active"
    assert stat.S_IMODE(site.folder.stat().st_mode) == 0o700
    in_live = site.tried(*site.gate_words("gate-2", mode="live"))
    assert in_live.exit_code == 2 and "test mode only" in in_live.stderr
    again = site.tried(*site.gate_words("gate-1"))
    assert again.exit_code == 1 and "is there already" in again.stderr
    absent = site.tried("pass", "--device-id", "gate-7", "--stranger")
    assert absent.exit_code == 1 and "palmctl cloud simulate gate" in absent.stderr


def test_a_gate_whose_registration_had_no_answer_is_made_by_the_next_try(
    site: SimulatedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = CloudClient.register

    async def lost(client: CloudClient, body: bytes, token: str, idempotency_key: str) -> Answer:
        await register(client, body, token, idempotency_key)
        raise CloudUnreachable("no whole answer")

    with monkeypatch.context() as patched:
        patched.setattr(CloudClient, "register", lost)
        for device_id in ("gate-2", "gate-3"):
            assert site.tried(*site.gate_words(device_id)).exit_code == 3
            assert site.device(device_id)["status"] == "active"
    site.revoke("gate-3")
    assert "device_state_conflict" in site.tried(*site.gate_words("gate-3")).stderr
    for device_id in ("gate-2", "gate-3"):
        site.done(*site.gate_words(device_id))
    passed = site.at_gate("pass", "--stranger", device_id="gate-2")
    assert site.record(passed["verdict_id"])["reconciliation"] == "complete"


def test_people_are_enrolled_recognized_and_blocked(site: SimulatedSite) -> None:
    session = site.session()
    done = site.at_gate("enrol", "--short-code", session["short_code"])
    assert (done["session_id"], done["status"]) == (session["session_id"], "completed")
    person = ["--subject-id", session["subject_id"]]
    accepted = site.at_gate("pass", *person)
    assert (accepted["decision"], accepted["result"], accepted["outcome"]) == ("accept", "MATCH", "LIBERAR")
    record = site.record(accepted["verdict_id"])
    assert (record["subject_id"], record["reconciliation"]) == (session["subject_id"], "complete")
    assert site.proof(accepted["verdict_id"])["signed_verdict"]["verdict"]["onboard_ref"] == "fare/7"

    of = ["--tenant", site.tenant, "--mode", "test"]
    site.running.palmctl("subject", "block", session["subject_id"], *of)
    blocked = site.at_gate("pass", *person)
    assert (blocked["verdict_seq"], blocked["result"], blocked["outcome"]) == (2, "NO_MATCH", "BLOQUEAR")
    assert "onboard_ref" not in site.proof(blocked["verdict_id"])["signed_verdict"]["verdict"]
    site.running.palmctl("subject", "unblock", session["subject_id"], *of)
    barred = site.at_gate("pass", *person, "--outcome", "BLOQUEAR")
    assert (barred["result"], barred["outcome"]) == ("MATCH", "BLOQUEAR")
    assert site.record(barred["verdict_id"])["dbd"]["actuated"] is False

    site.office.delete(f"/v1/subjects/{session['subject_id']}").raise_for_status()
    assert site.at_gate("sync")["gallery"]["palms"] == 0
    gone = site.tried("pass", "--device-id", "gate-1", *person)
    assert gone.exit_code == 1 and "no such person" in gone.stderr


def test_enrolments_fail_and_are_held_for_review(site: SimulatedSite) -> None:
    failing, first, second = site.session(), site.session(), site.session()
    assert site.at_gate("enrol", "--qr-payload", failing["qr_payload"], "--fail")["status"] == "failed"
    told = site.office.get(f"/v1/enrollment-sessions/{failing['session_id']}").json()
    assert (told["status"], told["failure_code"]) == ("failed", "capture_rejected")
    with_seed = [
        site.at_gate("enrol", "--qr-payload", opened["qr_payload"], "--seed", "7")["status"]
        for opened in (first, second)
    ]
    assert with_seed == ["completed", "review"]
    for words in (
        [],
        ["--short-code", "?"],
        ["--qr-payload", "SVC1"],
        ["--short-code", "A", "--qr-payload", "B"],
    ):
        assert site.tried("enrol", "--device-id", "gate-1", *words).exit_code == 2
    unknown = site.tried("enrol", "--device-id", "gate-1", "--short-code", "0000-0000")
    assert unknown.exit_code == 1
    assert json.loads(unknown.stdout)["error"]["code"] == "enrollment_session_invalid"


def test_strangers_spoofs_lost_and_late_decisions(site: SimulatedSite) -> None:
    stranger = site.at_gate("pass", "--stranger", "--ago-s", "3600")
    poor = site.at_gate("pass", "--poor-capture")
    spoof = site.at_gate("pass", "--spoof", "--lost-decision")
    late = site.at_gate("pass", "--stranger", "--late-s", "1")
    told = [site.record(each["verdict_id"]) for each in (stranger, poor, spoof, late)]
    assert [record["result"] for record in told] == ["NO_MATCH", "POOR_CAPTURE", "SPOOF", "NO_MATCH"]
    assert [record["decision"] for record in told] == ["reject", "abstain", "reject", "reject"]
    assert [record["verdict_seq"] for record in told] == [1, 2, 3, 4]
    assert [record["reconciliation"] for record in told] == [
        "complete",
        "complete",
        "outcome_unknown",
        "complete",
    ]
    changes = site.office.get("/v1/verdict-changes").json()["data"]
    assert [change["verdict_seq"] for change in changes] == [1, 2, 3, 4]
    for words in ([], ["--stranger", "--spoof"], ["--stranger", "--lost-decision", "--outcome", "LIBERAR"]):
        assert site.tried("pass", "--device-id", "gate-1", *words).exit_code == 2


def test_a_decision_is_awaited_until_it_comes(site: SimulatedSite) -> None:
    """While the decision is late the verdict is there already, without it."""
    command = [*PALMCTL, "cloud", "simulate", "pass", "--stranger"]
    command += ["--late-s", "3600", "--folder", str(site.folder), "--device-id", "gate-1"]
    waiting = subprocess.Popen(command)
    try:
        record = only_verdict(site.office)
        assert record["reconciliation"] == "awaiting_decision" and "dbd" not in record
    finally:
        waiting.kill()
        waiting.wait()
    next_one = site.at_gate("pass", "--stranger")
    assert site.record(next_one["verdict_id"])["reconciliation"] == "complete"


def only_verdict(office: httpx.Client) -> Json:
    """The tenant's one verdict, once it is there; asked for well below the rate that the list allows."""

    def listed() -> list[Json]:
        return list(office.get("/v1/verdicts").raise_for_status().json()["data"])

    until(listed, within_s=30, every_s=0.5)
    (record,) = listed()
    return record


def test_a_gate_with_a_turn_sensor(site: SimulatedSite) -> None:
    site.done(*site.gate_words("gate-9", "--passage-sensor"))
    closed = site.at_gate("pass", "--stranger", device_id="gate-9")
    assert site.record(closed["verdict_id"])["reconciliation"] == "complete"
    made = site.at_gate("pass", "--stranger", "--outcome", "LIBERAR", device_id="gate-9")
    assert site.record(made["verdict_id"])["reconciliation"] == "awaiting_passage"
    site.at_gate("passage", "--not-passed", device_id="gate-9")
    assert site.record(made["verdict_id"])["reconciliation"] == "complete"
    assert site.tried("passage", "--device-id", "gate-1").exit_code == 1


def test_mail_for_the_outbox(site: SimulatedSite) -> None:
    for seq in (1, 2):
        answer = post(site.office, "/v1/devices/gate-1/outbox", site.at_gate("mail")).json()
        assert (answer["accepted"], answer["acked_upto_seq"]) == ([seq], seq)


def test_verdicts_wait_for_a_server_that_is_away(site: SimulatedSite, tmp_path: Path) -> None:
    """A gate decides without its server, and hands in its verdicts later: the chain has no gap."""
    running = site.running
    site.at_gate("pass", "--stranger")
    running.process.kill()
    running.process.wait()
    away = [site.at_gate("pass", "--stranger"), site.at_gate("pass", "--spoof", "--lost-decision")]
    assert [made["delivered"] for made in away] == [False, False]
    port = running.url.rpartition(":")[2]
    with start(running.data, tmp_path / "again.log", running.database, "--port", port):
        site.at_gate("sync")
        told = site.office.get("/v1/verdict-changes").json()["data"]
        assert sorted((record["verdict_seq"], record["reconciliation"]) for record in told) == [
            (1, "complete"),
            (2, "complete"),
            (3, "outcome_unknown"),
        ]


def test_gates_live_until_they_are_wiped(site: SimulatedSite) -> None:
    """`run` follows the gallery, reports, and obeys a revocation; the keys are then gone."""
    site.done(*site.gate_words("gate-2"))
    command = [*PALMCTL, "cloud", "simulate", "run", "--json"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    living = subprocess.Popen(
        [*command, "--folder", str(site.folder)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert living.stdout is not None
    try:
        events = (json.loads(line) for line in living.stdout)
        assert {next(events)["device_id"], next(events)["device_id"]} == {"gate-1", "gate-2"}
        session = site.session()
        site.at_gate("enrol", "--short-code", session["short_code"])
        told = next(event for event in events if event["device_id"] == "gate-2")
        assert told["event"] == "gallery"
        site.revoke("gate-1")
        wiped = next(event for event in events if event["event"] == "wiped")
        assert wiped["device_id"] == "gate-1" and "acknowledged wipe_id" in wiped["text"]
        living.send_signal(signal.SIGINT)
        assert living.wait(20) == 130
    finally:
        living.kill()
        living.communicate()
    assert (site.device("gate-1")["status"], site.device("gate-2")["status"]) == ("wiped", "active")
    assert site.device("gate-2")["app"]["pkg"] == "palm-simulated-gate"
    assert not any((site.folder / "gate-1.gate" / "keys").iterdir())
    assert site.tried("pass", "--device-id", "gate-1", "--stranger").exit_code == 1
    operator = ["device", "revoke", "gate-2", "--tenant", site.tenant, "--mode", "test", "--reason"]
    assert [site.running.palmctl(*operator, reason)["status"] for reason in ("stolen", "lost")] == [
        "revoked"
    ] * 2
    no_reason = CliRunner().invoke(main, ["cloud", *operator, "bored", *site.running.where])
    assert no_reason.exit_code == 1 and "--reason is one of lost, stolen" in no_reason.stderr
    refused = site.tried("pass", "--device-id", "gate-2", "--stranger")
    assert refused.exit_code == 1 and json.loads(refused.stdout)["error"]["code"] == "gate_wiped"
    assert site.device("gate-2")["status"] == "wiped"


def test_a_gate_lives_on_when_it_cannot_trust_an_answer(site: SimulatedSite) -> None:
    """A key that signs at once is never pinned: what it signs is refused, and the rest goes on."""
    command = [*PALMCTL, "cloud", "simulate", "run", "--json", "--folder", str(site.folder)]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    living = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert living.stdout is not None
    try:
        events = (json.loads(line) for line in living.stdout)
        assert next(events)["event"] == "lives"
        site.running.palmctl("signer", "rotate", "--use", "device_status", "--in-s", "0")
        failed = next(event for event in events if "device_id" in event)
        assert failed["event"] == "failed" and "never pinned" in failed["text"]
        site.at_gate("enrol", "--short-code", site.session()["short_code"])
        assert next(event for event in events if event["event"] != "failed")["event"] == "gallery"
    finally:
        living.kill()
        living.communicate()


def test_a_wipe_whose_answer_is_lost_is_ended_by_the_next_command(
    site: SimulatedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.revoke("gate-1")
    wiped = CloudClient.wiped

    async def lost(client: CloudClient, body: bytes, idempotency_key: str) -> Answer:
        await wiped(client, body, idempotency_key)
        raise CloudUnreachable("no whole answer")

    with monkeypatch.context() as patched:
        patched.setattr(CloudClient, "wiped", lost)
        assert site.tried("sync", "--device-id", "gate-1").exit_code == 3
    assert site.device("gate-1")["status"] == "wiped"
    assert site.at_gate("sync")["wiped"]["reason"] == "stolen"
    assert not any((site.folder / "gate-1.gate" / "keys").iterdir())


def test_keys_that_a_wipe_left_when_it_was_cut_off_are_destroyed(
    site: SimulatedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.revoke("gate-1")

    def cut_off(key: Path) -> None:
        shred(key)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("tools.cloud.simulation.gate.shred", cut_off)
        assert site.tried("sync", "--device-id", "gate-1").exit_code == 130
    keys = site.folder / "gate-1.gate" / "keys"
    assert any(keys.iterdir())
    refused = site.tried("sync", "--device-id", "gate-1")
    assert json.loads(refused.stdout)["error"]["code"] == "gate_wiped"
    assert not any(keys.iterdir()) and not (keys.parent / "validator.key").exists()
