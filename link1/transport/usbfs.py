"""Two bulk endpoints of a USB device through the kernel's own calls (usbfs, linux/usbdevice_fs.h).

libusb makes the same calls, but learns of devices from a netlink socket, which the sandbox of `palmd`
refuses; /sys says as well what is plugged in. Transfers are asynchronous: they are handed over, and the
descriptor polls as writable when one of them has ended.
"""

import ctypes
import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

_IOC_WRITE, _IOC_READ = 1 << 30, 2 << 30
_BULK: Final = 3
_ZERO_PACKET: Final = 0x40


class _Urb(ctypes.Structure):
    """struct usbdevfs_urb."""

    _fields_ = (
        ("type", ctypes.c_ubyte),
        ("endpoint", ctypes.c_ubyte),
        ("status", ctypes.c_int),
        ("flags", ctypes.c_uint),
        ("buffer", ctypes.c_void_p),
        ("buffer_length", ctypes.c_int),
        ("actual_length", ctypes.c_int),
        ("start_frame", ctypes.c_int),
        ("number_of_packets", ctypes.c_int),
        ("error_count", ctypes.c_int),
        ("signr", ctypes.c_uint),
        ("usercontext", ctypes.c_void_p),
    )
    buffer: int
    status: int
    actual_length: int


def _code(direction: int, number: int, size: int) -> int:
    return direction | size << 16 | ord("U") << 8 | number


_SUBMIT = _code(_IOC_READ, 10, ctypes.sizeof(_Urb))
_REAP_NOW = _code(_IOC_WRITE, 13, ctypes.sizeof(ctypes.c_void_p))
_CLAIM = _code(_IOC_READ, 15, ctypes.sizeof(ctypes.c_uint))
_CLEAR_HALT = _code(_IOC_READ, 21, ctypes.sizeof(ctypes.c_uint))
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Interface:
    """Where the two bulk endpoints of a device are; addresses as in its descriptors."""

    node: Path
    """/dev/bus/usb/BUS/DEVICE"""
    number: int
    read_from: int
    write_to: int
    packet_bytes: int
    """The largest packet that comes in: 64, 512 or 1,024 bytes."""
    driver: str
    """The kernel's driver that holds the interface; empty when none does."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A transfer that is over. `error` is 0 or an errno; `data` is what came in."""

    endpoint: int
    error: int
    data: bytes
    left_bytes: int
    """How many bytes of an outgoing transfer the device took."""


class Endpoints(Protocol):
    """A claimed interface, as `Usbfs` is one."""

    def fileno(self) -> int: ...
    def receive(self) -> None: ...
    def send(self, data: bytes) -> None: ...
    def ended(self) -> list[Ended]: ...
    def clear_halt(self, endpoint: int) -> None: ...
    def close(self) -> None: ...


class Usbfs:
    """A claimed interface. Every method but `close` may raise OSError, ENODEV where the device is gone."""

    def __init__(self, interface: Interface) -> None:
        """Open the device and claim the interface. Raises OSError: EBUSY when something else holds it."""
        self._interface = interface
        self._under_way: dict[int, tuple[_Urb, ctypes.Array[ctypes.c_char]]] = {}
        self._fd = os.open(interface.node, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._call(_CLAIM, ctypes.c_uint(interface.number))
        except OSError:
            os.close(self._fd)
            raise

    def fileno(self) -> int:
        """Polls as writable, or as readable, when `ended` has something to say; as hung up when unplugged."""
        return self._fd

    def receive(self) -> None:
        """Let the device send one packet more."""
        # A transfer ends with a short packet or a full buffer: one of a single packet never waits for more.
        size = self._interface.packet_bytes
        self._submit(self._interface.read_from, ctypes.create_string_buffer(size), size, 0)

    def send(self, data: bytes) -> None:
        """Hand over one transfer, 1 to 16,384 bytes; after a full last packet an empty one ends it."""
        buffer = ctypes.create_string_buffer(data, len(data))
        self._submit(self._interface.write_to, buffer, len(data), _ZERO_PACKET)

    def ended(self) -> list[Ended]:
        """What has ended since, in order."""
        ended: list[Ended] = []
        address = ctypes.c_void_p()
        while True:
            try:
                self._call(_REAP_NOW, address)
            except OSError as error:
                if error.errno == errno.EAGAIN or ended:  # ENODEV comes again after the last reports
                    return ended
                raise
            urb, buffer = self._under_way.pop(address.value or 0)
            into = bool(urb.endpoint & 0x80)
            ended.append(
                Ended(
                    urb.endpoint,
                    -urb.status,
                    buffer.raw[: urb.actual_length] if into else b"",
                    0 if into else urb.actual_length,
                )
            )

    def clear_halt(self, endpoint: int) -> None:
        """End a stall."""
        self._call(_CLEAR_HALT, ctypes.c_uint(endpoint))

    def close(self) -> None:
        """Give the interface back; transfers under way are given up."""
        os.close(self._fd)  # the kernel ends every transfer and releases the interface
        self._under_way.clear()

    def _submit(self, endpoint: int, buffer: ctypes.Array[ctypes.c_char], size: int, flags: int) -> None:
        urb = _Urb(type=_BULK, endpoint=endpoint, flags=flags, buffer_length=size)
        urb.buffer = ctypes.addressof(buffer)
        self._call(_SUBMIT, urb)
        self._under_way[ctypes.addressof(urb)] = urb, buffer

    def _call(self, code: int, argument: "ctypes._CDataType") -> None:
        # fcntl.ioctl would hand over a copy: the kernel writes to the structure at the address it was given.
        if _libc.ioctl(self._fd, ctypes.c_ulong(code), ctypes.byref(argument)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
