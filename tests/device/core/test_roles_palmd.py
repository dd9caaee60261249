"""A running core, asked for everything at every socket, by the carrier's user among others; and crowded."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from device.platform.ipc import MAX_CONNECTIONS, ask_core
from device.platform.roles import OPERATIONS, SocketRole, socket_path
from tests.device.whole_device import Device, make_device

CARRIER_USER = 64_001
"""Of no account on any machine; the kernel needs none."""
EVERY_OPERATION = sorted(frozenset[str]().union(*OPERATIONS.values()))

_ATTEMPT = """
import json, os, sys
from pathlib import Path
from device.errors import IpcError, IpcRefused
from device.platform.ipc import ask_core

runtime, device_id, operations = Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")
uid, paths = int(sys.argv[4]), sys.argv[5:]
if uid != os.geteuid():
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
seen = [str(path) for path in runtime.rglob("*") if not path.is_dir()]
told = {"seen": seen}
for path in sorted({*seen, *paths}):
    for op in operations:
        try:
            ask_core(Path(path), op, timeout_s=20, device_id=device_id, wait_ms=0, limit=1)
            told[path + " " + op] = "ok"
        except IpcRefused as error:
            told[path + " " + op] = error.code
        except IpcError as error:
            told[path + " " + op] = "unreachable: " + str(error)
print(json.dumps(told))
"""


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    """With folders of the sockets as the package makes them."""
    made = make_device(tmp_path)
    if os.geteuid() == 0:
        carrier = socket_path(made.config.device.runtime_dir, SocketRole.CARRIER).parent
        carrier.mkdir()
        os.chown(carrier, 0, CARRIER_USER)
        carrier.chmod(0o2750)
    with made.running():
        yield made


def everything_asked_as(
    uid: int, device: Device, operations: Sequence[str] = EVERY_OPERATION
) -> dict[str, Any]:
    """What each operation came to at each socket: those that are found, and those whose place is known."""
    runtime = device.config.device.runtime_dir
    known = [str(socket_path(runtime, role)) for role in SocketRole]
    words = [str(runtime), device.config.device.id, ",".join(operations), str(uid), *known]
    done = subprocess.run(
        [sys.executable, "-c", _ATTEMPT, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def let_through(folder: Path) -> None:
    """pytest's folders are closed to others; the way to the sockets is open on a real device."""
    for parent in folder.parents:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_the_carriers_user_reaches_its_own_socket_and_its_own_operations(device: Device) -> None:
    runtime = device.config.device.runtime_dir
    let_through(runtime / "x")
    told = everything_asked_as(CARRIER_USER, device)
    own = socket_path(runtime, SocketRole.CARRIER)
    assert str(own) in told.pop("seen")
    for attempt, outcome in told.items():
        path, op = attempt.split(" ")
        if path != str(own):
            assert "Permission denied" in outcome, attempt
        elif op in OPERATIONS[SocketRole.CARRIER]:
            assert outcome not in {"wrong_socket", "unknown_op"}, attempt
            assert not outcome.startswith("unreachable"), attempt
        else:
            assert outcome == "wrong_socket", attempt
    assert len(told) >= len(SocketRole) * len(EVERY_OPERATION)
    assert told[f"{own} http_key"] == "ok"
    assert device.status().device_id == device.config.device.id, "nothing was destroyed"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_technician_who_is_not_root_destroys_nothing(device: Device) -> None:
    """A group that may open the technician's socket is not root."""
    runtime = device.config.device.runtime_dir
    let_through(runtime / "x")
    control = socket_path(runtime, SocketRole.TECHNICIAN)
    for path in (control, control.parent):
        os.chown(path, 0, CARRIER_USER)
    told = everything_asked_as(CARRIER_USER, device)
    assert told[f"{control} status"] == "ok"
    assert told[f"{control} factory_reset"] == told[f"{control} update.rollback"] == "not_root"
    assert device.status().device_id == device.config.device.id


_AS_ANOTHER_USER = """
import codecs, json, os, sys
from click.testing import CliRunner
from tools.palmctl.commands import keys, update
from tools.palmctl.main import main

codecs.lookup("utf-8-sig")  # another user may be kept out of the folder of this Python
os.setgroups([])
os.setresgid(int(sys.argv[1]), int(sys.argv[1]), int(sys.argv[1]))
os.setresuid(int(sys.argv[1]), int(sys.argv[1]), int(sys.argv[1]))
done = CliRunner().invoke(main, [*sys.argv[2:], "--json"])
print(json.dumps([done.exit_code, done.stdout]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
@pytest.mark.parametrize("words", ["update rollback", "keys encrypt"])
def test_what_is_for_root_alone_ends_palmctl_as_not_permitted(device: Device, words: str) -> None:
    runtime, config = device.config.device.runtime_dir, device.board.config_path
    let_through(runtime / "x")
    control = socket_path(runtime, SocketRole.TECHNICIAN)
    for path in (control, control.parent, config):
        os.chown(path, 0, CARRIER_USER)
    for path in (device.config.device.state_dir, *device.config.device.state_dir.rglob("keys*")):
        os.chown(path, CARRIER_USER, CARRIER_USER)
    done = subprocess.run(
        [sys.executable, "-c", _AS_ANOTHER_USER, str(CARRIER_USER), *words.split(), "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    code, shown = json.loads(done.stdout)
    assert (code, json.loads(shown)["error"]["code"]) == (4, "not_root")


def test_one_crowded_socket_locks_nobody_out(device: Device) -> None:
    runtime = device.config.device.runtime_dir
    questions = {
        SocketRole.CARRIER: "hello",
        SocketRole.TECHNICIAN: "status",
        SocketRole.TOTEM: "enrolment.state",
        SocketRole.INSTALLER: "status",
    }
    with ExitStack() as stack:
        for role in SocketRole:
            for number in range(2 * MAX_CONNECTIONS):
                line = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                line.connect(str(socket_path(runtime, role)))
                if number % 2:
                    line.sendall(b"\x00\x00")
            for other, op in questions.items():
                ask_core(socket_path(runtime, other), op, timeout_s=20, after=0, wait_ms=0)


def test_every_operation_of_the_table_has_somebody_who_answers(device: Device) -> None:
    """No operation is admitted that no part knows; each part refuses what its members lack."""
    harmless = [op for op in EVERY_OPERATION if op != "factory_reset"]
    told = everything_asked_as(os.geteuid(), device, harmless)
    runtime = device.config.device.runtime_dir
    for role in SocketRole:
        for op in OPERATIONS[role].intersection(harmless):
            outcome = told[f"{socket_path(runtime, role)} {op}"]
            assert outcome not in {"unknown_op", "wrong_socket"}, (role, op)
            assert not outcome.startswith("unreachable"), (role, op, outcome)
