"""A USB bus in memory: bulk endpoints that behave like the kernel's, and the /sys they are found in.

Packets, not bytes: an IN endpoint with nothing to give leaves the transfer open, a full OUT endpoint too; a
transfer that came in ends with the packet that was asked for; a stalled endpoint fails until it is cleared; a
device that is unplugged fails every call, and is found again when it is plugged in. Against a real kernel the
same port is driven by `make hil`.
"""

import contextlib
import errno
import os
import shutil
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from link1.transport.usb_bulk import UsbPort, open_usb
from link1.transport.usbfs import Ended, Interface

VENDOR, PRODUCT = "1d6b", "0104"
IN, OUT = 0x81, 0x02
PACKET = 64
QUEUE_PACKETS = 64


class Gadget:
    """The device's side of two bulk endpoints."""

    def __init__(self, serial: str = "A1") -> None:
        self.serial = serial
        self.plugged = True
        self.claimed = False
        self.halted: set[int] = set()
        self.cleared: list[int] = []
        self.transfers: list[int] = []
        """Bytes of each transfer from the host, as firmware sees it that waits for a short packet."""
        self.changed = threading.Condition()
        self.host: Claimed | None = None
        self._to_host: deque[bytes] = deque()
        self._from_host = bytearray()
        self._transfer_bytes = 0

    # ---- as the gadget's firmware sees it

    def send(self, data: bytes) -> int:
        """Queue packets for the host, as many as there is room for; bytes taken."""
        with self.changed:
            taken = 0
            while taken < len(data) and len(self._to_host) < QUEUE_PACKETS:
                self._to_host.append(data[taken : taken + PACKET])
                taken += len(self._to_host[-1])
            self._move()
            return taken

    def has_room(self, within_s: float) -> bool:
        """Whether the host takes so many packets in time that another may be queued."""
        with self.changed:
            return self.changed.wait_for(lambda: len(self._to_host) < QUEUE_PACKETS, within_s)

    def send_empty(self) -> None:
        with self.changed:
            self._to_host.append(b"")
            self._move()

    def receive(self) -> bytes:
        """Everything that the host has sent since."""
        with self.changed:
            data = bytes(self._from_host)
            self._from_host.clear()
            self._move()
            return data

    def stall(self, endpoint: int) -> None:
        with self.changed:
            self.halted.add(endpoint)
            self._move()

    def unplug(self) -> None:
        with self.changed:
            self.plugged = self.claimed = False
            self._to_host.clear()
            self._from_host.clear()
            self._move()

    def plug(self) -> None:
        self.plugged = True

    # ---- as the host's controller sees it

    def take(self, packet: bytes) -> bool:
        """One packet of the host's; False while there is no room."""
        if len(self._from_host) >= QUEUE_PACKETS * PACKET:
            return False
        self._from_host += packet
        self._transfer_bytes += len(packet)
        if len(packet) < PACKET:
            self.transfers.append(self._transfer_bytes)
            self._transfer_bytes = 0
        return True

    def give(self) -> bytes | None:
        return self._to_host.popleft() if self._to_host else None

    def _move(self) -> None:
        if self.host is not None:
            self.host.move()
        self.changed.notify_all()


@dataclass
class _Out:
    packets: deque[bytes]
    left_bytes: int = 0


@dataclass
class Claimed:
    """The host's side: an `Endpoints`. A pipe holds a byte while something has ended."""

    gadget: Gadget
    asked: int = 0
    _out: deque[_Out] = field(default_factory=deque)
    _done: deque[Ended] = field(default_factory=deque)

    def __post_init__(self) -> None:
        if self.gadget.claimed:
            raise OSError(errno.EBUSY, "Device or resource busy")
        if not self.gadget.plugged:
            raise OSError(errno.ENODEV, "No such device")
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._readable, False)
        self.gadget.claimed, self.gadget.host = True, self

    def fileno(self) -> int:
        return self._readable

    def receive(self) -> None:
        with self.gadget.changed:
            self._there()
            self.asked += 1
            self.move()
            self.gadget.changed.notify_all()

    def send(self, data: bytes) -> None:
        with self.gadget.changed:
            self._there()
            packets = deque(data[at : at + PACKET] for at in range(0, len(data), PACKET))
            if len(packets[-1]) == PACKET:
                packets.append(b"")
            self._out.append(_Out(packets))
            self.move()

    def ended(self) -> list[Ended]:
        with self.gadget.changed:
            with contextlib.suppress(BlockingIOError):
                os.read(self._readable, 4096)
            done = list(self._done)
            self._done.clear()
            if not done:
                self._there()
            if not self.gadget.plugged:
                os.write(self._writable, b"x")
            return done

    def clear_halt(self, endpoint: int) -> None:
        with self.gadget.changed:
            self.gadget.halted.discard(endpoint)
            self.gadget.cleared.append(endpoint)

    def close(self) -> None:
        with self.gadget.changed:
            self.gadget.claimed, self.gadget.host = False, None
            os.close(self._readable)
            os.close(self._writable)

    def move(self) -> None:
        """Carry what can be carried; the gadget's lock is held."""
        gadget = self.gadget
        error = errno.ENODEV if not gadget.plugged else errno.EPIPE if IN in gadget.halted else 0
        while self.asked and (packet := b"" if error else gadget.give()) is not None:
            self.asked -= 1
            self._end(Ended(IN, error, packet, 0))
        error = errno.ENODEV if not gadget.plugged else errno.EPIPE if OUT in gadget.halted else 0
        while self._out:
            transfer = self._out[0]
            while not error and transfer.packets and gadget.take(transfer.packets[0]):
                transfer.left_bytes += len(transfer.packets.popleft())
            if transfer.packets and not error:
                return
            self._out.popleft()
            self._end(Ended(OUT, error, b"", transfer.left_bytes))

    def _end(self, ended: Ended) -> None:
        self._done.append(ended)
        os.write(self._writable, b"x")

    def _there(self) -> None:
        if not self.gadget.plugged:
            raise OSError(errno.ENODEV, "No such device")


class Bus:
    """What is plugged in, and the folder of /sys that says so."""

    def __init__(self, folder: Path, *gadgets: Gadget) -> None:
        self.folder = folder
        self.gadgets = list(gadgets)
        (folder / "usb1").mkdir(parents=True)  # the controller's own hub
        for name, text in {"idVendor": "1d6b", "idProduct": "0002", "busnum": "1", "devnum": "1"}.items():
            (folder / "usb1" / name).write_text(text + "\n")

    def open(self, spec: str) -> UsbPort:
        self._list()
        return open_usb(spec, devices=self.folder, nodes=Path("/dev/bus/usb"), claim=self._claim)

    def _claim(self, interface: Interface) -> Claimed:
        assert interface.node.parent == Path("/dev/bus/usb/001")
        assert (interface.read_from, interface.write_to, interface.packet_bytes) == (IN, OUT, PACKET)
        return Claimed(self.gadgets[int(interface.node.name) - 2])

    def _list(self) -> None:
        for index, gadget in enumerate(self.gadgets):
            device = self.folder / f"1-{index + 1}"
            shutil.rmtree(device, ignore_errors=True)
            if not gadget.plugged:
                continue
            write(
                device,
                idVendor=VENDOR,
                idProduct=PRODUCT,
                serial=gadget.serial,
                busnum="1",
                devnum=f"{index + 2}",
            )
            write(
                device / "ep_00",
                type="Control",
                direction="both",
                bEndpointAddress="00",
                wMaxPacketSize="0040",
            )
            inner = device / f"1-{index + 1}:1.0"
            write(inner, bInterfaceClass="ff", bInterfaceNumber="00", bAlternateSetting=" 0")
            size = f"{PACKET:04x}"
            write(inner / "ep_81", type="Bulk", direction="in", bEndpointAddress="81", wMaxPacketSize=size)
            write(inner / "ep_02", type="Bulk", direction="out", bEndpointAddress="02", wMaxPacketSize=size)


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")
