"""The composition root of the reference server, and running it."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import signal
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import cast

from starlette.types import ASGIApp

from cloud_client.contract import is_loopback
from cloud_client.reference_server.contract.times import DAY_MS, NowMs, system_now_ms
from cloud_client.reference_server.contract.words import DEFAULT_PORT
from cloud_client.reference_server.domain.call import Service
from cloud_client.reference_server.domain.devices import rollouts
from cloud_client.reference_server.domain.gallery.palm_index import PalmIndex
from cloud_client.reference_server.domain.gallery.waiters import Waiters
from cloud_client.reference_server.domain.people import erasure
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.errors import OperatorError, StoreUnavailable
from cloud_client.reference_server.ops import retention
from cloud_client.reference_server.ops.data_directory import DataDirectory
from cloud_client.reference_server.store.async_store import AsyncStore
from cloud_client.reference_server.store.base import UNLOCKED, Tx
from cloud_client.reference_server.store.health import StoreHealth
from cloud_client.reference_server.web.access_log import ServedRequest
from cloud_client.reference_server.web.admin.app import make_admin_app
from cloud_client.reference_server.web.admin.bind import LOOPBACK, AdminBind, listening
from cloud_client.reference_server.web.admin.metrics import Metrics
from cloud_client.reference_server.web.api.app import Api, make_app
from cloud_client.reference_server.web.api.operations import OPERATIONS
from cloud_client.reference_server.web.api.rate_limit import Limiter, LocalLimiter, SharedLimiter
from cloud_client.reference_server.web.listening import listener
from cloud_client.reference_server.web.listening.connections import (
    Connections,
    places,
    raise_descriptor_limit,
)
from link1.errors import reason_of

log = logging.getLogger("palm.cloud")

SWEEP_EVERY_S = 3600.0
Ready = Callable[[str, str | None], None]
"""Called with the base URL, and that of the admin bind where there is one."""
_DOUBTED = (
    "the clock stands %d days after the last sweep: if it is right, `palmctl cloud sweep` deletes what is "
    "past its retention, and this server does in 24 hours; if not, set it"
)
_SHUTDOWN_S = 5
_LEAST_RATE_SCALE = 0.25
"""The first page of a gallery costs a device 5 of its 20: with less it could never have one."""
_MOST_RATE_SCALE = 1_000_000
_SWITCH_S = 0.001
_LINES_S = 0.2
_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 128 * 1024
_GARBAGE = (500_000, 10, 10)
"""New objects between two looks for garbage that refers to itself. A look at two thousand waiting devices
takes a tenth of a second; a request leaves no such garbage, a connection about a kilobyte."""


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
    admin: AdminBind | None = None
    metrics_per_device: bool = False

    def check(self) -> None:
        """OperatorError for what must not be served."""
        if not _LEAST_RATE_SCALE <= self.rate_scale <= _MOST_RATE_SCALE:  # inf and nan are neither
            raise OperatorError(f"--rate-scale is {_LEAST_RATE_SCALE} to {_MOST_RATE_SCALE:,}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise OperatorError("--tls-cert and --tls-key go together: give both or none")
        if self.tls_cert is not None:
            try:
                # Without a password OpenSSL would ask for one, on a terminal that a service does not have.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                    self.tls_cert, self.tls_key, password=lambda: ""
                )
            except OSError as error:
                raise OperatorError(
                    f"--tls-cert and --tls-key cannot be used ({reason_of(error)}): give the certificate "
                    "and the key that belongs to it, which needs no password, both in PEM form"
                ) from error
        for host in (self.host, LOOPBACK if self.admin is None else self.admin.host):
            if not (self.tls_cert or self.behind_tls_proxy or is_loopback(host)):
                raise OperatorError(
                    f"{host} is not a loopback address and there is no TLS: "
                    "give --tls-cert and --tls-key, or --behind-tls-proxy when a proxy in front does TLS"
                )


def build(
    data: DataDirectory,
    *,
    now_ms: NowMs = system_now_ms,
    monotonic_s: Callable[[], float] | None = None,
    rate_scale: float = 1.0,
    behind_tls_proxy: bool = False,
) -> tuple[ASGIApp, Api]:
    """The application over a data directory; the caller closes ``api.store``.

    ``monotonic_s`` replaces the clock of the rate limits (of the database, where processes share it).
    """
    store, vault = data.open(now_ms())
    store.close()
    service = Service(vault, now_ms, PalmIndex(), Waiters(), StoreHealth())
    async_store = AsyncStore(data.database)
    limiter: Limiter
    if async_store.engine == "sqlite":
        limiter = LocalLimiter(monotonic_s or time.monotonic, rate_scale)
    else:
        limiter = SharedLimiter(async_store, vault, rate_scale, monotonic_s)
    api = Api(service, async_store, limiter, behind_tls_proxy=behind_tls_proxy)
    return make_app(api, OPERATIONS), api


async def serve(options: ServeOptions, ready: Ready) -> None:
    """Serve until SIGTERM or SIGINT; ``ready`` is called when connections are accepted."""
    options.check()
    with options.data.served(), _stopping() as stop:
        await _serve(options, ready, stop)


async def _serve(options: ServeOptions, ready: Ready, stop: asyncio.Event) -> None:
    try:
        sockets = listener.bound(options.host, options.port)
    except OSError as error:
        raise OperatorError(
            f"{options.host}:{options.port} cannot be listened on: "
            "choose another --port, or stop what uses this one"
        ) from error
    app, api = build(
        options.data,
        rate_scale=options.rate_scale,
        behind_tls_proxy=options.behind_tls_proxy,
    )
    config = listener.config(
        app,
        ssl_certfile=options.tls_cert,
        ssl_keyfile=options.tls_key,
        timeout_graceful_shutdown=_SHUTDOWN_S,
        lifespan="on",
    )
    metrics = Metrics(each_device=options.metrics_per_device)

    def note(served: ServedRequest) -> None:
        served.log()
        metrics.note(served)

    api.on_answer = note
    bind = options.admin
    local = (bind is None or bind.is_local) and not options.behind_tls_proxy
    admin_app = make_admin_app(api.service, api.store, metrics, local=local)
    connections = Connections(places(raise_descriptor_limit()))
    tasks = [
        asyncio.create_task(_sweep_regularly(api), name="sweeper"),
        asyncio.create_task(_move_rollouts(api), name="rollouts"),
        asyncio.create_task(_write_lines(), name="lines"),
    ]
    try:
        tls = {"tls_cert": options.tls_cert, "tls_key": options.tls_key}
        async with listening(bind, admin_app, **tls) as admin_url:
            url = _url(options, sockets[0].getsockname()[1])
            gc.freeze()  # what is there by now stays: it is not looked at for garbage
            server = listener.Server(
                config,
                sockets,
                connections,
                note=note,
                ready=lambda: ready(url, admin_url),
                ending=api.service.waiters.end_all,
            )
            serving = asyncio.create_task(server.serve(), name="server")
            stopped = asyncio.create_task(stop.wait(), name="stop")
            await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
            server.should_exit = True
            stopped.cancel()
            await serving
    finally:
        for one in sockets:
            one.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        api.store.close()


def _url(options: ServeOptions, port: int) -> str:
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"{'https' if options.tls_cert else 'http'}://{host}:{port}"


@contextlib.contextmanager
def _stopping() -> Iterator[asyncio.Event]:
    """Set by SIGTERM and SIGINT, which end the server and not the process."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _sweep_regularly(api: Api) -> None:
    doubted_since_s: float | None = None
    while True:
        try:
            now_ms = api.service.now_ms()
            gap_ms = await api.store.read(partial(retention.since_last, now_ms=now_ms))
            if gap_ms <= retention.LONGEST_GAP_MS:
                doubted_since_s = None
            elif doubted_since_s is None:
                doubted_since_s = time.monotonic()
            if doubted_since_s is None or time.monotonic() - doubted_since_s >= retention.DOUBTED_S:
                log.info("sweep: %s", (await _swept(api.store, now_ms)).shown)
            else:
                log.error(_DOUBTED, gap_ms // DAY_MS)
        except StoreUnavailable as error:
            log.warning("sweep not done, tried again later: %s", error)
        except Exception as error:  # noqa: BLE001 - without this task nothing would be deleted any more
            log.error("sweep not done, tried again later: %s", type(error).__name__)
        await asyncio.sleep(SWEEP_EVERY_S)


async def _swept(store: AsyncStore, now_ms: int) -> retention.Swept:
    def step(tx: Tx) -> retention.Swept:
        swept = retention.sweep(tx, now_ms)
        if not swept.more:
            # In its last transaction: after it the log is emptied of what was deleted, and stays empty.
            retention.note_sweep(tx, now_ms)
        return swept

    # What a power loss takes back is deleted by the next sweep.
    swept = await store.write(step, durable=False)
    while swept.more:
        await asyncio.sleep(retention.PAUSE_S)
        swept = swept.then(await store.write(step, durable=False))
    after: str | None = ""
    while after is not None:
        await asyncio.sleep(retention.PAUSE_S)
        after = await store.write(partial(erasure.settle, after=after), durable=False, lock=UNLOCKED)
    return swept


async def _move_rollouts(api: Api) -> None:
    while True:
        await asyncio.sleep(rollouts.LOOK_EVERY_MS / 1000)
        try:
            for environment in await api.store.read(rollouts.environments):
                await _move_those_of(api, environment)
        except StoreUnavailable as error:
            log.warning("rollouts are not looked at, tried again: %s", error)
        except Exception as error:  # noqa: BLE001 - without this task no silent device would halt anything
            log.error("rollouts are not looked at, tried again: %s", type(error).__name__)


async def _move_those_of(api: Api, environment: Environment) -> None:
    def work(tx: Tx) -> bool:
        return rollouts.tick(tx, api.service.vault, environment, api.service.now_ms())

    while await api.store.write(work, lock=environment.tenant_id):
        pass


async def _write_lines() -> None:
    """Lines of the access log go out a few times a second: each system call is a twentieth of a request."""
    while True:
        await asyncio.sleep(_LINES_S)
        with contextlib.suppress(OSError):
            sys.stderr.flush()


def _keep_large_apart() -> None:
    """Have large buffers go back to the system when they are freed, where the C library can.

    By itself glibc keeps them on its heap from the first one on, between small objects that outlive them:
    after a thousand slow readers of large answers that would be a quarter of a gibibyte of holes.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def run(options: ServeOptions, ready: Ready) -> None:
    """``serve`` with logging to standard error; returns when the server has ended."""
    cast("TextIOWrapper", sys.stderr).reconfigure(line_buffering=False, write_through=False)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    listener.silence()
    # How long a thread that makes a list may hold the interpreter while the loop wants it.
    sys.setswitchinterval(_SWITCH_S)
    gc.set_threshold(*_GARBAGE)
    _keep_large_apart()
    asyncio.run(serve(options, ready))
