"""Whether the service can do its work: the store reads, and takes writes.

A full disk, or a file system that has become read-only, refuses writes while every read still answers. So a
row is really written: when the health is asked for, at most every ``EVERY_S``.
"""

import asyncio
import logging
import time
from typing import Final

from cloud_client.reference_server.errors import StoreUnavailable
from cloud_client.reference_server.store.async_store import AsyncStore
from cloud_client.reference_server.store.base import UNLOCKED, Tx

log = logging.getLogger("palm.cloud")

EVERY_S: Final = 2.0
WAITS_S: Final = 2.0


class StoreHealth:
    """The outcome of the last look at the store; used on the loop."""

    def __init__(self) -> None:
        self._looking: asyncio.Task[None] | None = None
        self._looked_s = float("-inf")
        self._wrong: str | None = None

    async def check(self, store: AsyncStore) -> None:
        """StoreUnavailable unless the store has been written to within the last seconds, or is now."""
        if self._looking is None and time.monotonic() - self._looked_s >= EVERY_S:
            self._looking = asyncio.create_task(self._look(store), name="health")
        if self._looking is not None:
            done, _ = await asyncio.wait((self._looking,), timeout=WAITS_S)
            if not done:
                raise StoreUnavailable("no write was done in time")
        if self._wrong is not None:
            raise StoreUnavailable(self._wrong)

    async def _look(self, store: AsyncStore) -> None:
        was, wrong = self._wrong, None
        try:
            await store.read_aside(lambda tx: tx.scalar("SELECT count(*) FROM tenants"))
            await store.write(_write, lock=UNLOCKED)
        except StoreUnavailable as error:
            wrong = str(error)
        except Exception as error:  # noqa: BLE001 - a table that is lost, say: the store cannot do its work
            wrong = f"database: {type(error).__name__}"
        finally:
            self._looked_s, self._looking = time.monotonic(), None
        self._wrong = wrong
        if wrong != was:
            log.warning("the store takes %s", "writes again" if wrong is None else f"no writes: {wrong}")


def _write(tx: Tx) -> None:
    # Any row without a use would do: a nonce of no key, which expires at once.
    tx.run(
        """INSERT INTO nonces (kid, nonce, expires_ms) VALUES ('health', 'health', 1)
           ON CONFLICT (kid, nonce) DO UPDATE SET expires_ms = 1 - nonces.expires_ms"""
    )
