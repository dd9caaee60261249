"""A USB bus in memory: a pyusb backend whose bulk endpoints behave like real ones.

Packets, not bytes: an IN endpoint with nothing to give NAKs until the time-out, a full OUT endpoint too; a
transfer ends with a short or empty packet; a stalled endpoint fails until it is cleared; a device that is
unplugged fails every call, and is found again when it is plugged in.
"""

import errno
import threading
import time
from array import array
from collections import deque
from types import SimpleNamespace
from typing import Any

import usb.core
from usb.backend import IBackend

VENDOR, PRODUCT = 0x1D6B, 0x0104
IN, OUT = 0x81, 0x02
PACKET = 64
QUEUE_PACKETS = 16
_TIMED_OUT, _STALLED, _GONE = (errno.ETIMEDOUT, errno.EPIPE, errno.ENODEV)


class Gadget:
    """The device's side of two bulk endpoints."""

    def __init__(self, serial: str = "A1") -> None:
        self.serial = serial
        self.plugged = True
        self.claimed = False
        self.stalls = {IN: 0, OUT: 0}
        self.halted: set[int] = set()
        self.cleared: list[int] = []
        self.empty_packets = 0
        self.changed = threading.Condition()
        self._to_host: deque[bytes] = deque()
        self._from_host: deque[bytes] = deque()

    # ---- as the gadget's firmware sees it

    def send(self, data: bytes) -> int:
        """Queue packets for the host, as many as there is room for; bytes taken."""
        with self.changed:
            taken = 0
            while taken < len(data) and len(self._to_host) < QUEUE_PACKETS:
                self._to_host.append(data[taken : taken + PACKET])
                taken += len(self._to_host[-1])
            self.changed.notify_all()
            return taken

    def send_empty(self) -> None:
        with self.changed:
            self._to_host.append(b"")
            self.changed.notify_all()

    def receive(self) -> bytes:
        """Everything that the host has sent since."""
        with self.changed:
            data = b"".join(self._from_host)
            self._from_host.clear()
            self.changed.notify_all()
            return data

    def unplug(self) -> None:
        with self.changed:
            self.plugged = self.claimed = False
            self._to_host.clear()
            self._from_host.clear()
            self.changed.notify_all()

    def plug(self) -> None:
        self.plugged = True

    # ---- as the host's controller sees it

    def _check(self, endpoint: int) -> None:
        if not self.plugged:
            raise usb.core.USBError("No such device (it may have been disconnected)", None, _GONE)
        if self.stalls[endpoint] > 0 and endpoint not in self.halted:
            self.stalls[endpoint] -= 1
            self.halted.add(endpoint)
        if endpoint in self.halted:
            raise usb.core.USBError("Pipe error", None, _STALLED)

    def _await(self, endpoint: int, ready: Any, timeout_ms: int) -> None:
        deadline = time.monotonic() + timeout_ms / 1000
        self._check(endpoint)
        while not ready():
            left = deadline - time.monotonic()
            if left <= 0:
                raise usb.core.USBTimeoutError("Operation timed out", None, _TIMED_OUT)
            self.changed.wait(left)
            self._check(endpoint)

    def read(self, size: int, timeout_ms: int) -> bytes:
        with self.changed:
            self._await(IN, lambda: self._to_host, timeout_ms)
            data = b""
            while self._to_host and len(data) + PACKET <= size:
                packet = self._to_host.popleft()
                data += packet
                if len(packet) < PACKET:
                    break
            return data

    def write(self, data: bytes, timeout_ms: int) -> int:
        with self.changed:
            for start in range(0, max(1, len(data)), PACKET):
                self._await(OUT, lambda: len(self._from_host) < QUEUE_PACKETS, timeout_ms)
                packet = data[start : start + PACKET]
                self.empty_packets += not packet
                self._from_host.append(packet)
            return len(data)


class Bus(IBackend):  # type: ignore[misc]
    """What is plugged in."""

    def __init__(self, *gadgets: Gadget) -> None:
        self.gadgets = list(gadgets)

    def enumerate_devices(self) -> Any:
        return [gadget for gadget in self.gadgets if gadget.plugged]

    def get_parent(self, dev: Gadget) -> None:
        return None

    def get_device_descriptor(self, dev: Gadget) -> Any:
        return SimpleNamespace(
            bLength=18, bDescriptorType=1, bcdUSB=0x200, bDeviceClass=0, bDeviceSubClass=0,
            bDeviceProtocol=0, bMaxPacketSize0=64, idVendor=VENDOR,
            idProduct=PRODUCT, bcdDevice=1, iManufacturer=0, iProduct=0,
            iSerialNumber=1, bNumConfigurations=1, address=1 + self.gadgets.index(dev), bus=1, port_number=1,
            port_numbers=(1,), speed=2,
        )  # fmt: skip

    def get_configuration_descriptor(self, dev: Gadget, config: int) -> Any:
        return SimpleNamespace(
            bLength=9, bDescriptorType=2, wTotalLength=32, bNumInterfaces=1, bConfigurationValue=1,
            iConfiguration=0, bmAttributes=0x80, bMaxPower=50, extra_descriptors=[],
        )  # fmt: skip

    def get_interface_descriptor(self, dev: Gadget, intf: int, alt: int, config: int) -> Any:
        if intf or alt:
            raise IndexError("one interface, one setting")
        return SimpleNamespace(
            bLength=9, bDescriptorType=4, bInterfaceNumber=0, bAlternateSetting=0, bNumEndpoints=2,
            bInterfaceClass=0xFF, bInterfaceSubClass=0, bInterfaceProtocol=0, iInterface=0,
            extra_descriptors=[],
        )  # fmt: skip

    def get_endpoint_descriptor(self, dev: Gadget, ep: int, intf: int, alt: int, config: int) -> Any:
        return SimpleNamespace(
            bLength=7, bDescriptorType=5, bEndpointAddress=(IN, OUT)[ep], bmAttributes=2,
            wMaxPacketSize=PACKET, bInterval=0, bRefresh=0, bSynchAddress=0, extra_descriptors=[],
        )  # fmt: skip

    def open_device(self, dev: Gadget) -> Gadget:
        if not dev.plugged:
            raise usb.core.USBError("No such device", None, _GONE)
        return dev

    def close_device(self, dev_handle: Gadget) -> None:
        pass

    def get_configuration(self, dev_handle: Gadget) -> int:
        return 1

    def claim_interface(self, dev_handle: Gadget, intf: int) -> None:
        if dev_handle.claimed:
            raise usb.core.USBError("Resource busy", None, errno.EBUSY)
        dev_handle.claimed = True

    def release_interface(self, dev_handle: Gadget, intf: int) -> None:
        dev_handle.claimed = False

    def bulk_write(self, dev_handle: Gadget, ep: int, intf: int, data: Any, timeout: int) -> int:
        return dev_handle.write(bytes(data), timeout)

    def bulk_read(self, dev_handle: Gadget, ep: int, intf: int, buff: Any, timeout: int) -> int:
        data = dev_handle.read(len(buff) * buff.itemsize, timeout)
        buff[: len(data)] = array("B", data)
        return len(data)

    def ctrl_transfer(
        self,
        dev_handle: Gadget,
        bmRequestType: int,
        bRequest: int,
        wValue: int,
        wIndex: int,
        data: Any,
        timeout: int,
    ) -> int:
        """GET_DESCRIPTOR of strings: 0 lists languages, everything else is the serial number."""
        body = b"\x09\x04" if wValue & 0xFF == 0 else dev_handle.serial.encode("utf-16-le")
        answer = bytes((len(body) + 2, 3)) + body
        data[: len(answer)] = array("B", answer)
        return len(answer)

    def clear_halt(self, dev_handle: Gadget, ep: int) -> None:
        dev_handle.halted.discard(ep)
        dev_handle.cleared.append(ep)
