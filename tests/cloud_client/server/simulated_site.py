"""A tenant of a running server, its back office, and a folder of simulated gates."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from tests.cloud_client.server.server_process import Running, new_account, post
from tools.palmctl.main import main

Json = dict[str, Any]


class SimulatedSite:
    """A tenant of the server, its back office, and a folder of simulated gates."""

    def __init__(self, running: Running, folder: Path) -> None:
        self.running, self.folder = running, folder
        self.tenant = str(running.palmctl("tenant", "create", "acme")["tenant_id"])
        self.office = running.partner(self.tenant)

    def tried(self, *words: str) -> Result:
        return CliRunner().invoke(main, ["cloud", "simulate", *words, "--folder", str(self.folder), "--json"])

    def done(self, *words: str) -> Json:
        done = self.tried(*words)
        assert done.exit_code == 0, done.stderr
        printed: Json = json.loads(done.stdout)
        return printed

    def gate_words(self, device_id: str, *more: str, mode: str = "test") -> list[str]:
        of = ["--tenant", self.tenant, "--mode", mode, "--url", self.running.url]
        return ["gate", *self.running.where, *of, "--device-id", device_id, "--gate-id", "g1", *more]

    def at_gate(self, command: str, *more: str, device_id: str = "gate-1") -> Json:
        return self.done(command, "--device-id", device_id, *more)

    def session(self, subject_id: str | None = None) -> Json:
        if subject_id is None:
            person = {"external_ref": new_account(), "onboard_ref": "fare/7"}
            subject_id = post(self.office, "/v1/subjects", person).json()["subject_id"]
        opened: Json = post(self.office, "/v1/enrollment-sessions", {"subject_id": subject_id}).json()
        return opened

    def proof(self, verdict_id: str) -> Json:
        proof: Json = self.office.get(f"/v1/verdicts/{verdict_id}").json()
        return proof

    def record(self, verdict_id: str) -> Json:
        record: Json = self.proof(verdict_id)["record"]
        return record

    def revoke(self, device_id: str) -> None:
        answer = post(self.office, f"/v1/devices/{device_id}/revoke", {"reason": "stolen"})
        assert answer.status_code == 200, answer.text

    def device(self, device_id: str) -> Json:
        listed = self.office.get("/v1/devices").json()["data"]
        (device,) = (each for each in listed if each["device_id"] == device_id)
        return dict(device)
