"""One contract for every kind of port: a serial port on a pty, a virtual cable, and USB bulk endpoints."""

import asyncio
import errno
import os
import pty
import select
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from link1.errors import TransportError
from link1.events import Proven
from link1.transport.pump import CablePump, monotonic_ms
from link1.transport.serial_port import Port, open_port
from link1.transport.usb_bulk import open_usb
from link1.transport.usbfs import Interface
from tests.link1.cable import make_device, make_validator
from tests.link1.usb_bus import IN, OUT, PACKET, Bus, Gadget, write
from tests.until import until
from tools.kit import ports
from tools.kit.pty_pair import PtyPair

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
        data = bytearray()

        def all_came() -> bool:
            data.extend(self.receive())
            return len(data) >= size

        until(all_came, WITHIN_S, every_s=0.001)
        return bytes(data)


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
        port = Bus(tmp_path, gadget).open(USB)
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
    until(lambda: not far.port.unsent(), WITHIN_S)


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
def test_a_stalled_endpoint_ends_the_port_and_is_cleared_for_the_next(endpoint: int, tmp_path: Path) -> None:
    gadget = Gadget()
    bus = Bus(tmp_path, gadget)
    with closing(bus.open(USB)) as port:
        gadget.stall(endpoint)
        with suppress(TransportError):  # where a stalled read has ended the port already
            port.write(b"to the gadget")
        assert readable(port)
        with pytest.raises(TransportError, match="Broken pipe"):
            port.read(1)
    assert gadget.cleared == [endpoint]
    gadget.receive()
    with closing(bus.open(USB)) as port:
        far = Far(port, gadget.send, gadget.receive, gadget.unplug)
        gadget.send(b"to the host")
        port.write(b"to the gadget")
        assert far.receive_exactly(13) == b"to the gadget"
        assert readable(port)
        assert port.read(100) == b"to the host"


@pytest.mark.parametrize("size", [1, PACKET - 1, PACKET, PACKET + 1, 3 * PACKET, 3 * PACKET + 5, 4_096])
def test_packets_have_no_meaning_and_transfers_end(size: int, tmp_path: Path) -> None:
    """Full packets are ended by an empty one when they leave; what comes waits for none, and skips it."""
    gadget = Gadget()
    with closing(Bus(tmp_path, gadget).open(USB)) as port:
        far = Far(port, gadget.send, gadget.receive, gadget.unplug)
        data = bytes(index % 251 for index in range(size))
        assert port.write(data) == size
        assert far.receive_exactly(size) == data
        until(lambda: gadget.transfers and not port.unsent(), WITHIN_S)
        assert (sum(gadget.transfers), port.unsent()) == (size, 0), "whole transfers, none left open"
        came, sent = b"", 0
        while len(came) < size:
            sent += gadget.send(data[sent:])
            assert readable(port)
            came += port.read(100)
        assert came == data, "without any empty packet after the last full one"
        gadget.send_empty()
        gadget.send(b"after")
        assert readable(port)
        assert port.read(100) == b"after"


def test_what_is_not_read_is_left_with_the_gadget(tmp_path: Path) -> None:
    gadget = Gadget()
    with closing(Bus(tmp_path, gadget).open(USB)) as port:
        offered = 0
        while gadget.has_room(within_s=0.1):
            offered += gadget.send(bytes(1024))
            assert offered < 64 * 1024
        came = 0
        while came < offered:
            assert readable(port)
            came += len(port.read(4096))
        assert came == offered


def test_an_idle_port_costs_nothing(tmp_path: Path) -> None:
    gadget = Gadget()
    with closing(Bus(tmp_path, gadget).open(USB)) as port:
        begun = time.process_time()
        assert not readable(port, 0.5)
        assert time.process_time() - begun < 0.1


def test_unplugged_and_plugged_in_again(tmp_path: Path) -> None:
    gadget = Gadget()
    bus = Bus(tmp_path, gadget)
    port = bus.open(USB)
    gadget.unplug()
    assert readable(port)
    with pytest.raises(TransportError, match=r"gone \(No such device"):
        port.read(1)
    port.close()
    with pytest.raises(TransportError, match="plug it in"):
        bus.open(USB)
    gadget.plug()
    port = bus.open(USB)
    gadget.send(b"again")
    assert readable(port)
    assert port.read(10) == b"again"
    port.close()


def test_which_device_is_meant_must_be_clear(tmp_path: Path) -> None:
    bus = Bus(tmp_path, Gadget("A1"), Gadget("B2"))
    with pytest.raises(TransportError, match="add the serial number of one: A1, B2"):
        bus.open(USB)
    with pytest.raises(TransportError, match="no such device"):
        bus.open(f"{USB}:C3")
    port = bus.open(f"{USB.upper().replace('USB', 'usb')}:B2")
    assert [gadget.claimed for gadget in bus.gadgets] == [False, True]
    with pytest.raises(TransportError, match="another program"):
        bus.open(f"{USB}:B2")
    port.close()
    assert [gadget.claimed for gadget in bus.gadgets] == [False, False]
    with pytest.raises(TransportError, match="usb:VID:PID"):
        bus.open("usb:nonsense")


@pytest.mark.parametrize(
    ("number", "driver", "said"),
    [
        (errno.EACCES, "", "no permission.*udev rule"),
        (errno.EPERM, "", "no permission.*DeviceAllow"),
        (errno.EBUSY, "ftdi_sio", "kernel's driver ftdi_sio holds"),
        (errno.EBUSY, "usbfs", "another program holds"),
        (errno.ENOENT, "", "is absent; plug the device in again"),
        (errno.EIO, "", "cannot be opened .Input/output"),
    ],
)
def test_why_a_device_cannot_be_opened_is_told_apart(
    number: int, driver: str, said: str, tmp_path: Path
) -> None:
    def refuse(interface: Interface) -> Any:
        assert interface.driver == driver
        raise OSError(number, os.strerror(number))

    bus = Bus(tmp_path / "devices", Gadget())
    bus.open(USB).close()
    if driver:
        (tmp_path / driver).mkdir()
        (tmp_path / "devices/1-1/1-1:1.0/driver").symlink_to(tmp_path / driver)
    with pytest.raises(TransportError, match=said):
        open_usb(USB, devices=bus.folder, claim=refuse)


def test_a_device_without_two_bulk_endpoints_is_named(tmp_path: Path) -> None:
    write(tmp_path / "1-1", idVendor="1d6b", idProduct="0104", busnum="1", devnum="2")
    with pytest.raises(TransportError, match="no vendor interface"):
        open_usb(USB, devices=tmp_path)
    write(tmp_path / "1-1/1-1:1.0", bInterfaceClass="0a", bInterfaceNumber="00")
    with pytest.raises(TransportError, match="no vendor interface"):
        open_usb(USB, devices=tmp_path)


def test_of_several_vendor_interfaces_the_one_for_this_cable_is_opened(tmp_path: Path) -> None:
    """A validator on Linux may have a debugger's interface (adb) in front of it."""
    write(tmp_path / "1-1", idVendor="1d6b", idProduct="0104", busnum="1", devnum="2")
    for number, subclass, protocol in (("00", "42", "01"), ("01", "4c", "31"), ("02", "ff", "ff")):
        inner = tmp_path / f"1-1/1-1:1.{int(number)}"
        write(inner, bInterfaceClass="ff", bInterfaceSubClass=subclass, bInterfaceProtocol=protocol)
        write(inner, bInterfaceNumber=number)
        write(inner / "ep_81", type="Bulk", direction="in", bEndpointAddress="81", wMaxPacketSize="0200")
        write(inner / "ep_02", type="Bulk", direction="out", bEndpointAddress="02", wMaxPacketSize="0200")
    claimed: list[int] = []

    def claim(interface: Interface) -> Any:
        claimed.append(interface.number)
        raise OSError(errno.ENODEV, "gone")

    with pytest.raises(TransportError, match="is absent"):
        open_usb(USB, devices=tmp_path, claim=claim)
    assert claimed == [1]


def test_the_kernel_answers_a_node_that_is_no_usb_device(tmp_path: Path) -> None:
    """The real calls, on a file: what they refuse comes out as advice, and no descriptor stays open."""
    bus = Bus(tmp_path / "devices", Gadget())
    bus.open(USB).close()
    write(tmp_path / "001", **{"002": "no device"})
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(TransportError, match=r"cannot be opened \(Inappropriate ioctl"):
        open_usb(USB, devices=bus.folder, nodes=tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# ---- a serial port by its USB ids


def test_a_serial_port_is_found_by_what_it_is() -> None:
    def port(path: str, serial: str | None, ids: tuple[int, int] | None = (0x1D6B, 0x0104)) -> Any:
        return SimpleNamespace(device=path, vid=ids and ids[0], pid=ids and ids[1], serial_number=serial)

    plugged = [port("/dev/ttyS0", None, None), port("/dev/ttyACM1", "A1"), port("/dev/ttyACM0", "B2")]
    assert ports.find_serial("serial:1d6b:0104:A1", plugged) == "/dev/ttyACM1"
    assert ports.find_serial("serial:1D6B:0104", plugged[:2]) == "/dev/ttyACM1"
    with pytest.raises(TransportError, match="A1 at /dev/ttyACM1, B2 at /dev/ttyACM0"):
        ports.find_serial("serial:1d6b:0104", plugged)
    with pytest.raises(TransportError, match="plug it in"):
        ports.find_serial("serial:1d6b:0105", plugged)
    with pytest.raises(TransportError, match="serial:VID:PID"):
        ports.find_serial("serial:acm", plugged)
    with pytest.raises(TransportError, match="plug it in"):
        ports.open_port("serial:ffff:ffff")


def test_two_ends_meet_over_usb_and_again_after_a_replug(tmp_path: Path) -> None:
    """The device's pump is the host here; the gadget's side is driven by hand, in small pieces."""
    gadget = Gadget()
    bus = Bus(tmp_path, gadget)
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
        pump: CablePump[Any] = CablePump(device, lambda: bus.open(USB), on_event=on_event)
        task = asyncio.create_task(pump.run())
        await meet(1)
        gadget.unplug()
        await asyncio.sleep(0.05)
        gadget.plug()
        await meet(2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())
