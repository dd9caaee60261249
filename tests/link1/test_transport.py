"""Ends over real pseudo-terminals: partial writes, hang-ups, reopening, exclusive use."""

import asyncio
import errno
import os
import pty
import tty
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import serial

from link1.device_end import DeviceEnd
from link1.errors import TransportError
from link1.events import Down, Proven, ReadyReceived, RequestReceived
from link1.link_states import DownReason
from link1.signed import Kind, sign_object
from link1.transport.pump import CablePump
from link1.transport.serial_port import Port, open_port
from link1.validator.end import ValidatorEnd
from link1.validator.events import VerdictReceived
from tests.link1.cable import DEVICE_KEY, VALIDATOR_KEY, make_device, make_validator, request, verdict_for
from tools.kit.pty_pair import PtyPair

WITHIN_S = 10.0
"""Far above what anything here takes; a test that needs it has failed."""


class Watched:
    """An end on a pump, its events, and a way to wait for one."""

    def __init__(
        self, end: DeviceEnd | ValidatorEnd, path: str, opener: Callable[[], Port] | None = None
    ) -> None:
        self.end = end
        self.events: list[Any] = []
        self.port_reports: list[TransportError | None] = []
        self._changed = asyncio.Event()
        self.pump: CablePump[Any] = CablePump(
            end,
            opener or (lambda: open_port(path)),
            on_event=self._note,
            on_port=self._note_port,
        )

    def _note_port(self, error: TransportError | None) -> None:
        self.port_reports.append(error)
        self._changed.set()

    async def port_report(self) -> TransportError | None:
        async with asyncio.timeout(WITHIN_S):
            while not self.port_reports:
                self._changed.clear()
                await self._changed.wait()
        return self.port_reports[0]

    def _note(self, event: Any) -> None:
        self.events.append(event)
        self._changed.set()

    async def saw(self, wanted: type, count: int = 1) -> Any:
        async with asyncio.timeout(WITHIN_S):
            while sum(isinstance(event, wanted) for event in self.events) < count:
                self._changed.clear()
                await self._changed.wait()
        return [event for event in self.events if isinstance(event, wanted)][count - 1]


@asynccontextmanager
async def running(*ends: Watched) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(end.pump.run()) for end in ends]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("show_close", [False, True])
def test_two_ends_meet_over_a_virtual_cable(tmp_path: Path, show_close: bool) -> None:
    async def scenario(cable: PtyPair) -> None:
        device, validator = Watched(make_device(), cable.left), Watched(make_validator(), cable.right)
        async with running(device, validator):
            await device.saw(Proven)
            await device.saw(ReadyReceived)
            validator.end.send_request(sign_object(Kind.REQUEST, request().to_obj(), VALIDATOR_KEY))  # type: ignore[union-attr]
            validator.pump.kick()
            asked = (await device.saw(RequestReceived)).request
            device.end.send_verdict(sign_object(Kind.VERDICT, verdict_for(asked).to_obj(), DEVICE_KEY))  # type: ignore[union-attr]
            device.pump.kick()
            assert (await validator.saw(VerdictReceived)).verdict == verdict_for(asked)
        assert device.events[-1] == Down(DownReason.PORT_CLOSED, proven=True)

    with PtyPair(show_close=show_close, directory=tmp_path) as cable:
        asyncio.run(scenario(cable))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("show_close", [False, True])
async def test_an_end_that_restarts_is_served_again(tmp_path: Path, show_close: bool) -> None:
    """Shown, the hang-up ends the session at once; hidden, the reset of the end that comes back does."""

    with PtyPair(show_close=show_close, directory=tmp_path) as cable:
        device = Watched(make_device(), cable.left)
        async with running(device):
            for visit in (1, 2, 3):
                validator = Watched(make_validator(seed=visit), cable.right)
                async with running(validator):
                    await device.saw(ReadyReceived, visit)
                if show_close:
                    assert (await device.saw(Down, visit)).reason is DownReason.PORT_CLOSED
            if not show_close:
                assert (await device.saw(Down, 2)).reason is DownReason.PEER_RESET


async def test_a_port_that_is_not_there_yet_is_opened_when_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "port"
    device = Watched(make_device(), str(path))
    async with running(device):
        assert "plug the cable in" in str(await device.port_report())
        with PtyPair(directory=tmp_path) as cable:
            path.symlink_to(cable.left)
            validator = Watched(make_validator(), cable.right)
            async with running(validator):
                await device.saw(Proven)


async def test_a_fault_in_the_owner_s_handler_ends_run_with_it(tmp_path: Path) -> None:
    with PtyPair(directory=tmp_path) as cable:

        def fail(_event: object) -> None:
            raise ZeroDivisionError

        pump: CablePump[Any] = CablePump(make_device(), lambda: open_port(cable.left), on_event=fail)
        validator = Watched(make_validator(), cable.right)
        async with running(validator):
            with pytest.raises(ZeroDivisionError):
                await asyncio.wait_for(pump.run(), WITHIN_S)


class Narrow:
    """A port that takes a few bytes at a time and says how many it still holds."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def fileno(self) -> int:
        return self._port.fileno()

    def read(self, max_bytes: int) -> bytes:
        return self._port.read(min(7, max_bytes))

    def write(self, data: bytes) -> int:
        return self._port.write(data[:11])

    def unsent(self) -> int:
        return self._port.unsent()

    def close(self) -> None:
        self._port.close()


async def test_partial_reads_and_writes_change_nothing(tmp_path: Path) -> None:
    with PtyPair(directory=tmp_path) as cable:
        device = Watched(make_device(), cable.left, lambda: Narrow(open_port(cable.left)))
        validator = Watched(make_validator(), cable.right, lambda: Narrow(open_port(cable.right)))
        async with running(device, validator):
            await device.saw(ReadyReceived)


def test_a_port_that_the_sandbox_withholds_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def withheld(*_: object, **__: object) -> None:
        raise serial.SerialException(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(serial, "Serial", withheld)
    with pytest.raises(TransportError, match="restart the service"):
        open_port("/dev/ttyUSB0")


def test_a_port_is_opened_raw_non_blocking_and_exclusive() -> None:
    master, slave = pty.openpty()
    try:
        port = open_port(os.ttyname(slave))
        assert port.read(10) == b""
        everything = bytes(range(256))
        os.write(master, everything)
        received = b""
        while len(received) < 256:
            received += port.read(300)
        assert received == everything
        tty.setraw(master)
        assert port.write(everything) == 256
        assert os.read(master, 300) == everything
        with pytest.raises(TransportError, match="another program holds the port"):
            open_port(os.ttyname(slave))
        taken = sum(port.write(bytes(4096)) for _ in range(64))
        assert taken < 64 * 4096, "a full port takes nothing and does not block"
        os.close(slave)
        slave = -1
        os.close(master)
        master = -1
        with pytest.raises(TransportError):
            for _ in range(100):
                port.read(4096)
        port.close()
    finally:
        for descriptor in (master, slave):
            if descriptor >= 0:
                os.close(descriptor)


def test_what_is_no_port_is_refused_with_advice(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (str(file), "/dev/null", str(tmp_path)):
        with pytest.raises(TransportError, match=f"^{path}: is no serial port; name another port$"):
            open_port(path)
    with pytest.raises(TransportError, match="there is no such port"):
        open_port(str(tmp_path / "absent"))
