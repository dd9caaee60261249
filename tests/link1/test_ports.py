"""One contract for every kind of port: a serial port on a pty, a virtual cable, and USB bulk endpoints."""

import asyncio
import os
import pty
import select
import time
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cable import make_device, make_validator
from usb_bus import IN, OUT, PACKET, Bus, Gadget

from link1.errors import TransportError
from link1.events import Proven
from link1.transport.discovery import find_serial
from link1.transport.pty_pair import PtyPair
from link1.transport.pump import CablePump, monotonic_ms
from link1.transport.serial_port import Port, open_port
from link1.transport.usb_bulk import open_usb

WITHIN_S = 5.0
USB = "usb:1d6b:0104"


class Far:
    """The other end of a port, whatever it is."""

    def __init__(
        self,
        port: Port,
        send: Callable[[bytes], int],
        receive: Callable[[], bytes],
        vanish: Callable[[], None],
    ) -> None:
        self.port = port
        self.send = send
        self.receive = receive
        self.vanish = vanish

    def receive_exactly(self, size: int) -> bytes:
        data, end = b"", time.monotonic() + WITHIN_S
        while len(data) < size and time.monotonic() < end:
            more = self.receive()
            data += more
            if not more:
                time.sleep(0.001)
        return data


def nonblocking_reader(descriptor: int) -> Callable[[], bytes]:
    os.set_blocking(descriptor, False)

    def receive() -> bytes:
        try:
            return os.read(descriptor, 4096)
        except (BlockingIOError, OSError):
            return b""

    return receive


def write_some(descriptor: int) -> Callable[[bytes], int]:
    def send(data: bytes) -> int:
        try:
            return os.write(descriptor, data)
        except BlockingIOError:
            return 0

    return send


@pytest.fixture(params=["serial", "pair", "usb"])
def far(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Far]:
    if request.param == "serial":
        master, slave = pty.openpty()
        tty.setraw(slave)
        port = open_port(os.ttyname(slave))
        os.close(slave)
        gone = []

        def vanish() -> None:
            gone.append(True)
            os.close(master)

        yield Far(port, write_some(master), nonblocking_reader(master), vanish)
        port.close()
        if not gone:
            os.close(master)
    elif request.param == "pair":
        with PtyPair(show_close=True, directory=tmp_path) as pair:
            port, other = open_port(pair.left), open_port(pair.right)
            yield Far(port, other.write, lambda: other.read(4096), other.close)
            port.close()
            other.close()
    else:
        gadget = Gadget()
        port = open_usb(USB, backend=Bus(gadget))
        yield Far(port, gadget.send, gadget.receive, gadget.unplug)
        port.close()


def readable(port: Port, within_s: float = WITHIN_S) -> bool:
    return bool(select.select([port.fileno()], [], [], within_s)[0])


def test_nothing_there_is_nothing_and_does_not_wait(far: Far) -> None:
    begun = time.monotonic()
    assert far.port.read(100) == b""
    assert time.monotonic() - begun < 0.5
    assert not readable(far.port, 0.05)


def test_every_byte_arrives_both_ways_and_is_told_to_selectors(far: Far) -> None:
    everything = bytes(range(256)) * 40
    received, offered = b"", 0
    while len(received) < len(everything):
        offered += far.send(everything[offered : offered + 1000])
        assert readable(far.port)
        received += far.port.read(7 if len(received) < 100 else 4096)
    assert received == everything
    written, arrived = 0, b""
    end = time.monotonic() + WITHIN_S
    while len(arrived) < len(everything) and time.monotonic() < end:
        written += far.port.write(everything[written : written + 1000]) if written < len(everything) else 0
        arrived += far.receive()
    assert arrived == everything
    assert far.port.unsent() == 0


def test_a_full_port_takes_no_more_and_never_waits(far: Far) -> None:
    begun, taken = time.monotonic(), 0
    for _ in range(200):
        taken += far.port.write(bytes(1024))
    assert taken < 200 * 1024
    assert time.monotonic() - begun < 2.0
    assert far.receive_exactly(taken) == bytes(taken), "what was taken arrives, once"
    assert select.select([], [far.port.fileno()], [], WITHIN_S)[1], "there is room again"


def test_a_port_that_goes_away_says_so(far: Far) -> None:
    far.send(b"x")
    assert readable(far.port)
    far.port.read(10)
    far.vanish()
    end = time.monotonic() + WITHIN_S
    with pytest.raises(TransportError):
        while time.monotonic() < end:
            readable(far.port, 0.05)
            far.port.read(100)
            far.port.write(b"x")


# ---- what only USB has


@pytest.mark.parametrize("endpoint", [IN, OUT])
def test_a_stall_is_cleared_and_nothing_is_lost(endpoint: int) -> None:
    gadget = Gadget()
    port = open_usb(USB, backend=Bus(gadget))
    try:
        gadget.stalls[endpoint] = 2
        far = Far(port, gadget.send, gadget.receive, gadget.unplug)
        gadget.send(b"to the host")
        port.write(b"to the gadget")
        assert far.receive_exactly(13) == b"to the gadget"
        assert readable(port)
        assert port.read(100) == b"to the host"
        assert gadget.cleared == [endpoint] * 2
    finally:
        port.close()


def test_an_endpoint_that_always_stalls_ends_the_port() -> None:
    gadget = Gadget()
    gadget.stalls[IN] = 1_000
    port = open_usb(USB, backend=Bus(gadget))
    try:
        assert readable(port)
        with pytest.raises(TransportError, match="Pipe error"):
            port.read(1)
    finally:
        port.close()


def test_full_packets_are_ended_by_an_empty_one_and_empty_ones_are_nothing() -> None:
    gadget = Gadget()
    port = open_usb(USB, backend=Bus(gadget))
    try:
        far = Far(port, gadget.send, gadget.receive, gadget.unplug)
        port.write(bytes(2 * PACKET))
        assert far.receive_exactly(2 * PACKET) == bytes(2 * PACKET)
        end = time.monotonic() + WITHIN_S
        while gadget.empty_packets == 0 and time.monotonic() < end:
            time.sleep(0.001)
        assert gadget.empty_packets == 1
        gadget.send_empty()
        gadget.send(b"after")
        assert readable(port)
        assert port.read(100) == b"after"
    finally:
        port.close()


def test_unplugged_and_plugged_in_again() -> None:
    gadget = Gadget()
    bus = Bus(gadget)
    port = open_usb(USB, backend=bus)
    gadget.unplug()
    assert readable(port)
    with pytest.raises(TransportError, match="gone"):
        port.read(1)
    port.close()
    with pytest.raises(TransportError, match="plug it in"):
        open_usb(USB, backend=bus)
    gadget.plug()
    port = open_usb(USB, backend=bus)
    gadget.send(b"again")
    assert readable(port)
    assert port.read(10) == b"again"
    port.close()


def test_which_device_is_meant_must_be_clear() -> None:
    bus = Bus(Gadget("A1"), Gadget("B2"))
    with pytest.raises(TransportError, match="add the serial number of one: A1, B2"):
        open_usb(USB, backend=bus)
    with pytest.raises(TransportError, match="no such device"):
        open_usb(f"{USB}:C3", backend=bus)
    port = open_usb(f"{USB}:B2", backend=bus)
    assert [gadget.claimed for gadget in bus.gadgets] == [False, True]
    with pytest.raises(TransportError, match="another program"):
        open_usb(f"{USB}:B2", backend=bus)
    port.close()
    assert [gadget.claimed for gadget in bus.gadgets] == [False, False]
    with pytest.raises(TransportError, match="usb:VID:PID"):
        open_usb("usb:nonsense", backend=bus)


# ---- a serial port by its USB ids


def test_a_serial_port_is_found_by_what_it_is() -> None:
    def port(path: str, serial: str | None, ids: tuple[int, int] | None = (0x1D6B, 0x0104)) -> Any:
        return SimpleNamespace(device=path, vid=ids and ids[0], pid=ids and ids[1], serial_number=serial)

    plugged = [port("/dev/ttyS0", None, None), port("/dev/ttyACM1", "A1"), port("/dev/ttyACM0", "B2")]
    assert find_serial("serial:1d6b:0104:A1", plugged) == "/dev/ttyACM1"
    assert find_serial("serial:1D6B:0104", plugged[:2]) == "/dev/ttyACM1"
    with pytest.raises(TransportError, match="A1 at /dev/ttyACM1, B2 at /dev/ttyACM0"):
        find_serial("serial:1d6b:0104", plugged)
    with pytest.raises(TransportError, match="plug it in"):
        find_serial("serial:1d6b:0105", plugged)
    with pytest.raises(TransportError, match="serial:VID:PID"):
        find_serial("serial:acm", plugged)
    with pytest.raises(TransportError, match="plug it in"):
        open_port("serial:ffff:ffff")


def test_two_ends_meet_over_usb_and_again_after_a_replug() -> None:
    """The device's pump is the host here; the gadget's side is driven by hand, in small pieces."""
    gadget = Gadget()
    bus = Bus(gadget)
    device, validator = make_device(), make_validator()
    proven: list[Proven] = []

    def on_event(event: object) -> None:
        if isinstance(event, Proven):
            proven.append(event)

    async def meet(times: int) -> None:
        validator.port_opened(monotonic_ms())
        async with asyncio.timeout(WITHIN_S):
            while len(proven) < times:
                validator.receive(gadget.receive(), monotonic_ms())
                validator.tick(monotonic_ms())
                while data := validator.data_to_send(monotonic_ms(), 200):
                    count = gadget.send(data)
                    validator.sent(count, monotonic_ms())
                    if count < len(data):
                        break
                await asyncio.sleep(0.001)
        validator.port_closed(monotonic_ms())

    async def scenario() -> None:
        pump: CablePump[Any] = CablePump(device, lambda: open_usb(USB, backend=bus), on_event=on_event)
        task = asyncio.create_task(pump.run())
        await meet(1)
        gadget.unplug()
        await asyncio.sleep(0.05)
        gadget.plug()
        await meet(2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())
