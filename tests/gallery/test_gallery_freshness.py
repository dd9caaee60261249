"""The TTL, in stories with two clocks."""

from dataclasses import replace

import pytest

from gallery.errors import PageRefused
from gallery.freshness import (
    ABSURD_ORDER_MS,
    MAX_SKEW_MS,
    MAX_TTL_MS,
    Freshness,
    FreshnessReason,
    GalleryNow,
    HeldTime,
    is_newer,
)
from gallery.records import Held, Position

MINUTE, HOUR = 60_000, 3_600_000
T = 1_800_000_000_000
YEAR = 365 * 24 * HOUR


def now(after_ms: int, wall_ms: int | None = None, boottime_ms: int | None = None) -> GalleryNow:
    return GalleryNow(
        5_000 + after_ms if boottime_ms is None else boottime_ms, T + after_ms if wall_ms is None else wall_ms
    )


def reason(held: HeldTime, when: GalleryNow, ttl_ms: int = MAX_TTL_MS) -> FreshnessReason:
    return held.freshness(when, ttl_ms).reason


def started() -> HeldTime:
    return HeldTime("boot-1", 5_000).with_head(T, now(0), complete=True)


def test_nothing_is_fresh_before_the_first_head() -> None:
    assert reason(HeldTime("boot-1", 5_000), now(0)) is FreshnessReason.NO_HEAD
    assert (
        reason(HeldTime("boot-1", 5_000).with_head(T, now(0), complete=False), now(0))
        is FreshnessReason.NO_HEAD
    )


def test_only_what_is_fresh_has_time_left() -> None:
    nothing = HeldTime("boot-1", 5_000).freshness(now(0), MAX_TTL_MS)
    assert nothing == Freshness(False, FreshnessReason.NO_HEAD, 0)
    assert started().freshness(now(HOUR), MAX_TTL_MS) == Freshness(True, FreshnessReason.FRESH, 5 * HOUR)
    assert started().freshness(now(6 * HOUR), MAX_TTL_MS) == Freshness(False, FreshnessReason.EXPIRED, 0)
    assert started().freshness(now(0), 0) == Freshness(False, FreshnessReason.EXPIRED, 0)


def test_six_hours_from_when_the_head_was_issued() -> None:
    held = HeldTime("boot-1", 5_000).with_head(T - 2 * HOUR, now(0), complete=True)
    assert held.freshness(now(0), MAX_TTL_MS).left_ms == 4 * HOUR
    assert reason(held, now(4 * HOUR - 1)) is FreshnessReason.FRESH
    assert reason(held, now(4 * HOUR)) is FreshnessReason.EXPIRED
    assert reason(held, now(HOUR), ttl_ms=3 * HOUR) is FreshnessReason.EXPIRED


def test_a_longer_ttl_than_the_contract_is_refused() -> None:
    with pytest.raises(ValueError, match="ttl_ms"):
        started().freshness(now(0), MAX_TTL_MS + 1)


@pytest.mark.parametrize("wall_ms", [0, T - YEAR, T + YEAR])
def test_steps_of_the_wall_clock_change_nothing_while_the_machine_runs(wall_ms: int) -> None:
    held = started()
    assert reason(held, now(6 * HOUR - 1, wall_ms)) is FreshnessReason.FRESH
    assert reason(held, now(6 * HOUR, wall_ms)) is FreshnessReason.EXPIRED


def test_the_same_head_again_does_not_make_it_younger() -> None:
    held = started().with_head(T, now(3 * HOUR), complete=True)
    assert reason(held, now(6 * HOUR)) is FreshnessReason.EXPIRED
    held = started().with_head(T + 3 * HOUR, now(3 * HOUR), complete=True)
    assert reason(held, now(6 * HOUR)) is FreshnessReason.FRESH


def test_a_head_held_back_is_as_old_as_it_is() -> None:
    """A carrier that kept a head for ten hours gains nothing, even where the wall clock was set back."""
    held = started()
    late = held.with_head(T + 1, now(10 * HOUR), complete=True)
    assert reason(late, now(10 * HOUR)) is FreshnessReason.EXPIRED
    late = held.with_head(T + 1, now(10 * HOUR, wall_ms=T), complete=True)
    assert reason(late, now(10 * HOUR)) is FreshnessReason.EXPIRED


def test_a_head_ahead_of_the_store_makes_nothing_fresh() -> None:
    held = started().with_head(T + 5 * HOUR, now(5 * HOUR), complete=False)
    assert reason(held, now(6 * HOUR)) is FreshnessReason.EXPIRED
    held = held.with_head(T + 5 * HOUR, now(6 * HOUR), complete=True)
    assert held.freshness(now(6 * HOUR), MAX_TTL_MS).left_ms == 5 * HOUR


def test_a_restart_of_the_program_changes_nothing() -> None:
    held = started().at(now(HOUR)).after_restart(now(2 * HOUR, wall_ms=0), "boot-1")
    assert held.freshness(now(2 * HOUR), MAX_TTL_MS).left_ms == 4 * HOUR
    saved = started().at(now(HOUR))
    assert saved.after_restart(now(HOUR, wall_ms=T + YEAR), "boot-1") == saved, "not a millisecond later"
    assert saved.at(now(HOUR)) == saved


def test_a_reboot_counts_by_the_wall_clock() -> None:
    at_once = started().after_restart(now(1_000, boottime_ms=10), "boot-2")
    assert at_once.freshness(GalleryNow(10, T + 1_000), MAX_TTL_MS).left_ms == 6 * HOUR - 1_000
    saved = started().at(now(HOUR))
    held = saved.after_restart(now(3 * HOUR, boottime_ms=10), "boot-2")
    assert held.freshness(GalleryNow(10, T + 3 * HOUR), MAX_TTL_MS).left_ms == 3 * HOUR
    assert reason(held, GalleryNow(10 + 3 * HOUR, 0)) is FreshnessReason.EXPIRED
    held = saved.after_restart(now(7 * HOUR, boottime_ms=10), "boot-2")
    assert reason(held, GalleryNow(10, T)) is FreshnessReason.EXPIRED


def test_a_reboot_with_the_clock_a_little_back_does_not_make_it_younger() -> None:
    saved = started().at(now(HOUR))
    held = saved.after_restart(now(HOUR - 60_000, boottime_ms=10), "boot-2")
    assert held.freshness(GalleryNow(10, T), MAX_TTL_MS).left_ms == 5 * HOUR


@pytest.mark.parametrize("wall_ms", [0, T - HOUR])
def test_a_reboot_that_lost_the_time_is_closed_until_a_new_head_comes(wall_ms: int) -> None:
    saved = started().at(now(HOUR))
    held = saved.after_restart(GalleryNow(10, wall_ms), "boot-2")
    assert reason(held, GalleryNow(10, wall_ms)) is FreshnessReason.TIME_UNKNOWN
    again = held.at(GalleryNow(20, wall_ms)).after_restart(GalleryNow(10, wall_ms), "boot-3")
    assert reason(again, GalleryNow(10, wall_ms)) is FreshnessReason.TIME_UNKNOWN
    same = held.with_head(T, GalleryNow(20, wall_ms), complete=True)
    assert reason(same, GalleryNow(20, wall_ms)) is FreshnessReason.TIME_UNKNOWN
    fresh = held.with_head(T + 9 * HOUR, GalleryNow(20, wall_ms), complete=True)
    assert reason(fresh, GalleryNow(20, wall_ms)) is FreshnessReason.FRESH


def test_a_head_without_its_page_has_no_age_after_a_reboot_that_lost_the_time() -> None:
    for before in (HeldTime("boot-1", 5_000), started()):
        noted = before.with_head(T + HOUR, now(HOUR), complete=False)
        held = noted.after_restart(GalleryNow(10, T + HOUR), "boot-2", clock_kept=False)
        same = held.with_head(T + HOUR, GalleryNow(20, T + HOUR), complete=True)
        assert reason(same, GalleryNow(20, T + HOUR)) is FreshnessReason.TIME_UNKNOWN
        fresh = same.with_head(T + 2 * HOUR, GalleryNow(30, T + HOUR), complete=True)
        assert reason(fresh, GalleryNow(30, T + HOUR)) is FreshnessReason.FRESH


def test_an_earlier_head_is_refused() -> None:
    with pytest.raises(PageRefused, match="freeze"):
        started().with_head(T - 1, now(HOUR), complete=True)


def test_an_earlier_head_is_refused_with_the_clock_set_back_too() -> None:
    held = started().with_head(T + 5 * HOUR, now(5 * HOUR), complete=True)
    with pytest.raises(PageRefused, match="freeze"):
        held.with_head(T + HOUR, now(6 * HOUR, wall_ms=T + HOUR), complete=True)


def test_a_clock_that_was_never_set_takes_heads_and_still_refuses_older_ones() -> None:
    held = HeldTime("boot-1", 0).with_head(T, GalleryNow(1_000, 2_000), complete=True)
    assert reason(held, GalleryNow(1_000 + 6 * HOUR - 1, 2_000)) is FreshnessReason.FRESH
    with pytest.raises(PageRefused, match="freeze"):
        held.with_head(T - YEAR, GalleryNow(2_000, 3_000), complete=True)
    rebooted = held.at(GalleryNow(3_000, 4_000)).after_restart(GalleryNow(1_000, HOUR), "boot-2")
    assert reason(rebooted, GalleryNow(1_000, HOUR)) is FreshnessReason.TIME_UNKNOWN


def test_one_absurd_date_does_not_shut_the_door_for_ever() -> None:
    absurd = started().with_head(T + 70 * YEAR, now(HOUR), complete=True)
    assert reason(absurd, now(2 * HOUR)) is FreshnessReason.FRESH
    assert reason(absurd, now(7 * HOUR)) is FreshnessReason.EXPIRED
    again = absurd.with_head(T + 70 * YEAR, now(7 * HOUR), complete=True)
    assert reason(again, now(7 * HOUR)) is FreshnessReason.EXPIRED
    right = absurd.with_head(T + 2 * HOUR, now(2 * HOUR), complete=True)
    assert right.freshness(now(2 * HOUR), MAX_TTL_MS).left_ms >= 6 * HOUR - MAX_SKEW_MS
    with pytest.raises(PageRefused, match="freeze"):
        right.with_head(T + HOUR, now(2 * HOUR), complete=True)
    with pytest.raises(PageRefused, match="freeze"):
        absurd.with_head(T - 6 * HOUR, now(2 * HOUR), complete=True)


def test_a_wall_clock_far_ahead_closes_and_opens_again_once_it_is_right() -> None:
    held = started().with_head(T + HOUR, now(HOUR, wall_ms=T + YEAR), complete=True)
    assert reason(held, now(HOUR)) is FreshnessReason.EXPIRED
    held = held.with_head(T + 2 * HOUR, now(2 * HOUR), complete=True)
    assert reason(held, now(2 * HOUR)) is FreshnessReason.FRESH


def test_an_absurd_date_before_anything_is_held_does_not_shut_the_door() -> None:
    noted = HeldTime("boot-1", 5_000).with_head(T + 70 * YEAR, now(0), complete=False)
    assert reason(noted.with_head(T, now(0), complete=True), now(0)) is FreshnessReason.FRESH


def test_an_absurd_date_does_not_make_a_head_that_is_shown_again_younger() -> None:
    held = HeldTime("boot-1", 5_000).with_head(T, now(0, wall_ms=T + YEAR), complete=True)
    noted = held.with_head(T + 70 * YEAR, now(MINUTE), complete=False)
    again = noted.with_head(T, now(2 * MINUTE), complete=True)
    assert reason(again, now(2 * MINUTE)) is FreshnessReason.EXPIRED


def test_an_absurd_date_counts_once_whatever_comes_between() -> None:
    absurd, held = T + 70 * YEAR, started().with_head(T + 70 * YEAR, now(HOUR), complete=True)
    assert reason(held, now(7 * HOUR - 1)) is FreshnessReason.FRESH
    held = held.with_head(T + 7 * HOUR, now(7 * HOUR), complete=False)
    again = held.with_head(absurd, now(7 * HOUR), complete=True)
    assert reason(again, now(7 * HOUR)) is FreshnessReason.EXPIRED
    later = held.with_head(absurd + 1, now(7 * HOUR), complete=True)
    assert reason(later, now(7 * HOUR)) is FreshnessReason.FRESH
    right = again.with_head(T + 7 * HOUR + 1, now(7 * HOUR), complete=True)
    assert reason(right, now(7 * HOUR)) is FreshnessReason.FRESH


@pytest.mark.parametrize(("at_ms", "counts_anew"), [(50 * MINUTE - 1, True), (50 * MINUTE, False)])
def test_age_counts_from_an_absurd_date_once_it_is_ten_minutes_ahead(at_ms: int, counts_anew: bool) -> None:
    held = HeldTime("boot-1", 5_000).with_head(T + HOUR, now(0), complete=True)
    held = held.with_head(T + 70 * YEAR, now(0), complete=False).with_head(T, now(at_ms), complete=True)
    assert (held.counted_from_ms == T) is counts_anew


def test_a_date_is_absurd_from_ten_minutes_ahead_on() -> None:
    ahead = HeldTime("boot-1", 5_000).with_head(T + 10 * MINUTE, now(0), complete=True)
    assert ahead.floor_ms == T + 10 * MINUTE
    absurd = HeldTime("boot-1", 5_000).with_head(T + 10 * MINUTE + 1, now(0), complete=True)
    assert absurd.floor_ms == 0
    assert not is_newer(T, T + 10 * MINUTE, T)
    assert is_newer(T, T + 10 * MINUTE + 1, T)
    assert is_newer(T - MAX_TTL_MS, T + YEAR, T)
    assert not is_newer(T - MAX_TTL_MS - 1, T + YEAR, T)
    assert not is_newer(T, T + 24 * HOUR, T, absurd_ms=ABSURD_ORDER_MS)
    assert is_newer(T, T + 24 * HOUR + 1, T, absurd_ms=ABSURD_ORDER_MS)


def test_a_wall_clock_two_minutes_back_is_plausible_and_more_is_not() -> None:
    saved, least_ms = started().at(now(HOUR)), T + HOUR - 2 * MINUTE
    for wall_ms, found in ((least_ms, FreshnessReason.FRESH), (least_ms - 1, FreshnessReason.TIME_UNKNOWN)):
        held = saved.after_restart(GalleryNow(10, wall_ms), "boot-2")
        assert reason(held, GalleryNow(10, wall_ms)) is found


def test_a_date_that_agreed_with_a_wrong_clock_hides_no_head_that_was_shown_since() -> None:
    """The clock stood at an absurd date when the power went, so that date agreed with the time then."""
    noted = started().with_head(T + YEAR, now(HOUR), complete=False).at(now(2 * HOUR, wall_ms=T + YEAR))
    right = GalleryNow(10, T + 3 * HOUR)
    held = noted.after_restart(right, "boot-2", clock_kept=False)
    held = held.with_head(T + 3 * HOUR, right, complete=True)
    assert reason(held, right) is FreshnessReason.FRESH
    again = held.at(GalleryNow(8 * HOUR, T + 11 * HOUR)).after_restart(right, "boot-3", clock_kept=False)
    for complete in (False, True):
        again = again.with_head(T + 3 * HOUR, right, complete=complete)
        assert reason(again, right) is FreshnessReason.TIME_UNKNOWN


def test_what_lay_ahead_is_kept_and_the_software_before_reads_the_rest() -> None:
    held = Held(Position.start("palm", 1), 1, 0, started().with_head(T + YEAR, now(0), complete=True))
    obj = held.to_obj()
    assert Held.from_obj(obj) == held
    assert "ahead_ms" not in obj["time"], "it takes no member of time that it does not know"
    del obj["ahead_ms"]
    assert Held.from_obj(obj).time == replace(held.time, ahead_ms=None), "as it has written it"


def test_a_clock_that_had_run_ahead_makes_no_head_younger_after_a_power_cut() -> None:
    held = started().at(now(0, wall_ms=T + HOUR))
    after = held.after_restart(GalleryNow(1_000, T + 7 * HOUR), "boot-2")
    assert reason(after, GalleryNow(1_000, T + 7 * HOUR)) is FreshnessReason.EXPIRED
    soon = GalleryNow(1_000, T + 5 * MINUTE)
    after = started().at(now(0, wall_ms=soon.wall_ms)).after_restart(soon, "boot-2")
    assert after.freshness(soon, MAX_TTL_MS).left_ms == 6 * HOUR - 5 * MINUTE
