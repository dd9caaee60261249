"""How `palmctl` fails: one prefix, JSON where it was asked for, a suggestion for what was mistyped, no
colours where none are wanted; and no path that a user names can stop it."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from device.config.config import load_config
from device.errors import ConfigError, IpcNotPermitted, IpcSilent, IpcUnreachable
from device.platform.files import replace_named, write_on_stick
from device.platform.ipc import Packet, ask_core
from device.values.control import PassAnswer, TrialPassage
from link1.objects import Pad
from link1.plain_file import read_plain_file
from tests import REPOSITORY
from tests.device.core.small_disk import fill, small_disk
from tests.device.status_makers import some_status
from tests.palmctl import PALMCTL
from tools.palmctl.alone import alone_at
from tools.palmctl.commands.bench import report_figures
from tools.palmctl.live_terminal import live_line
from tools.palmctl.main import main
from tools.palmctl.pages.server import LocalPage

CONFIG = """
[device]
id = "gate-7"
gate_id = "g7"
dbd_id = "d7"
state_dir = "state"
runtime_dir = "run"
[camera]
source = "/dev/video99"
[link]
port = "/dev/ttyACM99"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "device.toml"
    path.write_text(CONFIG)
    return path


def test_a_terminal_without_the_signs_gets_the_words(config: Path) -> None:
    done = subprocess.run(
        [*PALMCTL, "doctor", "configuration", "--config", str(config)],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"}, capture_output=True, check=False,
    )  # fmt: skip
    assert b"configuration" in done.stdout and done.returncode == 0, done.stderr


def test_a_folder_whose_name_is_no_text_is_refused_before_it_is_made(tmp_path: Path) -> None:
    state = str(tmp_path / "st") + os.fsdecode(b"\xff")
    given = ["--server", "https://cloud.example", "--token-stdin", "--device-id", "d", "--gate-id", "g"]
    done = CliRunner().invoke(
        main, ["provision", *given, "--dbd-id", "v", "--state-dir", state], input="token-123"
    )
    assert done.exit_code == 2 and "--state-dir" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "meant"),
    [(("stauts",), "status"), (("config", "shwo"), "show"), (("cloud", "tennant"), "tenant")],
)
def test_what_was_meant_is_suggested(words: tuple[str, ...], meant: str) -> None:
    done = CliRunner().invoke(main, list(words))
    assert done.exit_code == 2
    assert f"Did you mean '{meant}'?" in done.stderr and "palmctl: No such command" in done.stderr


@pytest.mark.parametrize(
    ("words", "exit_code", "code"),
    [
        (("stauts", "--json"), 2, "usage"),
        (("--nonsense", "--json"), 2, "usage"),
        (("status", "--json", "--every", "x"), 2, "usage"),
        (("config", "set", "fps", "3", "--json"), 2, "usage"),
        (("config", "set", "camera.fsp", "3", "--json"), 1, "config_error"),
        (("config", "show", "--json", "--config", "/nonexistent/device.toml"), 3, "config_error"),
        (("status", "--json"), 3, "not_reachable"),
        (("update", "status", "--json"), 3, "not_reachable"),
        (("factory-reset", "--json"), 3, "nothing_to_reset"),
        (("link", "monitor", "/dev/ttyACM99", "--json"), 1, "transport_error"),
        (("model", "install", "/proc/version", "--json"), 1, "release_error"),
        (("dbd", "key", "--key-file", "/nonexistent/key", "--json"), 1, "failed"),
        (("cloud", "root", "show", "--data", "/dev/null/x", "--json"), 1, "failed"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_an_error_is_json_where_json_was_asked_for(
    words: tuple[str, ...], exit_code: int, code: str, config: Path
) -> None:
    done = CliRunner(env={"PALM_ACCESS_CONFIG": str(config)}).invoke(main, list(words))
    assert done.exit_code == exit_code, done.output
    told = json.loads(done.stdout)
    assert told["error"].keys() <= {"code", "message", "hint"} and told["error"]["code"] == code
    assert done.stderr.splitlines()[-1].startswith("palmctl: ") or "palmctl: " in done.stderr
    assert told["error"]["message"].splitlines()[0] in done.stderr
    plain = CliRunner(env={"PALM_ACCESS_CONFIG": str(config)}).invoke(
        main, [word for word in words if word != "--json"]
    )
    assert (plain.exit_code, plain.stdout) == (exit_code, ""), (
        "without --json nothing goes to standard output"
    )


def test_json_after_two_dashes_is_no_option(config: Path) -> None:
    done = CliRunner(env={"PALM_ACCESS_CONFIG": str(config)}).invoke(main, ["doctor", "--", "--json"])
    assert (done.exit_code, done.stdout) == (2, "")


def test_the_monitor_speaks_of_the_port_that_was_typed(config: Path) -> None:
    done = CliRunner(env={"PALM_ACCESS_CONFIG": str(config)}).invoke(
        main, ["link", "monitor", "/dev/ttyNONE"]
    )
    assert "/dev/ttyNONE" in done.stderr and "[link]" not in done.stderr and "config" not in done.stderr


def test_no_hint_names_a_package_of_an_index() -> None:
    """A name that is free on an index may be taken by anyone; a file pinned by hash cannot be replaced."""
    told = [
        f"{path}:{number}"
        for folder in ("cloud_client", "device", "docs", "gallery", "link1", "models", "tools")
        for path in (
            *(REPOSITORY / folder).rglob("*.py"),
            *(REPOSITORY / folder).rglob("*.md"),
            REPOSITORY / "README.md",
        )
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if ("pip install" in line and "--require-hashes" not in line)
        or ("pipx install" in line and "pipx install ./" not in line)
    ]
    assert told == []


def test_a_socket_that_is_absent_is_not_one_that_is_forbidden(tmp_path: Path) -> None:
    with pytest.raises(IpcUnreachable) as caught:
        ask_core(tmp_path / "none.sock", "status", timeout_s=1)
    assert not isinstance(caught.value, IpcNotPermitted)


@pytest.mark.parametrize(
    ("error", "step"),
    [(IpcUnreachable("gone"), "systemctl start palmd"), (IpcSilent("no reply"), "systemctl restart palmd")],
)
def test_a_daemon_that_is_stuck_is_not_one_that_is_away(
    error: IpcUnreachable, step: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.palmctl.commands.status.read_status", Mock(side_effect=error))
    done = CliRunner().invoke(main, ["status", "--config", str(config)])
    assert step in done.stderr and done.exit_code == 3


# ---- paths that a user names


@pytest.fixture
def strange(tmp_path: Path) -> dict[str, Path]:
    folder = tmp_path / "folder"
    folder.mkdir()
    os.mkfifo(tmp_path / "fifo")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00" * 11)
    return {name: tmp_path / name for name in ("folder", "fifo", "huge", "bytes")} | {
        "device": Path("/dev/zero"),
        "absent": tmp_path / "absent",
    }


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("folder", "found a folder"),
        ("fifo", "found a FIFO"),
        ("device", "found a device"),
        ("huge", "expected at most 65,536 bytes"),
        ("absent", "No such file"),
        ("bytes", "not UTF-8"),
    ],
)
def test_a_configuration_that_is_no_plain_file(strange: dict[str, Path], name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(strange[name])


def test_proc_is_read_although_its_files_have_no_size() -> None:
    assert b"Linux" in read_plain_file(Path("/proc/version"), 4096)


READERS: list[tuple[str, ...]] = [
    ("config", "check", "--config"),
    ("config", "set", "camera.fps", "3", "--config"),
    ("status", "--config"),
    ("provision", "--device-id", "a", "--gate-id", "b", "--dbd-id", "c", "--offline-bundle"),
    ("dbd", "simulate", "--port", "/dev/ttyACM99", "--dbd-id", "d", "--gate-id", "g", "--key-file"),
    ("update", "apply"),
    ("model", "install"),
]


@pytest.mark.parametrize("name", ["folder", "fifo", "device", "huge", "bytes"])
@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_no_path_makes_a_command_wait_or_stumble(
    words: tuple[str, ...], name: str, strange: dict[str, Path], config: Path
) -> None:
    places = ("--config", str(config)) if words[0] == "provision" else ()
    done = CliRunner(env={"PALM_ACCESS_CONFIG": str(config)}).invoke(
        main, [*words, str(strange[name]), *places]
    )
    assert done.exit_code in (1, 2), done.output
    assert "unexpected" not in done.stderr and "palmctl: " in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["fifo", "link", "folder"])
def test_the_totem_s_address_takes_the_place_of_a_plain_file_alone(
    name: str, strange: dict[str, Path], config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of /dev/null, which root can replace and remove."""
    monkeypatch.setattr(LocalPage, "serve", lambda _page: None)
    strange["link"] = config.with_name("link")
    strange["link"].symlink_to(config)
    before = strange[name].lstat()
    done = CliRunner().invoke(main, ["totem", "--config", str(config), "--url-file", str(strange[name])])
    assert done.exit_code in (1, 2) and "palmctl: " in done.stderr, done.output
    assert os.path.samestat(strange[name].lstat(), before)


def test_the_totem_leaves_an_address_that_another_one_wrote(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url_file, other = config.with_name("url"), config.with_name("other")
    other.write_text("http://127.0.0.1:1/")
    monkeypatch.setattr(LocalPage, "serve", lambda _page: other.rename(url_file))
    done = CliRunner().invoke(main, ["totem", "--config", str(config), "--url-file", str(url_file)])
    assert (done.exit_code, url_file.read_text()) == (0, "http://127.0.0.1:1/")


@pytest.mark.parametrize("name", ["fifo", "link"])
def test_no_file_that_a_person_names_is_written_over_anything_but_a_plain_one(
    name: str, strange: dict[str, Path], tmp_path: Path
) -> None:
    strange["link"] = tmp_path / "link"
    strange["link"].symlink_to(strange["bytes"])
    before = strange[name].lstat()
    for write in (write_on_stick, partial(replace_named, mode=0o600)):
        with pytest.raises(OSError, match="expected a plain file, found a"):
            write(strange[name], b"new")
        assert os.path.samestat(strange[name].lstat(), before)
        write(strange["bytes"], b"new")
        assert strange["bytes"].read_bytes() == b"new"


@pytest.mark.parametrize("given", [b"\xff" * 40, b"x" * 9000, b"\n"])
def test_a_token_that_is_none(given: bytes, config: Path) -> None:
    done = CliRunner().invoke(
        main,
        ["provision", "--server", "http://127.0.0.1:9", "--device-id", "gate-7", "--gate-id", "g7",
         "--dbd-id", "d7", "--token-stdin", "--config", str(config)],
        input=given,
    )  # fmt: skip
    assert done.exit_code == 2
    assert "token" in done.stderr and "unexpected" not in done.stderr and "xxxx" not in done.stderr


# ---- files that are written at the end


def test_a_trace_that_cannot_be_written_is_told_before_anyone_waits(config: Path) -> None:
    place = config.with_name("nowhere") / "trace.json"
    done = CliRunner().invoke(main, ["pass", "--config", str(config), "--trace", str(place)])
    assert (done.exit_code, str(place) in done.stderr, "show a palm" in done.stderr) == (1, True, False)
    kept = config.with_name("trace.json")
    done = CliRunner().invoke(main, ["pass", "--config", str(config), "--trace", str(kept)])
    assert (done.exit_code, kept.exists()) == (3, False)  # no daemon: nothing is left behind
    kept.write_text("the last one")
    CliRunner().invoke(main, ["pass", "--config", str(config), "--trace", str(kept)])
    assert kept.read_text() == "the last one"


def test_a_passage_is_shown_although_its_trace_finds_the_disk_full(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = TrialPassage(
        rehearsal=True, decision="accept", result="MATCH", score_q=8_000, quality_q=80,
        pad=Pad("pass", "texture", 9_000), attempts=1, total_us=7, stages_us=(("hand", 7),),
    )  # fmt: skip

    def answer(*_args: object, **_members: object) -> Packet:
        return Packet(PassAnswer(told).to_obj())

    monkeypatch.setattr("tools.palmctl.commands.trial_pass.read_status", lambda _socket: some_status())
    monkeypatch.setattr("tools.palmctl.commands.trial_pass.ask_core", answer)
    done = CliRunner().invoke(main, ["pass", "--config", str(config), "--trace", "/dev/full"])
    assert (done.exit_code, "accept MATCH" in done.stdout) == (1, True), done.output


def test_of_changes_at_once_none_is_lost_that_was_said_to_be_done(config: Path) -> None:
    members = {
        "camera.fps": "15",
        "camera.loop": "true",
        "link.baud": "115200",
        "model.hand_weights": "false",
    }
    running = {
        name: subprocess.Popen(
            [*PALMCTL, "config", "set", name, value, "--config", str(config)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for name, value in members.items()
    }  # fmt: skip
    refusals = {name: one.communicate(timeout=60)[1] for name, one in running.items()}
    kept = config.read_text()
    for name, one in running.items():
        if one.returncode == 0:
            assert f"{name.partition('.')[2]} = " in kept, refusals
        else:
            assert "another palmctl is at work" in refusals[name]


def test_a_configuration_that_another_command_holds_is_left_alone(config: Path) -> None:
    change = ["config", "set", "camera.fps", "15", "--config", str(config)]
    ids = ["--device-id", "g", "--gate-id", "g", "--dbd-id", "d", "--config", str(config)]
    provision = ["provision", "--server", "http://127.0.0.1:9", "--token-stdin", *ids]
    with alone_at(config):
        for words in (change, provision):
            done = CliRunner().invoke(main, words, input="token-token\n")
            assert (done.exit_code, "another palmctl is at work" in done.stderr) == (1, True), done.output
    assert config.read_text() == CONFIG
    assert CliRunner().invoke(main, change).exit_code == 0


def test_a_full_disk_is_said_with_the_file_that_finds_no_room(config: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 1) as folder:
        of_the_gate, bundle = folder / "device.toml", folder / "bundle.tar.gz"
        of_the_gate.write_text(CONFIG)
        fill(folder)
        for words, file in (
            (("config", "set", "camera.fps", "15", "--config", str(of_the_gate)), of_the_gate),
            (("support-bundle", str(bundle), "--config", str(config)), bundle),
        ):
            done = CliRunner().invoke(main, words)
            assert done.exit_code == 1
            assert done.stderr.startswith(f"palmctl: {file}: No space left on device; make room there")
        assert of_the_gate.read_text() == CONFIG


@pytest.mark.parametrize(
    ("is_full", "step"),
    [(True, "No space left on device); make room there"), (False, "Read-only file system); it lies on")],
    ids=["full", "read-only"],
)
def test_a_disk_that_takes_no_device_is_said_with_what_to_do(
    tmp_path: Path, *, is_full: bool, step: str
) -> None:
    with small_disk(tmp_path / "small", 1) as folder:
        if is_full:
            fill(folder)
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        command = "provision --server http://127.0.0.1:9 --token-stdin --device-id g --gate-id g --dbd-id d"
        places = ["--state-dir", str(folder / "state"), "--config", str(tmp_path / "device.toml")]
        done = CliRunner().invoke(main, [*command.split(), *places], input="token-token\n")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"palmctl: {folder}/state cannot be written ({step}")


@pytest.mark.parametrize(
    "words",
    [
        "bench --passages 0",
        "bench --templates 0",
        "bench --start-templates 0",
        "bench cloud --requests 0",
        "bench cloud --batches 0",
        "bench cloud --devices 1",
        "bench cloud --templates 0",
        "bench device --passages 0",
        "bench device --beside-templates 0",
        "bench link --requests 0",
        "bench strangers --seconds 0",
        "bench strangers --connections 0",
        "bench strangers --devices 1",
    ],
)
def test_a_bench_of_too_little_is_refused_before_it_begins(words: str) -> None:
    done = CliRunner().invoke(main, words.split())
    assert done.exit_code == 2
    assert "not in the range" in done.stderr


@pytest.mark.parametrize("number", ["nan", "inf"])
@pytest.mark.parametrize(
    "words",
    [
        "enrol --wait-s",
        "pass --wait-s",
        "preview --minutes",
        "status --every",
        "dbd simulate --timeout-s",
        "dbd conform --wait-s",
        "cloud serve --rate-scale",
    ],
)
def test_what_is_no_number_of_seconds_is_refused(words: str, number: str) -> None:
    done = CliRunner().invoke(main, [*words.split(), number])
    assert done.exit_code == 2
    assert number in done.stderr


def test_figures_have_a_place_before_they_are_measured_and_are_shown_before_they_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made" / "figures.json"

    def measure(_folder: Path, _tell: Callable[[str], None]) -> dict[str, Any]:
        assert out.parent.is_dir() and not out.exists()
        out.mkdir()
        return {"figure": 1}

    def summary(_figures: dict[str, Any]) -> list[str]:
        return ["one figure"]

    with pytest.raises(IsADirectoryError):
        report_figures(measure, summary, out, as_json=False)
    assert capsys.readouterr().out == "one figure\n"
    with pytest.raises(IsADirectoryError):
        report_figures(measure, summary, out, as_json=False)
    assert capsys.readouterr().out == ""


# ---- terminals


def without_stream(closed: str, *words: str) -> subprocess.Popen[str]:
    """A command that a shell starts without one of its streams."""
    command = [*PALMCTL, *words]
    return subprocess.Popen(
        ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_an_error_keeps_its_exit_code_without_a_stream_to_write_to(closed: str, config: Path) -> None:
    program = without_stream(closed, "status", "--config", str(config))
    out, said = program.communicate(timeout=60)
    assert (program.returncode, out, "Traceback" in said) == (3, "", False), said
    assert said.startswith("palmctl: ") or closed == "2>&-"


@pytest.mark.parametrize(
    ("words", "exit_code", "said"),
    [
        (("enrol", "--config", "device.toml"), 2, "on a terminal, and this is none"),
        (("factory-reset", "--config", "device.toml"), 2, "no terminal to ask"),
        (("provision", "--string-stdin", "--config", "device.toml"), 2, "came on standard input"),
        (
            (
                "cloud",
                "bundle",
                "create",
                "--request",
                "request",
                "--tenant",
                "t",
                "--mode",
                "test",
                "--data",
                "cloud",
            ),
            2,
            "no terminal to ask",
        ),
        (("link", "monitor", "--file", "-"), 0, ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_a_closed_standard_input_is_one_that_has_ended(
    words: tuple[str, ...],
    exit_code: int,
    said: str,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle = ["--offline-bundle", "request", "--device-id", "gate-7", "--gate-id", "g7", "--dbd-id", "d7"]
    monkeypatch.chdir(config.parent)
    made = CliRunner().invoke(main, ["provision", "--config", "device.toml", *bundle])
    assert made.exit_code == 0, made.output
    heard = []
    for stream in ("</dev/null", "<&-"):  # one after the other: one palmctl at a time is at work on a device
        process = without_stream(stream, *words)
        out, found = process.communicate(timeout=60)
        assert (process.returncode, out) == (exit_code, "") and said in found, found
        heard.append(found)
    assert heard[0] == heard[1]


def test_a_virtual_cable_lives_without_standard_output() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # inherited: it waits until it is waited for
    try:
        program = without_stream(">&-", "link", "pair")
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    program.terminate()
    said = program.communicate(timeout=60)[1]
    assert (program.returncode, said) == (0, "")


def test_no_line_is_written_over_on_a_stream_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with live_line() as tell:
        tell("half of it")


def on_terminal(words: list[str], **environment: str) -> bytes:
    """What a command writes to a terminal of its own."""
    inner, outer = pty.openpty()
    command = [*PALMCTL, *words]
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    process = subprocess.Popen(
        command, stdin=outer, stdout=outer, stderr=outer, env=env | {"TERM": "xterm"} | environment
    )
    os.close(outer)
    said = b""
    try:
        while piece := os.read(inner, 4096):
            said += piece
            if words[0] == "status" and b"waiting for it" in said:
                process.terminate()
    except OSError:  # how a terminal ends whose programs are gone
        pass
    finally:
        process.wait(30)
        os.close(inner)
    return said


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
@pytest.mark.parametrize("words", [("doctor", "memory", "clock"), ("status", "--watch")], ids=" ".join)
def test_text_alone_where_it_is_asked_for(
    words: tuple[str, ...], environment: dict[str, str], config: Path
) -> None:
    place = ["--config", str(config)]
    assert b"\x1b[" in on_terminal([*words, *place])
    plain = on_terminal([*words, *place], **environment)
    assert b"\x1b" not in plain and plain.replace(b"\r\n", b"").count(b"\r") == 0, plain
