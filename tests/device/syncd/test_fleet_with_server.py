"""What an operator of many devices sees and does: reports that arrive, and releases that are offered, taken,
cut off and halted, over real HTTP with both daemons as processes."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from device.config.config import AttestSection, write_config
from models.manifest import load_manifest, shipped_model_dir
from tests.device.factory import make_board, make_ca
from tests.device.reference_cloud import Server
from tests.device.served_device import ServedDevice, served_device
from tests.republished import republish
from tests.until import until as until_within
from tools.palmctl.main import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
until = partial(until_within, within_s=90.0, every_s=0.1)
"""Polls of a server and two daemons cost them time."""
SHIPPED_ID = load_manifest(shipped_model_dir()).model_id


@pytest.fixture
def server(server: Server) -> Server:
    """The server, and a tenant of the test's own in it: a rollout is for all its devices."""
    server.enter_new_tenant()
    return server


def place(server: Server) -> tuple[str, ...]:
    return ("--tenant", server.tenant, "--mode", "test")


def report(server: Server, device: ServedDevice) -> dict[str, Any]:
    """The device's newest report; empty before the first."""
    told = server.operate("device", "show", *place(server), device.device_id)["report"]
    return told or {}


def reported(server: Server, device: ServedDevice) -> list[tuple[int, str]]:
    return [(one["release_seq"], one["state"]) for one in report(server, device).get("updates", [])]


def offer_model(
    server: Server, folder: Path, model_id: str, *, soak_s: int = 0, mail_after_s: int = 3_600
) -> int:
    """A release of the shipped weights under that id, offered to every device at once; its release_seq."""
    republish(shipped_model_dir(), model_id, folder)
    made = server.operate("release", "create", "--kind", "model", "--from", str(folder), *place(server))
    waves = ("--waves", "100", "--soak-s", str(soak_s), "--mail-after-s", str(mail_after_s))
    server.operate("release", "rollout", str(made["release_seq"]), *waves, *place(server))
    return int(made["release_seq"])


def rollout(server: Server, release_seq: int) -> Any:
    return server.operate("release", "status", str(release_seq), *place(server))


def ask_again(device: ServedDevice) -> None:
    """A carrier asks what is offered when it starts, and then every quarter of an hour."""
    device.kill("syncd")
    device.start("syncd")


def test_a_report_comes_at_once_and_again_after_a_change(server: Server, tmp_path: Path) -> None:
    with served_device(tmp_path / "device", server, "gate-7-left") as (device, port):
        device.start("palmd")
        device.start("syncd")
        until(lambda: report(server, device))
        until(lambda: report(server, device)["health"] == ["KEY_UNATTESTED", "LINK_DOWN"])
        first = report(server, device)
        assert (first["app"]["pkg"], first["model_id"]) == ("palm-access-device", SHIPPED_ID)
        assert (first["serving"], first["link"]) == (True, {"up": False, "dbd_id": None})
        device.start_validator(port, server)
        until(lambda: report(server, device)["link"] == {"up": True, "dbd_id": "dbd-7"}, within_s=40)
        again = report(server, device)
        assert again["boot_id"] == first["boot_id"]
        assert again["uptime_s"] - first["uptime_s"] < 50, "it did not wait for its minute"


@pytest.mark.long
def test_a_model_is_taken_through_cuts_and_runs_and_the_rollout_is_done(
    server: Server, tmp_path: Path
) -> None:
    with served_device(tmp_path / "device", server, "gate-7-left") as (device, _port):
        release_seq = offer_model(server, tmp_path / "model", SHIPPED_ID)
        device.start("palmd")
        device.start("syncd")

        def chunks() -> int:
            state = device.status().updates.state
            return 0 if state is None or state.receiving is None else state.receiving.chunks

        until(lambda: device.answers() and chunks() > 1)
        device.kill("syncd")
        had = chunks()
        device.kill("palmd")
        device.start("palmd")
        until(device.answers)
        assert chunks() >= had
        device.start("syncd")
        # The same model_id needs no epoch: it switches as soon as it is tested, and proves itself.
        until(lambda: (release_seq, "running") in reported(server, device))
        until(lambda: rollout(server, release_seq)["state"] == "done")
        shown = CliRunner().invoke(main, ["update", "status", "--config", str(device.folder / "device.toml")])
        assert shown.exit_code == 0, shown.output
        assert re.search(rf"^running +release {release_seq} model$", shown.stdout, re.MULTILINE)


@pytest.mark.long
def test_a_halted_model_is_withdrawn_and_taken_again_when_the_rollout_goes_on(
    server: Server, tmp_path: Path
) -> None:
    with served_device(tmp_path / "device", server, "gate-7-left") as (device, _port):
        release_seq = offer_model(server, tmp_path / "model", "palm-next", soak_s=3_600)
        device.start("palmd")
        device.start("syncd")
        until(lambda: (release_seq, "verified") in reported(server, device))
        server.operate("release", "halt", str(release_seq), *place(server))
        ask_again(device)
        until(lambda: reported(server, device) == [(release_seq, "withdrawn")])
        assert {path.name for path in (device.state / "models").iterdir()} <= {"shipped"}  # a copy of the own
        server.operate("release", "resume", str(release_seq), *place(server))
        ask_again(device)
        until(lambda: reported(server, device) == [(release_seq, "verified")])
        # It takes effect together with its gallery epoch.
        server.operate("epoch", "new", "--model-id", "palm-next", *place(server))
        until(lambda: reported(server, device) == [(release_seq, "running")])
        assert report(server, device)["model_id"] == "palm-next"


def test_the_carrier_attests_the_keys_once_the_service_knows_the_factory(
    server: Server, tmp_path: Path
) -> None:
    def trust() -> dict[str, Any]:
        (listed,) = server.get("/v1/devices")["data"]
        return dict(listed["trust"])

    authority = make_ca(tmp_path)
    chain = make_board(tmp_path)
    with served_device(tmp_path / "device", server, "gate-7-left") as (device, _port):
        section = AttestSection(chain, f"file:{tmp_path / 'board.key'}")
        write_config(device.folder / "device.toml", replace(device.config, attest=section))
        device.start("palmd")
        device.start("syncd")
        until(lambda: "does not take the attestation" in (device.folder / "palmd.log").read_text())
        assert (trust()["verified"], "KEY_UNATTESTED" in device.health()) == (False, True)
        server.operate("factory-ca", "add", str(authority))
        ask_again(device)  # and hears that an attestation is due, which its next status brings
        until(lambda: trust() == {"attest_level": "x509", "verified": True})
        until(lambda: "KEY_UNATTESTED" not in device.health())
        device.kill("palmd")
        device.start("palmd")
        until(device.answers)
        assert "KEY_UNATTESTED" not in device.health()
        doctor = CliRunner().invoke(
            main, ["doctor", "attest", "--config", str(device.folder / "device.toml")]
        )
        assert doctor.exit_code == 0, doctor.output
        assert "verified by the service on" in doctor.stdout


@pytest.mark.long
def test_a_device_without_a_network_reports_and_is_updated_by_mail(server: Server, tmp_path: Path) -> None:
    with served_device(tmp_path / "device", server, "gate-7-left", network=False) as (device, port):
        device.start("palmd")
        until(device.answers)
        device.start_validator(port, server)
        until(lambda: report(server, device).get("link") == {"up": True, "dbd_id": "dbd-7"})
        release_seq = offer_model(server, tmp_path / "model", SHIPPED_ID, mail_after_s=0)
        until(lambda: reported(server, device) == [(release_seq, "running")])
        until(lambda: rollout(server, release_seq)["state"] == "done")
