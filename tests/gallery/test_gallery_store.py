"""What lies on the disk: sealed, bound to its place, gone when it is removed."""

import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from gallery.codes import Coder
from gallery.errors import StoreError
from gallery.records import Held
from gallery.seal import Sealer, Template, pack_template, unpack_template
from gallery.store import FILE_NAME, Store
from gallery.witness import Witness
from tests import REPOSITORY
from tests.device.core.small_disk import fill, small_disk
from tests.gallery.gallery_service import (
    DATA_KEY,
    MODEL_ID,
    NOW_MS,
    STREAM,
    Service,
    at,
    entry,
    palm,
    subject_ref,
    who,
)


def filled(folder: Path) -> Service:
    service = Service()
    service.upsert(*[entry(n // 2, n, onboard_ref=f"onboard-{n}") for n in range(2, 20)])
    gallery = service.open(folder)
    gallery.apply_deltas(service.deltas(), at())
    gallery.close()
    return service


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return filled(tmp_path)


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def test_templates_pack_and_unpack() -> None:
    for template in (
        Template(b"i" * 16, b"s" * 16, "L", "m-1", None, False, bytes(1024)),
        Template(b"i" * 16, b"s" * 16, "R", "m" * 64, "o" * 128, True, bytes(range(256)) * 4),
    ):
        assert unpack_template(template.template_id, pack_template(template)) == template


def test_opened_again_it_finds_the_same_people_whatever_their_words(tmp_path: Path) -> None:
    """More rows than are opened at a time: with and without a ref, short and long, some suspended."""
    folder, model_id, service = tmp_path / "gallery", "m" * 64, Service()
    refs = [None, "o", "o" * 128]
    for n in range(300):
        service.upsert(entry(n, n, onboard_ref=refs[n % 3], model_id=model_id))
    suspended = {7, 128, 255, 299}
    for n in suspended:
        service.suspend(n)
    with closing(service.open(folder, model_id=model_id)) as gallery:
        for after in (0, 200):
            gallery.apply_deltas(service.deltas(after), at())
        before = {n: who(gallery, n) for n in range(300)}
    assert before == {n: None if n in suspended else subject_ref(n) for n in range(300)}
    with closing(service.open(folder, model_id=model_id)) as gallery:
        assert (gallery.count, gallery.match_count) == (300, 296)
        assert {n: who(gallery, n) for n in range(300)} == before
    with closing(service.open(folder, model_id="m" * 63)) as gallery:
        assert gallery.model_mismatch


def test_nothing_about_a_person_stands_there_in_the_clear(tmp_path: Path) -> None:
    filled(tmp_path)
    disk = on_disk(tmp_path)
    coder = Coder(Sealer(DATA_KEY).sign_bits)
    for number in range(2, 20):
        code = coder.encode(palm(number)[np.newaxis])[0].tobytes()
        for secret in (
            palm(number).tobytes()[:16],
            code[:16],
            code[512:528],
            bytes.fromhex(subject_ref(number // 2)),
            subject_ref(number // 2).encode(),
            b"onboard-",
            MODEL_ID.encode(),
            STREAM.encode(),
        ):
            assert secret not in disk


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "gallery"
    gallery = Service().open(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    gallery.close()


def test_another_data_key_opens_nothing(tmp_path: Path, service: Service) -> None:
    with pytest.raises(StoreError, match="fresh snapshot"):
        service.open(tmp_path, data_key=bytes(32))


def test_another_stream_is_not_served_from_it(tmp_path: Path, service: Service) -> None:
    with pytest.raises(StoreError, match="another stream"):
        service.open(tmp_path, stream="t2.live")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE template SET seq = seq + 1 WHERE number = 3",
        "UPDATE template SET sealed = (SELECT sealed FROM template WHERE number = 4) WHERE number = 3",
        "UPDATE template SET sealed = x'00' WHERE number = 3",
        "DELETE FROM template WHERE number = 3",
        "UPDATE state SET seq = seq - 1",
        "UPDATE state SET sealed = randomblob(200)",
        "UPDATE template SET template_id = CAST(template_id AS TEXT) WHERE number = 3",
        "UPDATE template SET seq = 'text' WHERE number = 3",
        "UPDATE template SET seq = -1 WHERE number = 3",
        "UPDATE template SET sealed = 1 WHERE number = 3",
    ],
)
def test_rows_moved_changed_or_taken_away_are_found_out(tmp_path: Path, change: str) -> None:
    service = filled(tmp_path)
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    with connection:
        connection.execute(change)
    connection.close()
    with pytest.raises(StoreError):
        service.open(tmp_path)


def test_a_damaged_file_says_what_to_do(tmp_path: Path, service: Service) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreError, match="remove the folder"):
        service.open(tmp_path)


def test_a_damaged_bit_in_the_schema_says_what_to_do(tmp_path: Path, service: Service) -> None:
    """SQLite quotes the damaged bytes in its message, which is then no UTF-8."""
    data = bytearray((tmp_path / FILE_NAME).read_bytes())
    data[data.index(b"CREATE TABLE template") + 3] ^= 1 << 7
    (tmp_path / FILE_NAME).write_bytes(data)
    with pytest.raises(StoreError, match="remove the folder"):
        service.open(tmp_path)


def test_a_later_format_is_left_alone(tmp_path: Path, service: Service) -> None:
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(StoreError, match="its format is 2"):
        service.open(tmp_path)


_OPEN = """
from pathlib import Path
from tests.gallery.gallery_service import Service
from gallery.errors import StoreError
try:
    Service().open(Path({folder!r})).close()
except StoreError as error:
    print(error)
"""


def opened_elsewhere(folder: Path) -> str:
    """What another process hears that opens the gallery."""
    done = subprocess.run(
        [sys.executable, "-c", _OPEN.format(folder=str(folder))],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_a_second_program_is_kept_out(tmp_path: Path, service: Service) -> None:
    gallery = service.open(tmp_path)
    assert "another palmd" in opened_elsewhere(tmp_path)
    assert who(gallery, 2) == subject_ref(1)
    assert "another palmd" in opened_elsewhere(tmp_path)
    gallery.close()
    assert opened_elsewhere(tmp_path) == ""


def test_an_erased_palm_is_gone_from_every_file(tmp_path: Path, service: Service) -> None:
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    sealed = [row[0] for row in connection.execute("SELECT sealed FROM template WHERE number IN (1, 2)")]
    kept = connection.execute("SELECT sealed FROM template WHERE number = 3").fetchone()[0]
    connection.close()
    assert all(row[20:60] in on_disk(tmp_path) for row in (*sealed, kept))
    gallery = service.open(tmp_path)
    service.tombstone(1)
    gallery.apply_deltas(service.deltas(18), at())
    disk = on_disk(tmp_path)
    assert not any(row[20:60] in disk for row in sealed)
    assert kept[20:60] in disk
    assert who(gallery, 2) is None
    assert who(gallery, 4) == subject_ref(2)
    gallery.close()


def test_an_erasure_whose_overwriting_a_power_cut_took_is_finished_after_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = filled(tmp_path / "a")
    connection = sqlite3.connect(tmp_path / "a" / FILE_NAME)
    sealed = connection.execute("SELECT sealed FROM template WHERE number = 1").fetchone()[0]
    connection.close()
    gallery = service.open(tmp_path / "a")
    gallery.remember_time(at(60_000))  # what is due since the start is done
    service.tombstone(1)
    with monkeypatch.context() as power:
        power.setattr(Store, "scrub", lambda _: shutil.copytree(tmp_path / "a", tmp_path / "b"))
        gallery.apply_deltas(service.deltas(18), at(61_000))
    gallery.close()
    assert sealed[20:60] in on_disk(tmp_path / "b")
    started = service.open(tmp_path / "b", now=at(62_000))
    assert (started.position.seq, who(started, 2)) == (19, None)
    started.remember_time(at(122_000))
    assert sealed[20:60] not in on_disk(tmp_path / "b")
    started.close()


def test_an_erasure_is_overwritten_though_the_witness_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: Service
) -> None:
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    sealed = connection.execute("SELECT sealed FROM template WHERE number = 1").fetchone()[0]
    connection.close()
    gallery = service.open(tmp_path)
    gallery.remember_time(at(60_000))
    service.tombstone(1)

    def full(_witness: Witness, _held: Held) -> None:
        raise OSError("no space")

    with monkeypatch.context() as disk, pytest.raises(StoreError, match="witness"):
        disk.setattr(Witness, "keep", full)
        gallery.apply_deltas(service.deltas(18), at(61_000))
    assert (gallery.position.seq, sealed[20:60] in on_disk(tmp_path)) == (19, True)
    gallery.remember_time(at(122_000))
    assert sealed[20:60] not in on_disk(tmp_path)
    gallery.close()


def test_a_replaced_palm_is_gone_from_every_file(tmp_path: Path, service: Service) -> None:
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    sealed = connection.execute("SELECT sealed FROM template WHERE number = 1").fetchone()[0]
    connection.close()
    gallery = service.open(tmp_path)
    service.upsert(entry(1, 2, vector=palm(77).tobytes()))
    gallery.apply_deltas(service.deltas(18), at())
    assert sealed[20:60] not in on_disk(tmp_path)
    assert who(gallery, 77) == subject_ref(1)
    assert who(gallery, 2) is None
    gallery.close()


def test_a_snapshot_leaves_nothing_of_what_it_replaced(tmp_path: Path, service: Service) -> None:
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    sealed = [row[0] for row in connection.execute("SELECT sealed FROM template")]
    connection.close()
    gallery = service.open(tmp_path)
    service.upsert(entry(50, 50))
    for page in service.snapshot(size=5):
        gallery.apply_snapshot_page(page, at())
    disk = on_disk(tmp_path)
    assert not any(row[20:60] in disk for row in sealed)
    gallery.close()


def test_what_is_gone_already_can_be_destroyed(tmp_path: Path) -> None:
    """A technician may have moved the folder away while the device runs."""
    folder = tmp_path / "gallery"
    service = filled(folder)
    gallery = service.open(folder)
    shutil.rmtree(folder)
    gallery.destroy()
    assert (gallery.count, folder.exists()) == (0, False)


def test_a_gallery_is_destroyed_as_often_as_a_reset_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "gallery"
    gallery = filled(folder).open(folder)
    gallery.close()
    with (tmp_path / "other").open("wb") as first, (tmp_path / "other").open("wb") as second:
        for _ in range(2):
            gallery.destroy()
        assert list(folder.iterdir()) == []
        assert [other.write(b"open") for other in (first, second)] == [4, 4]


def test_destroyed_is_gone_and_finds_nobody(tmp_path: Path, service: Service) -> None:
    gallery = service.open(tmp_path)
    gallery.destroy()
    assert list(tmp_path.iterdir()) == []
    assert gallery.count == 0
    assert who(gallery, 2) is None
    assert not gallery.freshness(at()).fresh
    with pytest.raises(StoreError, match="closed"):
        gallery.apply_deltas(service.deltas(), at())


def test_a_full_disk_changes_nothing(tmp_path: Path, service: Service) -> None:
    gallery = service.open(tmp_path)
    service.upsert(*[entry(n, n) for n in range(100, 200)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / (FILE_NAME + "-wal")).stat().st_size, hard))
    with pytest.raises(StoreError, match="free space"):
        gallery.apply_deltas(service.deltas(18), at())
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (gallery.position.seq, gallery.count) == (18, 18)
    assert who(gallery, 100) is None
    gallery.apply_deltas(service.deltas(18), at())
    assert who(gallery, 100) == subject_ref(100)
    gallery.close()


def rows(folder: Path) -> dict[int, int]:
    """How many templates each generation has."""
    connection = sqlite3.connect(folder / FILE_NAME)
    found = connection.execute("SELECT generation, count(*) FROM template GROUP BY generation").fetchall()
    connection.close()
    return dict(found)


def erased_on_a_full_disk(disk: Path) -> tuple[Service, Service, Path]:
    """An erasure has ended the snapshot that was being taken, of which the disk had no room to delete the
    rows. The service, its next epoch, and what fills the disk."""
    service = filled(disk / "gallery")
    later = Service(epoch=2)
    later.upsert(*[entry(n, n) for n in range(2, 502)])
    gallery = service.open(disk / "gallery")
    for page in later.snapshot()[:2]:
        gallery.apply_snapshot_page(page, at())
    gallery.close()
    gallery = service.open(disk / "gallery")
    gallery.remember_time(at(60_000))
    service.tombstone(1)
    later.tombstone(2)
    ballast = fill(disk, leave_bytes=200_000)
    gallery.apply_deltas(service.deltas(18), at(61_000))
    gallery.close()
    assert rows(disk / "gallery") == {1: 16, 2: 400}
    return service, later, ballast


def test_a_gallery_opens_and_takes_pages_though_a_full_disk_lets_no_rows_go(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 8) as disk:
        service, _, ballast = erased_on_a_full_disk(disk)
        gallery = service.open(disk / "gallery")
        assert (gallery.position.seq, who(gallery, 2), who(gallery, 4)) == (19, None, subject_ref(2))
        gallery.apply_deltas(service.deltas(19), at(62_000))
        ballast.unlink()
        gallery.apply_deltas(service.deltas(19), at(63_000))
        gallery.close()
        assert rows(disk / "gallery") == {1: 16}


def test_rows_that_a_full_disk_did_not_let_go_go_with_the_next_head(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 8) as disk:
        service, _, ballast = erased_on_a_full_disk(disk)
        with closing(service.open(disk / "gallery")) as gallery:
            gallery.apply_head(service.head(issued_at_ms=NOW_MS + 62_000), at(62_000))
            assert rows(disk / "gallery") == {1: 16, 2: 400}
            ballast.unlink()
            gallery.apply_head(service.head(issued_at_ms=NOW_MS + 63_000), at(63_000))
        assert rows(disk / "gallery") == {1: 16}


def test_rows_that_a_full_disk_did_not_let_go_get_into_no_later_snapshot(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 8) as disk:
        service, later, ballast = erased_on_a_full_disk(disk)
        gallery = service.open(disk / "gallery")
        ballast.unlink()
        for page in later.snapshot():
            applied = gallery.apply_snapshot_page(page, at(62_000))
        assert (applied.done, gallery.position.epoch, gallery.count) == (True, 2, 499)
        gallery.close()
        assert list(rows(disk / "gallery").values()) == [499]


def test_a_copy_of_the_folder_opens_as_the_original_did(tmp_path: Path) -> None:
    service = filled(tmp_path / "a")
    gallery = service.open(tmp_path / "a")
    service.upsert(entry(70, 70))
    gallery.apply_deltas(service.deltas(18), at())
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    gallery.close()
    copy = service.open(tmp_path / "b")
    assert copy.position.seq == 19
    assert who(copy, 70) == subject_ref(70)
    copy.close()
