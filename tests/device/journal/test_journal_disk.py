"""A journal on a disk that fills up: the reserve keeps passages going, and comes back when there is room."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from device.errors import JournalError
from device.journal.journal import MEMORY_MS, PURGE_ROWS, Journal
from device.journal.reserve import GIVEN_UP_BELOW_BYTES, RESERVE_BYTES, Reserve, free_bytes
from link1.canonical import JsonObject
from link1.signed import object_ref
from tests.device.core.small_disk import fill, no_file_may_grow_beyond, small_disk
from tests.device.core_makers import REJECTED, HandClock, make_decision, make_request, sign_verdict, txn_id_of
from tests.device.core_makers import make_passage as make_passage_of
from tests.device.journal.journal_makers import append, make_journal

MEBIBYTE = 1024 * 1024


def passage(journal: Journal, name: str) -> None:
    """A verdict and all that comes of it."""
    stored = append(journal, name)
    journal.record_decision(stored.ref, make_decision(stored)[1], awaits_passage=True)
    journal.record_passage(stored.ref, make_passage_of(stored)[1])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", 64) as folder:
        yield folder


@pytest.mark.long
def test_thousands_of_passages_fit_when_the_disk_is_full(disk: Path) -> None:
    journal = make_journal(disk)
    assert journal.keep_reserve()
    for number in range(100):
        passage(journal, f"before {number}")
    ballast = fill(disk)
    done = 0
    with pytest.raises(JournalError, match="full"):
        while True:
            passage(journal, str(done))
            done += 1
            if done % 200 == 0:  # as housekeeping does; what cannot be tidied up stays where it is
                with contextlib.suppress(JournalError):
                    journal.maintain()

    assert done > 4_000, done
    assert not journal.keep_reserve()
    last = journal.last()
    assert last is not None
    with pytest.raises(JournalError, match="full"):
        journal.probe()
    ballast.unlink()
    journal.probe()
    assert journal.keep_reserve()
    following = append(journal, "after")
    assert following.seq == last.verdict_seq + 1
    assert following.wrapper["verdict"]["prev_ref"] == last.verdict_ref
    assert journal.pending_uploads() == following.seq
    journal.close()


def test_a_full_disk_at_the_start_does_not_keep_the_device_down(disk: Path) -> None:
    journal = make_journal(disk)
    journal.keep_reserve()
    stored = append(journal, "before")
    journal.close()
    fill(disk)
    assert free_bytes(disk) == 0
    journal = make_journal(disk)
    assert journal.close_open_outcomes() == 1
    assert append(journal, "after").wrapper["verdict"]["prev_ref"] == stored.ref
    journal.close()


def test_a_disk_that_fills_up_during_a_verdict_costs_that_verdict_alone(disk: Path) -> None:
    """Too late for the write that finds it full; the next one has the reserve."""
    journal = make_journal(disk)
    journal.keep_reserve()
    for name in "abcd":
        append(journal, name)  # until the log has no room left over from the start
    request, wrapper = make_request("while it fills up")

    def build(seq: int, prev_ref: str) -> JsonObject:
        fill(disk)
        return sign_verdict(request, REJECTED, seq, prev_ref)

    with pytest.raises(JournalError, match="full"):
        journal.append_verdict(request.txn_id, object_ref(wrapper), build)
    assert free_bytes(disk) >= RESERVE_BYTES
    assert append(journal, "after").seq == 5
    journal.close()


def test_the_reserve_is_given_up_in_time_and_made_again(disk: Path) -> None:
    file = disk / "reserve"
    reserve = Reserve(file)
    assert reserve.keep()
    assert file.stat().st_blocks * 512 >= RESERVE_BYTES
    ballast = fill(disk, leave_bytes=GIVEN_UP_BELOW_BYTES + MEBIBYTE)
    reserve.ease()
    assert file.exists()
    fill(disk, leave_bytes=GIVEN_UP_BELOW_BYTES - MEBIBYTE)
    reserve.ease()
    assert not file.exists()
    assert free_bytes(disk) > RESERVE_BYTES
    assert not reserve.keep()
    ballast.unlink()
    assert reserve.keep()
    assert Reserve(file).held


def test_a_reserve_that_a_power_cut_left_half_made_takes_no_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 36) as folder:
        file = folder / "reserve"
        assert Reserve(file).keep()
        file.rename(folder / "reserve.partial")  # its new name was not on the disk yet
        assert Reserve(file).keep()
        assert free_bytes(folder) >= 36 * MEBIBYTE - RESERVE_BYTES - MEBIBYTE


def test_what_could_not_be_written_was_not_said_and_uses_no_number(tmp_path: Path) -> None:
    """For everybody, root or not: no file of this process may grow."""
    journal = make_journal(tmp_path)
    stored = append(journal, "before")
    wal_bytes = (tmp_path / "journal.db-wal").stat().st_size
    with no_file_may_grow_beyond(wal_bytes):
        for _ in range(3):
            with pytest.raises(JournalError, match="check the disk and its free space"):
                append(journal, "refused")
        assert journal.find_txn(txn_id_of("before")) is not None
        with pytest.raises(JournalError):
            journal.probe()
    journal.probe()
    assert journal.find_txn(txn_id_of("refused")) is None
    following = append(journal, "after")
    assert (following.seq, following.wrapper["verdict"]["prev_ref"]) == (2, stored.ref)
    journal.close()


def test_a_month_is_forgotten_in_slices(tmp_path: Path) -> None:
    """No slice keeps the journal's thread for long, and nothing goes that the service does not have."""
    clock = HandClock()
    journal = make_journal(tmp_path, clock)
    for number in range(PURGE_ROWS + 30):
        append(journal, str(number))
    batch = journal.next_upload(PURGE_ROWS + 20)
    journal.uploaded(batch.tickets)
    clock.now_ms += MEMORY_MS + 1_000
    assert journal.maintain() == PURGE_ROWS
    assert journal.maintain() == 20
    assert journal.maintain() == 0
    assert journal.pending_uploads() == 10
    assert journal.find_txn(txn_id_of("0")) is None
    assert journal.find_txn(txn_id_of(str(PURGE_ROWS + 25))) is not None
    journal.close()


def test_a_journal_where_nothing_can_be_written_says_so(tmp_path: Path) -> None:
    journal = make_journal(tmp_path)
    journal.close()
    with small_disk(tmp_path / "small", 4) as folder:
        (folder / "journal.db").write_bytes((tmp_path / "journal.db").read_bytes())
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        with pytest.raises(JournalError, match="replace the card"):
            make_journal(folder)
