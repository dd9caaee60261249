"""`palm-syncd` as systemd runs it: its exits, its notifications, its end."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from device.syncd.main import main

CONFIG = """
[device]
id = "gate-7-left"
gate_id = "gate-7"
dbd_id = "dbd-7"
state_dir = "state"
runtime_dir = "run"
[camera]
source = "/dev/video0"
[link]
port = "/dev/ttyACM0"
"""
NOWHERE = '[cloud]\nurl = "http://127.0.0.1:1"\n'


def written(folder: Path, text: str) -> list[str]:
    path = folder / "device.toml"
    path.write_text(text)
    return ["--config", str(path)]


def test_a_device_without_network_has_nothing_to_carry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with notifications(tmp_path) as channel:
        monkeypatch.setenv("NOTIFY_SOCKET", str(channel.getsockname()))
        assert main(written(tmp_path, CONFIG)) == 0
        # A unit of Type=notify that ends without a word has failed, and is started again for ever.
        assert channel.recv(4096).startswith(b"READY=1\n")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (CONFIG + '[cloud]\nurl = "http://cloud.example"\n', "url"),
        (CONFIG + '[cloud]\nurl = "https://cloud.example"\nca_file = "absent.pem"\n', "absent.pem"),
        (CONFIG + NOWHERE + "nonsense = 1\n", "nonsense"),
    ],
)
def test_a_wrong_configuration_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, named: str
) -> None:
    assert main(written(tmp_path, text)) == 1
    assert named in capsys.readouterr().err


@contextmanager
def notifications(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(folder / "notify"))
        channel.settimeout(20)
        yield channel


def test_it_is_ready_without_core_and_service_and_ends_cleanly(tmp_path: Path) -> None:
    arguments = written(tmp_path, CONFIG + NOWHERE)
    with notifications(tmp_path) as channel:
        carrier = subprocess.Popen(
            [sys.executable, "-m", "device.syncd.main", *arguments],
            env=os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"},
            stderr=subprocess.PIPE,
        )
        try:
            heard = [channel.recv(4096)]
            assert heard[0].startswith(b"READY=1\n")
            while b"WATCHDOG=1" not in heard[-1]:
                heard.append(channel.recv(4096))
            carrier.send_signal(signal.SIGTERM)
            while b"STOPPING=1" not in heard[-1]:
                heard.append(channel.recv(4096))
            _, errors = carrier.communicate(timeout=20)
        finally:
            carrier.kill()
            carrier.wait()
    assert carrier.returncode == 0
    assert b"Traceback" not in errors
    assert b"is palmd running" in errors
