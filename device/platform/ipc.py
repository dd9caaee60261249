"""Packets between processes of one device, over an AF_UNIX stream socket.

A packet is ``u32 header length ‖ u32 payload length ‖ header ‖ payload``, integers big-endian. The header is
one JSON object (RFC 8785 bytes), the payload opaque bytes: what the service signed travels there unread.

1. A request's header is ``{"op": <name>, …}``; its reply's is ``{"ok": true, …}`` or
   ``{"ok": false, "code": <word>, "message": <text for a person>}``. One reply to each request, in order.
2. Both lengths are checked against their caps before anything is read, so neither side can be made to hold
   more than two maximal packets of the other.
3. A connection that breaks the framing is closed; the listener and its other connections go on.
4. When a client disconnects, the request it was waiting for is cancelled, unless its operation is
   `finishing`.
5. A connection that sends no request, sends slowly or takes no reply is closed (`Patience`). When a socket is
   full, an idle connection is closed for a new one, connections without any request first.

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
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self, cast

from device.errors import IpcError, IpcNotPermitted, IpcRefused, IpcSilent, IpcUnreachable
from link1.canonical import JsonObject, canonical_bytes, read_strict
from link1.errors import FormatError, reason_of
from link1.wire import WireObject

MAX_HEADER_BYTES: Final = 64 * 1024
"""The largest header there is, a status for technicians, stays under 10 KiB."""

MAX_PAYLOAD_BYTES: Final = 4 * 1024 * 1024
"""The largest body of the device surface; a full page of 500 deltas has 1.6 MiB."""

ANSWER_WITHIN_S: Final = 5.0
MAX_CONNECTIONS: Final = 16
"""To one socket. The carrier holds nine, a screen and a technician one or two each."""

_PREFIX = struct.Struct(">II")
_CREDENTIALS = struct.Struct("iII")
"""The value of SO_PEERCRED: pid, uid, gid."""
_CUT_OFF: Final = "the stream ends inside a packet"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Packet:
    """One request or reply. The payload never appears in a repr: it may hold vectors."""

    header: JsonObject
    payload: bytes = field(default=b"", repr=False)
    peer_uid: int | None = None
    """Of a request: the user who connected, according to the kernel. Under PrivateUsers= root and the
    server's user keep their ids, and every other user is 65534."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server waits for its clients, in seconds."""

    idle_s: float = 120.0
    """For the next request. The carrier's slowest task runs every ten minutes, and reconnects."""
    packet_s: float = 20.0
    """From the first byte of a packet to its last, and for a reply to be read. A carrier that gets little
    processor time needs seconds for the largest packet."""


Ask = Callable[..., Packet]
"""`ask(op, timeout_s=…, payload=…, **members)`: `ask_core` at one socket."""
Handler = Callable[[Packet], Awaitable[Packet]]
"""Answers one request; may raise IpcRefused, which becomes a refusal."""


def reply(payload: bytes | bytearray = b"", **members: object) -> Packet:
    """A good answer with these members. A bytearray is not copied, so that its owner can overwrite it."""
    return Packet({"ok": True, **members}, cast("bytes", payload))


def reply_with(answer: WireObject, payload: bytes | bytearray = b"") -> Packet:
    """A good answer with the members of `answer`."""
    return reply(payload, **answer.to_obj())


def finishing(operation: Handler) -> Handler:
    """`operation`, which goes on to its end when its client disconnects."""

    async def answer(request: Packet) -> Packet:
        work = asyncio.ensure_future(operation(request))
        work.add_done_callback(_heed)
        return await asyncio.shield(work)

    return answer


def _heed(work: asyncio.Future[Packet]) -> None:
    """Retrieve the exception of work whose client has disconnected, so that asyncio does not log it."""
    if not work.cancelled():
        work.exception()


def encode_packet(packet: Packet) -> bytes:
    """The bytes of a packet; IpcError when it is over a cap or its header is no JSON object."""
    return _head_of(packet) + packet.payload


def _head_of(packet: Packet) -> bytes:
    try:
        header = canonical_bytes(packet.header)
    except FormatError as error:
        raise IpcError(f"a packet's header cannot be written: {error}") from error
    _check_lengths(len(header), len(packet.payload))
    return _PREFIX.pack(len(header), len(packet.payload)) + header


async def read_packet(reader: asyncio.StreamReader, within_s: float | None = None) -> Packet | None:
    """The next packet; None at an end between packets; IpcError for anything else.

    `within_s`: from the packet's first byte to its last; None waits for ever.
    """
    first = await reader.read(1)
    if not first:
        return None
    try:
        async with asyncio.timeout(within_s):
            header_length, payload_length = _lengths(first + await reader.readexactly(_PREFIX.size - 1))
            header = await reader.readexactly(header_length)
            payload = await reader.readexactly(payload_length)
    except asyncio.IncompleteReadError as error:
        raise IpcError(_CUT_OFF) from error
    except TimeoutError as error:
        raise IpcError(f"a packet is not whole {within_s:g} s after its first byte") from error
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

    Any failure other than a refusal, including a time-out and a cancellation, closes the connection: a late
    reply must never be taken for the answer to another request.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, path: Path) -> Self:
        """Connect to the socket at `path`. Raises IpcUnreachable when none listens there, IpcNotPermitted."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                reader, writer = await asyncio.open_unix_connection(path)
        except (OSError, TimeoutError) as error:
            raise _not_connected(path, error) from error
        return cls(reader, writer)

    async def call(self, op: str, payload: bytes = b"", *, timeout_s: float, **members: object) -> Packet:
        """Send one request and wait for its reply.

        Raises IpcRefused (with `.code`) when the other side refuses it, IpcUnreachable when the connection
        or the time is lost, IpcError when a packet is over a cap or a reply breaks the framing.
        """
        try:
            with _losses(op, timeout_s):
                self._writer.write(encode_packet(Packet({"op": op, **members}, payload)))
                async with asyncio.timeout(timeout_s):
                    await self._writer.drain()
                    answer = await read_packet(self._reader)
        except BaseException:
            self.close()
            raise
        if answer is None:
            self.close()
        return _good_answer(op, answer)

    @property
    def closed(self) -> bool:
        """True once no further request can be sent."""
        return self._writer.is_closing() or self._reader.at_eof()

    def close(self) -> None:
        """Drop the connection; safe to call twice."""
        self._writer.close()


def ask_core(
    path: Path, op: str, *, timeout_s: float = ANSWER_WITHIN_S, payload: bytes = b"", **members: object
) -> Packet:
    """One request to a running core over a new connection, for programs without a loop. Raises IpcUnreachable
    when none answers (IpcNotPermitted when this user may not ask), IpcRefused when it refuses, IpcError.

    It uses no event loop: Ctrl-C that arrives while asyncio removes a finished task is raised in the
    callback of a weak reference, where Python drops it, and the program would go on.
    """
    request = encode_packet(Packet({"op": op, **members}, payload))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        try:
            line.settimeout(ANSWER_WITHIN_S)
            line.connect(str(path))
        except OSError as error:
            raise _not_connected(path, error) from error
        until_s = time.monotonic() + timeout_s
        with _losses(op, timeout_s):
            line.settimeout(timeout_s)
            line.sendall(request)
            prefix = _received(line, _PREFIX.size, until_s)
            if not prefix:
                return _good_answer(op, None)
            if len(prefix) < _PREFIX.size:
                raise IpcError(_CUT_OFF)
            header_length, payload_length = _lengths(prefix)
            body = _received(line, header_length + payload_length, until_s)
    if len(body) < header_length + payload_length:
        raise IpcError(_CUT_OFF)
    return _good_answer(op, _packet(body[:header_length], body[header_length:]))


def _received(line: socket.socket, count: int, until_s: float) -> bytes:
    """`count` bytes, or fewer where the stream ends; TimeoutError at `until_s`."""
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


def _not_connected(path: Path, error: OSError) -> IpcUnreachable:
    if isinstance(error, PermissionError):
        return IpcNotPermitted(f"this user may not use {path} ({reason_of(error)})")
    return IpcUnreachable(f"nothing answers at {path} ({reason_of(error)}); is palmd running?")


@contextlib.contextmanager
def _losses(op: str, timeout_s: float) -> Iterator[None]:
    """Errors of the connection, while a request is out, as IpcUnreachable."""
    try:
        yield
    except TimeoutError as error:
        raise IpcSilent(f"no reply to {op} within {timeout_s:g} s") from error
    except OSError as error:
        raise IpcUnreachable(f"connection lost during {op} ({reason_of(error)})") from error


@dataclass(eq=False, slots=True)
class _Connection:
    """The server's side of one client's connection."""

    task: asyncio.Task[None]
    waits_since_s: float
    """When the server last began to wait for the client, on the loop's clock."""
    asked: bool = False
    """Whether it has sent a whole request."""
    busy: bool = False
    """Whether a request is being answered."""


@dataclass(eq=False)
class IpcServer:
    """Listens on one socket and answers each request with `handler`."""

    path: Path
    handler: Handler
    patience: Patience
    _connections: set[_Connection] = field(default_factory=set, init=False)
    _server: asyncio.Server | None = field(default=None, init=False)

    @classmethod
    async def start(cls, path: Path, handler: Handler, patience: Patience = Patience()) -> Self:
        """Listen at `path`, whose directory exists; the socket is for its owner and group.

        A socket left behind by a process that died is replaced. Raises IpcError when a live process answers
        there, or when `path` is not a socket.
        """
        self = cls(path, handler, patience)
        self._server = await asyncio.start_unix_server(self._accept, sock=_bind(path))
        return self

    async def close(self) -> None:
        """Stop listening, cancel what is being answered, and remove the socket."""
        if self._server is not None:
            self._server.close()
        tasks = [connection.task for connection in self._connections]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.path.unlink(missing_ok=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or not self._has_room():
            _log.warning("%s: connection refused, %d are being answered", self.path, MAX_CONNECTIONS)
            writer.transport.abort()
            return
        connection = _Connection(task, asyncio.get_running_loop().time())
        self._connections.add(connection)
        try:
            await self._serve(connection, reader, writer)
        except (IpcError, OSError) as error:
            _log.warning("%s: connection closed: %s", self.path, error)
        except asyncio.CancelledError:
            # close() and _has_room() end us; asyncio's own task wrapper would log a cancellation as an error.
            if connection in self._connections:
                writer.close()  # a reply being written is still delivered
            return
        finally:
            self._connections.discard(connection)
            if not writer.is_closing():
                # The client has had time to read; unread bytes must not keep the descriptor open.
                writer.transport.abort()

    def _has_room(self) -> bool:
        """Whether another connection fits, after closing the one that was idle longest where that is
        needed."""
        if len(self._connections) < MAX_CONNECTIONS:
            return True
        waiting = [connection for connection in self._connections if not connection.busy]
        if not waiting:
            return False
        leaves = min(waiting, key=lambda connection: (connection.asked, connection.waits_since_s))
        self._connections.discard(leaves)
        leaves.task.cancel()
        return True

    async def _serve(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        loop, packet_s = asyncio.get_running_loop(), self.patience.packet_s
        peer_uid = _peer_uid(writer)
        upcoming = asyncio.ensure_future(read_packet(reader, packet_s))
        answering: asyncio.Future[Packet] | None = None
        try:
            while (request := await self._next(upcoming)) is not None:
                connection.asked = connection.busy = True
                # Reading on while answering detects a client that has disconnected.
                upcoming = asyncio.ensure_future(read_packet(reader, packet_s))
                answering = asyncio.ensure_future(self._answer(replace(request, peer_uid=peer_uid)))
                await asyncio.wait((upcoming, answering), return_when=asyncio.FIRST_COMPLETED)
                if not answering.done() and (upcoming.exception() or upcoming.result() is None):
                    return
                answer = await answering
                connection.busy, connection.waits_since_s = False, loop.time()
                writer.write(_head_of(answer))
                if answer.payload:  # not copied: its owner may overwrite it afterwards
                    writer.write(answer.payload)
                await _taken(writer, packet_s)
        finally:
            upcoming.cancel()
            if answering is not None:
                answering.cancel()

    async def _next(self, upcoming: "asyncio.Future[Packet | None]") -> Packet | None:
        """The next request; None when the client has disconnected or asks nothing for `idle_s`."""
        await asyncio.wait((upcoming,), timeout=self.patience.idle_s)
        return upcoming.result() if upcoming.done() else None

    async def _answer(self, request: Packet) -> Packet:
        try:
            return await self.handler(request)
        except IpcRefused as error:
            return Packet({"ok": False, "code": error.code, "message": str(error)})


async def _taken(writer: asyncio.StreamWriter, within_s: float) -> None:
    try:
        async with asyncio.timeout(within_s):
            await writer.drain()
    except TimeoutError as error:
        raise IpcError(f"a reply was not taken within {within_s:g} s") from error


def _peer_uid(writer: asyncio.StreamWriter) -> int:
    line: socket.socket = writer.get_extra_info("socket")
    _pid, uid, _gid = _CREDENTIALS.unpack(
        line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return int(uid)


def _bind(path: Path) -> socket.socket:
    _remove_stale_socket(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        # Before listen(), so that no client connects while the permissions are still those of the umask.
        path.chmod(0o660)
    except OSError as error:
        listener.close()
        raise IpcError(f"cannot listen at {path} ({reason_of(error)})") from error
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
