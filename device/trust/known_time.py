"""The time that validities are held against."""

from device.platform.clock import Clock
from gallery.freshness import GalleryNow
from gallery.gallery import Gallery


def gallery_now(clock: Clock) -> GalleryNow:
    """Both clocks that a gallery's age is told by."""
    return GalleryNow(boottime_ms=clock.boottime_ms(), wall_ms=clock.wall_ms())


def known_time_ms(gallery: Gallery | None, clock: Clock) -> int:
    """The time (epoch) to hold validities against: a wall clock that was set back does not bring back a
    certificate or key that has ended."""
    return clock.wall_ms() if gallery is None else gallery.known_ms(gallery_now(clock))
