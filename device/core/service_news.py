"""Messages of the service to this device, by the network or by the validator's mail."""

import logging

from device.core.opening import rolled_back_detail
from device.core.running_wipe import RunningWipe
from device.core.served_gallery import ServedGallery
from device.core.service_link import ServiceLink
from device.core.validator_status import ValidatorStatus
from device.health import Health, HealthWord
from device.journal.journal import Journal
from device.platform.threads import StoreThread
from device.trust.pinning import Pinning
from device.trust.service_status import ServiceStatus
from device.values.carrier import CloudState
from link1.canonical import JsonObject

_log = logging.getLogger(__name__)


class ServiceNews:
    """The events of `device.core.carrier_api` and `device.mail.apply`. Every method runs on the loop's
    thread."""

    def __init__(
        self,
        *,
        pinning: Pinning,
        wipe: RunningWipe,
        gallery: ServedGallery,
        link: ServiceLink,
        validator_status: ValidatorStatus,
        journal: Journal,
        journal_thread: StoreThread,
        health: Health,
    ) -> None:
        self._pinning = pinning
        self._wipe = wipe
        self._gallery = gallery
        self._link = link
        self._validator_status = validator_status
        self._journal = journal
        self._journal_thread = journal_thread
        self._health = health

    def gallery_changed(self) -> None:
        """A page was applied: position, freshness or both have changed."""
        self._gallery.page_applied()
        self._validator_status.changed()

    async def status_received(self, status: ServiceStatus) -> str | None:
        """A verified status of this device. Returns the wipe_id once everything but the http key is
        destroyed."""
        if status.wipe_id is not None:
            return await self._wipe.ordered(status.wipe_id)
        await self._pinning.take_validator_keys(status)
        return None

    async def wipe_confirmed(self, wipe_id: str) -> None:
        """The service knows that this device is wiped."""
        await self._wipe.confirmed(wipe_id)

    async def rolled_back(self, why: str) -> None:
        """The service knows a later state of this device: number no further verdict. Raises JournalError."""
        await self._journal_thread.do(lambda: self._journal.halt(why))
        _log.critical("an older state of this device was restored: %s", why)
        self._health.report(HealthWord.ROLLED_BACK, rolled_back_detail(why))

    async def keys_published(self, keys: list[JsonObject]) -> None:
        """The keys listed by GET /v1/keys. Raises TrustError."""
        await self._pinning.take_service_keys(keys)

    async def config_received(self, wrapper: JsonObject) -> None:
        """A signed configuration; one that is not newer changes nothing. Raises TrustError."""
        await self._pinning.take_config(wrapper)

    async def bundle_received(self, wrapper: JsonObject) -> None:
        """A signed trust bundle; one that is not newer changes nothing. Raises TrustError."""
        await self._pinning.take_bundle(wrapper)

    async def service_time(self, at_ms: int) -> None:
        """The service signed an object at this time (epoch) and it was verified."""
        await self._pinning.heard(at_ms)

    def server_time(self, wall_ms: int) -> None:
        """The service's clock (epoch ms), unsigned."""
        self._link.server_time(wall_ms)

    def link_state(self, state: CloudState) -> None:
        """Whether the service is reachable."""
        self._link.link_state(state)
