"""What a server process does about commits, its own and other processes'."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from cloud_client.reference_server.domain.call import Service
from cloud_client.reference_server.errors import StoreUnavailable
from cloud_client.reference_server.store.async_store import AsyncStore
from cloud_client.reference_server.store.base import MISSED, Change, Tx

log = logging.getLogger("palm.cloud")

AGAIN_S: Final = 1.0


@asynccontextmanager
async def followed(service: Service, store: AsyncStore) -> AsyncIterator[None]:
    """Changes are noticed inside; at the end every waiting device is answered."""
    task = asyncio.create_task(_follow(service, store), name="changes")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        service.waiters.end_all()


async def _follow(service: Service, store: AsyncStore) -> None:
    while True:
        try:
            async with contextlib.aclosing(store.changes()) as all_changes:
                async for changes in all_changes:
                    await _take_in(service, store, changes)
        except Exception as error:  # noqa: BLE001 - without this task no waiting device would be woken
            log.error("changes are not followed, tried again: %s", type(error).__name__)
        await asyncio.sleep(AGAIN_S)


async def _take_in(service: Service, store: AsyncStore, changes: list[Change]) -> None:
    if not changes or MISSED in changes:
        try:
            positions, revoked = await store.read(_noticed)
            service.waiters.positions(positions)
            for tenant_id, device_id in revoked:
                service.waiters.wake_device(tenant_id, device_id)
        except StoreUnavailable as error:
            log.warning("waiting devices are not woken: %s", error)
    for change in changes:
        _apply(service, change)


def _apply(service: Service, change: Change) -> None:
    match change.kind, change.words:
        case "stream", (stream,):
            service.waiters.wake_stream(stream)
        case "device", (tenant_id, device_id):
            service.waiters.wake_device(tenant_id, device_id)
        case "wait", (tenant_id, device_id, turn_id):
            service.waiters.entered_elsewhere(tenant_id, device_id, turn_id)
        case "palm", (stream, subject_id):
            service.palms.forget(stream, subject_id)
        case "missed", ():
            service.palms.forget_all()
            service.waiters.wake_all()
        case _:
            log.warning("a change of an unknown kind was announced: does a newer server use this database?")


def _noticed(tx: Tx) -> tuple[dict[str, tuple[int, int]], list[tuple[str, str]]]:
    """Every stream's (epoch, seq), and the devices that are revoked and may still wait."""
    streams = tx.all("SELECT stream, epoch, seq FROM streams")
    revoked = tx.all("SELECT tenant_id, device_id FROM devices WHERE status = 'revoked'")
    positions = {row["stream"]: (row["epoch"], row["seq"]) for row in streams}
    return positions, [(row["tenant_id"], row["device_id"]) for row in revoked]
