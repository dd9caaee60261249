"""The command line for shells, terminals and programs: help, completion, a list of commands, progress."""

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from device.config.config import MEMBERS
from device.doctor.examine import CHECKS
from tests.palmctl import PALMCTL
from tools.palmctl.groups import children
from tools.palmctl.main import ADDED_COMMANDS, COMMANDS, main

WITHIN_S = 60.0
HELPS = COMMANDS | ADDED_COMMANDS
HEAVY = {
    *("asyncio", "cryptography", "cv2", "faiss", "httpx", "nacl", "numpy", "onnxruntime", "pydantic"),
    *("sqlite_utils", "ssl", "starlette", "uvicorn"),
}
"""What a Raspberry Pi needs a tenth of a second or more for, each."""


def every_command(
    command: click.Command = main, path: tuple[str, ...] = ()
) -> dict[tuple[str, ...], click.Command]:
    found = {path: command}
    for name, child in children(command, click.Context(command)):
        found |= every_command(child, (*path, name))
    return found


EVERY = every_command()
GROUPS = {path: one for path, one in EVERY.items() if isinstance(one, click.Group)}


def completed(words: str) -> list[str]:
    """What a shell offers for the last word."""
    done = subprocess.run(
        [sys.executable, "-c", "from tools.palmctl.main import main; main(prog_name='palmctl')"],
        env={**os.environ, "_PALMCTL_COMPLETE": "bash_complete", "COMP_WORDS": f"palmctl {words}",
             "COMP_CWORD": str(len(words.split(" ")))},
        capture_output=True, text=True, timeout=WITHIN_S, check=True,
    )  # fmt: skip
    return [line.removeprefix("plain,") for line in done.stdout.splitlines()]


@pytest.mark.parametrize("path", GROUPS, ids=" ".join)
def test_help_shows_every_command_s_first_sentence_whole(path: tuple[str, ...]) -> None:
    done = CliRunner(env={"COLUMNS": "60"}).invoke(main, [*path, "--help"], prog_name="palmctl")
    said = " ".join(done.output.split())
    assert "..." not in said.replace("[ARGS]...", "")
    below = {place: one for place, one in EVERY.items() if place[:-1] == path and place}
    assert below
    for place, child in below.items():
        # The first group's lines are a table, so that --help imports nothing.
        text = child.get_short_help_str(limit=10_000) if path else HELPS[place[0]][1]
        assert f"{place[-1]} {text}" in said


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_every_command_has_help(path: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, [*path, "--help"])
    assert done.exit_code == 0, done.output
    assert "Usage:" in done.output


def test_an_unknown_command_is_wrong_usage() -> None:
    assert CliRunner().invoke(main, ["nonsense"]).exit_code == 2


@pytest.mark.parametrize("words", ["--version", "--help", "doctor --help"])
def test_nothing_heavy_is_imported_for_an_answer_that_is_only_text(words: str) -> None:
    """`palmctl --version` takes 60 to 80 ms on the development machine; the time varies, modules do not."""
    script = (
        "import atexit, sys; atexit.register(lambda: sys.stderr.write(' '.join(sys.modules)));"
        f"sys.argv[1:] = {words.split()}; from tools.palmctl.main import main; main(prog_name='palmctl')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=WITHIN_S, check=True
    )
    loaded = set(done.stderr.split())
    assert {"click", "tools.palmctl.main"} <= loaded
    assert loaded & HEAVY == set()
    assert len(loaded) < 250, sorted(loaded)


def test_a_shell_completes_checks_and_members() -> None:
    assert completed("doctor ") == sorted(CHECKS)
    assert completed("doctor camera ca") == ["cable"]
    members = [f"{section}.{name}" for section, names in MEMBERS.items() for name in names]
    assert completed("config set ") == members
    assert completed("config set camera.f") == ["camera.fps"]
    assert completed("prev") == ["preview"]


@pytest.fixture(scope="module")
def listed() -> dict[tuple[str, ...], dict[str, Any]]:
    done = CliRunner().invoke(main, ["commands", "--json"], prog_name="palmctl")
    assert done.exit_code == 0
    return {tuple(one["path"]): one for one in json.loads(done.stdout)["commands"]}


def test_programs_get_every_command_with_its_options(listed: dict[tuple[str, ...], dict[str, Any]]) -> None:
    runs = {
        path for path, one in EVERY.items() if not isinstance(one, click.Group) or one.invoke_without_command
    }
    assert listed.keys() == runs
    for path, one in listed.items():
        assert one["name"] == path[-1]
        assert one["help"]
        names = {name for option in one["options"] for name in option["names"]}
        assert "--help" in names
        assert names >= {
            name for known in EVERY[path].params if isinstance(known, click.Option) for name in known.opts
        }
        assert one["exit_codes"].keys() >= {"0", "1", "2", "3", "4"}


def test_types_bounds_and_exit_codes_are_what_the_commands_say(
    listed: dict[tuple[str, ...], dict[str, Any]],
) -> None:
    options = {option["names"][0]: option for option in listed["preview",]["options"]}
    assert options["--port"] | {"help": ""} == {
        "names": ["--port"], "type": "integer range", "required": False, "repeated": False,
        "least": 0, "most": 65_535, "default": 0, "help": "",
    }  # fmt: skip
    assert options["--json"]["type"] == "boolean"
    assert listed["doctor",]["arguments"][0]["repeated"] is True
    assert listed["cloud", "release", "create"]["options"][0]["choices"] == ["app", "model"]
    assert listed["status",]["exit_codes"]["1"] == "running, but every verdict would abstain"
    assert listed["dbd", "conform"]["exit_codes"]["3"] == "no answer"
    assert listed["totem",]["exit_codes"]["130"] == "ended"


def released(folder: Path, terminal: int | None) -> tuple[str, str]:
    """Standard output and error of a release that is packed; `terminal` takes standard error."""
    done = subprocess.run(
        [*PALMCTL, "cloud", "release", "create", "--data", str(folder / "data"), "--tenant", folder.name,
         "--mode", "test", "--kind", "app", "--from", str(folder / "software"),
         "--out", str(folder / "release")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE if terminal is None else terminal,
        env={**os.environ, "TERM": "xterm", "NO_COLOR": ""}, text=True, timeout=WITHIN_S, check=True,
    )  # fmt: skip
    return done.stdout, done.stderr or ""


def test_progress_is_for_a_terminal_and_leaves_nothing_behind(tmp_path: Path) -> None:
    made = subprocess.run(
        [*PALMCTL, "cloud", "tenant", "create", "acme", "--data", str(tmp_path / "first/data"), "--json"],
        capture_output=True, text=True, timeout=WITHIN_S, check=True,
    )  # fmt: skip
    folder = tmp_path / json.loads(made.stdout)["tenant_id"]
    shutil.move(tmp_path / "first", folder)
    (folder / "software/bin").mkdir(parents=True)
    (folder / "software/bin/palmd").write_text("")
    (folder / "software/VERSION").write_text("1.0")
    assert released(folder, None)[1] == ""
    ours, its = pty.openpty()
    try:
        out, _ = released(folder, its)
        shown = os.read(ours, 65_536).decode()
    finally:
        os.close(ours)
        os.close(its)
    assert "packing " in shown
    assert shown.endswith("\r\x1b[2K")
    assert "\x1b" not in out
