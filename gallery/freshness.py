"""How old the gallery is, and whether it may still be used: the 6 h TTL, kept without trusting one clock.

Everything is a pure function of what is held and of `GalleryNow`. The rules, in order:

1. Age counts from `issued_at_ms` of the newest verified head that describes what the store holds:
   the same epoch, seq and count. Any other head shows that something is missing; if it made old contents
   fresh, a carrier that withholds an erasure could keep the erased person recognised for ever.
2. While the machine runs, age grows with CLOCK_BOOTTIME alone. Steps of the wall clock do not matter.
3. When a head is verified, the time is the later of the wall clock and the floor: a time that certainly
   has passed, carried on with CLOCK_BOOTTIME. Only a head issued later than the one that age counts
   from restarts it; the same head shown again does not.
4. After a reboot, age grows by how far the later of the wall clock and the last time known has moved.
   Where the wall clock lies before a time that was already known, or the board has no clock that runs on
   without power (so that the wall clock begins where a file says it stopped), the length of the power cut
   is unknown: nothing is fresh until a new head comes, issued later than any that was verified before, with
   or without its page.
5. A head issued before the newest one verified is refused (freeze). One absurd date in the future must
   not shut the door for ever: where the newest head lies further ahead of the time than `MAX_SKEW_MS`,
   a head is taken that agrees with the time. Such a date does not move the floor, and gives at most one
   TTL, whatever comes between: the latest is remembered apart from the heads that agree with the time.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from gallery.errors import PageRefused, RefusalCode

MAX_TTL_MS: Final = 21_600_000
"""6 h: what the erasure receipt promises about devices that stay offline (partner API, Erasure)."""
MAX_SKEW_MS: Final = 600_000
"""10 min: how far the service's clock may run ahead of this device's before a date counts as absurd."""
ABSURD_ORDER_MS: Final = 24 * 3_600_000
"""24 h: the same for what the service orders. With a clock that is hours behind, every order seems to lie
ahead, and none that was taken back may come again; for a wrong date of the service, orders may wait a day.
"""
CLOCK_TOLERANCE_MS: Final = 120_000
"""2 min: how far an honest wall clock is set back by time synchronisation after a restart."""


def is_newer(issued_at_ms: int, newest_ms: int, known_ms: int, *, absurd_ms: int = MAX_SKEW_MS) -> bool:
    """Whether something signed at `issued_at_ms` may follow what was signed at `newest_ms` (rule 5).

    `known_ms`: the later of the wall clock and the floor. A date more than `absurd_ms` ahead of it does not
    shut the door to what agrees with the time.
    """
    absurd = newest_ms > known_ms + absurd_ms and abs(issued_at_ms - known_ms) <= MAX_TTL_MS
    return issued_at_ms >= newest_ms or absurd


@dataclass(frozen=True, slots=True)
class GalleryNow:
    """One reading of both clocks: CLOCK_BOOTTIME and the wall clock (epoch), in milliseconds."""

    boottime_ms: int
    wall_ms: int


class FreshnessReason(StrEnum):
    """Why the gallery may, or may not, be used."""

    FRESH = "fresh"
    NO_HEAD = "no_head"
    EXPIRED = "expired"
    TIME_UNKNOWN = "time_unknown"
    MODEL_MISMATCH = "model_mismatch"
    WENT_BACK = "went_back"


@dataclass(frozen=True, slots=True)
class Freshness:
    """`left_ms` is 0 unless fresh."""

    fresh: bool
    reason: FreshnessReason
    left_ms: int


@dataclass(frozen=True, slots=True)
class HeldTime:
    """What is known about time; `floor_ms` and `age_ms` are as of `boottime_ms` of the boot `boot_id`.

    `age_ms` is None when nothing is fresh: no head yet, or time was lost (then `time_lost`).
    `newest_issued_at_ms` is that of any verified head. `counted_from_ms` and `ahead_ms` are the latest that
    age has counted from, or never will, of heads that agreed with the time and of heads ahead of it.
    """

    boot_id: str
    boottime_ms: int
    floor_ms: int = 0
    last_known_ms: int = 0
    age_ms: int | None = None
    time_lost: bool = False
    newest_issued_at_ms: int | None = None
    counted_from_ms: int | None = None
    ahead_ms: int | None = None

    def at(self, now: GalleryNow) -> "HeldTime":
        """The same knowledge carried on to `now`, within one boot; this is what is written to the disk."""
        elapsed_ms = max(0, now.boottime_ms - self.boottime_ms)
        floor_ms = self.floor_ms + elapsed_ms
        return replace(
            self,
            boottime_ms=now.boottime_ms,
            floor_ms=floor_ms,
            last_known_ms=max(now.wall_ms, floor_ms),
            age_ms=None if self.age_ms is None else self.age_ms + elapsed_ms,
        )

    def after_restart(self, now: GalleryNow, boot_id: str, *, clock_kept: bool = True) -> "HeldTime":
        """What is left of it when the program starts again (rule 4); an empty `boot_id` counts as new.

        `clock_kept`: the wall clock ran on while the power was off.
        """
        if boot_id and boot_id == self.boot_id and now.boottime_ms >= self.boottime_ms:
            return self
        held = replace(self, boot_id=boot_id, boottime_ms=now.boottime_ms)
        newest_ms = self.newest_issued_at_ms
        if self.time_lost or (newest_ms is not None and not (clock_kept and self._plausible(now.wall_ms))):
            # A head that was verified before the power cut has no known age either, whatever it describes.
            if newest_ms is not None:
                held = _passed(held, newest_ms, self.last_known_ms)
            return replace(held, age_ms=None, time_lost=True)
        if self.age_ms is None:
            return held
        moved_ms = max(0, now.wall_ms - self.last_known_ms)
        # A clock that had run ahead, and was set right while the power was off, hides a part of that time.
        least_ms = (now.wall_ms - mark for mark in _marks(self) if mark <= now.wall_ms + MAX_SKEW_MS)
        return replace(held, age_ms=max(self.age_ms + moved_ms, min(least_ms, default=0)))

    def with_head(self, issued_at_ms: int, now: GalleryNow, *, complete: bool) -> "HeldTime":
        """A head was verified; `complete`: the store then holds exactly what it describes (rule 1).

        Raises PageRefused(freeze).
        """
        held = self.at(now)
        known_ms, newest_ms = held.last_known_ms, self.newest_issued_at_ms
        if newest_ms is not None and not is_newer(issued_at_ms, newest_ms, known_ms):
            raise PageRefused(RefusalCode.FREEZE, "a head issued later than this one is held")
        limit_ms = known_ms + MAX_SKEW_MS
        absurd = issued_at_ms > limit_ms
        marks = _marks(held)
        if newest_ms is not None and issued_at_ms < newest_ms:
            marks.append(newest_ms)
            held = _passed(held, newest_ms, known_ms)  # or it would count when it is shown again
        held = replace(
            held,
            newest_issued_at_ms=issued_at_ms,
            floor_ms=held.floor_ms if absurd else max(held.floor_ms, issued_at_ms),
        )
        passed = any(issued_at_ms <= mark and (absurd or mark <= limit_ms) for mark in marks)
        if complete and not passed:
            age_ms = max(0, known_ms - issued_at_ms)
            held = replace(_passed(held, issued_at_ms, known_ms), age_ms=age_ms, time_lost=False)
        return held

    def freshness(self, now: GalleryNow, ttl_ms: int) -> Freshness:
        """Whether it may be used now; `ttl_ms` is at most `MAX_TTL_MS`."""
        if not 0 <= ttl_ms <= MAX_TTL_MS:
            raise ValueError(f"ttl_ms is 0 to {MAX_TTL_MS}, found {ttl_ms}")
        held = self.at(now)
        if held.age_ms is None:
            reason = FreshnessReason.TIME_UNKNOWN if held.time_lost else FreshnessReason.NO_HEAD
            return Freshness(False, reason, 0)
        left_ms = max(0, ttl_ms - held.age_ms)
        if left_ms == 0:
            return Freshness(False, FreshnessReason.EXPIRED, 0)
        return Freshness(True, FreshnessReason.FRESH, left_ms)

    def _plausible(self, wall_ms: int) -> bool:
        newest_ms = self.newest_issued_at_ms or 0
        return wall_ms >= max(self.last_known_ms - CLOCK_TOLERANCE_MS, newest_ms - MAX_SKEW_MS)


def _passed(held: HeldTime, issued_at_ms: int, known_ms: int) -> HeldTime:
    """Age counts from no head of that date, or an earlier one of its kind, from now on."""
    limit_ms, counted_ms, ahead_ms = known_ms + MAX_SKEW_MS, held.counted_from_ms or 0, held.ahead_ms or 0
    if issued_at_ms > limit_ms:
        return replace(held, ahead_ms=max(issued_at_ms, ahead_ms))
    if counted_ms > limit_ms:  # the clock was set back since
        return replace(held, counted_from_ms=issued_at_ms, ahead_ms=max(counted_ms, ahead_ms))
    return replace(held, counted_from_ms=max(issued_at_ms, counted_ms))


def _marks(held: HeldTime) -> list[int]:
    return [mark for mark in (held.counted_from_ms, held.ahead_ms) if mark is not None]
