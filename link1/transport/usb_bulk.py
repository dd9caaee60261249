"""Two USB bulk endpoints as a `Port`: the host's side of a device or validator that shows no tty.

    open_usb("usb:1d6b:0104")            # vendor and product id
    open_usb("usb:1d6b:0104:SERIAL")     # where several of a kind are plugged in

pyusb only offers calls that wait, so two threads do the waiting, and a socket pair stands between them and
the caller: it gives a descriptor that selectors can watch, partial writes, and bounded buffers. When nobody
reads here, the reader thread stops asking and the other end is NAKed: nothing is lost, nothing grows.

One packet is written at a time. pyusb does not say how much of a longer transfer had left when it timed out;
of one packet it is all or nothing, so nothing is ever doubled. When what was written ends with a full packet,
an empty one follows, for gadgets that wait for a short packet.
"""

import contextlib
import errno
import re
import socket
import threading
from typing import Any

import usb.core
import usb.util

from link1.errors import TransportError, reason_of

SPEC = re.compile(r"usb:([0-9a-fA-F]{4}):([0-9a-fA-F]{4})(?::(.{1,126}))?")
POLL_MS = 100
"""How long one transfer waits before the thread looks whether it should end."""
READ_BYTES = 4_096
"""A multiple of every bulk packet size, so that no packet overflows the buffer."""
BUFFER_BYTES = 4_096
"""What waits between the caller and the cable; mail and verdicts queue in the session, not here."""
MAX_STALLS = 3
"""An endpoint that stalls so often in a row, cleared each time, is broken."""


class UsbPort:
    """See `link1.transport.serial_port.Port`."""

    def __init__(self, name: str, device: Any, interface: Any, ep_in: Any, ep_out: Any) -> None:
        self._name = name
        self._device = device
        self._interface = interface
        self._in, self._out = ep_in, ep_out
        self._near, self._far = socket.socketpair()
        for end in (self._near, self._far):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        self._near.setblocking(False)
        self._far.settimeout(POLL_MS / 1000)
        self._closing = threading.Event()
        self._why = "was closed"
        self._taken = self._left = 0
        self._threads = [
            threading.Thread(target=self._guard, args=(work,), name=f"usb-{work.__name__}", daemon=True)
            for work in (self._read_loop, self._write_loop)
        ]
        for thread in self._threads:
            thread.start()

    def fileno(self) -> int:
        return self._near.fileno()

    def read(self, max_bytes: int) -> bytes:
        try:
            data = self._near.recv(max_bytes)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            raise TransportError(f"{self._name}: the port is gone ({self._why})")
        return data

    def write(self, data: bytes) -> int:
        try:
            count = self._near.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            raise TransportError(f"{self._name}: the port is gone ({self._why})") from None
        self._taken += count
        return count

    def unsent(self) -> int:
        return self._taken - self._left

    def close(self) -> None:
        """What has not left is given up."""
        self._closing.set()
        self._near.close()
        for thread in self._threads:
            thread.join()
        self._far.close()
        with contextlib.suppress(usb.core.USBError):  # a device that went away is released enough
            usb.util.release_interface(self._device, self._interface)
        with contextlib.suppress(usb.core.USBError):
            usb.util.dispose_resources(self._device)

    # ---- threads

    def _guard(self, work: Any) -> None:
        """Run one direction; when it fails, the caller sees the end of the port."""
        try:
            work()
        except (usb.core.USBError, OSError) as error:
            if not self._closing.is_set():
                self._why = reason_of(error)
        self._closing.set()
        with contextlib.suppress(OSError):
            self._far.shutdown(socket.SHUT_RDWR)

    def _read_loop(self) -> None:
        stalls = 0
        while not self._closing.is_set():
            try:
                data = bytes(self._in.read(READ_BYTES, POLL_MS))
            except usb.core.USBTimeoutError:
                continue
            except usb.core.USBError as error:
                stalls = self._clear(self._in, stalls, error)
                continue
            stalls = 0
            while data and not self._closing.is_set():
                with contextlib.suppress(TimeoutError):
                    data = data[self._far.send(data) :]

    def _write_loop(self) -> None:
        packet_bytes: int = self._out.wMaxPacketSize
        packet, stalls, ended_full = b"", 0, False
        while not self._closing.is_set():
            if not packet:
                self._far.settimeout(POLL_MS / 1000 if not ended_full else 0.001)
                try:
                    packet = self._far.recv(packet_bytes)
                except TimeoutError:
                    if not ended_full:
                        continue
                else:
                    if not packet:
                        return
            try:
                self._out.write(packet, POLL_MS)
            except usb.core.USBTimeoutError:
                continue
            except usb.core.USBError as error:
                stalls = self._clear(self._out, stalls, error)
                continue
            self._left += len(packet)
            ended_full = len(packet) == packet_bytes
            packet, stalls = b"", 0

    def _clear(self, endpoint: Any, stalls: int, error: usb.core.USBError) -> int:
        """A stalled endpoint is cleared and goes on; every other error is the port's end."""
        if error.errno != errno.EPIPE or stalls >= MAX_STALLS:
            raise error
        endpoint.clear_halt()
        return stalls + 1


def open_usb(spec: str, *, backend: Any = None) -> UsbPort:
    """Open `usb:VID:PID[:SERIAL]`; raises TransportError with what to do about it."""
    match = SPEC.fullmatch(spec)
    if match is None:
        raise TransportError(f"{spec}: a USB port is written usb:VID:PID or usb:VID:PID:SERIAL, ids in hex")
    vendor, product, serial = int(match[1], 16), int(match[2], 16), match[3]
    try:
        found = list(usb.core.find(find_all=True, idVendor=vendor, idProduct=product, backend=backend))
        devices = [device for device in found if serial is None or _serial_of(device) == serial]
    except usb.core.NoBackendError:
        raise TransportError(f"{spec}: libusb is not installed; install libusb-1.0-0") from None
    if not devices:
        raise TransportError(f"{spec}: no such device is plugged in; plug it in, or name another port")
    if len(devices) > 1:
        serials = ", ".join(sorted(_serial_of(device) or "without one" for device in devices))
        raise TransportError(f"{spec}: {len(devices)} such devices; add the serial number of one: {serials}")
    try:
        return _claim(spec, devices[0])
    except usb.core.USBError as error:
        usb.util.dispose_resources(devices[0])
        raise TransportError(f"{spec}: {_advice(error)}") from None


def _serial_of(device: Any) -> str | None:
    """The serial number, None where there is none or it may not be read."""
    try:
        return str(device.serial_number) if device.iSerialNumber else None
    except (usb.core.USBError, ValueError):
        return None


def _claim(spec: str, device: Any) -> UsbPort:
    for interface in device.get_active_configuration():
        bulk = [
            endpoint
            for endpoint in interface
            if usb.util.endpoint_type(endpoint.bmAttributes) == usb.util.ENDPOINT_TYPE_BULK
        ]
        ends = {usb.util.endpoint_direction(endpoint.bEndpointAddress): endpoint for endpoint in bulk}
        if interface.bInterfaceClass == usb.CLASS_VENDOR_SPEC and len(bulk) == len(ends) == 2:
            usb.util.claim_interface(device, interface)
            return UsbPort(spec, device, interface, ends[usb.util.ENDPOINT_IN], ends[usb.util.ENDPOINT_OUT])
    raise TransportError(f"{spec}: this device has no vendor interface with one bulk endpoint each way")


def _advice(error: usb.core.USBError) -> str:
    match error.errno:
        case errno.EACCES:
            return "no permission; let a udev rule give the service's group access to this device"
        case errno.EBUSY:
            return "another program holds the interface; stop it first"
        case _:
            return f"cannot be opened ({reason_of(error)})"
