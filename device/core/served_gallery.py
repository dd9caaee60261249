"""The gallery as the core serves it: whether it may be used now, and its health words."""

from dataclasses import dataclass, field

from device.health import Health, HealthWord
from device.platform.clock import Clock
from device.platform.threads import StoreThread
from device.trust.known_time import gallery_now
from device.trust.pinning import Pinning
from device.trust.trust import Pinned
from device.updates.state import GalleryFacts
from gallery.freshness import Freshness, FreshnessReason
from gallery.gallery import Gallery
from link1.objects import GalleryMark


@dataclass(eq=False)
class ServedGallery:
    """Every method runs on the loop's thread. `store` is None for a device without a gallery it can open;
    `fault` then says why. `thread` is the database's."""

    store: Gallery | None
    fault: str
    thread: StoreThread
    model_id: str
    pinned: Pinned
    pinning: Pinning
    health: Health
    clock: Clock
    _withdrawn: bool = field(default=False, init=False)

    @property
    def serving(self) -> Gallery | None:
        """The gallery to fill and search; None once it is to be destroyed."""
        return None if self._withdrawn else self.store

    def withdraw(self) -> None:
        """The device is being wiped: nothing is filled or searched from here on."""
        self._withdrawn = True

    def mark(self) -> GalleryMark:
        """The state of the gallery that is in force."""
        if self.store is None:
            stream, epoch = self.pinned.trust.gallery or ("none", 0)
            return GalleryMark(stream, epoch, 0, "0" * 16)
        position = self.store.position
        return GalleryMark(position.stream, position.epoch, position.seq, position.head16)

    def freshness(self) -> Freshness | None:
        """None without a gallery."""
        if self.store is None:
            return None
        return self.store.freshness(gallery_now(self.clock), self.pinning.policy.gallery_ttl_ms)

    def page_applied(self) -> None:
        """Position, freshness or both have changed."""
        if self.store is not None:
            self.pinning.noted(self.store.newest_head_ms)
        self.look()

    def look(self) -> None:
        """Update the gallery's health words: after each change of it, for each frame, and every second."""
        gallery, fresh = self.store, self.freshness()
        if gallery is None or fresh is None:
            return
        self.health.put(
            HealthWord.MODEL_MISMATCH,
            gallery.model_mismatch,
            f"the gallery's templates are not of model {self.model_id}",
        )
        self.health.put(
            HealthWord.GALLERY_STALE,
            not fresh.fresh and not gallery.model_mismatch,
            "the gallery's store went back to an earlier page, as with a damaged card; no one is recognised "
            "until the service has updated it"
            if fresh.reason is FreshnessReason.WENT_BACK
            else f"no one is recognised ({fresh.reason}) until the service confirms the gallery; "
            "check that palm-syncd runs and reaches the service or, without a network, that the validator "
            "carries mail",
        )

    async def facts(self) -> GalleryFacts | None:
        """Epoch and model of the gallery in use; None for a device without one. Raises GalleryError."""
        registered, gallery = self.pinned.trust.gallery, self.serving
        if registered is None:
            return None
        if gallery is None:
            return GalleryFacts(registered[1], self.model_id)
        epoch = gallery.position.epoch
        if gallery.model_mismatch:
            return GalleryFacts(epoch, await self.thread.do(gallery.model_of_templates))
        return GalleryFacts(epoch, self.model_id if gallery.count else None)

    def alive_ms(self) -> int:
        """When work on the gallery's store was last active (monotonic ms); now, while there is none."""
        silent_s = 0.0 if self.serving is None else self.serving.silent_s
        return self.clock.monotonic_ms() - round(silent_s * 1000)
