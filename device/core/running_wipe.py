"""The wipe of a running device, step by step (device surface §4).

    ordered → recognition stops → record sealed → wipe.json durable → databases closed
            → keys and files destroyed → reported to the service (network), or its record handed over (mail)
            → http key destroyed → the process restarts, so that no key stays in its memory

Until the last step the process answers the validator with NOT_READY and offers it the record: with the
verdict key destroyed, no later start could prove itself on the cable.

While wipe.json cannot be written, nothing is destroyed; the service repeats its order with every status.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from device.core.served_gallery import ServedGallery
from device.errors import IpcRefused, StateError
from device.health import Health, HealthWord
from device.journal.journal import Journal
from device.journal.mail import OutboxEntry
from device.platform.ipc import Packet, reply
from device.platform.threads import StoreThread
from device.trust.trust import Pinned
from device.wipe.wipe import (
    REPLY_WITHIN_S,
    WIPED,
    Wipe,
    WipeStage,
    begin_wipe,
    confirm_wipe,
    finish_wipe,
    reset_folder,
)
from link1.canonical import read_strict

FAREWELL_S: Final = 30.0
"""After the confirmation, how long the process still answers the validator before it restarts without
keys."""
_ORDERED: Final = (
    "NOT_READY: the service has revoked this device, and everything on it is destroyed as soon as its disk "
    "can be written"
)
_MAX_RECORD_BYTES: Final = 64 * 1024

_log = logging.getLogger(__name__)


class WipeEnd(StrEnum):
    """Why the process ends after a wipe."""

    CONFIRMED = "confirmed"
    RESET = "reset"


@dataclass(eq=False)
class RunningWipe:
    """Carries the wipe out while the core runs. Every method runs on the loop's thread.

    `seal_record` seals the record of the wipe, has the rest destroyed, and offers the record to the validator
    (`MailDesk.wiped`). `online`: the carrier reaches the service. `releases`: make parts drop what they hold
    in memory, or stop writing. `failed`: the process cannot go on.
    """

    state_dir: Path
    pinned: Pinned
    health: Health
    gallery: ServedGallery
    gallery_thread: StoreThread
    journal: Journal
    journal_thread: StoreThread
    seal_record: Callable[[str, Callable[[OutboxEntry], Awaitable[None]]], Awaitable[None]]
    online: Callable[[], bool]
    releases: Sequence[Callable[[], None]]
    failed: Callable[[BaseException], None]
    _wipe: Wipe | None = field(default=None, init=False)
    _closed: bool = field(default=False, init=False)
    _collected: asyncio.Task[None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()
        self.over: asyncio.Future[WipeEnd] = asyncio.get_running_loop().create_future()
        """Gets its result when the process is to end."""

    @property
    def begun(self) -> bool:
        """Whether anything is destroyed, by the service's order or by a technician's."""
        return self._wipe is not None or self._closed

    @property
    def unconfirmed(self) -> str | None:
        """The wipe_id to report to the service, once everything else is destroyed."""
        return None if self._wipe is None else self._wipe.unconfirmed

    @property
    def may_ask_service(self) -> bool:
        """Whether the http key may still be used: until the service's wipe has ended, or a technician's is
        on its way."""
        return not self._closed if self._wipe is None else not self.ended

    @property
    def ended(self) -> bool:
        """The service knows of the wipe, or the validator has its record: nothing is left to carry."""
        return self._wipe is not None and self._wipe.stage is WipeStage.CONFIRMED

    async def ordered(self, wipe_id: str) -> str | None:
        """The service orders the wipe. Returns the wipe_id to confirm. Raises JournalError, OSError."""
        async with self._one_at_a_time:
            if not self.begun:
                self.health.report(HealthWord.REVOKED, _ORDERED)
                await self.seal_record(wipe_id, lambda record: self._destroy(wipe_id, record))
            return self.unconfirmed

    async def confirmed(self, wipe_id: str) -> None:
        """The service knows of the wipe."""
        async with self._one_at_a_time:
            if wipe_id != self.unconfirmed:
                raise IpcRefused("unknown_wipe", "no such wipe is waiting to be confirmed")
            self._wipe = await self.journal_thread.do(lambda: confirm_wipe(self.state_dir))
            asyncio.get_running_loop().call_later(FAREWELL_S, self._end, WipeEnd.CONFIRMED)

    def collected(self) -> None:
        """The validator has the record, which counts as reported while the service is unreachable."""
        if not self.online() and (wipe_id := self.unconfirmed) is not None:
            self._collected = asyncio.create_task(self._after_collection(wipe_id), name="wipe")

    async def factory_reset(self, _request: Packet) -> Packet:
        """The technician's operation: empty the device without a report; the process ends after it."""
        async with self._one_at_a_time:
            trust = self.pinned.trust
            order = Wipe(WipeStage.ERASING, None, trust.device_id, trust.gate_id, trust.dbd_id)
            with suppress(OSError):  # a full disk: tried again when the databases are closed
                await self.journal_thread.do(lambda: begin_wipe(self.state_dir, order))
            await self._release_and(
                lambda: reset_folder(self.state_dir, trust.device_id, trust.gate_id, trust.dbd_id)
            )
        _log.warning("reset by a technician: everything in %s is destroyed", self.state_dir)
        asyncio.get_running_loop().call_later(REPLY_WITHIN_S, self._end, WipeEnd.RESET)
        return reply()

    async def _after_collection(self, wipe_id: str) -> None:
        try:
            await self.confirmed(wipe_id)
        except IpcRefused:
            return  # the network was faster
        except (StateError, OSError) as error:
            _log.error("the wipe is not complete: %s; the validator's next question repeats it", error)

    async def _destroy(self, wipe_id: str, record: OutboxEntry) -> None:
        trust = self.pinned.trust
        wipe = Wipe(
            WipeStage.ERASING,
            wipe_id,
            trust.device_id,
            trust.gate_id,
            trust.dbd_id,
            read_strict(record.data, max_bytes=_MAX_RECORD_BYTES),
        )
        await self.journal_thread.do(lambda: begin_wipe(self.state_dir, wipe))
        self._wipe = wipe
        self.gallery.withdraw()
        await self._release_and(self._finish)
        _log.warning("revoked by the service: keys, gallery and journal are destroyed")

    def _finish(self) -> None:
        self._wipe = finish_wipe(self.state_dir)

    async def _release_and(self, erase: Callable[[], None]) -> None:
        """Have all parts release what they hold, then erase. After a failure the next start continues."""
        self.health.report(HealthWord.REVOKED, WIPED)
        for release in self.releases:
            release()
        try:
            if not self._closed:
                if self.gallery.store is not None:
                    self.gallery.store.interrupt()
                    await self.gallery_thread.do(self.gallery.store.destroy)
                await self.journal_thread.do(self.journal.leave_disk)
                self._closed = True
            await self.journal_thread.do(erase)
        except BaseException as error:
            self.failed(error)
            raise

    def _end(self, why: WipeEnd) -> None:
        if not self.over.done():
            self.over.set_result(why)
