"""docs/API.md is run as it stands: every operation has a curl, and every curl does what it says."""

import json
import os
import re
import shutil
import subprocess
from typing import Any

import pytest

from cloud_client.reference_server.web.api.operations_partner import PARTNER_OPERATIONS, WEBHOOKS
from tests import REPOSITORY
from tests.cloud_client.server.server_process import Board, Running

PAGE = REPOSITORY / "docs" / "API.md"
EXAMPLE = re.compile(
    r"^(\w+)(?: \(`([a-z:]+)`\))?[^\n]*\n(?:[^\n`]+\n)*\n```sh\n(.*?)```", re.MULTILINE | re.DOTALL
)
LEARNED = {"subject_id": "SUBJECT_ID", "session_id": "SESSION_ID", "receipt_id": "RECEIPT_ID"}


def examples() -> list[tuple[str, str, str]]:
    return EXAMPLE.findall(PAGE.read_text())


def test_every_operation_is_documented_with_its_scope() -> None:
    shown = {name: scope for name, scope, _ in examples()}
    expected = {
        operation.operation_id: operation.scope.value if operation.scope else ""
        for operation in PARTNER_OPERATIONS
        if operation not in WEBHOOKS
    }
    assert shown == expected


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_every_example_works(running: Running) -> None:
    tenant = running.palmctl("tenant", "create", "acme")["tenant_id"]
    partner = running.partner(tenant)
    board = Board(running, tenant)
    variables = {
        "BASE": running.url,
        "API_KEY": partner.headers["Authorization"].split()[1],
        "DEVICE_ID": "gate-1",
        "VERDICT_ID": board.upload_verdict(),
        "RECORD": json.dumps(board.outbox_report()),
    }
    for name, _, script in examples():
        done = subprocess.run(
            ["bash", "-c", script],
            env={"PATH": os.environ["PATH"], "no_proxy": "*"} | variables,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        answer: dict[str, Any] = json.loads(done.stdout)
        variables |= {LEARNED[member]: answer[member] for member in LEARNED if member in answer}
