"""What takes long is done in pieces: between them it shows life, lets others go first, can be given up."""

from pathlib import Path

import pytest

from gallery.errors import StoreError
from gallery.gallery import REMEMBER_TIME_MS, Gallery
from gallery.stream import at_once, paced
from tests.gallery.gallery_service import Service, at, entry, who


@pytest.fixture
def service() -> Service:
    service = Service()
    service.upsert(*(entry(number, number) for number in range(1, 41)))
    return service


def test_it_pauses_shows_life_and_holds_up_nobody_who_notes_the_time(
    service: Service, tmp_path: Path
) -> None:
    silences: list[float] = []

    def pause() -> None:
        silences.append(gallery.silent_s)
        gallery.remember_time(at(2 * REMEMBER_TIME_MS))  # it would wait for ever if it waited for the page

    gallery = service.open(tmp_path / "gallery", pause=pause)
    assert gallery.silent_s == 0
    for page in service.snapshot(size=20):
        gallery.apply_snapshot_page(page, at())
    assert gallery.count == 40
    assert len(silences) > 6
    assert 0 < max(silences) < 60
    assert gallery.silent_s == 0


@pytest.mark.parametrize("pieces", range(1, 14))
def test_given_up_between_any_two_pieces_it_goes_on_after_a_restart(
    service: Service, tmp_path: Path, pieces: int
) -> None:
    left = pieces

    def pause() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            gallery.interrupt()

    gallery = service.open(tmp_path / "gallery", pause=pause)
    pages = service.snapshot(size=20)
    with pytest.raises(StoreError):
        for page in (*pages, *pages, *pages):
            gallery.apply_snapshot_page(page, at())
    gallery.close()
    again: Gallery = service.open(tmp_path / "gallery")
    assert again.count in {0, 40}
    for page in pages:
        again.apply_snapshot_page(page, at())
    assert (again.count, who(again, 40) is not None) == (40, True)


def test_paced_gives_everything_with_a_pause_before_each_so_many() -> None:
    pauses: list[None] = []
    assert list(paced(range(7), lambda: pauses.append(None), 3)) == [*range(7)]
    assert len(pauses) == 2
    assert list(paced([], at_once, 1)) == []
