"""Listening: uvicorn's server with an accept loop that a flood neither blocks nor makes noisy.

asyncio's own accepts as many connections at once as the backlog holds, and where descriptors run out logs a
traceback for each try. Here a few are accepted at a time, each is given a place first (``Connections``), and
a shortage is waited out.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from cloud_client.reference_server.web.listening.connections import Connections
from cloud_client.reference_server.web.listening.wire import HttpConnection, Note

BACKLOG: Final = 4096
_ACCEPTED_AT_ONCE: Final = 8
"""A connection costs a third of a millisecond, and known requests wait for several passes of the loop."""
_RETRY_S: Final = 0.1
KEEP_ALIVE_S: Final = 20
"""Longer than clients keep a connection without a request (5 to 15 s). Where the server ends it, a request
now and then meets the end and has no answer."""
_HANDSHAKE_S: Final = 10.0
_POLL_S: Final = 0.02


def bound(host: str, port: int) -> list[socket.socket]:
    """Sockets on every address that ``host`` names, on one port; ``port`` 0 takes a free one. OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((family, str(where[0])) for family, _, _, _, where in found):
            sockets.append(socket.create_server((address, port), family=family, backlog=BACKLOG))
            port = sockets[0].getsockname()[1]
    except OSError:
        for one in sockets:
            one.close()
        raise
    return sockets


def config(app: ASGIApp, **given: Any) -> uvicorn.Config:
    """What both binds set."""

    async def quiet(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            return  # a request that outlasts the end of the server is dropped, without a traceback

    return uvicorn.Config(
        quiet,
        # Not httptools, even where it is installed: it answers requests without Host.
        http="h11",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        **given,
    )


class Server(uvicorn.Server):
    """Serves on sockets that are bound already, until ``should_exit`` is set.

    ``ready`` is called when connections are accepted, ``ending`` when the server begins to stop.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        sockets: list[socket.socket],
        connections: Connections,
        *,
        note: Note = lambda _served: None,
        ready: Callable[[], None],
        ending: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self._sockets = sockets
        self._connections = connections
        self._note = note
        self._ready = ready
        self._ending = ending

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        del sockets
        await self.lifespan.startup()
        self.servers = []
        self.started = True
        for listening in self._sockets:
            listening.setblocking(False)
            self._listen(listening)
        self._ready()

    def _listen(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                # No descriptor, or no memory for one.
                self._connections.warn("accept", "connections wait to be taken: %s", error.strerror)
                self._connections.make_room()
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                loop.call_later(_RETRY_S, self._listen, listening)
                return
            accepted.setblocking(False)
            self._connect(accepted, str(address[0]))

    def _connect(self, accepted: socket.socket, address: str) -> None:
        loop = asyncio.get_running_loop()
        connection = HttpConnection(self.config, self.server_state, loop, self._connections, self._note)
        if not self._connections.enter(connection, address):
            accepted.close()
            return
        tls = self.config.ssl
        made = loop.connect_accepted_socket(
            lambda: connection, accepted, ssl=tls, ssl_handshake_timeout=_HANDSHAKE_S if tls else None
        )
        connection.connecting = loop.create_task(made)
        connection.connecting.add_done_callback(partial(self._connected, connection, accepted))

    def _connected(
        self, connection: HttpConnection, accepted: socket.socket, task: asyncio.Task[Any]
    ) -> None:
        connection.connecting = None
        if task.cancelled() or task.exception() is not None:
            self._connections.leave(connection)
            accepted.close()

    async def on_tick(self, counter: int) -> bool:
        self._connections.sweep()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None: who serves sets ``should_exit``. uvicorn's own way would kill the process with the signal."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what was asked, as long as ``timeout_graceful_shutdown`` says; then end everything."""
        del sockets
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening)
            listening.close()
        self._ending()
        for connection in self._connections:
            connection.shutdown()
        await self._ended(self.config.timeout_graceful_shutdown or 0)
        for connection in self._connections:
            connection.abort()
        await self._ended(1)
        for task in self.server_state.tasks:
            task.cancel()
        await self.lifespan.shutdown()

    async def _ended(self, within_s: float) -> None:
        """Wait until there is no connection and no request being answered."""
        for _ in range(round(within_s / _POLL_S)):
            if not self._connections and not self.server_state.tasks:
                return
            await asyncio.sleep(_POLL_S)


def silence() -> None:
    """uvicorn's lines about single requests: strangers could write as many as they like."""
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
