"""What the core looks after every second: its stages, its gallery's age, its disk, and the watchdog.

The watchdog is fed only while every stage shows life; a stage that is merely idle shows it too.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from device import sd_notify
from device.clock import Clock
from device.core import Core
from device.errors import JournalError
from device.health import HealthWord
from device.opening import gallery_now
from gallery.errors import GalleryError

EVERY_S: Final = 1.0
STORE_WITHIN_S: Final = 5.0
"""A large page of the gallery keeps the store busy for a fraction of this."""
LOW_DISK_BYTES: Final = 64 * 1024 * 1024
"""A month of verdicts of a busy gate has half of this."""
MAINTAIN_EVERY_S: Final = 600

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stage:
    """A thread that tells when it last showed life (monotonic ms), and how long it may be silent."""

    name: str
    heartbeat_ms: Callable[[], int]
    within_ms: int


class Housekeeping:
    """Runs beside everything else until cancelled."""

    def __init__(self, core: Core, clock: Clock, stages: Sequence[Stage]) -> None:
        self._core = core
        self._clock = clock
        self._stages = stages
        self._fed_at_s = 0.0
        self._maintained_at_s = asyncio.get_running_loop().time()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            silent = self._silent_stages()
            try:
                async with asyncio.timeout(STORE_WITHIN_S):
                    await self._look_at_store()
            except TimeoutError:
                silent.append("store")
            self._core.look_at_gallery()
            self._core.tell_status()
            if silent:
                _log.error("no life from: %s; the watchdog is not fed", ", ".join(silent))
            else:
                sd_notify.watchdog()
            if loop.time() - self._maintained_at_s > MAINTAIN_EVERY_S and self._core.gate.open_txn_id is None:
                self._maintained_at_s = loop.time()
                await self._maintain()
            await asyncio.sleep(EVERY_S)

    def _silent_stages(self) -> list[str]:
        now_ms = self._clock.monotonic_ms()
        return [stage.name for stage in self._stages if now_ms - stage.heartbeat_ms() > stage.within_ms]

    async def _look_at_store(self) -> None:
        core = self._core
        try:
            core.uploads_waiting = await core.journal_thread.do(core.opened.journal.pending_uploads)
            if core.opened.gallery is not None and HealthWord.REVOKED not in core.health.words:
                gallery = core.opened.gallery
                await core.gallery_thread.do(lambda: gallery.remember_time(gallery_now(self._clock)))
        except (JournalError, GalleryError) as error:
            core.health.report(HealthWord.STORE_FAULT, str(error))
        else:
            if not core.opened.gallery_fault:
                core.health.clear(HealthWord.STORE_FAULT)
        free = shutil.disk_usage(core.opened.config.device.state_dir).free
        core.health.put(
            HealthWord.STORAGE_LOW,
            free < LOW_DISK_BYTES,
            f"{free // 2**20} MiB are free for the state directory, {LOW_DISK_BYTES // 2**20} are wanted",
        )

    async def _maintain(self) -> None:
        try:
            await self._core.journal_thread.do(self._core.opened.journal.maintain)
        except JournalError as error:
            self._core.health.report(HealthWord.STORE_FAULT, str(error))
