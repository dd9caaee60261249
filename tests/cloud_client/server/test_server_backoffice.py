"""docs/tutorials/BACKOFFICE.md is run: every request is sent, every answer shown is what comes back."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from link1.keys import SigningKey
from tests import REPOSITORY
from tests.cloud_client.server.server_harness import SimDevice, Tenant, decision, passage, vector
from tests.cloud_client.server.server_process import Board, Running

PAGE = REPOSITORY / "docs" / "tutorials" / "BACKOFFICE.md"
STEP = re.compile(
    r"^```sh\n(.*?)```(?:\n\n```json\n(.*?)```)?|^<!-- meanwhile: (.*?) -->", re.MULTILINE | re.DOTALL
)
LEARNED = {
    "subject_id": "SUBJECT_ID",
    "session_id": "SESSION_ID",
    "receipt_id": "RECEIPT_ID",
    "next_cursor": "CURSOR",
}
# What is another value with every run; everything else must be as it is shown.
CHANGING = re.compile(
    r".*_at(_ms)?|.*_b64|kid|signer_kid|instance|token|qr_payload|short_code|subject_ref|verdict_ref|txn_id"
    r"|next_cursor|since|head16|use|(consent|subject|session|enrollment|receipt|verdict|tenant)_id|stream|not_before|rid|created_ms|ct_.*"
)


class Wire:
    """What a simulated device sends its requests through: a server in another process."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, trust_env=False)

    @property
    def clock(self) -> SimpleNamespace:
        return SimpleNamespace(ms=time.time_ns() // 1_000_000)

    def send(self, method: str, target: str, headers: dict[str, str], **given: Any) -> httpx.Response:
        return self._http.request(method, target, headers={"Host": "cloud.test"} | headers, **given)


class Scene:
    """The server, the gate, and the values of the page's variables."""

    def __init__(self, running: Running) -> None:
        tenant_id = running.palmctl("tenant", "create", "acme")["tenant_id"]
        place = ("--tenant", tenant_id, "--mode", "test")
        self.gate = SimDevice(cast("Tenant", SimpleNamespace(cloud=Wire(running.url))), "gate-7")
        token = running.palmctl("token", "create", *place, "--device-id", "gate-7")["token"]
        assert self.gate.register(token).status_code == 201
        self.running, self.place = running, place
        self.validator = SigningKey.generate()
        running.palmctl("dbd", "add", *place, "--dbd-id", "d1", "--pub-b64", self.validator.public.b64)
        mailing = Board(running, tenant_id, "gate-8")
        self.variables = {
            "BASE": running.url,
            "API_KEY": running.partner(tenant_id).headers["Authorization"].split()[1],
            "DEVICE_ID": "gate-8",
            "RECORD": json.dumps(mailing.outbox_report()),
        }
        self.seen: dict[str, Any] = {}

    def request(self, script: str) -> Any:
        """Run one of the page's requests; the answer's object."""
        done = subprocess.run(
            ["bash", "-c", script],
            env={"PATH": os.environ["PATH"], "no_proxy": "*"} | self.variables,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert done.returncode == 0, script + done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        self.seen |= answer
        self.variables |= {LEARNED[name]: answer[name] for name in LEARNED if answer.get(name)}
        return answer

    def the_kiosk_enrols(self) -> None:
        palms = {"L": vector(1), "R": vector(2)}
        self.gate.post("/v1/enrollments", self.gate.enrolment(self.seen["token"], palms), 201)

    def the_gate_decides(self) -> None:
        accepted = self.gate.verdict(self.seen["subject_ref"])
        done = decision(accepted, self.validator)
        result = self.gate.upload({"signed_verdict": accepted, "signed_decision": done})
        (self.variables["VERDICT_ID"],) = result["accepted"]

    def a_gate_that_was_away_delivers(self) -> None:
        token = self.running.palmctl("token", "create", *self.place, "--device-id", "gate-9")["token"]
        self.away = SimDevice(self.gate.tenant, "gate-9", passage_sensor=True)
        assert self.away.register(token).status_code == 201
        self.old = self.away.verdict(decided_at_ms=self.away.cloud.clock.ms - 3600 * 1000)
        done = decision(self.old, self.validator)
        self.away.upload({"signed_verdict": self.old, "signed_decision": done})

    def its_passage_follows(self) -> None:
        self.away.upload({"signed_verdict": self.old, "signed_passage": passage(self.old, self.validator)})

    def play(self) -> Iterator[tuple[str, str, Any]]:
        """Every request of the page: (script, the answer shown, the answer given)."""
        for script, shown, event in STEP.findall(PAGE.read_text()):
            if event:
                getattr(self, event.replace(" ", "_"))()
            else:
                yield script, shown, self.request(script)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_page_tells_the_truth(running: Running) -> None:
    for script, shown, given in Scene(running).play():
        assert shown, f"no answer is shown for {script}"
        check(json.loads(shown), given, script)


def check(shown: Any, given: Any, where: str, name: str = "") -> None:
    """``given`` has everything that is shown, with the same values but for those that change."""
    if isinstance(shown, dict):
        assert isinstance(given, dict), where
        for member, value in shown.items():
            assert member in given, f"{where}: no {member} in {sorted(given)}"
            check(value, given[member], where, member)
    elif isinstance(shown, list):
        assert len(shown) <= len(given), where
        for one, other in zip(shown, given, strict=False):
            check(one, other, where, name)
    elif CHANGING.fullmatch(name):
        assert type(shown) is type(given), f"{where}: {name}"
    else:
        assert shown == given, f"{where}: {name}"
