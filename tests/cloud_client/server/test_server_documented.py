"""The requests of the reference page are run unchanged, so each of them does what it says."""

import json
import os
import shutil
import subprocess
from typing import Any

import pytest

from cloud_client.reference_server.contract.bodies import A_UUID
from cloud_client.reference_server.web.admin.reference import DEVICE_CHAPTER, OperationEntry, chapters
from cloud_client.reference_server.web.api.openapi import document
from cloud_client.reference_server.web.api.operations import OPERATIONS
from cloud_client.reference_server.web.api.rate_limit import Rate
from tests import REPOSITORY
from tests.cloud_client.server.server_process import Board, Running

LEARNED = {"subject_id": "SUBJECT_ID", "session_id": "SESSION_ID", "receipt_id": "RECEIPT_ID"}
ENDS = ("eraseSubject", "getErasureReceipt")
"""After everything that needs the person."""


def entries() -> list[OperationEntry]:
    found = [
        entry
        for chapter in chapters(document(OPERATIONS))
        if chapter.title != DEVICE_CHAPTER  # whose requests are signed
        for entry in chapter.entries
    ]
    return sorted(found, key=lambda entry: entry.operation_id in ENDS)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_every_request_of_the_reference_works(running: Running) -> None:
    tenant = running.palmctl("tenant", "create", "acme")["tenant_id"]
    partner = running.partner(tenant)
    board = Board(running, tenant)
    variables = {
        "BASE": running.url,
        "API_KEY": partner.headers["Authorization"].split()[1],
        "DEVICE_ID": "gate-1",
        "VERDICT_ID": board.upload_verdict(),
        "PURPOSE": "enrollment",
        "CODE": "cursor_expired",
    }
    for entry in entries():
        script = entry.request
        if entry.operation_id == "createEnrollmentSession":
            script = script.replace(A_UUID, variables["SUBJECT_ID"])
            script = script.replace('"device_id": "gate-07"', '"device_id": "gate-1"')
        done = subprocess.run(
            ["bash", "-c", f'curl() {{ command curl -sS --fail-with-body "$@"; }}\n{script}'],
            env={"PATH": os.environ["PATH"], "no_proxy": "*"} | variables,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert done.returncode == 0, f"{entry.operation_id}: {done.stdout}{done.stderr}"
        answer: dict[str, Any] = json.loads(done.stdout)
        variables |= {LEARNED[member]: answer[member] for member in LEARNED if member in answer}


def test_the_back_offices_page_has_the_limits_in_force() -> None:
    page = " ".join((REPOSITORY / "docs/tutorials/BACKOFFICE.md").read_text(encoding="utf-8").split())
    read, write, sessions = Rate.KEY_READ, Rate.KEY_WRITE, Rate.SESSIONS_OF_TENANT
    assert f"may read {read.per_s} times a second (at once {read.capacity})" in page
    assert f"and write {write.per_s} times (at once {write.capacity})" in page
    assert f"together open {sessions.per_s * 60:.0f} enrollment sessions a minute" in page
