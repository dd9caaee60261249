"""uvicorn's HTTP/1.1 protocol with head and body of an answer in one segment.

uvicorn writes them one after the other, and each write is a system call: a twentieth of a small request.
"""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

_HEAD, _INFORMATION = b"HTTP/1.1 ", b"HTTP/1.1 1"


class _WholeAnswers:
    """A transport that keeps the head of an answer until its body comes."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(_HEAD) and not data.startswith(_INFORMATION):
            self._head = data
            return
        self._transport.write(data)

    def close(self) -> None:
        if self._head:
            self.write(b"")
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class AnswersInOne(H11Protocol):
    """What ``uvicorn.Config(http=…)`` is given."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast("asyncio.Transport", _WholeAnswers(transport)))
