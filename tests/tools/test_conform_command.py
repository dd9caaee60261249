"""`palmctl dbd conform` as people run it: processes on a virtual cable, exit codes, files."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from link1.envelope import Role
from link1.errors import FormatError
from tests.palmctl import PALMCTL, ran
from tests.tools.conform_ends import DEVICE_KEY
from tests.until import until
from tools.kit.c_validator.driver import NoCompilerError, build
from tools.kit.conform.counters import Counters, load_counters
from tools.kit.conform.hands import HandError, ProgramHand
from tools.kit.conform.runner import rules_for
from tools.kit.pty_pair import PtyPair
from tools.kit.simulate.files import create_key


def judged(
    folder: Path, validator: Sequence[str], validator_pub: str, *rules: str
) -> "subprocess.CompletedProcess[str]":
    """A validator, and the kit as a device at the other end of a virtual cable."""
    device_key = folder / "device.key"
    device_pub = create_key(device_key).public.b64
    with (
        PtyPair(directory=folder) as cable,
        subprocess.Popen(
            [
                *validator,
                *("--port", cable.right, "--device-pub-b64", device_pub),
                *("--dbd-id", "dbd-1", "--gate-id", "gate-1"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process,
    ):
        try:
            return ran(
                *("dbd", "conform", "--as-device", "--port", cable.left, "--peer-pub-b64", validator_pub),
                *("--key-file", str(device_key), "--device-id", "palm-1", "--gate-id", "gate-1", *rules),
            )
        finally:
            process.kill()


@pytest.mark.long
def test_our_own_simulator_passes_on_a_cable(tmp_path: Path) -> None:
    """As the developer of a validator runs it: two commands on a virtual pair."""
    dbd_key = tmp_path / "dbd.key"
    shown = judged(
        tmp_path,
        [*PALMCTL, "dbd", "simulate", "--key-file", str(dbd_key), "--ttl-ms", "1000"],
        create_key(dbd_key).public.b64,
        *("--only", "frame.bad_crc", "--only", "opens", "--only", "request", "--only", "resolve"),
        *("--skip", "opens.late", "--skip", "opens.ttl", "--json"),
    )
    *findings, summary = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [finding for finding in findings if finding["result"] != "PASS"] == []
    assert [summary[name] for name in ("passed", "failed", "not_tried")] == [len(findings), 0, 0]
    assert summary["left_out"] > 50
    assert shown.returncode == 0
    assert load_counters(tmp_path / "device.key.conform.json").verdict_seq > 5


def test_a_validator_that_shares_no_code_with_us_passes(tmp_path: Path) -> None:
    """The one in C, from which vendors start."""
    program = tmp_path / "validator"
    try:
        build(program, "-O1")
    except NoCompilerError as error:
        pytest.skip(str(error))
    dbd_key = tmp_path / "dbd.key"
    shown = judged(
        tmp_path,
        [str(program), "--key-file", str(dbd_key), "--state", str(tmp_path / "state")],
        create_key(dbd_key).public.b64,
        *("--only", "frame", "--only", "envelope", "--only", "opens", "--only", "decision"),
        *("--only", "handshake.early", "--skip", "opens.late", "--skip", "opens.ttl", "--json"),
    )
    *findings, summary = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [finding for finding in findings if finding["result"] != "PASS"] == []
    assert summary["passed"] == len(findings) > 30


def test_a_broken_end_is_exit_1_and_says_what_was_found(tmp_path: Path) -> None:
    """An end without a key that is pinned: it answers RST and proves nothing."""
    shown = judged(
        tmp_path,
        [*PALMCTL, "dbd", "simulate", "--key-file", str(tmp_path / "dbd.key"), "--generate"],
        DEVICE_KEY.public.b64,
        *("--only", "handshake.hello", "--only", "handshake.prove"),
    )
    assert shown.returncode == 1
    assert "FAIL       handshake.hello" in shown.stdout
    assert "§3 Handshake" in shown.stdout
    assert "found     hello with" in shown.stdout


def test_nobody_there_is_exit_3_and_wrong_usage_exit_2(tmp_path: Path) -> None:
    key_file = tmp_path / "k"
    key = create_key(key_file)
    common = (
        "--peer-pub-b64",
        key.public.b64,
        "--key-file",
        str(key_file),
        "--dbd-id",
        "d",
        "--gate-id",
        "g",
    )
    absent = ran("dbd", "conform", "--port", str(tmp_path / "absent"), *common)
    assert absent.returncode == 3
    (said,) = absent.stderr.splitlines()
    assert said.startswith(f"palmctl: {tmp_path / 'absent'}: there is no such port")
    assert ran("dbd", "conform", "--port", "x").returncode == 2
    assert ran("dbd", "conform", "--port", "x", *common, "--only", "nonsense").returncode == 2
    assert ran("dbd", "conform", "--port", "x", *common, "--as-device").returncode == 2
    no_id = ran("dbd", "conform", "--port", "x", *common, "--gate-id", "gate 1")
    assert no_id.returncode == 2
    assert "--gate-id: an id has 1 to 64 of" in no_id.stderr.replace("'", "")
    listed = ran("dbd", "conform", "--list", "--json")
    assert [json.loads(line)["id"] for line in listed.stdout.splitlines()] == [
        rule.id for rule in rules_for(Role.DEVICE)
    ]


def test_counters_are_kept_and_a_damaged_file_is_not_taken_for_none(tmp_path: Path) -> None:
    path = tmp_path / "k.conform.json"
    counters = Counters(path)
    assert counters.next_decision_seq() == 1
    counters.verdict_signed("a" * 32)
    again = load_counters(path)
    assert (again.decision_seq, again.verdict_seq, again.prev_ref) == (1, 1, "a" * 32)
    path.write_text("{")
    with pytest.raises(FormatError, match="damaged"):
        load_counters(path)


def test_a_program_may_show_hands(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = tmp_path / "hand"
    program.write_text(f'#!/bin/sh\nsleep 0.2\necho "$1" >> {log}\n')
    program.chmod(0o755)
    hand = ProgramHand(str(program))
    hand.show()
    gone = hand.away()
    assert not gone(), "it is at work, and the session is kept alive meanwhile"
    until(gone)
    assert log.read_text().split() == ["show", "away"]
    with pytest.raises(HandError, match="absent show"):
        ProgramHand(str(tmp_path / "absent")).show()
    failing = ProgramHand("false")
    failing.show()
    with pytest.raises(HandError, match="exit code 1"):
        until(failing.away())
