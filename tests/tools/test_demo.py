"""`palmctl demo` as a developer's script runs it: the whole story, and that without any network."""

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.palmctl import PALMCTL, ran
from tests.until import until


def story(folder: Path, *options: str) -> list[dict[str, Any]]:
    """The lines of a whole demonstration; people's references and the secrets stay out of every log of it."""
    done = ran("demo", *options, "--json", "--dir", str(folder), timeout_s=220)
    assert done.returncode == 0, done.stderr
    logs = "".join(path.read_text() for path in (folder / "logs").iterdir() if path.name != "validator.log")
    for word in ("svc_test_", "SVC1:ENR", "acct-ana", "card:ana"):
        assert word not in logs
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long
@pytest.mark.timeout(240)
def test_the_whole_story(tmp_path: Path) -> None:
    lines = story(tmp_path / "demo")
    passages = [line for line in lines if line["event"] == "passage"]
    assert [line["who"] for line in passages] == [
        "Ana", "Bento", "Clara", "Ana", "a stranger", "Clara", "Bento, erased",
    ]  # fmt: skip
    assert [(line["decision"], line["result"]) for line in passages] == [("accept", "MATCH")] * 4 + [
        ("reject", "NO_MATCH"),
        ("abstain", "POOR_CAPTURE"),
        ("reject", "NO_MATCH"),
    ]
    assert all(line["verdict_ref"] for line in passages)
    events = [line["event"] for line in lines]
    assert events.count("enrolled") == 3
    assert events.count("reconciled") == 2
    assert next(line for line in lines if line["event"] == "tombstone")["took_ms"] < 1000
    assert next(line for line in lines if line["event"] == "propagation")["status"] == "complete"
    assert events[-1] == "end"


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_gate_without_a_network_lives_on_mail(tmp_path: Path) -> None:
    lines = story(tmp_path / "demo", "--offline")
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
    configuration = (tmp_path / "demo/palm-gate-2.toml").read_text()
    assert "[cloud]" not in configuration


def running_in(folder: Path) -> list[int]:
    """Processes whose command names the folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if os.fsencode(folder) in place.read_bytes():
                found.append(int(place.parent.name))
    return found


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP])
def test_what_ends_it_ends_its_programs(tmp_path: Path, end: signal.Signals) -> None:
    """A cancelled job, a closed terminal: neither server nor gate goes on by itself."""
    folder = tmp_path / "demo"
    command = [
        *("env", "--default-signal=HUP"),  # the tests may run under nohup
        *PALMCTL,
        *("demo", "--json", "--dir", str(folder)),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as demo:
        assert demo.stdout is not None and b'"cloud_up"' in demo.stdout.readline()
        assert len(running_in(folder)) > 1
        demo.send_signal(end)
        try:
            assert demo.wait(30) == -end
            until(lambda: running_in(folder) == [])  # a command that was under way comes to its own end
        finally:
            for pid in running_in(folder):
                os.kill(pid, signal.SIGKILL)


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    done = ran("demo", "--dir", str(tmp_path))
    assert done.returncode == 2
    assert "so that nothing is overwritten" in done.stderr
