import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from device.platform import sd_notify


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.settimeout(2)
        server.bind("notify")
        yield server


def test_every_message(manager: socket.socket, tmp_path: Path) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
    assert sd_notify.ready("serves gate-7", environ)
    assert manager.recv(1024) == b"READY=1\nSTATUS=serves gate-7"
    assert sd_notify.status("two lines\nbecome  one", environ)
    assert manager.recv(1024) == b"STATUS=two lines become one"
    assert sd_notify.watchdog(environ)
    assert manager.recv(1024) == b"WATCHDOG=1"
    assert sd_notify.stopping(environ)
    assert manager.recv(1024) == b"STOPPING=1"


def test_an_abstract_socket() -> None:
    name = f"palm-access-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.settimeout(2)
        server.bind("\0" + name)
        assert sd_notify.watchdog({"NOTIFY_SOCKET": "@" + name})
        assert server.recv(1024) == b"WATCHDOG=1"


def test_without_a_manager_nothing_happens(tmp_path: Path) -> None:
    assert not sd_notify.ready("x", {})
    assert not sd_notify.ready("x", {"NOTIFY_SOCKET": ""})
    assert not sd_notify.ready("x", {"NOTIFY_SOCKET": "vsock:2:1"})
    assert not sd_notify.ready("x", {"NOTIFY_SOCKET": str(tmp_path / "nobody")})


def test_a_manager_that_does_not_read_stops_nobody(manager: socket.socket, tmp_path: Path) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
    assert not all(sd_notify.watchdog(environ) for _ in range(5_000))


def test_how_often_the_watchdog_is_fed() -> None:
    assert sd_notify.watchdog_interval_s({"WATCHDOG_USEC": "20000000"}) == 10.0
    mine = {"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": str(os.getpid())}
    assert sd_notify.watchdog_interval_s(mine) == 2.0
    assert sd_notify.watchdog_interval_s(mine | {"WATCHDOG_PID": "1"}) is None
    for usec in ("", "0", "-1", "soon"):
        assert sd_notify.watchdog_interval_s({"WATCHDOG_USEC": usec}) is None
