"""A gallery and its service: what is taken, what is refused, and what either leads to."""

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from cloud_client.reference_server.domain.gallery.deltas import delta_obj
from gallery.errors import PageRefused, RefusalCode, StoreError
from gallery.freshness import FreshnessReason
from gallery.gallery import Applied, Gallery
from gallery.store import FILE_NAME, Store, connected
from gallery.stream import head_zero
from link1.canonical import JsonObject
from link1.keys import SigningKey
from tests.gallery.gallery_service import (
    MODEL_ID,
    NOW_MS,
    Service,
    at,
    compacted,
    encode,
    entry,
    palm,
    subject_ref,
    who,
)

HOUR = 3_600_000


@pytest.fixture
def service() -> Service:
    service = Service()
    service.upsert(entry(1, 1, onboard_ref="token-1"), entry(1, 2), entry(2, 3), entry(3, 4))
    return service


@pytest.fixture
def gallery(service: Service, tmp_path: Path) -> Gallery:
    gallery = service.open(tmp_path / "gallery")
    gallery.apply_deltas(service.deltas(), at())
    return gallery


def refusal(take: Callable[..., Applied], *arguments: object) -> RefusalCode:
    with pytest.raises(PageRefused) as refused:
        take(*arguments)
    return refused.value.code


def test_a_new_gallery_knows_nobody_and_stands_at_the_start(service: Service, tmp_path: Path) -> None:
    gallery = service.open(tmp_path / "gallery", epoch=3)
    assert (gallery.position.epoch, gallery.position.seq) == (3, 0)
    assert gallery.position.head == head_zero(service.stream, 3)
    assert gallery.freshness(at()).reason is FreshnessReason.NO_HEAD
    assert who(gallery, 1) is None
    gallery.close()


def test_who_is_who(service: Service, gallery: Gallery) -> None:
    match = gallery.search(palm(1)[np.newaxis])
    assert match.best is not None
    assert (match.best.subject_ref, match.best.hand, match.best.onboard_ref) == (
        subject_ref(1),
        "R",
        "token-1",
    )
    assert match.score > 0.9999
    assert match.margin is not None
    assert match.margin > 0.5
    assert match.position == gallery.position
    assert match.position.head16 == service.heads[4].hex()[:16]
    assert gallery.count == gallery.match_count == 4


def test_the_margin_is_to_another_person_and_none_where_there_is_none(tmp_path: Path) -> None:
    alone = Service()
    alone.upsert(entry(1, 1), entry(1, 2))
    gallery = alone.open(tmp_path / "gallery")
    gallery.apply_deltas(alone.deltas(), at())
    assert gallery.search(palm(1)[np.newaxis]).margin is None
    gallery.close()


def test_suspended_people_are_not_in_the_match_set(
    service: Service, gallery: Gallery, tmp_path: Path
) -> None:
    service.suspend(1)
    gallery.apply_deltas(service.deltas(4), at())
    assert (who(gallery, 1), who(gallery, 2), who(gallery, 3)) == (None, None, subject_ref(2))
    assert (gallery.count, gallery.match_count) == (4, 2)
    gallery.close()
    gallery = service.open(tmp_path / "gallery")
    assert who(gallery, 1) is None
    service.resume(1)
    gallery.apply_deltas(service.deltas(5), at())
    assert (who(gallery, 1), who(gallery, 2)) == (subject_ref(1), subject_ref(1))
    assert gallery.match_count == 4


def test_a_suspended_template_may_arrive_so(service: Service, gallery: Gallery) -> None:
    service.upsert(entry(9, 9, suspended=True))
    gallery.apply_deltas(service.deltas(4), at())
    assert who(gallery, 9) is None
    service.resume(9)
    gallery.apply_deltas(service.deltas(5), at())
    assert who(gallery, 9) == subject_ref(9)


def test_erased_people_are_strangers_at_once_and_for_good(
    service: Service, gallery: Gallery, tmp_path: Path
) -> None:
    service.tombstone(1)
    gallery.apply_deltas(service.deltas(4), at())
    assert (who(gallery, 1), who(gallery, 2)) == (None, None)
    assert gallery.count == 2
    gallery.close()
    late = service.open(tmp_path / "late")  # has only ever seen the compacted log
    late.apply_deltas(service.deltas(), at())
    assert late.position == gallery.position
    assert (who(late, 1), who(late, 3), late.count) == (None, subject_ref(2), 2)


def test_re_enrolment_replaces_all_templates(service: Service, gallery: Gallery) -> None:
    service.tombstone(1)
    service.upsert(entry(1, 11), entry(1, 12))
    gallery.apply_deltas(service.deltas(4), at())
    assert [who(gallery, number) for number in (1, 2, 11, 12)] == [None, None, subject_ref(1), subject_ref(1)]


def test_pages_of_any_size_lead_to_the_same_place(service: Service, tmp_path: Path) -> None:
    service.suspend(2)
    service.tombstone(3)
    for limit in (1, 2, 3, 50):
        gallery = service.open(tmp_path / str(limit))
        while gallery.position.seq < service.seq:
            gallery.apply_deltas(service.deltas(gallery.position.seq, limit), at())
        assert (gallery.position.head, gallery.count, gallery.match_count) == (service.heads[-1], 3, 2)
        gallery.close()


def test_a_page_again_or_one_that_overlaps_is_no_harm(service: Service, gallery: Gallery) -> None:
    before = gallery.position
    gallery.apply_deltas(service.deltas(), at())
    assert gallery.position == before
    service.upsert(entry(5, 5))
    gallery.apply_deltas(service.deltas(1), at())
    assert (gallery.position.seq, who(gallery, 5), gallery.count) == (5, subject_ref(5), 5)


def test_refusals_and_their_codes(service: Service, gallery: Gallery) -> None:
    old = service.deltas(limit=2)
    service.upsert(entry(5, 5), entry(6, 6))
    stranger = Service(key=SigningKey.from_seed(b"\x01" * 32), log=service.log)
    elsewhere = Service(stream="t2.live")
    elsewhere.upsert(*[entry(n, n) for n in range(9)])
    later = Service(epoch=2)
    later.upsert(entry(1, 1))
    forked = Service()
    forked.upsert(*[entry(n, n) for n in range(20, 26)])
    page = service.deltas_obj(4)
    stranger.heads = service.heads
    cases: list[tuple[bytes, RefusalCode]] = [
        (b"{}", RefusalCode.MALFORMED),
        (stranger.deltas(4), RefusalCode.BAD_SIGNATURE),
        (elsewhere.deltas(4), RefusalCode.WRONG_STREAM),
        (later.deltas(), RefusalCode.WRONG_EPOCH),
        (old, RefusalCode.ROLLBACK),
        (service.deltas(5), RefusalCode.GAP),
        (service.deltas(4, issued_at_ms=NOW_MS - 1), RefusalCode.FREEZE),
        (forked.deltas(4), RefusalCode.BAD_CHAIN),
        (encode({**page, "head": service.head(count=5)}), RefusalCode.STATE_MISMATCH),
    ]
    before = (gallery.position, gallery.count, gallery.freshness(at(HOUR)))
    for data, code in cases:
        assert refusal(gallery.apply_deltas, data, at(HOUR)) is code
        assert (gallery.position, gallery.count, gallery.freshness(at(HOUR))) == before
        assert who(gallery, 5) is None
    gallery.apply_deltas(service.deltas(4), at(HOUR))
    assert who(gallery, 5) == subject_ref(5)


def test_the_count_is_compared_only_where_nothing_follows(service: Service, gallery: Gallery) -> None:
    service.upsert(entry(5, 5), entry(6, 6))
    page = service.deltas_obj(4, limit=1)
    assert page["has_more"]
    gallery.apply_deltas(encode(page), at())
    assert gallery.position.seq == 5


def test_a_page_that_more_pages_follow_makes_nothing_fresh(service: Service, gallery: Gallery) -> None:
    """Its count may be the right one by chance: what follows enrols a person and erases another."""
    service.noop()
    page = {**service.deltas_obj(4, issued_at_ms=NOW_MS + HOUR), "has_more": True}
    assert len(service.live) == gallery.count
    assert gallery.apply_deltas(encode(page), at(HOUR)).behind
    assert gallery.freshness(at(6 * HOUR)).reason is FreshnessReason.EXPIRED
    gallery.apply_head(service.head(issued_at_ms=NOW_MS + HOUR + 1), at(HOUR + 1))
    assert gallery.freshness(at(6 * HOUR)).fresh


def test_what_a_refusal_asks_of_the_carrier(service: Service, gallery: Gallery) -> None:
    with pytest.raises(PageRefused) as old:
        gallery.apply_deltas(service.deltas(limit=2), at())
    assert old.value.superseded
    service.noop()
    service.noop()
    with pytest.raises(PageRefused) as gap:
        gallery.apply_deltas(service.deltas(5), at())
    assert not gap.value.superseded


def test_freshness_comes_with_pages_and_heads(service: Service, gallery: Gallery) -> None:
    assert gallery.freshness(at(6 * HOUR - 1)).fresh
    assert gallery.freshness(at(6 * HOUR)).reason is FreshnessReason.EXPIRED
    gallery.apply_deltas(service.deltas(4, issued_at_ms=NOW_MS + 2 * HOUR), at(2 * HOUR))
    assert gallery.freshness(at(8 * HOUR - 1)).fresh
    gallery.apply_head(service.head(issued_at_ms=NOW_MS + 9 * HOUR), at(9 * HOUR))
    assert gallery.freshness(at(15 * HOUR - 1)).fresh
    assert gallery.freshness(at(10 * HOUR), ttl_ms=HOUR).reason is FreshnessReason.EXPIRED


def test_a_head_ahead_keeps_an_erased_person_no_longer(service: Service, gallery: Gallery) -> None:
    """A carrier that withholds the tombstone and hands in fresh heads does not stop the clock."""
    service.tombstone(1)
    for hour in range(1, 7):
        issued_at_ms = NOW_MS + hour * HOUR
        assert gallery.apply_head(service.head(issued_at_ms=issued_at_ms), at(hour * HOUR)).behind
        empty = service.deltas(service.seq, issued_at_ms=issued_at_ms)
        assert gallery.apply_deltas(empty, at(hour * HOUR)).behind
    assert gallery.freshness(at(6 * HOUR)).reason is FreshnessReason.EXPIRED
    assert not gallery.apply_deltas(service.deltas(4, issued_at_ms=NOW_MS + 6 * HOUR), at(6 * HOUR)).behind
    assert gallery.freshness(at(6 * HOUR)).fresh
    assert who(gallery, 1) is None


def test_pages_doled_out_one_by_one_keep_an_erased_person_no_longer(
    service: Service, gallery: Gallery
) -> None:
    """Heads for a seq before the tombstone, issued now, count the templates of now: one too few."""
    for _ in range(8):
        service.noop()
    service.tombstone(1)
    for hour in range(1, 7):
        page = service.deltas(gallery.position.seq, limit=1, issued_at_ms=NOW_MS + hour * HOUR)
        assert gallery.apply_deltas(page, at(hour * HOUR)).behind
        head = service.head(gallery.position.seq, issued_at_ms=NOW_MS + hour * HOUR + 1)
        assert gallery.apply_head(head, at(hour * HOUR + 1)).behind
    assert gallery.freshness(at(6 * HOUR)).reason is FreshnessReason.EXPIRED


def test_a_tombstone_made_a_noop_by_its_carrier_is_missed_by_the_count(
    service: Service, gallery: Gallery
) -> None:
    service.tombstone(1)
    service.noop()
    page = service.deltas_obj(4, issued_at_ms=NOW_MS + HOUR)
    page["data"][0] = delta_obj(compacted(service.log[4]))
    assert refusal(gallery.apply_deltas, encode(page), at(HOUR)) is RefusalCode.STATE_MISMATCH
    page["has_more"] = True
    gallery.apply_deltas(encode(page), at(HOUR))
    assert gallery.freshness(at(6 * HOUR)).reason is FreshnessReason.EXPIRED


def test_heads_that_are_not_taken(service: Service, gallery: Gallery) -> None:
    forked = Service()
    forked.upsert(*[entry(n, n) for n in range(20, 24)])
    for wrapper, code in (
        (service.head(3), RefusalCode.ROLLBACK),
        (service.head(issued_at_ms=NOW_MS - 1), RefusalCode.FREEZE),
        (forked.head(), RefusalCode.BAD_CHAIN),
        (Service(stream="t2").head(), RefusalCode.WRONG_STREAM),
        (Service(epoch=0).head(), RefusalCode.ROLLBACK),
        ({}, RefusalCode.MALFORMED),
    ):
        assert refusal(gallery.apply_head, wrapper, at()) is code
    assert gallery.apply_head(Service(epoch=2).head(issued_at_ms=NOW_MS + 1), at()).behind


def test_the_watermarks_survive_a_restart(service: Service, gallery: Gallery, tmp_path: Path) -> None:
    gallery.apply_head(service.head(issued_at_ms=NOW_MS + HOUR), at(HOUR))
    gallery.close()
    gallery = service.open(tmp_path / "gallery", now=at(2 * HOUR))
    assert refusal(gallery.apply_head, service.head(), at(2 * HOUR)) is RefusalCode.FREEZE
    assert refusal(gallery.apply_deltas, service.deltas(limit=2), at(2 * HOUR)) is RefusalCode.ROLLBACK
    assert gallery.freshness(at(2 * HOUR)).left_ms == 5 * HOUR


def test_time_is_remembered_every_minute(service: Service, gallery: Gallery, tmp_path: Path) -> None:
    gallery.remember_time(at(59_999))
    gallery.remember_time(at(5 * HOUR))
    gallery.close()
    gallery = service.open(tmp_path / "gallery", now=at(wall_ms=NOW_MS + 5 * HOUR), boot_id="boot-2")
    assert gallery.freshness(at()).left_ms == HOUR


def test_a_page_that_was_held_back_over_a_power_cut_is_not_fresh_by_its_head(
    service: Service, gallery: Gallery, tmp_path: Path
) -> None:
    """Its head came before the cut, whose length is unknown: its age is, too."""
    service.upsert(entry(4, 5))
    later = at(60_000)
    held_back = service.deltas(4, issued_at_ms=later.wall_ms)
    assert gallery.apply_head(service.head(issued_at_ms=later.wall_ms), later).behind
    gallery.close()
    with closing(
        service.open(tmp_path / "gallery", now=later, boot_id="boot-2", clock_kept=False)
    ) as started:
        started.apply_deltas(held_back, later)
        assert who(started, 5) == subject_ref(4), "what it brings is taken"
        assert started.freshness(later).reason is FreshnessReason.TIME_UNKNOWN
        started.apply_head(service.head(issued_at_ms=later.wall_ms + 1), later)
        assert started.freshness(later).fresh


def test_a_snapshot_is_taken_page_by_page_and_switched_at_the_last(service: Service, tmp_path: Path) -> None:
    gallery = service.open(tmp_path / "gallery")
    first, second = service.snapshot(size=2)
    applied = gallery.apply_snapshot_page(first, at())
    assert (applied.done, gallery.position.seq, gallery.count) == (False, 0, 0)
    assert gallery.freshness(at()).reason is FreshnessReason.NO_HEAD
    assert who(gallery, 1) is None
    applied = gallery.apply_snapshot_page(second, at())
    assert (applied.done, gallery.position.seq, gallery.count) == (True, 4, 4)
    assert gallery.freshness(at()).fresh
    assert who(gallery, 1) == subject_ref(1)
    service.upsert(entry(5, 5))
    gallery.apply_deltas(service.deltas(4), at())
    assert who(gallery, 5) == subject_ref(5)


def test_the_gallery_in_use_serves_while_a_snapshot_comes(service: Service, gallery: Gallery) -> None:
    later = Service(epoch=2)
    later.upsert(entry(7, 7), entry(8, 8))
    first, second = later.snapshot(size=1)
    gallery.apply_snapshot_page(first, at())
    assert (who(gallery, 1), who(gallery, 7)) == (subject_ref(1), None)
    service.upsert(entry(5, 5))
    gallery.apply_deltas(service.deltas(4), at())
    assert who(gallery, 5) == subject_ref(5)
    gallery.apply_snapshot_page(second, at())
    assert [who(gallery, number) for number in (1, 5, 7, 8)] == [None, None, subject_ref(7), subject_ref(8)]
    assert gallery.position.epoch == 2
    assert refusal(gallery.apply_deltas, service.deltas(4), at()) is RefusalCode.ROLLBACK


def test_an_empty_snapshot_empties_the_gallery(gallery: Gallery) -> None:
    later = Service(epoch=2)
    (only,) = later.snapshot()
    assert gallery.apply_snapshot_page(only, at()).done
    assert (gallery.count, gallery.position.seq) == (0, 0)
    assert who(gallery, 1) is None


def test_snapshots_resume_after_a_restart(service: Service, tmp_path: Path) -> None:
    pages = service.snapshot(size=1)
    for page in pages:
        gallery = service.open(tmp_path / "gallery")
        applied = gallery.apply_snapshot_page(page, at())
        gallery.close()
    assert applied.done
    gallery = service.open(tmp_path / "gallery")
    assert (gallery.count, who(gallery, 3)) == (4, subject_ref(2))


@pytest.mark.parametrize("again", [[0], [0, 1], [1, 1], [2, 0, 1], [1, 2, 0, 2]])
def test_pages_may_come_again_or_from_the_beginning(
    service: Service, tmp_path: Path, again: list[int]
) -> None:
    pages = service.snapshot(size=1)
    gallery = service.open(tmp_path / "gallery")
    for number in (0, 1, 2, *again):
        assert not gallery.apply_snapshot_page(pages[number], at()).done
    if again[-1] != 2:
        for number in range(3):
            gallery.apply_snapshot_page(pages[number], at())
    assert gallery.apply_snapshot_page(pages[3], at()).done
    assert gallery.count == 4


def test_the_last_page_comes_again_where_a_power_cut_hid_that_it_was_taken(
    service: Service, gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.noop()
    *before, last = service.snapshot(size=1, issued_at_ms=NOW_MS + HOUR)
    for page in before:
        gallery.apply_snapshot_page(page, at(HOUR))
    with monkeypatch.context() as power:
        power.setattr(Store, "keep_only", lambda *_, **__: copied(tmp_path))
        gallery.apply_snapshot_page(last, at(HOUR))
    gallery.close()
    started = service.open(tmp_path / "copy", now=at(HOUR))
    assert started.position.seq == 5
    assert started.apply_snapshot_page(last, at(2 * HOUR)).done
    assert (started.count, who(started, 1), rows(tmp_path / "copy")) == (4, subject_ref(1), [4, 0])
    assert started.freshness(at(7 * HOUR - 1)).fresh
    assert not started.freshness(at(7 * HOUR)).fresh
    for page in (*before, last):  # a whole one may come again all the same
        applied = started.apply_snapshot_page(page, at(2 * HOUR))
    assert (applied.done, started.count) == (True, 4)
    started.close()


def test_a_snapshot_that_moved_on_begins_anew(service: Service, tmp_path: Path) -> None:
    gallery = service.open(tmp_path / "gallery")
    gallery.apply_snapshot_page(service.snapshot(size=2)[0], at())
    service.tombstone(1)
    for page in service.snapshot(size=1, issued_at_ms=NOW_MS + 1):
        applied = gallery.apply_snapshot_page(page, at())
    assert applied.done
    assert (who(gallery, 1), who(gallery, 3), gallery.count) == (None, subject_ref(2), 2)


def _changed(pages: list[JsonObject], change: str) -> list[JsonObject]:
    first, second = ({**page, "data": list(page["data"])} for page in pages)
    other = entry(66, 66).to_obj()
    match change:
        case "added":
            second["data"].append(other)
        case "swapped":
            second["data"][1] = {**second["data"][1], "vector_b64": other["vector_b64"]}
        case "suspended":
            second["data"][1] = {**second["data"][1], "suspended": True}
        case "left out":
            second["data"].pop()
        case "cut short":
            return [{**first, "has_more": False}]
        case "page left out":
            return [second]
    return [first, second]


@pytest.mark.parametrize(
    "change", ["added", "swapped", "suspended", "left out", "cut short", "page left out"]
)
def test_nobody_who_carries_a_snapshot_can_change_it(service: Service, gallery: Gallery, change: str) -> None:
    service.noop()
    pages = service.snapshot_objs(size=2)
    *before, last = _changed(pages, change)
    for page in before:
        gallery.apply_snapshot_page(encode(page), at())
    assert refusal(gallery.apply_snapshot_page, encode(last), at()) is RefusalCode.STATE_MISMATCH
    assert (gallery.position.seq, gallery.count, who(gallery, 66)) == (4, 4, None)
    for page in pages:
        applied = gallery.apply_snapshot_page(encode(page), at())
    assert applied.done
    assert gallery.position.seq == 5


def test_an_erasure_leaves_nothing_in_a_snapshot_half_taken(
    service: Service, gallery: Gallery, tmp_path: Path
) -> None:
    later = Service(epoch=2)
    later.upsert(entry(1, 1), entry(7, 7), entry(8, 8))
    first, *_ = later.snapshot(size=2)
    gallery.apply_snapshot_page(first, at())
    service.tombstone(1)
    gallery.apply_deltas(service.deltas(4), at())
    assert rows(tmp_path / "gallery") == [2, 0]
    for page in later.snapshot(size=2):
        applied = gallery.apply_snapshot_page(page, at())
    assert applied.done


def copied(folder: Path) -> None:
    """What a power cut at this moment leaves of the gallery."""
    shutil.copytree(folder / "gallery", folder / "copy")


def rows(folder: Path) -> list[int]:
    """Templates, and hashes of a snapshot being taken."""
    with closing(connected(folder / FILE_NAME)) as beside:
        return [
            beside.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("template", "staged")
        ]


def test_nor_after_a_power_cut_right_behind_it(
    service: Service, gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Service(epoch=2)
    later.upsert(entry(1, 1), entry(7, 7), entry(8, 8))
    gallery.apply_snapshot_page(later.snapshot(size=2)[0], at())
    service.tombstone(1)
    with monkeypatch.context() as power:
        power.setattr(Store, "keep_witness", lambda *_: copied(tmp_path))
        gallery.apply_deltas(service.deltas(4), at())
    gallery.close()
    started = service.open(tmp_path / "copy")
    assert (started.position.seq, rows(tmp_path / "copy")) == (5, [2, 0])
    started.close()


def test_snapshots_that_are_not_taken(service: Service, gallery: Gallery) -> None:
    earlier = Service()
    earlier.upsert(entry(1, 1))
    forked = Service()
    forked.upsert(*[entry(n, n) for n in range(20, 24)])
    for page, code in (
        (earlier.snapshot()[0], RefusalCode.ROLLBACK),
        (forked.snapshot()[0], RefusalCode.BAD_CHAIN),
        (Service(epoch=0).snapshot()[0], RefusalCode.ROLLBACK),
        (Service(stream="t2").snapshot()[0], RefusalCode.WRONG_STREAM),
        (service.snapshot(issued_at_ms=NOW_MS - 1)[0], RefusalCode.FREEZE),
    ):
        assert refusal(gallery.apply_snapshot_page, page, at()) is code
    assert gallery.apply_snapshot_page(service.snapshot()[0], at()).done


def test_another_model_serves_nobody_until_the_gallery_is_of_its_own(
    service: Service, gallery: Gallery, tmp_path: Path
) -> None:
    gallery.close()
    gallery = service.open(tmp_path / "gallery", model_id="palm-2")
    assert gallery.model_mismatch
    assert gallery.freshness(at()).reason is FreshnessReason.MODEL_MISMATCH
    assert (who(gallery, 1), gallery.count, gallery.match_count) == (None, 4, 0)
    later = Service(epoch=2)
    later.upsert(entry(1, 1, model_id="palm-2"))
    gallery.apply_snapshot_page(later.snapshot()[0], at())
    assert (gallery.model_mismatch, gallery.freshness(at()).fresh) == (False, True)
    assert who(gallery, 1) == subject_ref(1)
    later.upsert(entry(2, 2, model_id=MODEL_ID))
    gallery.apply_deltas(later.deltas(1), at())
    assert gallery.model_mismatch
    assert who(gallery, 1) is None
    later.upsert(entry(3, 3, model_id="palm-2"))
    gallery.apply_deltas(later.deltas(2), at())
    assert (gallery.model_mismatch, gallery.match_count) == (True, 0)


def test_a_closed_gallery_says_so(gallery: Gallery) -> None:
    gallery.close()
    gallery.close()
    with pytest.raises(StoreError, match="closed"):
        who(gallery, 1)
