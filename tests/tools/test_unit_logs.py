"""Lines of `journalctl --output=json` as systemd 252 prints them."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools.palmctl.main import main
from tools.palmctl.unit_logs import LogLine, read_line


def entry(**members: object) -> str:
    return json.dumps({"__REALTIME_TIMESTAMP": "1795186249748000", "PRIORITY": "6"} | members)


def test_what_the_service_manager_says_of_a_unit_is_told_of_that_unit() -> None:
    said = entry(_SYSTEMD_UNIT="init.scope", UNIT="palmd.service", MESSAGE="Started palmd.service.")
    assert read_line(said) == LogLine(1795186249748, "palmd", "info", "Started palmd.service.")


def test_the_level_is_the_daemons_own_word() -> None:
    """They write to standard error, of which journald knows no level."""
    for word, level in (("WARNING", "warning"), ("ERROR", "err"), ("INFO", "info")):
        line = read_line(entry(_SYSTEMD_UNIT="palmd.service", MESSAGE=f"{word} device.core.core: health"))
        assert line is not None
        assert (line.unit, line.level) == ("palmd", level)


def test_what_is_no_line_is_none() -> None:
    for text in (
        "",
        "not json",
        "[]",
        "[" * 100_000,
        '{"MESSAGE": "without a time"}',
        '{"MESSAGE": "an endless level", "PRIORITY": 1e999, "__REALTIME_TIMESTAMP": "1"}',
    ):
        assert read_line(text) is None


@pytest.fixture
def journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a shell script in journalctl's place."""

    def replace(script: str) -> None:
        program = tmp_path / "journalctl"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setattr("tools.palmctl.unit_logs.BOOTED", tmp_path)

    return replace


def test_why_journalctl_shows_nothing_is_its_own_word(journalctl: Callable[[str], None]) -> None:
    journalctl("echo 'Failed to parse timestamp: yesterdya' >&2\nexit 1")
    done = CliRunner().invoke(main, ["logs", "--since", "yesterdya", "--json"])
    assert done.exit_code == 1
    error = json.loads(done.stdout)["error"]
    assert "(Failed to parse timestamp: yesterdya); correct --since" in error["message"]


def test_a_long_line_is_shown(journalctl: Callable[[str], None]) -> None:
    """Without --all, journalctl's JSON has null for every member of over 4,096 bytes."""
    said = "ERROR " + "x" * 5_000
    whole, cut = entry(MESSAGE=said), entry(MESSAGE=None)
    journalctl(f"case \"$*\" in *--all*) echo '{whole}';; *) echo '{cut}';; esac")
    assert json.loads(CliRunner().invoke(main, ["logs", "--json"]).stdout)["text"] == said
