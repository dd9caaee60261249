"""The time against which validity periods are checked."""

from device.platform.clock import Clock
from gallery.freshness import GalleryNow
from gallery.gallery import Gallery


def gallery_now(clock: Clock) -> GalleryNow:
    """Both clocks that measure a gallery's age."""
    return GalleryNow(boottime_ms=clock.boottime_ms(), wall_ms=clock.wall_ms())


def known_time_ms(gallery: Gallery | None, clock: Clock) -> int:
    """The time (epoch) for checking validity periods: setting the wall clock back does not revive an expired
    certificate or key."""
    return clock.wall_ms() if gallery is None else gallery.known_ms(gallery_now(clock))
