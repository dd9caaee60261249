"""Waiting devices: who waits for which stream, and what wakes them.

A waiting device costs one future and holds no database handle. Commits of this process are looked at on
the spot, those of other processes (``palmctl cloud …``) within ``POLL_S``, by SQLite's data version.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum, auto
from typing import Final

from cloud_client.reference_server.context import Device
from cloud_client.reference_server.errors import StoreUnavailable
from cloud_client.reference_server.store import AsyncStore, Tx

log = logging.getLogger("palm.cloud")

POLL_S: Final = 0.05


class Woken(Enum):
    """Why a wait ended."""

    CHANGED = auto()
    SUPERSEDED = auto()
    TIMED_OUT = auto()


class Waiters:
    """The devices that wait, at most one wait a device."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], asyncio.Future[Woken]] = {}
        self._streams: dict[str, dict[tuple[str, str], asyncio.Future[Woken]]] = {}
        self._positions: dict[str, tuple[int, int]] = {}

    async def wait(self, device: Device, timeout_s: float) -> Woken:
        """Wait for the device's stream to change; ends an older wait of the same device."""
        who = (device.environment.tenant_id, device.device_id)
        self.supersede(device)
        future: asyncio.Future[Woken] = asyncio.get_running_loop().create_future()
        stream = self._streams.setdefault(device.environment.stream, {})
        self._waiting[who] = stream[who] = future
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            return Woken.TIMED_OUT
        finally:
            if self._waiting.get(who) is future:
                del self._waiting[who]
                stream.pop(who, None)

    def supersede(self, device: Device) -> None:
        """End the device's wait, if there is one, with no data."""
        self._end((device.environment.tenant_id, device.device_id), Woken.SUPERSEDED)

    def wake_device(self, tenant_id: str, device_id: str) -> None:
        """Let one device look again (it was revoked, say)."""
        self._end((tenant_id, device_id), Woken.CHANGED)

    def _end(self, who: tuple[str, str], reason: Woken) -> None:
        future = self._waiting.get(who)
        if future is not None and not future.done():
            future.set_result(reason)

    def positions(self, found: dict[str, tuple[int, int]]) -> None:
        """Take note of every stream's (epoch, seq); wakes those whose stream has moved."""
        for stream, position in found.items():
            if self._positions.get(stream) != position:
                self._positions[stream] = position
                for future in self._streams.get(stream, {}).values():
                    if not future.done():
                        future.set_result(Woken.CHANGED)

    def end_all(self) -> None:
        """The server stops: everybody is answered."""
        for who in list(self._waiting):
            self._end(who, Woken.SUPERSEDED)

    @asynccontextmanager
    async def watching(self, store: AsyncStore) -> AsyncIterator[None]:
        """Changes are noticed inside; at the end everybody who waits is answered."""
        task = asyncio.create_task(self._watch(store), name="long-poll watcher")
        try:
            yield
        finally:
            task.cancel()
            self.end_all()

    async def _watch(self, store: AsyncStore) -> None:
        changed = asyncio.Event()
        store.on_change = changed.set
        seen = -1
        while True:
            try:
                version = store.data_version()
                if version != seen:
                    self.positions(store.read(_positions))
                    seen = version
            except StoreUnavailable as error:
                log.warning("long-polls are not woken: %s", error)
            try:
                async with asyncio.timeout(POLL_S):
                    await changed.wait()
            except TimeoutError:
                continue
            changed.clear()


def _positions(tx: Tx) -> dict[str, tuple[int, int]]:
    rows = tx.all("SELECT stream, epoch, seq FROM streams")
    return {row["stream"]: (row["epoch"], row["seq"]) for row in rows}
