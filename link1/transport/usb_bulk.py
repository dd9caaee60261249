"""Two USB bulk endpoints as a `Port`: the host's side of a device or validator that shows no tty.

    open_usb("usb:1d6b:0104")            # vendor and product id
    open_usb("usb:1d6b:0104:SERIAL")     # where several of a kind are plugged in

Linux only, and no library: devices are found in /sys, and driven by `link1.transport.usbfs`.

A thread between the endpoints and the caller, joined to the caller by a socket pair, gives a descriptor
that selectors can watch both ways, partial writes, and bounded buffers. When the caller does not read, the
thread asks for no more packets and the other end is NAKed: nothing is lost, nothing grows.

Packets have no meaning but for their bytes. Each incoming packet is taken on arrival, so that nothing waits
for the short or empty packet that a gadget may or may not send after a full one. Each transfer that leaves
ends with a short or an empty packet, for gadgets that wait for one.
"""

import contextlib
import errno
import os
import re
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from link1.errors import TransportError, reason_of
from link1.transport.usbfs import Endpoints, Interface, Usbfs

SPEC = re.compile(r"usb:([0-9a-fA-F]{4}):([0-9a-fA-F]{4})(?::(.{1,126}))?")
DEVICES = Path("/sys/bus/usb/devices")
NODES = Path("/dev/bus/usb")
PACKETS_ASKED: Final = 16
"""So many packets the other end may send before this one has looked."""
BUFFER_BYTES: Final = 4_096
"""What waits between the caller and the cable, and the longest transfer. Mail queues in the session."""
_VENDOR_CLASS = "ff"
_LINK1 = ("4c", "31")
"""Subclass and protocol of a vendor interface that is for this cable."""
_BULK = "Bulk"


class UsbPort:
    """See `link1.transport.serial_port.Port`. A stall ends the port; it is cleared for the next one."""

    def __init__(self, name: str, endpoints: Endpoints) -> None:
        self._name = name
        self._endpoints = endpoints
        self._near, self._far = socket.socketpair()
        for end in (self._near, self._far):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            end.setblocking(False)
        self._why = "was closed"
        self._taken = self._left = 0
        self._thread = threading.Thread(target=self._run, name="usb", daemon=True)
        self._thread.start()

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
        self._near.close()  # hangs up: the thread ends
        self._thread.join()
        self._far.close()
        with contextlib.suppress(OSError):
            self._endpoints.close()

    # ---- the thread

    def _run(self) -> None:
        """Carry bytes until the caller closes or the endpoints fail, which the caller sees as hang-up."""
        try:
            self._carry()
        except OSError as error:
            self._why = reason_of(error)
        with contextlib.suppress(OSError):
            self._far.shutdown(socket.SHUT_RDWR)

    def _carry(self) -> None:
        usb, far = self._endpoints.fileno(), self._far.fileno()
        poll = select.poll()
        poll.register(usb, select.POLLIN | select.POLLOUT)
        arrived, asked, leaving = b"", 0, False
        while True:
            while not arrived and asked < PACKETS_ASKED:
                self._endpoints.receive()
                asked += 1
            poll.register(far, (select.POLLOUT if arrived else 0) | (0 if leaving else select.POLLIN))
            events = dict(poll.poll())
            if events.get(far, 0) & (select.POLLHUP | select.POLLERR):
                return
            if usb in events:
                for ended in self._endpoints.ended():
                    self._check(ended.endpoint, ended.error)
                    if ended.endpoint & 0x80:
                        arrived += ended.data
                        asked -= 1
                    else:
                        self._left += ended.left_bytes
                        leaving = False
            with contextlib.suppress(BlockingIOError):
                if arrived:
                    arrived = arrived[self._far.send(arrived) :]
            with contextlib.suppress(BlockingIOError):
                if not leaving and (data := self._far.recv(BUFFER_BYTES)):
                    self._endpoints.send(data)
                    leaving = True

    def _check(self, endpoint: int, error: int) -> None:
        if error == errno.EPIPE:
            self._endpoints.clear_halt(endpoint)
        if error:
            raise OSError(error, os.strerror(error))


def open_usb(
    spec: str,
    *,
    devices: Path = DEVICES,
    nodes: Path = NODES,
    claim: Callable[[Interface], Endpoints] = Usbfs,
) -> UsbPort:
    """Open `usb:VID:PID[:SERIAL]`; raises TransportError with what to do about it."""
    match = SPEC.fullmatch(spec)
    if match is None:
        raise TransportError(f"{spec}: a USB port is written usb:VID:PID or usb:VID:PID:SERIAL, ids in hex")
    ids, serial = (match[1].lower(), match[2].lower()), match[3]
    found = [
        folder
        for folder in _folders(devices)
        if (_text(folder / "idVendor"), _text(folder / "idProduct")) == ids
        and serial in (None, _text(folder / "serial"))
    ]
    if not found:
        raise TransportError(f"{spec}: no such device is plugged in; plug it in, or name another port")
    if len(found) > 1:
        serials = ", ".join(sorted(_text(folder / "serial") or "without one" for folder in found))
        raise TransportError(f"{spec}: {len(found)} such devices; add the serial number of one: {serials}")
    interface = next(_interfaces(found[0], nodes), None)
    if interface is None:
        raise TransportError(f"{spec}: this device has no vendor interface with one bulk endpoint each way")
    try:
        return UsbPort(spec, claim(interface))
    except OSError as error:
        raise TransportError(f"{spec}: {_advice(error, interface)}") from None


def _interfaces(folder: Path, nodes: Path) -> Iterator[Interface]:
    """The vendor interfaces of a device that have one bulk endpoint each way; LINK/1's own first, as another
    may be for a debugger."""
    for inner in sorted(_folders(folder), key=_is_of_another):
        if _text(inner / "bInterfaceClass") != _VENDOR_CLASS:
            continue
        ends = [end for end in _folders(inner) if end.name.startswith("ep_") and _text(end / "type") == _BULK]
        into = [end for end in ends if _text(end / "direction") == "in"]
        out = [end for end in ends if _text(end / "direction") == "out"]
        if len(into) != 1 or len(out) != 1:
            continue
        with contextlib.suppress(ValueError):  # pulled out meanwhile: its files are empty
            yield Interface(
                nodes / f"{int(_text(folder / 'busnum')):03d}" / f"{int(_text(folder / 'devnum')):03d}",
                int(_text(inner / "bInterfaceNumber"), 16),
                int(_text(into[0] / "bEndpointAddress"), 16),
                int(_text(out[0] / "bEndpointAddress"), 16),
                int(_text(into[0] / "wMaxPacketSize"), 16) & 0x7FF,
                (inner / "driver").resolve().name if (inner / "driver").exists() else "",
            )


def _is_of_another(inner: Path) -> bool:
    return (_text(inner / "bInterfaceSubClass"), _text(inner / "bInterfaceProtocol")) != _LINK1


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    """What a file of /sys says; empty where there is none."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _advice(error: OSError, interface: Interface) -> str:
    match error.errno:
        case errno.EACCES | errno.EPERM:
            return (
                f"no permission for {interface.node}; let a udev rule give the service's group access to "
                "this device, and the unit say DeviceAllow=char-usb_device rw"
            )
        case errno.EBUSY if interface.driver not in ("", "usbfs"):
            return (
                f"the kernel's driver {interface.driver} holds the interface; use the port that it makes, or "
                "keep it from loading"
            )
        case errno.EBUSY:
            return "another program holds the interface; stop it first"
        case errno.ENOENT | errno.ENODEV:
            return f"{interface.node} is absent; plug the device in again"
        case _:
            return f"cannot be opened ({reason_of(error)})"
