"""A gallery whose files went back, by damage: it recognises no palm until it is where it was."""

import shutil
from pathlib import Path

import pytest

from gallery.errors import PageRefused, RefusalCode, StoreError
from gallery.freshness import FreshnessReason
from gallery.seal import Sealer
from gallery.slots import Slots
from link1.canonical import canonical_bytes
from tests.gallery.gallery_service import DATA_KEY, Service, at, entry, subject_ref, who

FILES = ("gallery.db", "gallery.db-wal")


def put_back(older: Path, folder: Path) -> None:
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
        if (older / name).exists():
            shutil.copyfile(older / name, folder / name)


@pytest.fixture
def service() -> Service:
    service = Service()
    service.upsert(entry(1, 1), entry(2, 2), entry(3, 3))
    return service


def test_who_was_erased_is_not_recognised_out_of_a_store_that_went_back(
    service: Service, tmp_path: Path
) -> None:
    folder = tmp_path / "gallery"
    gallery = service.open(folder)
    gallery.apply_deltas(service.deltas(), at())
    shutil.copytree(folder, tmp_path / "older")
    service.tombstone(2)
    gallery.apply_deltas(service.deltas(3), at(1_000))
    gallery.close()
    put_back(tmp_path / "older", folder)
    for _again in range(2):
        gallery = service.open(folder, now=at(2_000))
        assert gallery.position.seq == 3
        assert who(gallery, 2) == subject_ref(2), "it is there, and may not be asked"
        fresh = gallery.freshness(at(2_000))
        assert (fresh.fresh, fresh.reason) == (False, FreshnessReason.WENT_BACK)
        gallery.apply_head(service.head(3, at(2_000).wall_ms, count=3), at(2_000))
        assert not gallery.freshness(at(2_000)).fresh, "a head of where it is makes nothing fresh"
        gallery.remember_time(at(70_000))
        gallery.close()
    gallery = service.open(folder, now=at(80_000))
    gallery.apply_deltas(service.deltas(3, issued_at_ms=at(80_000).wall_ms), at(80_000))
    assert gallery.freshness(at(80_000)).fresh
    assert who(gallery, 2) is None
    gallery.close()


def test_no_head_from_before_is_taken_by_a_store_that_went_back(service: Service, tmp_path: Path) -> None:
    folder = tmp_path / "gallery"
    gallery = service.open(folder)
    gallery.apply_deltas(service.deltas(), at())
    shutil.copytree(folder, tmp_path / "older")
    gallery.apply_head(service.head(3, issued_at_ms=at(60_000).wall_ms), at(60_000))
    gallery.close()
    put_back(tmp_path / "older", folder)
    gallery = service.open(folder, now=at(61_000))
    assert gallery.freshness(at(61_000)).fresh, "its contents are those that the newest head is of"
    with pytest.raises(PageRefused) as refused:
        gallery.apply_head(service.head(3, issued_at_ms=at(30_000).wall_ms), at(61_000))
    assert refused.value.code is RefusalCode.FREEZE
    gallery.close()


def test_a_store_that_is_gone_begins_anew_and_serves_where_it_was(service: Service, tmp_path: Path) -> None:
    folder = tmp_path / "gallery"
    gallery = service.open(folder)
    gallery.apply_deltas(service.deltas(), at())
    gallery.close()
    (folder / "gallery.db").unlink()
    gallery = service.open(folder, now=at())
    assert (gallery.position.seq, gallery.freshness(at()).reason) == (0, FreshnessReason.WENT_BACK)
    gallery.apply_deltas(service.deltas(limit=2), at())
    assert gallery.freshness(at()).reason is FreshnessReason.WENT_BACK
    gallery.apply_deltas(service.deltas(2), at())
    assert gallery.freshness(at()).fresh
    gallery.close()


@pytest.mark.parametrize("damage", ["flipped", "gone", "cut"])
def test_a_damaged_witness_alone_stops_nothing(service: Service, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "gallery"
    gallery = service.open(folder)
    gallery.apply_deltas(service.deltas(), at())
    gallery.close()
    witness = folder / "gallery.witness"
    data = witness.read_bytes()
    if damage == "gone":
        witness.unlink()
    else:
        witness.write_bytes(data[:700] if damage == "cut" else bytes(byte ^ 1 for byte in data))
    gallery = service.open(folder, now=at())
    assert gallery.freshness(at()).fresh
    gallery.close()


def test_a_gallery_that_does_not_open_for_its_witness_keeps_no_file_open(
    service: Service, tmp_path: Path
) -> None:
    """A core without a gallery tries to open it every 15 seconds."""
    service.open(tmp_path).close()
    slots = Slots(tmp_path / "gallery.witness", slot_bytes=1_024, count=2)
    of_another_version = Sealer(DATA_KEY).seal(b"witness\x00", b"", 9, canonical_bytes({"v": 2}))
    slots.write(0, (9).to_bytes(8, "big") + of_another_version)
    slots.close()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(StoreError, match="another version"):
            service.open(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_slot_is_replaced_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "slots"
    slots = Slots(path, slot_bytes=64, count=3)
    assert slots.read() == [b"", b"", b""]
    slots.write(1, b"one")
    slots.write(2, b"x" * 60)
    slots.write(1, b"")
    with pytest.raises(ValueError, match="60 bytes"):
        slots.write(0, b"x" * 61)
    slots.close()
    again = Slots(path, slot_bytes=64, count=3)
    assert again.read() == [b"", b"", b"x" * 60]
    again.close()
