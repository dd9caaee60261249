"""An HTTP server that misbehaves on purpose: each request gets the next scripted answer, raw.

For faults that the reference server cannot make. Everything it was sent is kept for the test to look at.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Seen:
    """One request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


Answer = bytes | Callable[[asyncio.StreamWriter], Any]
"""Raw bytes after which the connection is closed, or a coroutine function that does as it likes."""


@dataclass
class Scripted:
    """The running double."""

    origin: str = ""
    seen: list[Seen] = field(default_factory=list)


@asynccontextmanager
async def scripted(answers: Sequence[Answer], tls: ssl.SSLContext | None = None) -> AsyncIterator[Scripted]:
    """Listen on loopback; the last answer is repeated."""
    double = Scripted()
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            double.seen.append(await _read_request(reader))
            answer = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer)
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    scheme = "https" if tls else "http"
    double.origin = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield double
    finally:
        server.close()


async def _read_request(reader: asyncio.StreamReader) -> Seen:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Seen(method, target, headers, body)


def http(status: int, body: object = None, content_type: str = "application/json", **headers: str) -> bytes:
    """A whole answer; keyword names become headers, underscores dashes."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(data)}", "Connection: close"]
    if body is not None:
        lines.append(f"Content-Type: {content_type}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def problem(
    status: int, code: str, retryable: bool = False, headers: dict[str, str] | None = None, **members: Any
) -> bytes:
    body = {"type": f"/problems/{code}", "status": status, "code": code, "retryable": retryable}
    return http(status, body | {"instance": "req-1"} | members, "application/problem+json", **(headers or {}))
