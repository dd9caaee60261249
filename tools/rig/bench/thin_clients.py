"""Many clients in one process: kept-alive connections that send requests which were signed before.

A client costs a buffer and a callback, so that thousands of them and a server share two cores.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, cast

from tools.palmctl.bench.daemon import BenchFailed
from tools.rig.bench.http_load import whole_answer
from tools.rig.bench.lifeline import end_with_parent

Answered = Callable[[int, bytes], None]
"""Called with the status and the body of an answer."""


class ThinClient(asyncio.Protocol):
    """One kept-alive connection with at most one request under way."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self._answered: Answered | None = None

    @classmethod
    async def connected(cls, address: tuple[str, int], source: str = "127.0.0.1") -> "ThinClient":
        """A new connection."""
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(cls, *address, local_addr=(source, 0))
        return client

    @property
    def usable(self) -> bool:
        """Whether a request may be sent now."""
        return self._answered is None and self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def ask(self, request: bytes, answered: Answered) -> None:
        """Send a request; ``answered`` is called from the loop. BenchFailed when the connection has ended."""
        if self._transport is None:
            raise BenchFailed("the server closed a connection of a waiting client")
        self._answered = answered
        self._transport.write(request)

    async def answer(self, request: bytes) -> tuple[int, bytes]:
        """Send a request and wait for its answer: (status, body)."""
        future: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self.ask(request, lambda status, body: future.set_result((status, body)))
        return await future

    def data_received(self, data: bytes) -> None:
        self._data += data
        found = whole_answer(self._data)
        if found is None or self._answered is None:
            return
        status, body, self._data = found
        answered, self._answered = self._answered, None
        answered(status, body)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def asked_steadily(
    address: tuple[str, int],
    source: str,
    made: Iterator[tuple[str, bytes]],
    every_s: float,
    until: Callable[[], bool],
) -> dict[str, list[float]]:
    """Send a request ``every_s`` whatever the server does; seconds from its due time to its answer, by kind.

    A request that is late because the ones before it are not answered counts from when it was due: a stall
    of the server shows in all requests that fall into it. ``made`` gives (kind, request).
    """
    clients: list[ThinClient] = []
    took: dict[str, list[float]] = {}
    under_way: set[asyncio.Task[None]] = set()

    async def one(kind: str, request: bytes, due_s: float) -> None:
        # The one that was used last: an idle connection ends after ten seconds.
        client = next((client for client in reversed(clients) if client.usable), None)
        if client is None:
            client = await ThinClient.connected(address, source)
            clients.append(client)
        status, body = await client.answer(request)
        took.setdefault(kind, []).append(time.perf_counter() - due_s)
        if status not in {200, 201}:
            raise BenchFailed(f"{kind} was answered {status}: {body[:200]!r}")

    due_s = time.perf_counter()
    for kind, request in made:
        due_s += every_s
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        task = asyncio.create_task(one(kind, request, due_s))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        if until():  # after a request: what ends at once shows one too
            break
    await asyncio.gather(*under_way)
    for client in clients:
        client.close()
    return took


@contextmanager
def beside(work: Callable[..., Any], *given: object) -> Iterator[Callable[[], Any]]:
    """``work(ended, *given)`` in another process until ``ended()``.

    Calling what is yielded ends it; that is its result, or BenchFailed.
    """
    context = get_context("fork")
    ended, (ours, theirs) = context.Event(), context.Pipe()

    def serve() -> None:
        end_with_parent()
        try:
            theirs.send((True, work(ended.is_set, *given)))
        except Exception as error:  # noqa: BLE001 - shown where it is waited for
            theirs.send((False, f"{type(error).__name__}: {error}"))

    process = context.Process(target=serve, daemon=True)
    process.start()

    def result() -> Any:
        ended.set()
        done, found = ours.recv()
        process.join()
        if not done:
            raise BenchFailed(found)
        return found

    try:
        yield result
    finally:
        ended.set()
        process.join(10)
        if process.is_alive():
            process.kill()
