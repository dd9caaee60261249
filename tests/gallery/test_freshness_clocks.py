"""The TTL under any course of clocks, heads, suspensions, restarts and power cuts, against the true time."""

from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gallery.errors import PageRefused
from gallery.freshness import (
    CLOCK_TOLERANCE_MS,
    MAX_SKEW_MS,
    MAX_TTL_MS,
    GalleryNow,
    HeldTime,
    is_newer,
)

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
YEAR = 365 * 24 * HOUR
BEGAN = 1_800_000_000_000
NOTE_EVERY = MINUTE
SLACK = CLOCK_TOLERANCE_MS + NOTE_EVERY
"""What a power cut may take off the age: the last note of the time, and an honest clock set back a little."""

spans = st.one_of(st.integers(0, 5 * MINUTE), st.integers(0, 8 * HOUR))


class Clocks(RuleBasedStateMachine):
    """`true` is the time that nothing on the device can read; `wall_off` is the error of the wall clock."""

    def __init__(self) -> None:
        super().__init__()
        self.true, self.boottime, self.wall_off = BEGAN, 5 * SECOND, 0
        self.boots = 1
        self.kept = True
        self.held = HeldTime("boot-1", self.boottime)
        self.disk = self.held
        self.verified_at: int | None = None
        self.heads: list[int] = []
        self.furthest = 0
        self.first_shown: dict[int, int] = {}
        """When a head was verified first, by its time of issue."""

    @property
    def now(self) -> GalleryNow:
        return GalleryNow(self.boottime, max(0, self.true + self.wall_off))

    def fresh(self) -> bool:
        return self.held.freshness(self.now, MAX_TTL_MS).fresh

    def _pass(self, span: int) -> None:
        self.true += span
        self.boottime += span
        if self.boottime - self.disk.boottime_ms >= NOTE_EVERY:
            self.held = self.held.at(self.now)
            self.disk = self.held

    def _take(self, issued_at_ms: int) -> bool:
        before = self.held
        try:
            # As a snapshot does: its head is noted with each page, and is complete with the last one.
            self._note(issued_at_ms)
            self.held = self.held.with_head(issued_at_ms, self.now, complete=True)
        except PageRefused:
            return False
        self.disk = self.held
        if (self.held.counted_from_ms, self.held.ahead_ms) != (before.counted_from_ms, before.ahead_ms):
            self.verified_at = self.first_shown.get(issued_at_ms, self.true)
        return True

    def _note(self, issued_at_ms: int) -> None:
        self.held = self.held.with_head(issued_at_ms, self.now, complete=False)
        self.disk = self.held
        if self.held.floor_ms >= issued_at_ms:
            self.first_shown.setdefault(issued_at_ms, self.true)
        else:
            self.first_shown.clear()  # after a date that looks absurd, those before it may count once more

    @rule(span=spans)
    def time_passes(self, span: int) -> None:
        """Awake or asleep: CLOCK_BOOTTIME counts both."""
        self._pass(span)

    @rule(off=st.one_of(st.integers(-YEAR, YEAR), st.integers(-2 * HOUR, 2 * HOUR), st.just(0)))
    def somebody_sets_the_clock(self, off: int) -> None:
        self.wall_off = off

    @rule(held_back=st.one_of(st.just(0), st.integers(0, 12 * HOUR)))
    def a_head_comes(self, held_back: int) -> None:
        issued_at_ms = self.true - held_back
        if self.heads and issued_at_ms < self.heads[-1]:
            return
        self.heads.append(issued_at_ms)
        self._take(issued_at_ms)

    @rule(held_back=st.one_of(st.just(0), st.integers(0, 12 * HOUR)))
    def a_head_comes_without_its_page(self, held_back: int) -> None:
        issued_at_ms = self.true - held_back
        if not self.heads or issued_at_ms >= self.heads[-1]:
            self.heads.append(issued_at_ms)
            with suppress(PageRefused):
                self._note(issued_at_ms)

    @rule(data=st.data())
    def an_old_head_comes_again(self, data: st.DataObject) -> None:
        if self.heads:
            self._take(data.draw(st.sampled_from(self.heads)))

    @rule()
    def the_page_of_the_newest_head_comes(self) -> None:
        if self.heads:
            self._take(self.heads[-1])

    @rule(ahead=st.integers(HOUR, 80 * YEAR))
    def the_service_signs_an_absurd_date(self, ahead: int) -> None:
        if abs(self.wall_off) <= MAX_SKEW_MS and self._take(self.true + ahead):
            self.furthest = max(self.furthest, self.true + ahead)

    @rule()
    def the_furthest_date_comes_again(self) -> None:
        before = self.fresh()
        if self.furthest and abs(self.wall_off) <= MAX_SKEW_MS and self._take(self.furthest):
            assert before or not self.fresh()

    @rule()
    def the_program_restarts(self) -> None:
        self.held = self.disk.after_restart(self.now, f"boot-{self.boots}", clock_kept=self.kept)

    @rule(
        off=st.one_of(spans, st.just(7 * HOUR)),
        began_s=st.integers(1, 60),
        kind=st.sampled_from(["right", "1970", "where it stopped"]),
    )
    def the_power_goes(self, off: int, began_s: int, kind: str) -> None:
        stopped_at_wall = self.now.wall_ms
        self.true += off + began_s * SECOND
        self.boottime = began_s * SECOND
        self.boots += 1
        if kind == "right":
            self.wall_off = 0
        elif kind == "1970":
            self.wall_off = began_s * SECOND - self.true
        else:
            self.wall_off = stopped_at_wall + began_s * SECOND - self.true
        self.kept = kind == "right"
        self.held = self.disk.after_restart(self.now, f"boot-{self.boots}", clock_kept=self.kept)
        assert self.kept or not self.fresh(), "the length of the power cut is unknown"

    @invariant()
    def nobody_is_recognised_longer_than_the_ttl(self) -> None:
        if self.fresh():
            assert self.verified_at is not None
            assert self.true - self.verified_at <= MAX_TTL_MS + SLACK

    @rule(pause=st.integers(1, MINUTE))
    def a_head_of_now_always_opens_again_once_the_clock_is_right(self, pause: int) -> None:
        self._pass(pause)
        self.wall_off = 0
        newest_ms = self.held.newest_issued_at_ms or 0
        if newest_ms <= self.true + MAX_SKEW_MS:  # near enough to be believed, until it has come
            self._pass(max(0, newest_ms + 1 - self.true))
        self.heads.append(self.true)
        assert self._take(self.true)
        # A head may have been as far ahead of this clock as is no cause for doubt.
        assert self.held.freshness(self.now, MAX_TTL_MS).left_ms >= MAX_TTL_MS - MAX_SKEW_MS


TestClocks = Clocks.TestCase
TestClocks.settings = settings(max_examples=200, stateful_step_count=30)


def test_what_is_newer_agrees_with_the_time_or_is_later() -> None:
    assert is_newer(BEGAN + 1, BEGAN, BEGAN)
    assert is_newer(BEGAN, BEGAN, BEGAN)
    assert not is_newer(BEGAN - 1, BEGAN, BEGAN)
    absurd = BEGAN + YEAR
    assert is_newer(BEGAN, absurd, BEGAN)
    assert not is_newer(BEGAN - MAX_TTL_MS - 1, absurd, BEGAN)
    assert not is_newer(BEGAN, absurd, absurd), "not absurd any more"
    assert not is_newer(BEGAN - YEAR, BEGAN, 0), "an unset clock brings nothing old back"
