"""Searches that read the disk: overtaken by commits, next to a writer, on a disk that fails, over a wipe."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from time import monotonic

import numpy as np
import pytest

from gallery import gallery as gallery_module
from gallery.errors import Overtaken, StoreError
from gallery.gallery import REMEMBER_TIME_MS, Gallery
from gallery.index import Match
from gallery.reader import RowReader
from gallery.seal import Template
from gallery.store import FILE_NAME, Store, connected
from tests.gallery.gallery_service import Service, at, entry, palm, subject_ref, who
from tools.rig.bench.gallery import fill_store, random_templates


@pytest.fixture
def service() -> Service:
    """Templates 1 to 8 of people 101 to 104, two each."""
    service = Service()
    service.upsert(*(entry(100 + (number + 1) // 2, number) for number in range(1, 9)))
    return service


@pytest.fixture
def gallery(service: Service, tmp_path: Path) -> Iterator[Gallery]:
    gallery = service.open(tmp_path)
    gallery.apply_deltas(service.deltas(), at())
    yield gallery
    gallery.close()


def search(gallery: Gallery, number: int) -> Match:
    return gallery.search(palm(number)[np.newaxis])


def between_scan_and_reading(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], times: int = 1
) -> None:
    """Have `act` done the first `times` a search wants to read the rows it found."""
    plain, left = RowReader.read, times

    def read(rows: RowReader, generation: int, seq: int, numbers: list[int]) -> list[Template]:
        nonlocal left
        left -= 1
        if left >= 0:
            act()
        return plain(rows, generation, seq, numbers)

    monkeypatch.setattr(RowReader, "read", read)


def takes(gallery: Gallery, service: Service) -> Callable[[], object]:
    return lambda: gallery.apply_deltas(service.deltas(gallery.position.seq), at())


def test_a_palm_erased_meanwhile_is_not_found(
    service: Service, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.tombstone(101)
    between_scan_and_reading(monkeypatch, takes(gallery, service))
    match = search(gallery, 1)
    assert match.best is not None
    assert match.best.subject_ref != subject_ref(101)
    assert match.score < 0.5
    assert match.position == gallery.position


def test_a_number_used_again_for_another_person_is_not_taken_for_the_first(
    service: Service, gallery: Gallery, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service.tombstone(104)  # has the last rows, whose numbers SQLite gives to the next ones
    service.upsert(entry(200, 20), entry(201, 21))
    between_scan_and_reading(monkeypatch, takes(gallery, service))
    match = search(gallery, 20)
    assert match.best is not None
    assert (match.best.subject_ref, match.position.seq) == (subject_ref(200), 11)
    assert search(gallery, 8).score < 0.5
    with closing(connected(tmp_path / FILE_NAME)) as beside:
        assert beside.execute("SELECT max(number) FROM template").fetchone() == (8,)


def test_a_replaced_palm_counts_as_the_position_of_the_answer_says(
    service: Service, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.upsert(entry(101, 1, vector=palm(77).tobytes()))
    between_scan_and_reading(monkeypatch, takes(gallery, service))
    match = search(gallery, 1)
    assert (match.position.seq, match.score < 0.5) == (9, True)
    assert who(gallery, 77) == subject_ref(101)


def test_a_second_person_who_is_replaced_meanwhile_is_still_the_second(
    service: Service, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left out, they would make the margin large and an ambiguous palm a match."""
    twin = palm(1) + 0.05 * palm(50)
    alike = [(twin + 0.01 * palm(51 + n)).astype("<f4") for n in range(2)]
    alike = [one / np.linalg.norm(one) for one in alike]
    service.upsert(entry(105, 9, vector=alike[0].tobytes()))
    gallery.apply_deltas(service.deltas(8), at())
    service.upsert(entry(105, 9, vector=alike[1].tobytes()))
    between_scan_and_reading(monkeypatch, takes(gallery, service))
    match = search(gallery, 1)
    assert match.best is not None
    assert match.best.subject_ref == subject_ref(101)
    assert match.margin is not None
    assert match.margin < 0.01


@pytest.mark.parametrize("op", ["suspend", "resume"])
def test_a_person_suspended_or_resumed_meanwhile(
    service: Service, gallery: Gallery, monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    if op == "resume":
        service.suspend(102)
        gallery.apply_deltas(service.deltas(8), at())
    getattr(service, op)(102)
    between_scan_and_reading(monkeypatch, takes(gallery, service))
    search(gallery, 1)
    assert who(gallery, 3) == (None if op == "suspend" else subject_ref(102))


def test_a_generation_switched_meanwhile_is_searched_anew(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Service(epoch=2)
    later.upsert(*(entry(300 + number, number) for number in range(1, 9)))

    def switch() -> None:
        for page in later.snapshot(size=3):
            gallery.apply_snapshot_page(page, at())

    between_scan_and_reading(monkeypatch, switch)
    match = search(gallery, 1)
    assert match.best is not None
    assert (match.best.subject_ref, match.position.epoch) == (subject_ref(301), 2)


def test_between_a_commit_and_its_index_a_search_waits_for_the_index(
    service: Service, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Match] = []
    waited: list[bool] = []
    plain = Store.transaction

    @contextmanager
    def transaction(store: Store) -> Iterator[None]:
        with plain(store):
            yield
        # Committed, and not yet shown: what was erased can be scanned, but not read.
        searching.start()
        searching.join(0.05)
        waited.append(searching.is_alive())

    searching = threading.Thread(target=lambda: found.append(search(gallery, 1)))
    monkeypatch.setattr(Store, "transaction", transaction)
    service.tombstone(101)
    gallery.apply_deltas(service.deltas(8), at())
    searching.join()
    assert waited == [True]
    assert (found[0].position.seq, found[0].score < 0.5) == (9, True)


def test_a_search_that_is_overtaken_for_ever_gives_up(
    service: Service, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery_module, "OVERTAKEN_S", 0.05)
    palms = count(100)

    def replace_it() -> None:
        service.upsert(entry(101, 1, vector=palm(next(palms)).tobytes()))
        takes(gallery, service)()

    between_scan_and_reading(monkeypatch, replace_it, times=100_000)
    with pytest.raises(Overtaken, match="try again"):
        search(gallery, 1)


def test_a_search_neither_waits_for_a_transaction_nor_sees_what_is_in_it(
    gallery: Gallery, tmp_path: Path
) -> None:
    begun_s = monotonic()
    with closing(connected(tmp_path / FILE_NAME)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM template")
        assert [who(gallery, number) for number in (1, 8)] == [subject_ref(101), subject_ref(104)]
        writer.execute("ROLLBACK")
    assert monotonic() - begun_s < 0.9  # SQLite would wait for a second


def test_what_was_erased_goes_from_the_log_once_no_search_reads(
    service: Service, gallery: Gallery, tmp_path: Path
) -> None:
    log = tmp_path / (FILE_NAME + "-wal")
    with closing(connected(tmp_path / FILE_NAME)) as reading:
        erased: bytes = reading.execute("SELECT sealed FROM template").fetchone()[0]
        reading.execute("BEGIN")
        reading.execute("SELECT sealed FROM template").fetchone()  # and no further: it keeps reading
        service.tombstone(101)
        gallery.apply_deltas(service.deltas(8), at())
        assert erased[100:140] in log.read_bytes()
    gallery.remember_time(at(2 * REMEMBER_TIME_MS))
    assert erased[100:140] not in log.read_bytes()
    assert who(gallery, 1) is None


def test_rows_that_cannot_be_read_are_an_error_until_they_can(gallery: Gallery, tmp_path: Path) -> None:
    gallery.reread()  # nothing to read again
    with closing(connected(tmp_path / FILE_NAME)) as writer:
        writer.execute("ALTER TABLE template RENAME TO lost")
        with pytest.raises(StoreError, match="no such table"):
            search(gallery, 1)
        with pytest.raises(StoreError, match="no such table"):
            gallery.reread()
        writer.execute("ALTER TABLE lost RENAME TO template")
    gallery.reread()
    assert who(gallery, 1) == subject_ref(101)


def test_a_damaged_row_is_never_scored(service: Service, tmp_path: Path) -> None:
    gallery = service.open(tmp_path)
    gallery.apply_deltas(service.deltas(), at())
    file = tmp_path / FILE_NAME
    with closing(connected(file)) as beside:
        beside.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (sealed,) = beside.execute("SELECT sealed FROM template WHERE number = 1").fetchone()
    content = file.read_bytes()
    where = content.index(sealed[100:140])
    file.write_bytes(content[:where] + bytes(40) + content[where + 40 :])
    for _ in range(2):
        with pytest.raises(StoreError, match="does not open"):
            search(gallery, 3)  # not its own palm: among eight, every row is scored
    with pytest.raises(StoreError, match="does not open"):
        gallery.reread()
    service.upsert(entry(101, 1, vector=palm(77).tobytes()))  # the row is written again
    gallery.apply_deltas(service.deltas(8), at())
    gallery.reread()
    assert who(gallery, 77) == subject_ref(101)
    gallery.close()


def test_a_file_cut_short_is_told(service: Service, tmp_path: Path) -> None:
    gallery = service.open(tmp_path)
    gallery.apply_deltas(service.deltas(), at())
    with closing(connected(tmp_path / FILE_NAME)) as beside:
        beside.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with (tmp_path / FILE_NAME).open("r+b") as file:
        file.truncate(4096)
    with pytest.raises(StoreError, match="cannot be read"):
        search(gallery, 1)


def test_a_wipe_during_searches_ends_them_with_nobody(gallery: Gallery, tmp_path: Path) -> None:
    ends: list[str | None] = []
    failed: list[BaseException] = []
    begun, wiped = threading.Barrier(4), threading.Event()

    def keep_searching() -> None:
        begun.wait()
        try:
            while not wiped.is_set():
                who(gallery, 1)
            ends.append(who(gallery, 1))
        except BaseException as error:  # noqa: BLE001 - reported by the test
            failed.append(error)

    threads = [threading.Thread(target=keep_searching) for _ in range(3)]
    for thread in threads:
        thread.start()
    begun.wait()
    gallery.destroy()
    wiped.set()
    for thread in threads:
        thread.join()
    assert (failed, ends, list(tmp_path.iterdir())) == ([], [None] * 3, [])


def test_a_wipe_between_scan_and_reading_leaves_nothing_to_read(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    between_scan_and_reading(monkeypatch, gallery.destroy)
    match = search(gallery, 1)
    assert (match.best, match.score, match.position.seq) == (None, 0.0, 0)


def test_searches_beside_pages_that_erase_and_replace_name_only_whom_their_position_holds(
    service: Service, gallery: Gallery
) -> None:
    """Every page erases one of 40 people, whose numbers the next one's templates take."""
    done, wrong = threading.Event(), []
    held: dict[int, set[str]] = {}

    def note() -> None:
        held[service.seq] = {one.subject_ref for one in service.live.values()}

    def keep_searching() -> None:
        number = 0
        while not done.is_set():
            number = number % 120 + 1
            match = search(gallery, number)
            if match.best is None or match.best.subject_ref not in held[match.position.seq]:
                wrong.append(match)

    note()
    threads = [threading.Thread(target=keep_searching) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(40):
        service.tombstone(104 if turn == 0 else 500 + turn - 1)
        service.upsert(entry(500 + turn, 20 + turn), entry(500 + turn, 70 + turn))
        note()
        gallery.apply_deltas(service.deltas(gallery.position.seq), at())
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []


OPENED = """
import sys
from pathlib import Path
from device.platform.memory import settle_memory
from tools.rig.bench.gallery import open_filled, own_bytes
gallery = open_filled(Path(sys.argv[1]), bytes(32))
settle_memory()
print(own_bytes())
"""


def test_opening_takes_hardly_more_memory_than_what_is_scanned(tmp_path: Path) -> None:
    """In a process of its own, which gives back what it frees, as a device's does."""

    def taken(rows: int) -> int:
        fill_store(folder := tmp_path / str(rows), bytes(32), random_templates(rows))
        command = [sys.executable, "-c", OPENED, str(folder)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    few, many = 1_000, 41_000
    assert 512 <= (taken(many) - taken(few)) / (many - few) < 600
