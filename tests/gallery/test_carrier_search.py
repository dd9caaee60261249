"""What a carrier of pages can arrange in a few steps; and faults planted in the gallery are found."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import gallery.freshness
import gallery.gallery
import gallery.stream
from gallery.freshness import Freshness, FreshnessReason, GalleryNow, HeldTime
from gallery.stream import Delta, DeltaPage, Head
from link1.canonical import JsonObject
from tests.gallery.carrier_search import SHOWN_AGAIN, CarrierSearch
from tests.ram import in_memory

Patch = pytest.MonkeyPatch


@pytest.fixture
def folder() -> Iterator[Path]:
    with in_memory("carrier-") as place:
        yield Path(place)


def test_no_course_of_events_breaks_a_promise(folder: Path) -> None:
    found = CarrierSearch(folder, steps=3, hours=9).run()
    assert found.broken is None
    assert found.states > 50


def test_a_carrier_that_hides_as_many_enrolments_as_erasures_is_not_noticed(folder: Path) -> None:
    """The limit that docs/decisions/25 states: what was erased stays, with a count that fits."""
    found = CarrierSearch(folder, steps=4, hours=6, blanking=True, only=("deltas 1-2", "deltas 3-4")).run()
    assert found.broken is not None
    assert found.broken[1][-1] == "deltas 3-4, 3 and 4 hidden"


def test_with_a_clock_set_back_a_letter_taken_before_makes_nothing_fresh(folder: Path) -> None:
    """It did: a newer head looked absurd, and after it the old one counted as new."""
    search = CarrierSearch(folder, steps=5, hours=3, only=("deltas 1-2", "head 2", "head 0"))
    assert search.run().broken is None


@pytest.mark.long
def test_a_date_of_years_to_come_makes_what_is_held_fresh_once(folder: Path) -> None:
    """It did each time that a head which agrees with the time had come before it, with pages withheld."""
    only = ("deltas 1-2", "head 2", "absurd head")
    assert CarrierSearch(folder, steps=6, hours=6, absurd=True, only=only).run().broken is None


# ---- planted faults


def takes_older_heads(patch: Patch) -> None:
    patch.setattr(gallery.freshness, "is_newer", lambda *_times: True)


def any_head_makes_fresh(patch: Patch) -> None:
    sound = HeldTime.with_head

    def with_head(self: HeldTime, issued_at_ms: int, now: GalleryNow, *, complete: bool) -> HeldTime:
        return sound(self, issued_at_ms, now, complete=True)

    patch.setattr(HeldTime, "with_head", with_head)


def never_expires(patch: Patch) -> None:
    sound = HeldTime.freshness

    def freshness(self: HeldTime, now: GalleryNow, ttl_ms: int) -> Freshness:
        found = sound(self, now, ttl_ms)
        return replace(found, fresh=True) if found.reason is FreshnessReason.EXPIRED else found

    patch.setattr(HeldTime, "freshness", freshness)


def a_reboot_forgets_the_age(patch: Patch) -> None:
    sound = HeldTime.after_restart

    def after_restart(self: HeldTime, now: GalleryNow, boot_id: str, *, clock_kept: bool = True) -> HeldTime:
        after = sound(self, now, boot_id, clock_kept=clock_kept)
        return replace(after, age_ms=0, time_lost=False) if self.age_ms is not None else after

    patch.setattr(HeldTime, "after_restart", after_restart)


def follows_no_chain(patch: Patch) -> None:
    def follow_chain(page: DeltaPage, *, seq: int, head: bytes) -> tuple[Delta, ...]:
        return tuple(delta for delta in page.deltas if delta.seq > seq)

    patch.setattr(gallery.gallery, "follow_chain", follow_chain)


def compares_no_digest(patch: Patch) -> None:
    patch.setattr(gallery.stream, "digest_of", lambda _fields, _salt: AnyBytes())


class AnyBytes(bytes):
    """Equal to everything."""

    def __eq__(self, _other: object) -> bool:
        return True

    def __ne__(self, _other: object) -> bool:
        return False

    __hash__ = bytes.__hash__


def compares_no_state(patch: Patch) -> None:
    """The number of entries alone."""
    patch.setattr(
        gallery.gallery, "is_whole", lambda store, staging: len(store.staged_hashes()) == staging.count
    )


def verifies_no_signature(patch: Patch) -> None:
    def verify_head(wrapper: JsonObject, _key_of: object) -> Head:
        return Head.from_obj(wrapper["head_obj"])

    patch.setattr(gallery.gallery, "verify_head", verify_head)


def forgets_what_lay_ahead(patch: Patch) -> None:
    sound = HeldTime.with_head

    def with_head(self: HeldTime, issued_at_ms: int, now: GalleryNow, *, complete: bool) -> HeldTime:
        return sound(replace(self, ahead_ms=None), issued_at_ms, now, complete=complete)

    patch.setattr(HeldTime, "with_head", with_head)


OLD = "an erased person is recognised six hours after the erasure"
STRANGER = "a palm that the service never signed is recognised"
OLDER = "an older head was taken"
FAULTS: dict[Callable[[Patch], None], tuple[str, tuple[str, ...]]] = {
    takes_older_heads: (OLDER, ("deltas", "head")),
    any_head_makes_fresh: (OLD, ("deltas 1-2", "head 9")),
    never_expires: (OLD, ("deltas 1-2",)),
    a_reboot_forgets_the_age: (OLD, ("deltas 1-2",)),
    follows_no_chain: ("at seq 4 it holds", ("deltas 1-2", "deltas 4")),
    compares_no_digest: (STRANGER, ("deltas 1-2",)),
    compares_no_state: (STRANGER, ("snapshot 4 h",)),
    verifies_no_signature: (OLDER, ("deltas 1-2", "head of its own")),
    forgets_what_lay_ahead: (SHOWN_AGAIN, ("deltas 1-2", "head 2", "absurd head")),
}
"""A fault, the promise that is found broken, and the letters that are enough to find it."""
SOON_FOUND = {follows_no_chain, compares_no_digest, compares_no_state, verifies_no_signature, never_expires}


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=() if fault in SOON_FOUND else pytest.mark.long) for fault in FAULTS],
    ids=lambda fault: fault.__name__,
)
def test_a_planted_fault_is_found(fault: Callable[[Patch], None], folder: Path, monkeypatch: Patch) -> None:
    promise, only = FAULTS[fault]
    search = CarrierSearch(folder, steps=5, hours=9, absurd=True, only=only)
    fault(monkeypatch)  # after the service has made its letters
    found = search.run()
    assert found.broken is not None
    assert found.broken[0].startswith(promise), found.broken
