"""The kit's ports: those of `link1.transport`, and a serial port found by what is plugged in, because the
number that the kernel gave it, as in ttyACM0, may change with every replug.

    serial:1d6b:0104            # the tty of the device with these USB ids
    serial:1d6b:0104:SERIAL     # where several of a kind are plugged in
    /dev/serial/by-id/…         # the same as a plain path
"""

import re
from collections.abc import Iterable
from typing import Protocol

from serial.tools import list_ports

from link1.errors import TransportError
from link1.transport import serial_port

_BY_USB_IDS = re.compile(r"serial:([0-9a-fA-F]{4}):([0-9a-fA-F]{4})(?::(.{1,126}))?")


def open_port(path: str, *, baud: int = serial_port.DEFAULT_BAUD, exclusive: bool = True) -> serial_port.Port:
    """As `link1.transport.serial_port.open_port`, `serial:VID:PID[:SERIAL]` too. Raises TransportError."""
    return serial_port.open_port(
        find_serial(path) if path.startswith("serial:") else path, baud=baud, exclusive=exclusive
    )


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
