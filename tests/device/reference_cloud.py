"""The real reference server in a process of its own, its operator, and a back office."""

import json
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from click.testing import CliRunner

from link1.keys import SigningKey
from tests.palmctl import PALMCTL, printed
from tools.palmctl.commands.provision import provision

DBD_KEY = SigningKey.from_seed(bytes([31]) * 32)
DBD_ID, GATE_ID = "dbd-7", "gate-7"
SCOPES = ("subjects:read", "subjects:write", "devices:read", "devices:write", "verdicts:read")


@dataclass
class Server:
    """A data directory, and the server over it while `process` runs."""

    data: Path
    port: int = 0
    process: subprocess.Popen[str] | None = None
    tenant: str = ""
    office: httpx.Client = field(default_factory=httpx.Client)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when it accepts connections; the same port each time."""
        command = [*PALMCTL, "cloud", "serve", "--json"]
        self.process = subprocess.Popen(
            [*command, "--data", str(self.data), "--port", str(self.port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(json.loads(self.process.stdout.readline())["url"].rpartition(":")[2])

    def stop(self, *, kill: bool = False) -> None:
        if self.process is not None:
            (self.process.kill if kill else self.process.terminate)()
            self.process.wait(20)
            self.process = None

    def operate(self, *arguments: str) -> Any:
        """`palmctl cloud …`."""
        return printed("cloud", *arguments, "--data", str(self.data))

    def enter_new_tenant(self) -> None:
        """Become the operator and the back office of a tenant without devices, with a validator's key."""
        self.tenant = self.operate("tenant", "create", "Metro")["tenant_id"]
        place = ("--tenant", self.tenant, "--mode", "test")
        scopes = [option for scope in SCOPES for option in ("--scope", scope)]
        key = self.operate("key", "create", *place, *scopes)["api_key"]
        self.office.headers["Authorization"] = f"Bearer {key}"
        self.operate("dbd", "add", *place, "--dbd-id", DBD_ID, "--pub-b64", DBD_KEY.public.b64)

    def token(self, device_id: str) -> str:
        place = ("--tenant", self.tenant, "--mode", "test")
        return str(self.operate("token", "create", *place, "--device-id", device_id)["token"])

    def provision(self, folder: Path, device_id: str, *more: str, token: str = "") -> Any:
        """`palmctl provision`, everything of the device in `folder`; what it printed."""
        words = ["--server", self.url, "--token-stdin", "--device-id", device_id, "--json"]
        words += ["--gate-id", GATE_ID, "--dbd-id", DBD_ID, "--config", str(folder / "device.toml")]
        words += ["--state-dir", str(folder / "state"), "--runtime-dir", str(folder / "run"), *more]
        done = CliRunner().invoke(provision, words, input=token or self.token(device_id))
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return _good(self.office.post(f"{self.url}{path}", json=body, headers=headers))

    def get(self, path: str, **query: str) -> dict[str, Any]:
        return _good(self.office.get(f"{self.url}{path}", params=query))

    def person(self, name: str) -> str:
        """A subject with both consents; the subject_id."""
        subject_id = str(self.post("/v1/subjects", {"external_ref": name})["subject_id"])
        evidence = {
            "method": "paper",
            "terms_version": "v1",
            "accepted_at": "2026-01-01T00:00:00.000Z",
            "evidence_sha256": "0" * 64,
        }
        for purpose in ("enrollment", "identification"):
            self.post(f"/v1/subjects/{subject_id}/consents", {"purpose": purpose, "evidence": evidence})
        return subject_id

    def session(self, subject_id: str) -> dict[str, Any]:
        return self.post("/v1/enrollment-sessions", {"subject_id": subject_id, "hands_required": ["L"]})

    def erase(self, subject_id: str) -> dict[str, Any]:
        return _good(self.office.delete(f"{self.url}/v1/subjects/{subject_id}"))


def _good(response: httpx.Response) -> dict[str, Any]:
    assert response.is_success, response.text
    answer: dict[str, Any] = response.json()
    return answer


@contextmanager
def running_server(folder: Path) -> Iterator[Server]:
    """A server, with a tenant in it."""
    server = Server(folder / "cloud")
    server.start()
    try:
        server.enter_new_tenant()
        yield server
    finally:
        server.office.close()
        server.stop()
