"""`palmctl status --watch`: rates over a window, plain lines in a pipe, and quiet ends."""

import json
import os
import pty
import re
import signal
import subprocess
import termios
from dataclasses import replace
from pathlib import Path

import pytest

from device.values.status import CoreStatus
from tests.device.status_makers import some_status
from tests.device.whole_device import Device, make_device
from tests.palmctl import PALMCTL
from tools.palmctl.commands.status import Recent, plain_line, screen, summary


def at(verdicts: int, frames: int) -> CoreStatus:
    told = some_status(verdict_seq=verdicts)
    return replace(told, camera=replace(told.camera, frames=frames, examined=frames // 3))


def test_rates_are_of_the_last_minute() -> None:
    recent = Recent()
    assert recent.add(0, at(10, 0)).passages_min is None
    assert recent.add(30, at(15, 900)).passages_min == 10
    late = recent.add(90, at(17, 2700))
    assert late.frames_s == 30 and late.passages_min == 2


def test_a_line_a_minute_or_an_hour_has_rates_too() -> None:
    recent = Recent()
    recent.add(0, at(10, 0))
    assert recent.add(60.001, at(70, 1800)).passages_min == pytest.approx(60, rel=0.01)
    late = recent.add(3660.001, at(130, 109_800))
    assert late.passages_min == 1 and late.frames_s == 30


def test_a_daemon_started_anew_begins_a_new_window() -> None:
    recent = Recent()
    recent.add(0, at(10, 5000))
    assert recent.add(1, at(10, 30)).frames_s is None
    assert recent.add(2, at(10, 60)).frames_s == 30


def test_lines_say_what_is_unknown() -> None:
    told = summary(some_status(), Recent().add(0, some_status()))
    assert "p50 – ms" in plain_line("12:00:00", told) and "healthy" in plain_line("12:00:00", told)
    assert any("fresh for 2.0 h" in line for line in screen(told))


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return make_device(tmp_path)


def watch(device: Device, *more: str) -> list[str]:
    config = str(device.board.config_path)
    return [*PALMCTL, "status", "--watch", "--every", "0.2", "--config", config, *more]


def test_a_line_each_in_a_pipe_that_closes(device: Device) -> None:
    with device.running():
        process = subprocess.Popen(
            watch(device, "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None and process.stderr is not None
        told = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.stdout.close()
        said = process.stderr.read()
        assert (process.wait(30), said) == (141, "")
        process.stderr.close()
    assert told[0]["frames_s"] is None and told[-1]["frames_s"] > 0
    assert told[-1]["gallery_templates"] > 0


@pytest.mark.parametrize(("end", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_on_a_terminal_it_redraws_and_gives_the_screen_back(device: Device, end: int, code: int) -> None:
    outer, inner = pty.openpty()
    with device.running():
        process = subprocess.Popen(watch(device), stdout=inner, stderr=subprocess.PIPE, stdin=inner)
        os.close(inner)
        shown = b""
        while shown.count(b"\x1b[H") < 3:
            shown += os.read(outer, 65536)
        process.send_signal(end)
        while not shown.endswith(b"\x1b[?1049l"):
            shown += os.read(outer, 65536)
        assert process.wait(30) == code
        assert process.stderr is not None and process.stderr.read() == b""
        process.stderr.close()
    os.close(outer)
    assert shown.startswith(b"\x1b[?1049h")
    assert b"\x1b[2J" not in shown  # blanking the screen first is what flickers
    assert b"passages" in shown and b"Ctrl-C ends this" in shown


@pytest.mark.parametrize("columns", [16, 30])
def test_a_row_that_is_too_long_is_cut_at_the_edge_and_no_style_is_cut(device: Device, columns: int) -> None:
    outer, inner = pty.openpty()
    termios.tcsetwinsize(inner, (24, columns))
    with device.running():
        env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        process = subprocess.Popen(
            watch(device), stdout=inner, stderr=subprocess.DEVNULL, stdin=inner, env=env
        )
        os.close(inner)
        shown = b""
        while shown.count(b"\x1b[H") < 2:
            shown += os.read(outer, 65536)
        process.send_signal(signal.SIGINT)
        while not shown.endswith(b"\x1b[?1049l"):
            shown += os.read(outer, 65536)
        assert process.wait(30) == 130
    os.close(outer)
    screen_of = shown.decode().split("\x1b[H")[1]
    rows = [re.sub(r"\x1b\[[\d;]*[A-Za-z]", "", row) for row in screen_of.split("\r\n")]
    assert not any("\x1b" in row for row in rows)
    assert {len(row) for row in rows if "…" in row} == {columns}
    assert any(row.startswith("  camera") and row.endswith("…") for row in rows)
