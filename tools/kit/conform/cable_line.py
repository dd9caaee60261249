"""Bytes to and from the end under test, one call at a time: a port with a clock.

The tests put a simulated end and a simulated clock in its place, so every rule also runs without waiting.
"""

import select
import time
from collections.abc import Callable
from typing import Protocol

from link1.errors import TransportError
from link1.transport.pump import monotonic_ms
from link1.transport.serial_port import Port

READ_BYTES = 16_384
REOPEN_S = 0.1
FULL_PORT_MS = 3_000
"""When a port accepts no byte for this long, no program reads at its other end."""


class CableLine(Protocol):
    """Everything that the conformance test needs of a cable; raises TransportError when it is gone."""

    def now_ms(self) -> int:
        """Monotonic milliseconds."""
        ...

    def write(self, data: bytes) -> None:
        """Hand over all of `data`."""
        ...

    def read(self, until_ms: int) -> bytes:
        """What has come, as soon as something has; empty when nothing came until then."""
        ...

    def reopen(self, within_ms: int) -> None:
        """Open the port again: the end behind it was restarted, and a USB port goes away with it."""
        ...


class PortLine:
    """A `CableLine` on a serial port or pty."""

    def __init__(self, open_port: Callable[[], Port]) -> None:
        self._open = open_port
        self._port = open_port()

    def close(self) -> None:
        self._port.close()

    def reopen(self, within_ms: int) -> None:
        self._port.close()
        deadline_ms = monotonic_ms() + within_ms
        while True:
            try:
                self._port = self._open()
                return
            except TransportError:
                if monotonic_ms() >= deadline_ms:
                    raise
                time.sleep(REOPEN_S)

    def now_ms(self) -> int:
        return monotonic_ms()

    def write(self, data: bytes) -> None:
        while data:
            _, writable, _ = select.select([], [self._port.fileno()], [], FULL_PORT_MS / 1000)
            if not writable:
                raise TransportError("the port takes no more bytes: no program reads at the other end")
            data = data[self._port.write(data) :]

    def read(self, until_ms: int) -> bytes:
        while True:
            left_ms = until_ms - monotonic_ms()
            readable, _, _ = select.select([self._port.fileno()], [], [], max(0, left_ms) / 1000)
            data = self._port.read(READ_BYTES) if readable else b""
            if data or left_ms <= 0:
                return data
