"""Driving a server over HTTP/1.1 with next to no work on this side, and reading what it costs there."""

import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from tools.palmctl.bench.daemon import BenchFailed

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


def whole_answer(data: bytes) -> tuple[int, bytes, bytes] | None:
    """(status, body, what follows it) of the answer that `data` begins with; None while it is not whole."""
    if (end := data.find(b"\r\n\r\n")) < 0:
        return None
    length = _LENGTH.search(data, 0, end)
    whole = end + 4 + (int(length[1]) if length else 0)
    return (int(data[9:12]), data[end + 4 : whole], data[whole:]) if len(data) >= whole else None


class LoadConnection:
    """One kept-alive connection."""

    def __init__(self, address: tuple[str, int], source: str = "") -> None:
        self._socket = socket.create_connection(address, timeout=60, source_address=(source, 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, request: bytes) -> None:
        self._socket.sendall(request)

    def answer(self) -> tuple[int, bytes]:
        """(status, body) of the next answer; BenchFailed when the server hangs up instead."""
        data = b""
        while (found := whole_answer(data)) is None:
            data += self._read()
        status, body, _ = found
        return status, body

    def _read(self) -> bytes:
        data = self._socket.recv(1 << 18)
        if not data:
            raise BenchFailed("the server closed a connection before it had answered")
        return data

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


@contextmanager
def connections(address: tuple[str, int], count: int) -> Iterator[list[LoadConnection]]:
    """So many kept-alive connections."""
    opened = [LoadConnection(address) for _ in range(count)]
    try:
        yield opened
    finally:
        for connection in opened:
            connection.close()


def drive(opened: list[LoadConnection], requests: Iterable[bytes], expected: int) -> list[bytes]:
    """Send requests, as many at a time as there are connections; their answers' bodies in order."""
    bodies = []
    pending = iter(requests)
    while batch := list(islice(pending, len(opened))):
        for connection, request in zip(opened, batch, strict=False):
            connection.send(request)
        for connection, _ in zip(opened, batch, strict=False):
            status, body = connection.answer()
            if status != expected:
                raise BenchFailed(f"a request was answered {status}, not {expected}")
            bodies.append(body)
    return bodies


def cpu_s(pid: int) -> float:
    """CPU seconds that the threads of a process have used so far, in user and kernel mode."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9
