"""Whether what has to be kept can be kept: looked at every second, reported, repaired where it can be.

1. STORE_FAULT: the journal could not write, or a search could not read the gallery. It lasts until a write,
   or reading the same rows again, succeeds; that is tried every second.
2. STORAGE_LOW: little room, the journal's reserve in use, a gallery that cannot be written. Passages go on.
3. Housekeeping of the journal waits for a moment without a request, and is done anyway when none comes.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from device.core.served_gallery import ServedGallery
from device.errors import JournalError
from device.health import Health, HealthWord
from device.journal.journal import PURGE_ROWS, Journal
from device.journal.reserve import LOW_DISK_BYTES, free_bytes
from device.platform.clock import Clock
from device.platform.threads import StoreThread
from device.trust.known_time import gallery_now
from gallery.errors import GalleryError

MAINTAIN_EVERY_S: Final = 600
MAINTAIN_AT_LATEST_S: Final = 900
"""Some validators always have a request waiting."""
MAINTAIN_TIMES: Final = 20
"""In one go: 2,000 rows forgotten every ten minutes are 288,000 a day, and the watchdog is fed in between."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreParts:
    """What is watched, and who hears of it.

    `wiped`: a wipe has begun, and nothing is kept any more. `idle`: no request waits for a hand.
    `journal_is_back`: the journal can be written again.
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


class StoreWatch:
    """Every method runs on the loop's thread."""

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self._health = parts.health
        self._uploads_waiting = 0
        self._maintained_at_s = asyncio.get_running_loop().time()

    @property
    def uploads_waiting(self) -> int:
        """What the service does not have yet, as the journal was last seen."""
        return self._uploads_waiting

    async def start(self) -> None:
        """Count what waits, before the first look."""
        self._uploads_waiting = await self._parts.journal_thread.do(self._parts.journal.pending_uploads)

    async def look(self) -> None:
        """See whether journal and gallery can be read and written, and how much room there is."""
        if self._parts.wiped():
            return  # nothing is kept any more
        readable = await self._reread_gallery()
        gallery_error = await self._try_gallery()
        reserved = await self._try_journal(readable, also_write=bool(gallery_error))
        self._tell_room(gallery_error, reserved)

    async def maintain(self) -> None:
        """Let the journal forget and tidy up, when it is time."""
        waited_s = asyncio.get_running_loop().time() - self._maintained_at_s
        idle = self._parts.idle()
        if waited_s < (MAINTAIN_EVERY_S if idle else MAINTAIN_AT_LATEST_S) or self._parts.wiped():
            return
        journal, thread = self._parts.journal, self._parts.journal_thread
        try:
            for _ in range(MAINTAIN_TIMES if idle else 1):
                if await thread.do(journal.maintain) < PURGE_ROWS:
                    break
        except JournalError as error:
            self._health.report(HealthWord.STORE_FAULT, str(error))
        self._maintained_at_s = asyncio.get_running_loop().time()

    async def _reread_gallery(self) -> bool:
        """Whether the gallery can be searched, as far as searches have found out."""
        gallery = self._parts.gallery
        if gallery.serving is None:
            return not gallery.fault
        try:
            await asyncio.to_thread(gallery.serving.reread)
        except GalleryError as error:
            self._health.report(HealthWord.STORE_FAULT, str(error))
            return False
        return True

    async def _try_journal(self, gallery_readable: bool, *, also_write: bool) -> bool:
        """Whether the journal has its reserve."""
        journal, thread = self._parts.journal, self._parts.journal_thread
        fault_stands = HealthWord.STORE_FAULT in self._health.words and gallery_readable
        try:
            self._uploads_waiting = await thread.do(journal.pending_uploads)
            if fault_stands or also_write:
                await thread.do(journal.probe)
            reserved = await thread.do(journal.keep_reserve)
        except JournalError as error:
            self._health.report(HealthWord.STORE_FAULT, str(error))
            return False
        if fault_stands:
            _log.warning("the store can be used again")
            self._health.clear(HealthWord.STORE_FAULT)
            self._parts.journal_is_back()
        return reserved

    async def _try_gallery(self) -> str:
        """What keeps the gallery from noting the time, which it does once a minute."""
        gallery = self._parts.gallery.serving
        if gallery is None:
            return ""
        try:
            # Not on the gallery's thread, where a page of a snapshot may be before it for a minute.
            await asyncio.to_thread(gallery.remember_time, gallery_now(self._parts.clock))
        except GalleryError as error:
            return str(error)
        return ""

    def _tell_room(self, gallery_error: str, reserved: bool) -> None:
        try:
            free = free_bytes(self._parts.state_dir)
        except OSError as error:
            self._health.report(HealthWord.STORAGE_LOW, f"the room cannot be told ({error.strerror})")
            return
        wanted = LOW_DISK_BYTES // 2**20
        told = [f"{free // 2**20} MiB are free for the state directory, {wanted} are wanted: make room there"]
        if not reserved:
            told.append("the journal has no reserve left beside it")
        if gallery_error:
            told.append(gallery_error)
        low = free < LOW_DISK_BYTES or not reserved or bool(gallery_error)
        self._health.put(HealthWord.STORAGE_LOW, low, "; ".join(told))
