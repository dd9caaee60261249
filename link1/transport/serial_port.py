"""A serial port (CDC-ACM, UART) or a pty, opened raw, exclusive and non-blocking.

pyserial opens and configures it; reading and writing go to the descriptor directly, because pyserial's
own `write` waits and leaves half a frame behind when it gives up.
"""

import contextlib
import errno
import fcntl
import io
import os
import struct
import termios
from typing import Protocol

import serial

from link1.errors import TransportError, reason_of

DEFAULT_BAUD = 921_600
"""LINK/1 §1; CDC-ACM and ptys ignore it."""


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
    """Open a serial port or pty at `path`, or USB bulk endpoints named `usb:VID:PID[:SERIAL]`. Raises
    TransportError with what to do about it.
    """
    if path.startswith("usb:"):
        from link1.transport.usb_bulk import open_usb  # only where it is used

        return open_usb(path)
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


def _advice(error: serial.SerialException) -> str:
    # Where pyserial fails to configure a port, the number is in the error that it met.
    met = error.__context__
    match met.args[0] if isinstance(met, termios.error) else error.errno:
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
        case errno.ENOTTY | errno.EISDIR:
            return "is no serial port; name another port"
        case _:
            return f"cannot be opened ({error})"
