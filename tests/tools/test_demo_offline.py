"""`palmctl demo --offline`: a gate without any network, read from the JSON lines of its story."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.palmctl import PALMCTL


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_gate_without_a_network_lives_on_mail(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    done = subprocess.run(
        [*PALMCTL, "demo", "--offline", "--json", "--dir", str(folder)],
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    said = [(line["who"], line["decision"], line["result"]) for line in lines if line["event"] == "passage"]
    assert said == [
        ("Ana", "accept", "MATCH"),
        ("Bento", "accept", "MATCH"),
        ("a stranger", "reject", "NO_MATCH"),
        ("Clara", "accept", "MATCH"),
        ("Bento, erased", "reject", "NO_MATCH"),
        ("Ana", "abstain", "NOT_READY"),
    ]
    events = [line["event"] for line in lines]
    assert events.count("gallery_by_mail") == 2
    assert events.count("reconciled") == 2
    assert events.count("receipts") == 2
    assert "revoked" in events
    assert next(line for line in lines if line["event"] == "propagation")["status"] == "complete"
    assert events[-1] == "end"
    configuration = (folder / "palm-gate-2.toml").read_text()
    assert "[cloud]" not in configuration
    logs = "".join(path.read_text() for path in (folder / "logs").iterdir() if path.name != "validator.log")
    for word in ("svc_test_", "SVC1:ENR", "acct-ana", "card:ana"):
        assert word not in logs
