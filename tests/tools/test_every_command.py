"""Every command where something is in its way: no traceback ever, a fixed exit code, and the next step."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from device.trust.keystore import KeyStore
from tests.palmctl import PALMCTL
from tools.palmctl.groups import children
from tools.palmctl.main import COMMANDS, main

WITHIN_S = 60.0
NEXT_STEP = re.compile(
    r"(?i)\b(palmctl|systemctl|try|run|give|name|check|see|use|choose|make|start|end|plug|install|correct|put|look|say|"
    r"missing|makes|commands:|restore|read)\b"
)
LONG = {"bench", "demo", "playground"}
"""These begin to work without any argument, for minutes; Ctrl-C in them is tried below."""


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        return [path]
    below = children(command, click.Context(command))
    return [leaf for name, child in below for leaf in leaves(child, (*path, name))]


LEAVES = [words for words in leaves(main) if words[0] not in LONG and words != ("link", "pair")]


def ends_in_words(words: tuple[str, ...], **environment: str) -> int:
    """Run in this process, without a terminal: exit code, once what it said is as it must be."""
    done = CliRunner(env=environment).invoke(main, list(words), input="")
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    assert "Traceback" not in done.output
    assert done.exit_code in (0, 1, 2, 3, 4), done.output
    if done.exit_code and words[0] != "doctor":
        assert done.stderr.strip(), "it failed without a word"
        assert NEXT_STEP.search(done.stderr), done.stderr
        assert done.stderr.count("palmctl: ") == 1, done.stderr
        if "--json" in words:
            assert json.loads(done.stdout)["error"].keys() >= {"code", "message"}
        else:
            assert done.stdout == "" or words[0] == "update", done.stdout
    return done.exit_code


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_on_a_machine_that_is_no_device(words: tuple[str, ...], tmp_path: Path) -> None:
    ends_in_words(words, PALM_ACCESS_CONFIG=str(tmp_path / "device.toml"), HOME=str(tmp_path))


ON_DEVICE: dict[tuple[str, ...], set[int]] = {
    ("commands",): {0},
    ("config", "check"): {0},
    ("config", "show"): {0},
    ("config", "set", "camera.fps", "15"): {0},
    ("config", "set", "camera.fsp", "15"): {1},
    ("doctor",): {1},
    ("enrol", "--accept-terms", "v1"): {2, 3},
    ("factory-reset",): {2},
    ("factory-reset", "--yes-i-mean", "another"): {1},
    # Never further than this: as root on a machine with systemd it would write into /etc.
    ("keys", "encrypt", "--with-key", "paper"): {2},
    ("logs",): {0, 3},
    ("pass",): {3},
    ("preview",): {3},
    ("status",): {3},
    ("status", "--json"): {3},
    ("support-bundle", "/nonexistent/b.tar.gz"): {1},
    ("update", "status"): {0, 1, 3},
}


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """A device whose provisioning was cut off between its keys and the service's answer."""
    (tmp_path / "state").mkdir(mode=0o700)
    KeyStore.create(tmp_path / "state" / "keys")
    config = tmp_path / "device.toml"
    config.write_text(
        '[device]\nid = "gate-7"\ngate_id = "g7"\ndbd_id = "d7"\nstate_dir = "state"\nruntime_dir = "run"\n'
        '[camera]\nsource = "/dev/video99"\n[link]\nport = "/dev/ttyACM99"\n'
        '[cloud]\nurl = "http://127.0.0.1:9"\n'
    )
    return config


@pytest.mark.parametrize(("words", "codes"), ON_DEVICE.items(), ids=lambda value: " ".join(map(str, value)))
def test_provisioned_by_half_with_nothing_plugged_in(
    words: tuple[str, ...], codes: set[int], half: Path
) -> None:
    assert ends_in_words(words, PALM_ACCESS_CONFIG=str(half)) in codes


@pytest.mark.parametrize(
    "words",
    [
        ("cloud", "serve", "--data", "/proc/nope"),
        ("cloud", "root", "show", "--data", "/proc/nope"),
        ("cloud", "tenant", "create", "acme", "--data", "/dev/null"),
        ("dbd", "key", "--key-file", "/proc/nope/key"),
        ("link", "monitor", "/dev/ttyACM99"),
        ("playground", "/proc/version"),
        ("config", "set", "camera.fps", "15", "--config", "/proc/version"),
        (
            "provision",
            "--offline-bundle",
            "/proc/nope/f",
            "--device-id",
            "d",
            "--gate-id",
            "g",
            "--dbd-id",
            "x",
        ),
    ],
    ids=" ".join,
)
def test_places_that_cannot_be_used(words: tuple[str, ...], tmp_path: Path) -> None:
    extra = (
        ("--config", str(tmp_path / "d.toml"), "--state-dir", str(tmp_path)) if "provision" in words else ()
    )
    assert ends_in_words((*words, *extra)) == 1


def test_a_port_that_another_program_holds(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = str(held.getsockname()[1])
        assert ends_in_words(("cloud", "serve", "--data", str(tmp_path), "--port", port)) == 1
        assert ends_in_words(("playground", "--port", port)) == 1


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root to become somebody else"
)
@pytest.mark.parametrize(
    "words", [("status",), ("doctor",), ("config", "check"), ("factory-reset",), ("support-bundle",)]
)
def test_as_a_user_who_may_not(words: tuple[str, ...], half: Path) -> None:
    half.chmod(0o600)
    given = (*words, "b.tar.gz") if words == ("support-bundle",) else words
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *palmctl(*given)],
        env={**os.environ, "PALM_ACCESS_CONFIG": str(half)},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        cwd="/",
        check=False,
    )
    assert done.returncode == (1 if words == ("support-bundle",) else 4)
    assert "Traceback" not in done.stderr
    assert "Permission denied" in done.stdout + done.stderr or "may not be written" in done.stderr


def palmctl(*words: str) -> list[str]:
    return [*PALMCTL, *words]


@pytest.mark.parametrize("words", [("--help",), ("config", "show", "--defaults"), ("doctor", "--json")])
def test_a_closed_pipe_is_no_error(words: tuple[str, ...], half: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            palmctl(*words), stdout=write, stderr=subprocess.PIPE, timeout=WITHIN_S, check=False,
            env={**os.environ, "PALM_ACCESS_CONFIG": str(half)},
        )  # fmt: skip
    finally:
        os.close(write)
    assert done.stderr == b""
    assert done.returncode in (1, 141)


@pytest.mark.parametrize("words", [("--help",), ("config", "show", "--defaults")])
def test_an_output_that_is_full(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            palmctl(*words), stdout=full, stderr=subprocess.PIPE, text=True, timeout=WITHIN_S, check=False
        )
    assert done.returncode == 1
    assert "No space left" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("status", "--watch"), 130),
        (("link", "pair"), 0),
        (("cloud", "serve", "--data", "cloud", "--port", "0", "--no-admin"), 0),
        (("bench", "link"), 130),
        (("playground", "--port", "0"), 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_ctrl_c_in_the_middle(words: tuple[str, ...], code: int, half: Path) -> None:
    process = subprocess.Popen(
        palmctl(*words), cwd=half.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PALM_ACCESS_CONFIG": str(half), "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        stream = process.stderr if words[0] == "bench" else process.stdout
        assert stream is not None
        assert stream.readline()  # it is at work
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=WITHIN_S)
    finally:
        process.kill()
    assert process.returncode == code
    assert "Traceback" not in said


def test_a_fault_of_our_own_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tools.palmctl.commands.status.load_config", stumble)
    done = CliRunner().invoke(main, ["status"])
    assert done.exit_code == 1
    assert "ZeroDivisionError" in done.stderr and "PALMCTL_TRACEBACK=1" in done.stderr
    assert isinstance(done.exception, SystemExit)


def test_help_answers_at_once() -> None:
    """Beside a bare interpreter on the same machine; the best of some, as others work too."""

    def best_s(words: list[str]) -> float:
        taken = []
        for _ in range(5):
            started_s = time.perf_counter()
            subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
            taken.append(time.perf_counter() - started_s)
        return min(taken)

    bare_s, help_s = best_s([sys.executable, "-c", "import click"]), best_s(palmctl("--help"))
    assert help_s < 4 * bare_s, f"{help_s * 1000:.0f} ms beside {bare_s * 1000:.0f} ms"


def test_the_table_is_complete() -> None:
    """A new command of a device belongs into ON_DEVICE."""
    others = {"bench", "model", "provision", "totem"}
    assert {words[0] for words in ON_DEVICE} == set(COMMANDS) - others
