"""HTTP without a client library's good manners: bytes out, bytes in, and a look at every answer.

Whatever a hostile request carries has the marker in it; no answer may ever contain it.
"""

import json
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

MARKER = "zq7Marker"


@dataclass(frozen=True)
class Reply:
    """Everything that came back on one connection."""

    raw: bytes
    closed: bool
    """The server ended the connection before we stopped waiting."""

    @property
    def status(self) -> int:
        return int(self.raw[9:12]) if self.raw else 0

    @property
    def answers(self) -> int:
        """How many answers came."""
        return self.raw.count(b"HTTP/1.1 ")

    @property
    def headers(self) -> dict[str, str]:
        lines = self.raw.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
        return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}

    @property
    def body(self) -> bytes:
        return self.raw.partition(b"\r\n\r\n")[2]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The problem's code, empty for an answer that is none."""
        return str(self.json.get("code", "")) if self.body.startswith(b"{") else ""


def exchange(url: str, data: bytes, *, wait_s: float = 10.0, quiet_s: float | None = None) -> Reply:
    """Send bytes, then read until an answer is whole, or until nothing came for ``quiet_s``."""
    parts = urlsplit(url)
    received = b""
    with socket.create_connection((parts.hostname, parts.port), timeout=wait_s) as connection:
        closed = False
        try:
            connection.sendall(data)
        except ConnectionError:
            return Reply(b"", closed=True)
        if quiet_s is not None:
            connection.settimeout(quiet_s)
        while quiet_s is not None or not _whole(received):
            try:
                chunk = connection.recv(65_536)
            except TimeoutError:
                assert quiet_s is not None, "no answer"
                break
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                closed = True
                break
            received += chunk
    assert MARKER.lower().encode() not in received.lower(), "an answer repeats what was received"
    return Reply(received, closed)


def _whole(received: bytes) -> bool:
    head, end, body = received.partition(b"\r\n\r\n")
    if not end:
        return False
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return len(body) >= int(value)
    return b" 204 " in head or b" 304 " in head


def request(url: str, start: str, headers: list[str], body: bytes = b"", *, length: bool = True) -> bytes:
    """A request's bytes: Host and, with a body, Content-Length are added."""
    lines = [start, f"Host: {urlsplit(url).netloc}", *headers]
    if body and length:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
