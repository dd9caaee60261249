"""Packets between processes of one device, over an AF_UNIX stream socket.

A packet is ``u32 header length ‖ u32 payload length ‖ header ‖ payload``, integers big-endian. The header is
one JSON object (RFC 8785 bytes), the payload opaque bytes: what the service signed travels there unread.

1. A request's header is ``{"op": <name>, …}``; its reply's is ``{"ok": true, …}`` or
   ``{"ok": false, "code": <word>, "message": <text for a person>}``. One reply to each request, in order.
2. Both lengths are checked against their caps before anything is read, so neither side can be made to hold
   more than two maximal packets of the other.
3. A connection that breaks the framing is closed; the listener and its other connections go on.
4. When a client goes away, the request it was waiting for is cancelled: an operation that must not stop
   half-way shields itself.

    server = await IpcServer.start(path, handler)         client = await IpcClient.connect(path)
    async def handler(request): return reply(seq=7)       answer = await client.call("hello", timeout_s=5)
"""

import asyncio
import contextlib
import logging
import socket
import stat
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self, cast

from device.errors import IpcError, IpcRefused, IpcUnreachable
from link1.canonical import JsonObject, canonical_bytes, read_strict
from link1.errors import FormatError

MAX_HEADER_BYTES: Final = 64 * 1024
"""The largest header there is, a status for technicians, stays under 10 KiB."""

MAX_PAYLOAD_BYTES: Final = 4 * 1024 * 1024
"""The largest body of the device surface; a full page of 500 deltas has 1.6 MiB."""

MAX_CONNECTIONS: Final = 16
"""The carrier holds five, technicians a few more; beyond that somebody leaks them."""

_PREFIX = struct.Struct(">II")
_CUT_OFF: Final = "the stream ends inside a packet"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Packet:
    """One request or reply. The payload never appears in a repr: it may hold vectors."""

    header: JsonObject
    payload: bytes = field(default=b"", repr=False)


Handler = Callable[[Packet], Awaitable[Packet]]
"""Answers one request; may raise IpcRefused, which becomes a refusal."""


def reply(payload: bytes | bytearray = b"", **members: object) -> Packet:
    """A good answer with these members. A bytearray goes out as it is, for its owner to overwrite."""
    return Packet({"ok": True, **members}, cast("bytes", payload))


def refusal(code: str, message: str) -> Packet:
    """A refused request: a word for programs and a sentence for people."""
    return Packet({"ok": False, "code": code, "message": message})


def encode_packet(packet: Packet) -> bytes:
    """The bytes of a packet; IpcError when it is over a cap or its header is no JSON object."""
    return _head_of(packet) + packet.payload


def write_packet(writer: asyncio.StreamWriter, packet: Packet) -> None:
    """Write a packet without a copy of its payload, which its owner may want to overwrite afterwards."""
    writer.write(_head_of(packet))
    if packet.payload:
        writer.write(packet.payload)


def _head_of(packet: Packet) -> bytes:
    try:
        header = canonical_bytes(packet.header)
    except FormatError as error:
        raise IpcError(f"a packet's header cannot be written: {error}") from error
    _check_lengths(len(header), len(packet.payload))
    return _PREFIX.pack(len(header), len(packet.payload)) + header


async def read_packet(reader: asyncio.StreamReader) -> Packet | None:
    """The next packet, None at an end between packets; IpcError for anything else."""
    try:
        header_length, payload_length = _lengths(await reader.readexactly(_PREFIX.size))
        header = await reader.readexactly(header_length)
        payload = await reader.readexactly(payload_length)
    except asyncio.IncompleteReadError as error:
        if not error.partial and error.expected == _PREFIX.size:
            return None
        raise IpcError(_CUT_OFF) from error
    return _packet(header, payload)


def _packet(header: bytes, payload: bytes) -> Packet:
    try:
        return Packet(read_strict(header, max_bytes=MAX_HEADER_BYTES), payload)
    except FormatError as error:
        raise IpcError(f"a packet's header is refused: {error}") from error


def _lengths(prefix: bytes) -> tuple[int, int]:
    header_length, payload_length = _PREFIX.unpack(prefix)
    _check_lengths(header_length, payload_length)
    return header_length, payload_length


def _check_lengths(header_length: int, payload_length: int) -> None:
    if header_length > MAX_HEADER_BYTES or payload_length > MAX_PAYLOAD_BYTES:
        raise IpcError(
            f"a packet announces {header_length} + {payload_length} bytes; "
            f"at most {MAX_HEADER_BYTES} + {MAX_PAYLOAD_BYTES} are taken"
        )


class IpcClient:
    """One connection to a socket of the core; one request at a time.

    Any failure but a refusal, a time-out and a cancellation included, closes the connection: a late reply
    must never be taken for the answer to another request.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, path: Path, timeout_s: float = 5.0) -> Self:
        """Connect to the socket at `path`; IpcUnreachable when nobody listens there."""
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_unix_connection(path)
        except (OSError, TimeoutError) as error:
            raise _nobody_at(path, error) from error
        return cls(reader, writer)

    async def call(self, op: str, payload: bytes = b"", *, timeout_s: float, **members: object) -> Packet:
        """Send one request and wait for its reply.

        Raises IpcRefused (with `.code`) when the other side refuses it, IpcUnreachable when the connection
        or the time is lost, IpcError when a packet is over a cap or a reply breaks the framing.
        """
        try:
            self._writer.write(encode_packet(Packet({"op": op, **members}, payload)))
            async with asyncio.timeout(timeout_s):
                await self._writer.drain()
                answer = await read_packet(self._reader)
        except TimeoutError as error:
            self.close()
            raise _no_reply(op, timeout_s) from error
        except OSError as error:
            self.close()
            raise _lost_during(op, error) from error
        except BaseException:
            self.close()
            raise
        if answer is None:
            self.close()
        return _good_answer(op, answer)

    @property
    def closed(self) -> bool:
        """True once no request can be sent any more."""
        return self._writer.is_closing()

    def close(self) -> None:
        """Drop the connection; safe to call twice."""
        self._writer.close()


def call_blocking(
    path: Path, op: str, payload: bytes = b"", *, connect_s: float = 5.0, timeout_s: float, **members: object
) -> Packet:
    """One request over a connection of its own, for programs without a loop; raises what `IpcClient` raises.

    No loop for one request: Ctrl-C that comes while asyncio forgets a task that has ended is raised in a
    weak reference's callback, where Python drops it, and the program goes on.
    """
    request = encode_packet(Packet({"op": op, **members}, payload))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        try:
            line.settimeout(connect_s)
            line.connect(str(path))
        except OSError as error:
            raise _nobody_at(path, error) from error
        until_s = time.monotonic() + timeout_s
        try:
            line.settimeout(timeout_s)
            line.sendall(request)
            prefix = _received(line, _PREFIX.size, until_s)
            if not prefix:
                return _good_answer(op, None)
            if len(prefix) < _PREFIX.size:
                raise IpcError(_CUT_OFF)
            header_length, payload_length = _lengths(prefix)
            body = _received(line, header_length + payload_length, until_s)
        except TimeoutError as error:
            raise _no_reply(op, timeout_s) from error
        except OSError as error:
            raise _lost_during(op, error) from error
    if len(body) < header_length + payload_length:
        raise IpcError(_CUT_OFF)
    return _good_answer(op, _packet(body[:header_length], body[header_length:]))


def _received(line: socket.socket, count: int, until_s: float) -> bytes:
    """So many bytes, or fewer where the stream ends; TimeoutError at `until_s`."""
    data = bytearray()
    while len(data) < count:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        line.settimeout(left_s)
        piece = line.recv(count - len(data))
        if not piece:
            break
        data += piece
    return bytes(data)


def _good_answer(op: str, answer: Packet | None) -> Packet:
    if answer is None:
        raise IpcUnreachable(f"connection closed during {op}")
    if answer.header.get("ok") is not True:
        code, message = answer.header.get("code"), answer.header.get("message")
        raise IpcRefused(str(code), f"{op} refused ({code}): {message}")
    return answer


def _nobody_at(path: Path, error: OSError) -> IpcUnreachable:
    return IpcUnreachable(f"nothing answers at {path} ({_reason(error)}); is palmd running?")


def _no_reply(op: str, timeout_s: float) -> IpcUnreachable:
    return IpcUnreachable(f"no reply to {op} within {timeout_s:g} s")


def _lost_during(op: str, error: OSError) -> IpcUnreachable:
    return IpcUnreachable(f"connection lost during {op} ({_reason(error)})")


class IpcServer:
    """Listens on one socket and answers each request with `handler`."""

    def __init__(self, path: Path, handler: Handler) -> None:
        self._path = path
        self._handler = handler
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @classmethod
    async def start(cls, path: Path, handler: Handler, *, mode: int = 0o660) -> Self:
        """Listen at `path`, whose directory exists, with the socket's permissions set to `mode`.

        A socket left behind by a process that died is replaced; IpcError when a live one answers there or
        when something else stands in its place.
        """
        self = cls(path, handler)
        listener = _bind(path, mode)
        self._server = await asyncio.start_unix_server(self._accept, sock=listener)
        return self

    async def close(self) -> None:
        """Stop listening, cancel what is being answered, and remove the socket."""
        if self._server is not None:
            self._server.close()
        for task in tuple(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= MAX_CONNECTIONS:
            _log.warning("%s: connection refused, %d are open", self._path, len(self._connections))
            writer.close()
            return
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (IpcError, OSError) as error:
            _log.warning("%s: connection closed: %s", self._path, error)
        except asyncio.CancelledError:
            # close() ends us; asyncio's own task wrapper would log a cancellation as an error.
            return
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upcoming = asyncio.ensure_future(read_packet(reader))
        answering: asyncio.Future[Packet] | None = None
        try:
            while (request := await upcoming) is not None:
                # Reading on while we answer is how a client that went away is noticed.
                upcoming = asyncio.ensure_future(read_packet(reader))
                answering = asyncio.ensure_future(self._answer(request))
                await asyncio.wait((upcoming, answering), return_when=asyncio.FIRST_COMPLETED)
                if not answering.done() and (upcoming.exception() or upcoming.result() is None):
                    return
                write_packet(writer, await answering)
                await writer.drain()
        finally:
            upcoming.cancel()
            if answering is not None:
                answering.cancel()

    async def _answer(self, request: Packet) -> Packet:
        try:
            return await self._handler(request)
        except IpcRefused as error:
            return refusal(error.code, str(error))


def _bind(path: Path, mode: int) -> socket.socket:
    _remove_stale_socket(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        # Before listen(), so nobody can connect while the permissions are still those of the umask.
        path.chmod(mode)
    except OSError as error:
        listener.close()
        raise IpcError(f"cannot listen at {path} ({_reason(error)})") from error
    return listener


def _remove_stale_socket(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise IpcError(f"{path} exists and is no socket; remove it or choose another runtime_dir")
    except FileNotFoundError:
        return
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise IpcError(f"another process already listens at {path}; stop it first")


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
