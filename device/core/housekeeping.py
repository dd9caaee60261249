"""Checks that the core runs every second: its stages, the stores, the disk, the watchdog, the age of the
gallery and of the carrier's last word.

1. The watchdog is fed only while every stage is active; an idle stage counts as active, and so does a journal
   that finishes one piece of work after another, however many wait.
2. STORE_FAULT: the journal could not write, or a search could not read the gallery. It lasts until a write,
   or a read of the same rows, succeeds; that is tried every second.
3. STORAGE_LOW: little space, the journal's reserve in use, a gallery that cannot be written. Passages go on.
4. Maintenance of the journal waits for a moment without a request, but only for a limited time.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from device.core.served_gallery import ServedGallery
from device.errors import JournalError
from device.health import NOT_SERVING, Health, HealthWord
from device.journal.journal import PURGE_ROWS, Journal
from device.journal.reserve import LOW_DISK_BYTES, free_bytes
from device.platform import sd_notify
from device.platform.clock import Clock
from device.platform.heat import hottest_c, too_hot
from device.platform.threads import StoreThread
from device.trust.known_time import gallery_now
from gallery.errors import GalleryError

EVERY_S: Final = 1.0
STORE_WITHIN_S: Final = 5.0
"""A large page of the gallery occupies the store for a fraction of this."""

MAINTAIN_EVERY_S: Final = 600
MAINTAIN_AT_LATEST_S: Final = 900
"""Some validators always have a request waiting."""
MAINTAIN_TIMES: Final = 20
"""Calls in a row: 2,000 rows every ten minutes are 288,000 a day."""
MAINTAIN_FOR_S: Final = 2.0
"""No further call after so long: one syncs five times, and the watchdog is not fed in between."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WatchedThread:
    """A thread, when it was last active (monotonic ms), and how long it may be silent."""

    name: str
    heartbeat_ms: Callable[[], int]
    within_ms: int


@dataclass(eq=False)
class StoreWatch:
    """Every method runs on the loop's thread.

    `wiped`: a wipe has begun, and nothing is stored any more. `idle`: no request waits for a hand.
    `journal_is_back` is called when the journal can be written again.
    """

    journal: Journal
    journal_thread: StoreThread
    gallery: ServedGallery
    state_dir: Path
    health: Health
    clock: Clock
    wiped: Callable[[], bool]
    idle: Callable[[], bool]
    journal_is_back: Callable[[], None]
    uploads_waiting: int = field(default=0, init=False)
    """The number of verdicts that the service lacks, at the last look."""
    waits_for_journal: bool = field(default=False, init=False)
    """Whether the present look has come to the journal."""

    def __post_init__(self) -> None:
        self._maintained_at_s = asyncio.get_running_loop().time()

    async def start(self) -> None:
        """Count the waiting uploads, before the first look."""
        self.uploads_waiting = await self.journal_thread.do(self.journal.pending_uploads)

    async def look(self) -> None:
        """Check whether journal and gallery can be read and written, and how much space is free."""
        if self.wiped():
            return  # nothing is stored any more
        self.waits_for_journal = False
        readable = await self._reread_gallery()
        gallery_error = await self._try_gallery()
        self.waits_for_journal = True
        reserved = await self._try_journal(readable, also_write=bool(gallery_error))
        self._report_space(gallery_error, reserved)

    async def maintain(self) -> None:
        """Let the journal delete old rows, when it is due."""
        now_s = asyncio.get_running_loop().time
        began_s, idle = now_s(), self.idle()
        waited_s = began_s - self._maintained_at_s
        if waited_s < (MAINTAIN_EVERY_S if idle else MAINTAIN_AT_LATEST_S) or self.wiped():
            return
        try:
            for _ in range(MAINTAIN_TIMES if idle else 1):
                forgotten = await self.journal_thread.do(self.journal.maintain)
                if forgotten < PURGE_ROWS or now_s() - began_s >= MAINTAIN_FOR_S:
                    break
        except JournalError as error:
            self.health.report(HealthWord.STORE_FAULT, str(error))
        self._maintained_at_s = now_s()

    async def _reread_gallery(self) -> bool:
        """Whether the rows that a search could not read can be read now."""
        gallery = self.gallery
        if gallery.serving is None:
            return not gallery.fault
        try:
            await asyncio.to_thread(gallery.serving.reread)
        except GalleryError as error:
            self.health.report(HealthWord.STORE_FAULT, str(error))
            return False
        return True

    async def _try_journal(self, gallery_readable: bool, *, also_write: bool) -> bool:
        """Whether the journal has its reserve."""
        detail = self.health.details.get(HealthWord.STORE_FAULT)
        # A gallery that did not open at the start is a fault to the end; any other detail is the journal's.
        lasting = self.gallery.fault if self.gallery.serving is None else ""
        recovers = detail not in (None, lasting) and (gallery_readable or bool(lasting))
        try:
            self.uploads_waiting = await self.journal_thread.do(self.journal.pending_uploads)
            if recovers or also_write:
                await self.journal_thread.do(self.journal.probe)
            reserved = await self.journal_thread.do(self.journal.keep_reserve)
        except JournalError as error:
            self.health.report(HealthWord.STORE_FAULT, str(error))
            return False
        if recovers:
            _log.warning("the store can be used again")
            self.health.put(HealthWord.STORE_FAULT, bool(lasting), lasting)
            self.journal_is_back()
        return reserved

    async def _try_gallery(self) -> str:
        """Why the gallery cannot save the time, which it does once a minute; else empty."""
        gallery = self.gallery.serving
        if gallery is None:
            return ""
        try:
            # Not on the gallery's thread, which a snapshot page may occupy for a minute.
            await asyncio.to_thread(gallery.remember_time, gallery_now(self.clock))
        except GalleryError as error:
            return str(error)
        return ""

    def _report_space(self, gallery_error: str, reserved: bool) -> None:
        try:
            free = free_bytes(self.state_dir)
        except OSError as error:
            self.health.report(HealthWord.STORAGE_LOW, f"the free space is unknown ({error.strerror})")
            return
        free_mib, needed_mib = free // 2**20, LOW_DISK_BYTES // 2**20
        details = [
            f"{free_mib} MiB are free for the state directory, {needed_mib} are needed: make room there"
        ]
        if not reserved:
            details.append("the journal has no reserve left")
        if gallery_error:
            details.append(gallery_error)
        low = free < LOW_DISK_BYTES or not reserved or bool(gallery_error)
        self.health.put(HealthWord.STORAGE_LOW, low, "; ".join(details))


@dataclass(eq=False)
class Housekeeping:
    """Runs until cancelled. `looks`: further checks, which take no time."""

    store: StoreWatch
    looks: Sequence[Callable[[], None]]
    health: Health
    clock: Clock
    stages: Sequence[WatchedThread]
    _status_line: str = field(default="", init=False)

    async def run(self) -> None:
        while True:
            silent = self._silent_stages()
            looked, finished = False, self.store.journal_thread.finished
            try:
                async with asyncio.timeout(STORE_WITHIN_S):
                    await self.store.look()
                looked = True
            except TimeoutError:
                # On a slow card the answers to one `resolve` take longer: what advances is not stuck.
                if not self.store.waits_for_journal or self.store.journal_thread.finished == finished:
                    silent.append("store")
            self._check_heat()
            for look in self.looks:
                look()
            self._update_status_line()
            if silent:
                _log.error("no sign of activity from: %s; the watchdog is not fed", ", ".join(silent))
            else:
                sd_notify.watchdog()
            if looked:
                await self.store.maintain()
            await asyncio.sleep(EVERY_S)

    def _silent_stages(self) -> list[str]:
        now_ms = self.clock.monotonic_ms()
        return [stage.name for stage in self.stages if now_ms - stage.heartbeat_ms() > stage.within_ms]

    def _check_heat(self) -> None:
        temperature_c = hottest_c()
        self.health.put(
            HealthWord.TEMPERATURE,
            too_hot(temperature_c, before=HealthWord.TEMPERATURE in self.health.words),
            f"the board is at {temperature_c} °C and throttles itself; shade it, clear its air way",
        )

    def _update_status_line(self) -> None:
        """Send the line that `systemctl status` shows, when it has changed."""
        words = [str(word) for word in self.health.words if word in NOT_SERVING]
        line = f"not serving: {', '.join(words)}" if words else "serving"
        if line != self._status_line:
            self._status_line = line
            sd_notify.status(line)
