"""Listening for the admin bind next to the partner surface, in the same process."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.types import ASGIApp

from cloud_client.contract import is_loopback
from cloud_client.reference_server.errors import OperatorError
from cloud_client.reference_server.web.listening import listener
from cloud_client.reference_server.web.listening.connections import Connections

log = logging.getLogger("palm.cloud")

DEFAULT_ADMIN_PORT: Final = 8711
LOOPBACK: Final = "127.0.0.1"
_SHUTDOWN_S: Final = 1
_CONNECTIONS: Final = 64


@dataclass(frozen=True, slots=True)
class AdminBind:
    """Where the admin bind listens; without TLS on a loopback address.

    ``asked``: the operator named the port, so being unable to listen on it ends the server. The usual
    port is given up when another server has it.
    """

    host: str = LOOPBACK
    port: int = DEFAULT_ADMIN_PORT
    asked: bool = False

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


@asynccontextmanager
async def listening(
    bind: AdminBind | None, app: ASGIApp, *, tls_cert: Path | None = None, tls_key: Path | None = None
) -> AsyncIterator[str | None]:
    """Serve ``app`` while inside; the base URL, or None where nothing listens.

    The certificate is used beyond this machine. OperatorError when a port that was asked for cannot be had.
    """
    sockets = None if bind is None else _bound(bind)
    if bind is None or sockets is None:
        yield None
        return
    tls = tls_cert is not None and not bind.is_local
    config = listener.config(
        app,
        ssl_certfile=tls_cert if tls else None,
        ssl_keyfile=tls_key if tls else None,
        timeout_graceful_shutdown=_SHUTDOWN_S,
        lifespan="off",
    )
    port = sockets[0].getsockname()[1]
    up = asyncio.Event()
    server = listener.Server(config, sockets, Connections(_CONNECTIONS), ready=up.set)
    task = asyncio.create_task(server.serve(), name="admin bind")
    try:
        await up.wait()
        host = f"[{bind.host}]" if ":" in bind.host else bind.host
        yield f"{'https' if tls else 'http'}://{host}:{port}"
    finally:
        server.should_exit = True
        await task


def _bound(bind: AdminBind) -> list[socket.socket] | None:
    try:
        return listener.bound(bind.host, bind.port)
    except OSError as error:
        if bind.asked:
            raise OperatorError(
                f"{bind.host}:{bind.port} cannot be listened on: choose another --admin-port"
            ) from error
        log.warning(
            "no operator page, metrics or health checks: port %d is in use; give --admin-port", bind.port
        )
        return None
