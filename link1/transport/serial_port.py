"""A serial port (CDC-ACM, UART) or a pty, opened raw, exclusive and non-blocking; and finding a port by what
is plugged in, for the number that the kernel gave it, as in ttyACM0, may change with every replug.

    serial:1d6b:0104            # the tty of the device with these USB ids
    serial:1d6b:0104:SERIAL     # where several of a kind are plugged in
    /dev/serial/by-id/…         # the same as a plain path

pyserial opens and configures it; reading and writing go to the descriptor directly, because pyserial's
own `write` waits and leaves half a frame behind when it gives up.
"""

import contextlib
import errno
import fcntl
import io
import os
import re
import struct
import termios
from collections.abc import Iterable
from typing import Protocol

import serial
from serial.tools import list_ports

from link1.errors import TransportError, reason_of

DEFAULT_BAUD = 921_600
"""LINK/1 §1; CDC-ACM and ptys ignore it."""
_BY_USB_IDS = re.compile(r"serial:([0-9a-fA-F]{4}):([0-9a-fA-F]{4})(?::(.{1,126}))?")


class Port(Protocol):
    """What `link1.transport.pump` needs of a port. Every method may raise TransportError when it is gone."""

    def fileno(self) -> int:
        """A descriptor that selectors can watch."""

    def read(self, max_bytes: int) -> bytes:
        """What has arrived, at most `max_bytes`; empty when nothing has."""

    def write(self, data: bytes) -> int:
        """Take as many bytes as there is room for, without waiting, and say how many."""

    def unsent(self) -> int:
        """Bytes taken that have not left yet; 0 where the port has no such figure."""

    def close(self) -> None: ...


class SerialPort:
    """See `Port`; over an open `serial.Serial`, or another non-blocking tty."""

    def __init__(self, path: str, device: io.RawIOBase) -> None:
        self._path = path
        self._device = device
        self._fd: int = device.fileno()

    def fileno(self) -> int:
        return self._fd

    def read(self, max_bytes: int) -> bytes:
        try:
            data = os.read(self._fd, max_bytes)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise self._gone(error) from None
        if not data:
            raise TransportError(f"{self._path}: the other side hung up")
        return data

    def write(self, data: bytes) -> int:
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._gone(error) from None

    def unsent(self) -> int:
        try:
            held = fcntl.ioctl(self._fd, termios.TIOCOUTQ, bytes(4))
        except OSError:
            return 0
        return int(struct.unpack("i", held)[0])

    def close(self) -> None:
        # Closing a tty waits until what it holds has gone out, up to 30 s when the other end does not read.
        with contextlib.suppress(OSError, termios.error):  # a port that went away is closed enough
            termios.tcflush(self._fd, termios.TCOFLUSH)
        with contextlib.suppress(OSError):
            self._device.close()

    def _gone(self, error: OSError) -> TransportError:
        return TransportError(f"{self._path}: the port is gone ({reason_of(error)})")


def open_port(path: str, *, baud: int = DEFAULT_BAUD, exclusive: bool = True) -> Port:
    """Open a serial port or pty at `path`, the serial port named `serial:VID:PID[:SERIAL]`, or USB bulk
    endpoints named `usb:VID:PID[:SERIAL]`. Raises TransportError with what to do about it.
    """
    if path.startswith("usb:"):
        from link1.transport.usb_bulk import open_usb  # only where it is used

        return open_usb(path)
    if path.startswith("serial:"):
        path = find_serial(path)
    try:
        # inter_byte_timeout makes VMIN 1, so that an empty read means hang-up and never "nothing yet".
        device = serial.Serial(
            path, baud, timeout=0, write_timeout=0, inter_byte_timeout=0, exclusive=exclusive, xonxoff=False
        )
    except serial.SerialException as error:
        raise TransportError(f"{path}: {_advice(error)}") from None
    except (ValueError, OSError, termios.error) as error:
        raise TransportError(f"{path}: is no serial port ({error})") from None
    port = SerialPort(path, device)
    os.set_blocking(port.fileno(), False)
    return port


class PortInfo(Protocol):
    """What pyserial reports about one serial port; the ids are None where it is not on USB."""

    device: str
    vid: int | None
    pid: int | None
    serial_number: str | None


def find_serial(spec: str, ports: Iterable[PortInfo] | None = None) -> str:
    """The path of the one port that `serial:VID:PID[:SERIAL]` means; raises TransportError."""
    match = _BY_USB_IDS.fullmatch(spec)
    if match is None:
        raise TransportError(f"{spec}: a port is written serial:VID:PID or serial:VID:PID:SERIAL, ids in hex")
    ids, serial = (int(match[1], 16), int(match[2], 16)), match[3]
    found = [
        port
        for port in (list_ports.comports() if ports is None else ports)
        if (port.vid, port.pid) == ids and serial in (None, port.serial_number)
    ]
    if not found:
        raise TransportError(f"{spec}: no such port is plugged in; plug it in, or name another port")
    if len(found) > 1:
        which = ", ".join(sorted(f"{port.serial_number or 'none'} at {port.device}" for port in found))
        raise TransportError(f"{spec}: {len(found)} such ports; name one by its serial number: {which}")
    return found[0].device


def _advice(error: serial.SerialException) -> str:
    match error.errno:
        case errno.ENOENT:
            return "there is no such port; plug the cable in, or name another port"
        case errno.EACCES:
            return "no permission; add the user to the group that owns the port (often dialout)"
        case errno.EPERM:
            return (
                "this program's service may not use such a port (DeviceAllow=), or was started before the "
                "port's driver; restart the service"
            )
        case errno.EAGAIN:
            return "another program holds the port; stop it first"
        case _:
            return f"cannot be opened ({error})"
