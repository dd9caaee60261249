"""uvicorn's HTTP/1.1 protocol, made to last among strangers.

- Head and body of an answer go out in one segment: each write is a system call, a twentieth of a small
  request.
- Each phase of a connection ends in time: a head, a body, an answer that is not taken, what is still sent
  after an answer (``overdue``).
- Requests of strangers are begun in turn (``Connections``), none before the answers to those ahead of it on
  the same connection are taken.
- A body is read and taken apart no faster than the application asks for it, so a request that is refused by
  its head costs nothing more, and one read costs the loop about a millisecond however its body is cut.
- What is no HTTP is answered as a problem, like everything else that is refused.
- A connection that ends while its client still sends is closed in two steps, so that the client gets to read
  the answer: a socket that is closed with unread bytes resets the connection.
"""

import asyncio
import secrets
import socket
from collections.abc import Callable
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import Any, Final, cast

import h11
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from cloud_client.contract import PROBLEM_TYPE
from cloud_client.reference_server.contract.problems import Problem, ProblemCode
from cloud_client.reference_server.contract.words import REQUEST_ID_HEADER
from cloud_client.reference_server.contract.written import encode
from cloud_client.reference_server.web.access_log import ServedRequest
from cloud_client.reference_server.web.http import AUTHENTICATED, is_drained
from cloud_client.reference_server.web.listening.connections import Connections

NO_REQUEST: Final = "(no request)"
"""The route in the access log where no request could be read."""

HEAD_S: Final = 10.0
"""From the beginning of a connection, or the answer before, to the end of a request's head."""
SLOW_S: Final = 10.0
SLOW_BYTES_PER_S: Final = 1024
"""A body, or an answer on its way out, may be slower than this for ``SLOW_S`` and no longer,"""
LONGEST_S: Final = 120.0
"""and takes this long at most."""
LINGER_S: Final = 5.0
LINGER_QUIET_S: Final = 1.0
LINGER_BYTES: Final = 32 * 1024 * 1024
"""How long, and how much, is still read and dropped from a client that was answered before it had ended."""

_HEAD_BYTES = 16 * 1024
_HEAD_LINES = 100
_FIRST_OF_A_METHOD = 0x21
_READ_BYTES = 16 * 1024
_UNSENT_BYTES = 64 * 1024
"""What the system holds of answers beyond those on their way: its own bound is megabytes a connection."""
_ONE_SEGMENT_BYTES = 64 * 1024
"""A longer body is not copied to put its head before it."""
_PIECES_AT_ONCE = 64
_MOST_PIECES = 16_384  # 4 MiB in the segments of a slow network are some 3,000
_HEAD, _INFORMATION = b"HTTP/1.1 ", b"HTTP/1.1 1"

Note = Callable[[ServedRequest], None]


class _Paced(h11.Connection):
    """Reads a head when it is its turn, and takes a body apart only as far as it was asked for."""

    known = False
    """Whether heads are read at once, and not in turn."""
    turn = False
    allowed = 0
    """Pieces of the body that may be taken now."""
    _pieces = 0
    _blank = False
    """The empty line that may come before a request has come."""

    def next_event(self) -> Any:
        state = self.their_state
        if state is h11.IDLE or state is h11.DONE:
            data, ended = self.trailing_data
            if data in (b"", b"\r") and not ended:
                return h11.NEED_DATA  # h11 takes a twentieth of a request to say so, twice in each
            if state is h11.IDLE and not (self.known or self.turn):
                return h11.NEED_DATA
            if state is h11.IDLE and data.startswith(b"\r\n") and not self._blank:
                # RFC 9112 §2.2: some clients send one after a body.
                self._blank = True
                self._receive_buffer.maybe_extract_at_most(2)
                return self.next_event()
            if state is h11.IDLE and _too_many_lines(data):
                raise h11.RemoteProtocolError("a head of too many lines")
        if state is h11.SEND_BODY and not self.allowed:
            return h11.NEED_DATA
        event = super().next_event()
        if isinstance(event, h11.Request):
            # A body that came with the head, in one piece, is taken with it.
            self.allowed, self._pieces, self._blank = 2, 0, False
            self.turn = False
        elif isinstance(event, (h11.Data, h11.EndOfMessage)):
            self.allowed -= 1
            self._pieces += 1
            if self._pieces > _MOST_PIECES:
                raise h11.RemoteProtocolError("a body in too many pieces")
        return event


def _too_many_lines(data: bytes) -> bool:
    """Whether the head that begins ``data`` has more lines than any client's: each takes microseconds."""
    if data.count(b"\n") <= _HEAD_LINES:
        return False
    ends = [at for at in (data.find(b"\n\r\n"), data.find(b"\n\n")) if at >= 0]
    return data.count(b"\n", 0, min(ends, default=len(data))) > _HEAD_LINES


def _to_be_read(data: bytes) -> bool:
    """Whether the beginning of a request is worth a look: it is whole, or can only be refused.

    Until then each piece of a slow head costs no more than its copy.
    """
    if not data or b"\n\r\n" in data or b"\n\n" in data or len(data) > _HEAD_BYTES or _too_many_lines(data):
        return bool(data)
    return data[0] < _FIRST_OF_A_METHOD


def _nothing() -> bool:
    return False


def _taken(size: int) -> None:
    del size


class _Flow(FlowControl):
    """Asks the connection for more of a body when its application reads."""

    def __init__(self, transport: asyncio.Transport, wanted: Callable[[], object]) -> None:
        super().__init__(transport)
        self._wanted = wanted

    def resume_reading(self) -> None:
        super().resume_reading()
        self._wanted()

    def lost(self) -> None:
        """The connection has ended."""
        self._wanted = _nothing


class _WholeAnswers:
    """A transport that keeps the head of an answer until its body comes, and closes when its owner says."""

    def __init__(
        self, transport: asyncio.Transport, close: Callable[[], bool], unsent: Callable[[int], None]
    ) -> None:
        self._transport = transport
        self._may_close = close
        self._unsent = unsent
        self._head = b""
        self._ending = False
        self.written = 0

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            if len(data) > _ONE_SEGMENT_BYTES:
                self._send(head)
            else:
                data = head + data
        elif data.startswith(_HEAD) and not data.startswith(_INFORMATION):
            self._head = data
            return
        self._send(data)
        if size := self._transport.get_write_buffer_size():
            self._unsent(size)

    def _send(self, data: bytes) -> None:
        self.written += len(data)
        self._transport.write(memoryview(data))  # of bytes the transport would copy what is left, and again

    def close(self) -> None:
        if self._head:
            self.write(b"")
        self._ending = True
        # Closed twice, a transport of TLS forgets what it is on.
        if self._may_close() and not self._transport.is_closing():
            self._transport.close()

    def lost(self) -> None:
        """The connection has ended."""
        self._may_close = _nothing
        self._unsent = _taken

    def is_closing(self) -> bool:
        return self._ending or self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class HttpConnection(H11Protocol):
    """One connection of a bind."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        loop: asyncio.AbstractEventLoop,
        connections: Connections,
        note: Note,
    ) -> None:
        super().__init__(config, state, {AUTHENTICATED: self._authenticated}, loop)
        self.conn = self._paced = _Paced(h11.SERVER, _HEAD_BYTES)
        self.connecting: asyncio.Task[Any] | None = None
        """What brings the transport: a handshake, with TLS."""
        self._places = connections
        self._note = note
        self._wire: _WholeAnswers | None = None
        self._lingers = False
        self._queued = False
        self._queued_s = 0.0
        self._waits_until_taken = False
        self._since_s = self._heard_s = loop.time()
        """When the phase began, and when something came last."""
        self._received = 0
        self._broken = False
        """What came is no HTTP; nothing more is read from it."""
        self._unsent_since_s = 0.0
        self._written_before = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._wire = _WholeAnswers(transport, self._may_close, partial(self._places.unsent, self))
        super().connection_made(cast("asyncio.Transport", self._wire))
        self.flow = _Flow(self.transport, self._wanted)
        # asyncio reads 256 KiB at once by itself, for each of the connections.
        transport.max_size = _READ_BYTES  # type: ignore[attr-defined]
        connected = transport.get_extra_info("socket")
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        self._since_s = self._heard_s = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._places.leave(self)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        # Parts that refer to one another would lie there until they are found to be garbage.
        if self._wire is not None:
            self._wire.lost()
            cast("_Flow", self.flow).lost()
        self.cycle = self.scope = None  # type: ignore[assignment]
        self.app_state = {}

    def _authenticated(self, polls: bool) -> None:
        # Whoever polls keeps the place, and takes turns with the next request.
        self._paced.known = not polls
        self._places.authenticated(self)

    # Reading

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        self._heard_s = self.loop.time()
        if self._lingers:
            if self._received > LINGER_BYTES:
                self.abort()
            return
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._begin_phase()
        self._wait_turn()
        if self._reads_body() and self.cycle.message_event.is_set():
            self.flow.pause_reading()  # until the application has taken what there is

    def _wait_turn(self) -> None:
        """Queue up with the beginning of a stranger's request; nothing more is read meanwhile."""
        if self._queued or self._paced.known or self._lingers or self.conn.their_state is not h11.IDLE:
            return
        if self._wire is not None and _to_be_read(self.conn.trailing_data[0]):
            self._queued = True
            self._queued_s = self.loop.time()
            self._wire.pause_reading()
            self._unset_keepalive_if_required()
            if self.flow.write_paused:
                self._waits_until_taken = True
            else:
                self._places.wait_turn(self)

    def resume_writing(self) -> None:
        """The answers so far are taken, or nearly: a request that waits behind them may have its turn."""
        super().resume_writing()
        if self._wire is not None:
            self._places.unsent(self, self._wire.get_write_buffer_size())
        if self._waits_until_taken:
            self._waits_until_taken = False
            self._places.wait_turn(self)

    def turn(self) -> None:
        """Read the head of a request, if it is whole."""
        self._queued = False
        self._since_s += self.loop.time() - self._queued_s  # that was our time and not the client's
        if self._wire is None or self.transport.is_closing():
            return
        self._paced.turn = True
        self.handle_events()
        self._paced.turn = False
        if self._answering() is not None:
            self._begin_phase()
        if not self.flow.read_paused:
            self._wire.resume_reading()

    def _answering(self) -> RequestResponseCycle | None:
        """The request that is not answered yet."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return None if cycle is None or cycle.response_complete else cycle

    def _reads_body(self) -> bool:
        return self._answering() is not None and self.conn.their_state is h11.SEND_BODY

    def _wanted(self) -> None:
        """The application asks for the body, or has answered and what is left of it is dropped."""
        if self._lingers or self.conn.their_state is not h11.SEND_BODY:
            return
        self._paced.allowed = _PIECES_AT_ONCE
        self.handle_events()

    def _should_upgrade(self) -> bool:
        return False  # there are no websockets here, and no line in the log for each that is asked for

    # Answering

    def on_response_complete(self) -> None:
        self._begin_phase()
        super().on_response_complete()
        if self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY:
            # No handler read the body. A small body is read and dropped, so that the connection goes on.
            lengths = [value.decode("latin-1") for name, value in self.headers if name == b"content-length"]
            if not is_drained(lengths):
                self.transport.close()
        self._wait_turn()

    def send_400_response(self, msg: str) -> None:
        """Problem ``invalid_request`` to what is no HTTP; then the connection ends."""
        del msg
        self._broken = True
        if (cycle := self._answering()) is not None:
            # The application waits for the rest of a body that cannot be read.
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            request_id = secrets.token_hex(16)
            problem = Problem(ProblemCode.INVALID_REQUEST)
            body = encode(problem.body(request_id))
            head = {
                "Date": formatdate(usegmt=True),
                "Content-Type": PROBLEM_TYPE,
                "Content-Length": str(len(body)),
                REQUEST_ID_HEADER: request_id,
                "Cache-Control": "no-store",
                "Connection": "close",
            }
            status = HTTPStatus(problem.status)
            lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
            lines += [f"{name.lower()}: {value}" for name, value in head.items()]
            self.transport.write("\r\n".join([*lines, "", ""]).encode())
            self.transport.write(body)
            took_s = self.loop.time() - self._since_s
            self._note(ServedRequest("?", NO_REQUEST, problem.status, took_s, request_id))
        self.transport.close()

    # The end

    def overdue(self, now_s: float) -> bool:
        """Whether the other side has taken too long with what it is to do."""
        if self._wire is None:
            return False  # asyncio ends a handshake
        unsent: int = self._wire.get_write_buffer_size()
        self._places.unsent(self, unsent)
        if unsent:
            taken = self._wire.written - unsent
            if not self._unsent_since_s:
                self._unsent_since_s, self._written_before = now_s, taken
            return _too_slow(now_s - self._unsent_since_s, taken - self._written_before)
        self._unsent_since_s = 0.0
        waited_s = now_s - self._since_s
        if self._lingers:
            return waited_s > LINGER_S or now_s - self._heard_s > LINGER_QUIET_S
        if self._answering() is None:
            return waited_s > HEAD_S and not self._queued
        if self._reads_body() and not self.flow.read_paused:
            return _too_slow(waited_s, self._received)
        return False

    def abort(self) -> None:
        """End the connection at once."""
        if self._wire is not None:
            self._wire.abort()
        elif self.connecting is not None:
            self.connecting.cancel()

    def shutdown(self) -> None:
        """The server stops: a request that is whole is answered first."""
        if self._wire is not None and (cycle := self._answering()) is not None and not self._reads_body():
            cycle.keep_alive = False
        elif self._wire is not None and self._wire.get_write_buffer_size():
            self._lingers = True
            self._wire.close()
        else:
            self.abort()

    def _may_close(self) -> bool:
        """Whether the transport is closed now. Else the client still sends, and is listened to a while."""
        if self._lingers or self._wire is None:
            return True
        if not self._broken and self.conn.their_state is not h11.SEND_BODY:
            return True
        self._lingers = True
        self._begin_phase()
        self._unset_keepalive_if_required()
        if self._wire.can_write_eof():
            self._wire.write_eof()
        self.flow.resume_reading()
        return False

    def _begin_phase(self) -> None:
        self._since_s = self._heard_s = self.loop.time()
        self._received = 0


def _too_slow(waited_s: float, size: int) -> bool:
    return waited_s > LONGEST_S or (waited_s > SLOW_S and size < (waited_s - SLOW_S) * SLOW_BYTES_PER_S)
