"""`palmctl dbd` and `palmctl link` as people run them: processes on a virtual cable."""

import asyncio
import json
import os
import signal
import subprocess
import termios
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from link1.canonical import JsonObject, b64_encode
from link1.device_end import DeviceEnd
from link1.envelope import MessageType
from link1.errors import FormatError
from link1.events import Proven, RequestReceived
from link1.frames import Frame, FrameKind, encode_frame
from link1.keys import SigningKey
from link1.objects import (
    Decision,
    ErrorCode,
    GuideHint,
    Passage,
    Request,
    VerdictResult,
)
from link1.signed import Kind, object_ref, sign_object
from link1.transport.pump import CablePump
from link1.transport.serial_port import open_port
from link1.validator.memory import DeskMemory
from tests.link1.cable import DEVICE_KEY, device_status, verdict_for
from tests.palmctl import PALMCTL, ran
from tests.until import until
from tools.kit.pty_pair import PtyPair
from tools.kit.simulate.files import create_key, load_memory, read_key, save_memory, state_path
from tools.kit.simulate.policy import load_policy


class ScriptedDevice:
    """A device end that answers the nth request with the nth of `results`; None lets it expire."""

    def __init__(
        self, path: str, validator: SigningKey, results: list[VerdictResult | None], *, serving: bool
    ) -> None:
        self._serving = serving
        self._results = iter(results)
        self._seq = 0
        self._prev_ref = "0" * 32
        self._end = DeviceEnd(
            device_id="dev-1",
            gate_id="gate-1",
            dbd_id="dbd-1",
            verdict_key=DEVICE_KEY,
            validator_keys=lambda kid, _at_ms: validator.public if kid == validator.kid else None,
            random=os.urandom,
        )
        self.pump: CablePump[Any] = CablePump(self._end, lambda: open_port(path), on_event=self._on_event)
        self.proven = 0

    def _on_event(self, event: object) -> None:
        if isinstance(event, Proven):
            self.proven += 1
            self._end.send_status(device_status(serving=self._serving))
        if isinstance(event, RequestReceived):
            result = next(self._results, None)
            if result is None:
                self._end.send_error(ErrorCode.EXPIRED, MessageType.REQUEST, event.request.txn_id)
            else:
                self._end.send_guide(event.request.txn_id, GuideHint.SHOW_HAND)
                verdict = self._verdict(event.request, result)
                asyncio.get_running_loop().call_later(0.01, self._send, verdict)

    def _send(self, wrapper: dict[str, Any]) -> None:
        self._end.send_verdict(wrapper)
        self.pump.kick()

    def _verdict(self, asked: Request, result: VerdictResult) -> dict[str, Any]:
        self._seq += 1
        accepted = result is VerdictResult.MATCH
        verdict = verdict_for(asked, self._seq, accepted, result=result, prev_ref=self._prev_ref)
        wrapper = sign_object(Kind.VERDICT, verdict.to_obj(), DEVICE_KEY)
        self._prev_ref = object_ref(wrapper)
        return wrapper


def simulate(
    tmp_path: Path, results: list[VerdictResult | None], *more: str, serving: bool = True
) -> tuple[int, list[dict[str, Any]], str]:
    """Run the simulator against a scripted device; its exit code, its lines, its stderr."""
    key_file = tmp_path / "dbd.key"
    key = read_key(key_file) if key_file.exists() else create_key(key_file)

    async def scenario(cable: PtyPair) -> tuple[int, bytes, bytes]:
        device = asyncio.create_task(ScriptedDevice(cable.left, key, results, serving=serving).pump.run())
        process = await asyncio.create_subprocess_exec(
            *PALMCTL,
            *("dbd", "simulate", "--port", cable.right, "--device-pub-b64", DEVICE_KEY.public.b64),
            *("--key-file", str(key_file), "--dbd-id", "dbd-1", "--gate-id", "gate-1"),
            *("--timeout-s", "30", "--json", *more),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        device.cancel()
        with suppress(asyncio.CancelledError):
            await device
        return process.returncode or 0, out, err

    with PtyPair(directory=tmp_path) as cable:
        code, out, err = asyncio.run(scenario(cable))
    return code, [json.loads(line) for line in out.splitlines()], err.decode()


def test_passages_are_reported_one_line_each_and_counters_survive(tmp_path: Path) -> None:
    results = [VerdictResult.MATCH, VerdictResult.NO_MATCH]
    code, lines, _ = simulate(tmp_path, [*results, None], "--passages", "2", "--passage-sensor")
    assert code == 0
    passages = [line for line in lines if "event" not in line]
    assert [(line["decision"], line["result"], line["outcome"], line["actuated"]) for line in passages] == [
        ("accept", "MATCH", "LIBERAR", True),
        ("reject", "NO_MATCH", "BLOQUEAR", False),
    ]
    assert all(line["verified"] and len(line["verdict_ref"]) == 32 for line in passages)
    assert passages[0]["passed"] is True
    assert passages[0]["hints"] == ["show_hand"]
    assert [line["event"] for line in lines if "event" in line][:2] == ["link_up", "request"]
    key = read_key(tmp_path / "dbd.key")
    memory = load_memory(state_path(tmp_path / "dbd.key"), key.public)
    assert (memory.decision_seq, memory.dbd_event_seq, memory.highest_verdict_seq) == (2, 1, 2)

    # Restarted: the device's counter begins again at 1, which the validator remembers having acted on.
    more = ("--passages", "1", "--timeout-s", "3", "--forgot")
    code, lines, err = simulate(tmp_path, [VerdictResult.MATCH], *more)
    assert load_memory(state_path(tmp_path / "dbd.key"), key.public).forgot
    assert code == 1
    assert "ended before" in err
    assert [line["why"] for line in lines if line.get("event") == "verdict_not_acted_on"] == ["old_seq"]


@pytest.mark.parametrize("passages", [("--passages", "1"), ()])
def test_without_a_device_at_the_other_end_it_is_exit_3(tmp_path: Path, passages: tuple[str, ...]) -> None:
    shown = ran(
        *("dbd", "simulate", "--port", str(tmp_path / "absent"), "--device-pub-b64", DEVICE_KEY.public.b64),
        *("--key-file", str(tmp_path / "k"), "--generate", "--dbd-id", "d", "--gate-id", "g"),
        *(*passages, "--timeout-s", "0.3", "--json"),
    )
    assert shown.returncode == 3
    (line,) = [json.loads(text) for text in shown.stdout.splitlines()]
    assert "there is no such port" in line["detail"]


def test_a_device_that_serves_no_one_is_asked_once_a_second(tmp_path: Path) -> None:
    code, lines, _ = simulate(tmp_path, [], "--passages", "1", "--timeout-s", "3", serving=False)
    assert code == 1
    assert 1 <= sum(line.get("event") == "request_ended" for line in lines) <= 4


def test_an_expired_request_is_followed_by_another(tmp_path: Path) -> None:
    code, lines, _ = simulate(tmp_path, [None, None, VerdictResult.MATCH], "--passages", "1")
    assert code == 0
    assert [line["why"] for line in lines if line.get("event") == "request_ended"] == ["expired", "expired"]


@pytest.mark.parametrize("second", ["simulate", "conform"])
def test_a_key_counts_for_one_program_at_a_time(tmp_path: Path, second: str) -> None:
    """Two would sign different decisions under one decision_seq."""
    key_file, absent, public = tmp_path / "k", str(tmp_path / "absent"), DEVICE_KEY.public.b64
    create_key(key_file)
    common = ("--port", absent, "--key-file", str(key_file), "--dbd-id", "d", "--gate-id", "g")
    first = [*PALMCTL, "dbd", "simulate", *common, "--device-pub-b64", public, "--json"]
    with subprocess.Popen(first, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None and "no such port" in running.stdout.readline()
            peer = "--device-pub-b64" if second == "simulate" else "--peer-pub-b64"
            refused = ran("dbd", second, *common, peer, public)
            assert (refused.returncode, "in use by another program" in refused.stderr) == (1, True)
        finally:
            running.terminate()
    again = ran("dbd", "simulate", *common, "--device-pub-b64", public, "--timeout-s", "0.3")
    assert again.returncode == 3


def test_a_policy_file_decides(tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    rule = {"when": {"subject_ref": "5" * 32}, "outcome": "BLOQUEAR", "reason": "no_balance"}
    policy.write_text(json.dumps({"rules": [rule]}))
    code, lines, _ = simulate(tmp_path, [VerdictResult.MATCH], "--passages", "1", "--policy", str(policy))
    assert code == 0
    (passage,) = [line for line in lines if "event" not in line]
    assert (passage["outcome"], passage["reason"], passage["actuated"]) == ("BLOQUEAR", "no_balance", False)


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"when": {"colour": "red"}, "outcome": "X", "reason": "y"},
        {"when": {}, "outcome": "", "reason": "y"},
    ],
)
def test_a_policy_that_cannot_be_read_says_which_rule(tmp_path: Path, rule: dict[str, Any]) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"rules": [rule]}))
    with pytest.raises(FormatError, match="policy rule 0"):
        load_policy(str(policy))


def test_key_files(tmp_path: Path) -> None:
    file = tmp_path / "k"
    made = ran("dbd", "key", "--key-file", str(file), "--generate", "--json")
    assert made.returncode == 0, made.stderr
    assert file.stat().st_mode & 0o777 == 0o600
    shown = json.loads(ran("dbd", "key", "--key-file", str(file), "--json").stdout)
    assert shown == json.loads(made.stdout)
    assert set(shown) == {"kid", "pub_b64"}
    again = ran("dbd", "key", "--key-file", str(file), "--generate")
    assert again.returncode == 1
    assert "not replaced" in again.stderr
    raw = read_key(file)
    file.write_text(b64_encode(raw.seed) + "\n")
    assert read_key(file) == raw
    file.write_text("nonsense")
    with pytest.raises(FormatError):
        read_key(file)
    absent = ran("dbd", "key", "--key-file", str(tmp_path / "absent"))
    assert absent.returncode == 1
    assert "--generate" in absent.stderr


def test_a_full_disk_leaves_no_key_that_is_none_and_the_error_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "k"

    def on_a_full_disk(*arguments: str) -> str:
        """No file can grow there."""
        shell = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *PALMCTL, "dbd", *arguments]
        shown = subprocess.run(
            [*shell, "--key-file", str(file)], capture_output=True, text=True, timeout=60, check=False
        )
        assert shown.returncode == 1
        return shown.stderr

    assert f"palmctl: {file}: " in on_a_full_disk("key", "--generate")
    made = ran("dbd", "key", "--generate", "--key-file", str(file))
    assert made.returncode == 0, made.stderr
    common = ("--port", "x", "--device-pub-b64", DEVICE_KEY.public.b64, "--dbd-id", "d", "--gate-id", "g")
    assert f"palmctl: {state_path(file)}: " in on_a_full_disk("simulate", "--forgot", *common)


KEYS = [SigningKey.from_seed(bytes([number]) * 32) for number in (1, 2)]
REF = "ab" * 16


def signed_memory(key: SigningKey) -> DeskMemory:
    """Of a validator with a turn sensor that opened once."""
    decision = Decision("0" * 32, "g", "d", "A" * 22 + "==", REF, "ok", "LIBERAR", True, 1, 1)
    passage = Passage("0" * 32, "d", "g", REF, True, "giro", 2, 1)
    memory = DeskMemory(device_kid=DEVICE_KEY.kid)
    memory = memory.with_decision(REF, sign_object(Kind.DECISION, decision.to_obj(), key), 5)
    return memory.with_passage(REF, sign_object(Kind.PASSAGE, passage.to_obj(), key))


def test_another_key_has_its_own_counters_and_what_was_acted_on_stays_known(tmp_path: Path) -> None:
    path = tmp_path / "k.state.json"
    old, new = KEYS
    memory = signed_memory(old)
    save_memory(path, old.kid, memory)
    assert load_memory(path, old.public) == memory
    changed = load_memory(path, new.public)
    assert (changed.decision_seq, changed.dbd_event_seq, changed.highest_verdict_seq) == (0, 0, 5)
    assert changed.find(REF) == memory.find(REF)
    # As many answers as decisions again: some are the other key's, and older ones may have gone.
    later = changed.with_decision("cd" * 16, memory.answered[0].decision, None)
    assert not replace(later, answered=later.answered[1:]).complete
    save_memory(path, new.kid, changed)
    assert load_memory(path, new.public) == changed
    assert not load_memory(tmp_path / "none", new.public, forgot=True).complete
    back = load_memory(path, old.public)
    assert (back.decision_seq, back.dbd_event_seq) == (1, 1), "none is used twice, as far as is known"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda memory: memory.update(decision_seq=0),
        lambda memory: memory.update(dbd_event_seq=0),
        lambda memory: memory["answered"][0].update(verdict_ref="cd" * 16),
        lambda memory: memory["answered"][0]["decision"].update(sig_b64="A" * 86 + "=="),
        lambda memory: memory["answered"][0]["decision"]["decision_obj"].update(actuated=False),
        lambda memory: memory["answered"][0]["decision"].update(decision_obx=1),
        lambda memory: memory["answered"][0]["passage"]["passage"].update(passed=False),
    ],
)
def test_a_damaged_file_is_not_taken(tmp_path: Path, spoil: Callable[[JsonObject], None]) -> None:
    path = tmp_path / "k.state.json"
    save_memory(path, KEYS[0].kid, signed_memory(KEYS[0]))
    file = json.loads(path.read_text())
    spoil(file["memory"])
    path.write_text(json.dumps(file))
    with pytest.raises(FormatError, match=r"is damaged .*; restore it"):
        load_memory(path, KEYS[0].public)


def test_a_file_that_was_cut_off_is_not_taken_for_none(tmp_path: Path) -> None:
    path = tmp_path / "k.state.json"
    save_memory(path, KEYS[0].kid, DeskMemory(decision_seq=7))
    assert load_memory(path, KEYS[0].public).decision_seq == 7
    path.write_text(path.read_text()[:-5])
    with pytest.raises(FormatError, match="damaged"):
        load_memory(path, KEYS[0].public)


def test_wrong_usage_is_exit_2(tmp_path: Path) -> None:
    key_file = tmp_path / "k"
    create_key(key_file)
    common = ("--port", "x", "--key-file", str(key_file), "--dbd-id", "d", "--gate-id", "g")
    bad_key = ran("dbd", "simulate", *common, "--device-pub-b64", "AAAA")
    assert bad_key.returncode == 2
    bad_policy = ran(
        "dbd",
        "simulate",
        *common,
        "--device-pub-b64",
        DEVICE_KEY.public.b64,
        "--policy",
        str(tmp_path / "no"),
    )
    assert bad_policy.returncode == 2
    bad_id = ran("dbd", "simulate", *common, "--device-pub-b64", DEVICE_KEY.public.b64, "--dbd-id", "d 1")
    assert bad_id.returncode == 2
    assert "an id has 1 to 64 of" in bad_id.stderr


@pytest.mark.parametrize(
    ("server", "api_key", "said"),
    [
        ("http://cloud.example", "svc_test_k", "plain http is accepted for a loopback address only"),
        ("http://a:b:c", "svc_test_k", "https://host[:port]"),
        ("cloud.example", "svc_test_k", "https://host[:port]"),
        ("http://127.0.0.1:9", "", "stdin holds no API key"),
        ("http://127.0.0.1:9", "chav\u00e9", "stdin holds no API key"),
    ],
)
def test_an_api_key_goes_to_the_service_alone(tmp_path: Path, server: str, api_key: str, said: str) -> None:
    shown = ran(
        *("dbd", "simulate", "--port", str(tmp_path / "absent"), "--device-pub-b64", DEVICE_KEY.public.b64),
        *("--key-file", str(tmp_path / "k"), "--generate", "--dbd-id", "d", "--gate-id", "g"),
        *("--server", server, "--api-key-stdin", "--timeout-s", "0.3"),
        input=api_key,
    )
    assert (shown.returncode, said in shown.stderr) == (2, True), shown.stderr


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_link_pair_prints_its_paths_and_lives_until_interrupted(end: signal.Signals) -> None:
    with subprocess.Popen([*PALMCTL, "link", "pair", "--json"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        paths = json.loads(process.stdout.readline())
        left, right = open_port(paths["device"]), open_port(paths["validator"])
        assert left.write(b"hello") == 5
        received = b""
        while len(received) < 5:
            received += right.read(100)
        assert received == b"hello"
        left.close()
        right.close()
        process.send_signal(end)
        assert process.wait(20) == 0
    assert not Path(paths["device"]).exists()


@pytest.mark.parametrize("command", ["simulate", "conform", "monitor"])
def test_a_uart_of_another_speed_is_opened_with_it(command: str, tmp_path: Path) -> None:
    key_file = tmp_path / "dbd.key"
    create_key(key_file)
    master, slave = os.openpty()
    path, ids = os.ttyname(slave), ("--dbd-id", "dbd-1", "--gate-id", "gate-1", "--key-file", str(key_file))
    commands = {
        "simulate": ("dbd", "simulate", "--port", path, "--device-pub-b64", DEVICE_KEY.public.b64, *ids),
        "conform": ("dbd", "conform", "--port", path, "--peer-pub-b64", DEVICE_KEY.public.b64, *ids),
        "monitor": ("link", "monitor", path),
    }
    with subprocess.Popen([*PALMCTL, *commands[command], "--baud", "115200"]) as process:
        until(lambda: termios.tcgetattr(slave)[4:6] == [termios.B115200] * 2)
        process.kill()
    os.close(master)
    os.close(slave)


def test_link_monitor_decodes_a_capture(tmp_path: Path) -> None:
    capture = tmp_path / "capture"
    message = b'{"body":{"passage_sensor":true},"type":"ready","v":1}'
    big = b'{"body":{"x":"' + b"y" * 1500 + b'"},"type":"cancel","v":1}'
    capture.write_bytes(
        encode_frame(Frame(FrameKind.RST, payload=bytes(range(1, 9))))
        + encode_frame(Frame(FrameKind.DATA, sess=1, payload=message))
        + b"rubbish\x00"
        + encode_frame(Frame(FrameKind.DATA, sess=1, mid=1, index=0, count=2, payload=big[:1024]))
        + encode_frame(Frame(FrameKind.DATA, sess=1, mid=1, index=1, count=2, payload=big[1024:]))
    )
    shown = ran("link", "monitor", "--file", str(capture), "--json")
    assert shown.returncode == 0, shown.stderr
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [line["kind"] for line in lines] == ["RST", "DATA", "DATA", "DATA", "DROPPED"]
    assert lines[0]["tags"] == ["0102030405060708"]
    assert (lines[1]["type"], lines[1]["body"]) == ("ready", {"passage_sensor": True})
    assert "type" not in lines[2]
    assert lines[3]["type"] == "cancel"
    plain = ran("link", "monitor", "--file", str(capture))
    assert len(plain.stdout.splitlines()) == 5
    assert ran("link", "monitor").returncode == 2
