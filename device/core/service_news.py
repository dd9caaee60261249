"""Messages of the service to this device, by the network or by the validator's mail."""

import logging
from dataclasses import dataclass

from device.core.opening import rolled_back_detail
from device.core.running_wipe import RunningWipe
from device.core.self_description import ValidatorStatus
from device.core.served_gallery import ServedGallery
from device.health import Health, HealthWord
from device.journal.journal import Journal
from device.platform.threads import StoreThread
from device.trust.pinning import Pinning
from device.trust.service_status import ServiceStatus

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceNews:
    """The core's reactions to what `device.core.carrier_api` and `device.mail.apply` have verified. Every
    method runs on the loop's thread."""

    pinning: Pinning
    wipe: RunningWipe
    gallery: ServedGallery
    validator_status: ValidatorStatus
    journal: Journal
    journal_thread: StoreThread
    health: Health

    def gallery_changed(self) -> None:
        """A page was applied: position, freshness or both have changed."""
        self.gallery.page_applied()
        self.validator_status.changed()

    async def status_received(self, status: ServiceStatus) -> str | None:
        """A verified status of this device. Returns the wipe_id once everything but the http key is
        destroyed, so that the carrier confirms the wipe to the service; else None."""
        if status.wipe_id is not None:
            return await self.wipe.ordered(status.wipe_id)
        await self.pinning.take_validator_keys(status)
        return None

    async def rolled_back(self, why: str) -> None:
        """The service knows a later state of this device: number no further verdict. Raises JournalError."""
        _log.critical("an older state of this device was restored: %s", why)
        self.health.report(HealthWord.ROLLED_BACK, rolled_back_detail(why))
        await self.journal_thread.do(lambda: self.journal.halt(why))
