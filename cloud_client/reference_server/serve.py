"""The composition root of the reference server, and running it."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from cloud_client.contract import DEFAULT_PORT
from cloud_client.reference_server import retention, signers
from cloud_client.reference_server.app import Api, make_app
from cloud_client.reference_server.context import Service
from cloud_client.reference_server.errors import OperatorError, StoreUnavailable
from cloud_client.reference_server.long_poll import Waiters
from cloud_client.reference_server.operations import OPERATIONS
from cloud_client.reference_server.palm_index import PalmIndex
from cloud_client.reference_server.rate_limit import Limiter
from cloud_client.reference_server.store import AsyncStore, Store
from cloud_client.reference_server.times import NowMs, system_now_ms
from cloud_client.reference_server.vault import Vault

log = logging.getLogger("palm.cloud")

SWEEP_EVERY_S = 3600.0
_BACKLOG = 2048
_SHUTDOWN_S = 5


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """Where a server keeps everything: ``cloud.db`` and ``secrets/``."""

    path: Path

    database: Path

    @classmethod
    def of(cls, path: Path, database: str | None = None) -> "DataDirectory":
        """``cloud.db`` and ``secrets/`` in ``path``; ``database`` (sqlite:///PATH) moves the former."""
        if database is None:
            return cls(path, path / "cloud.db")
        if not database.startswith("sqlite:///"):
            raise OperatorError("--database takes sqlite:///PATH; leave it out for cloud.db in --data")
        return cls(path, Path(database.removeprefix("sqlite:///")))

    def open(self, now_ms: int) -> tuple[Store, Vault]:
        """Store and keys, made on first use. OperatorError when the directory cannot be used."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            vault = Vault.open(self.path / "secrets")
        except OSError as error:
            raise OperatorError(
                f"{self.path} cannot be used ({error.strerror}): give --data a directory of your own"
            ) from error
        store = Store.open(self.database)
        with store.writing() as tx:
            signers.ensure(tx, vault, now_ms)
        return store, vault


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What ``palmctl cloud serve`` was asked for."""

    data: DataDirectory
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    tls_cert: Path | None = None
    tls_key: Path | None = None
    behind_tls_proxy: bool = False
    rate_scale: float = 1.0

    def check(self) -> None:
        """OperatorError for what must not be served."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise OperatorError("--tls-cert and --tls-key go together: give both or none")
        if not (self.tls_cert or self.behind_tls_proxy or _is_loopback(self.host)):
            raise OperatorError(
                f"{self.host} is not a loopback address and there is no TLS: "
                "give --tls-cert and --tls-key, or --behind-tls-proxy when a proxy in front does TLS"
            )


def build(
    data: DataDirectory,
    *,
    now_ms: NowMs = system_now_ms,
    monotonic_s: Callable[[], float] = time.monotonic,
    rate_scale: float = 1.0,
    behind_tls_proxy: bool = False,
) -> tuple[Starlette, Api]:
    """The application over a data directory; the caller closes ``api.store``."""
    store, vault = data.open(now_ms())
    store.close()
    service = Service(vault, now_ms, PalmIndex(), Waiters())
    api = Api(
        service,
        AsyncStore(data.database),
        Limiter(monotonic_s, rate_scale),
        behind_tls_proxy=behind_tls_proxy,
    )
    return make_app(api, OPERATIONS), api


async def serve(options: ServeOptions, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``ready`` is called with the base URL when connections are accepted."""
    options.check()
    app, api = build(
        options.data,
        rate_scale=options.rate_scale,
        behind_tls_proxy=options.behind_tls_proxy,
    )
    config = uvicorn.Config(
        app,
        host=options.host,
        port=options.port,
        ssl_certfile=options.tls_cert,
        ssl_keyfile=options.tls_key,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_SHUTDOWN_S,
        lifespan="on",
    )
    server = _Server(config, ready, api)
    sweeper = asyncio.create_task(_sweep_regularly(api), name="sweeper")
    try:
        await server.serve()
    finally:
        sweeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sweeper
        api.store.close()
    if not server.started:
        raise OperatorError(
            f"{options.host}:{options.port} cannot be listened on: "
            "choose another --port, or stop what uses this one"
        )


class _Server(uvicorn.Server):
    """uvicorn, telling when it accepts connections and letting waiting devices go when it stops."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[str], None], api: Api) -> None:
        super().__init__(config)
        self._ready = ready
        self._api = api

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets=sockets)
        except SystemExit:  # the address cannot be bound; serve() says so
            self.should_exit = True
            return
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            scheme = "https" if self.config.is_ssl else "http"
            host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
            self._ready(f"{scheme}://{host}:{port}")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT end the server; uvicorn's own way would then kill the process with them."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._api.service.waiters.end_all()
        await super().shutdown(sockets=sockets)


async def _sweep_regularly(api: Api) -> None:
    while True:
        try:
            counts = await api.store.write(lambda tx: retention.sweep(tx, api.service.now_ms()))
            log.info("sweep: %s", counts)
        except StoreUnavailable as error:
            log.warning("sweep not done, tried again later: %s", error)
        await asyncio.sleep(SWEEP_EVERY_S)


def run(options: ServeOptions, ready: Callable[[str], None]) -> None:
    """``serve`` with logging to standard error; returns when the server has ended."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    asyncio.run(serve(options, ready))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
