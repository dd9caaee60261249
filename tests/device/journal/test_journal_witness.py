"""A journal whose files are damaged: what was promised is put back, or nothing more is numbered."""

import errno
import logging
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from device.errors import JournalError, SequenceHalted
from device.journal.journal import Journal
from device.journal.mail import OutboxEntry
from device.journal.rows import Rows
from device.journal.seal import RowSeal
from device.journal.witness import VERDICTS, JournalWitness, Numbers
from device.platform.files import with_checksum, without_checksum
from device.values.transactions import TxnMemory
from gallery.slots import Slots
from link1.errors import FormatError
from link1.objects import ErrorCode
from tests.device.core_makers import DATA_KEY, make_decision, txn_id_of
from tests.device.journal.journal_makers import append, make_journal, open_journal
from tests.device.journal.test_journal_power import chain_of

MADE = 12


def refused_write(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def taken_from(journal: Journal, folder: Path, to: Path) -> Path:
    """What lies on the disk when the power goes now."""
    shutil.copytree(folder, to)
    journal.close()
    return to


def edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def flipped(place: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:place] + bytes((data[place] ^ 0x10,)) + data[place + 1 :]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "running"
    folder.mkdir()
    return folder


@pytest.fixture
def journal(folder: Path) -> Journal:
    return make_journal(folder)


def test_no_flipped_bit_in_the_log_gives_a_number_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, journal: Journal, folder: Path
) -> None:
    stored = [append(journal, str(number)) for number in range(MADE)]
    taken = taken_from(journal, folder, tmp_path / "taken")
    log = (taken / "journal.db-wal").read_bytes()
    frames = range(32, len(log) - 536, 536)
    places = [*range(0, 32, 3), *(frame + random.Random(frame).randrange(536) for frame in frames[::3])]
    for number, place in enumerate(places):
        damaged = shutil.copytree(taken, tmp_path / str(number))
        edit(damaged / "journal.db-wal", flipped(place))
        with caplog.at_level(logging.ERROR, "device.journal.restore"):
            again = open_journal(damaged)
        assert not again.halted
        assert chain_of(again, MADE) == stored, place
        following = append(again, "after")
        assert (following.seq, following.wrapper["verdict"]["prev_ref"]) == (MADE + 1, stored[-1].ref)
        again.close()
        shutil.rmtree(damaged)
    assert "the witness restored them" in caplog.text


def test_no_frame_of_a_log_that_was_brought_in_hides_what_the_file_has(
    tmp_path: Path, journal: Journal, folder: Path
) -> None:
    stored = append(journal, "0")
    for number in range(1, 20):
        append(journal, str(number))
    _, decision = make_decision(stored)
    journal.record_decision(stored.ref, decision, awaits_passage=False)
    journal.maintain()
    taken = taken_from(journal, folder, tmp_path / "taken")
    for place in range(32, (taken / "journal.db-wal").stat().st_size, 7 * 536):
        damaged = shutil.copytree(taken, tmp_path / str(place))
        edit(damaged / "journal.db-wal", flipped(place))
        again = open_journal(damaged)
        memory = again.find_txn(txn_id_of("0"))
        assert memory is not None and memory.decision_ref is not None, place
        again.close()


def test_what_came_of_a_verdict_that_was_put_back_is_asked_for_again(
    tmp_path: Path, journal: Journal, folder: Path
) -> None:
    stored = append(journal, "0")
    _, decision = make_decision(stored)
    journal.record_decision(stored.ref, decision, awaits_passage=False)
    taken = taken_from(journal, folder, tmp_path / "taken")
    (taken / "journal.db-wal").unlink()
    again = open_journal(taken)
    memory = again.find_txn(txn_id_of("0"))
    assert memory is not None
    assert (memory.verdict, memory.decision_ref) == (stored, None)
    assert again.close_open_outcomes() == 1
    waiting = again.unacknowledged(after_seq=0, upto_seq=9, limit=9)
    assert [one.verdict_ref for one in waiting] == [stored.ref]
    again.record_decision(stored.ref, decision, awaits_passage=False)
    assert again.next_upload(9).items == ({"signed_verdict": stored.wrapper, "signed_decision": decision},)
    again.close()


def test_a_verdict_that_is_in_neither_place_halts_the_journal(
    tmp_path: Path, journal: Journal, folder: Path
) -> None:
    for number in range(MADE):
        append(journal, str(number))
    taken = taken_from(journal, folder, tmp_path / "taken")
    (taken / "journal.db-wal").unlink()
    edit(
        taken / "journal.db.witness", flipped((2 + 5) * 2_048 + 40)
    )  # verdict_seq 5 is gone, 6 to 12 are not
    for _again in range(2):
        journal = open_journal(taken)
        assert "verdict_seq 12 was assigned" in journal.halted
        with pytest.raises(SequenceHalted):
            append(journal, "after")
        journal.close()


@pytest.mark.parametrize("damage", ["flipped", "gone", "cut", "of another key"])
def test_a_damaged_witness_alone_stops_nothing(damage: str, journal: Journal, folder: Path) -> None:
    stored = [append(journal, str(number)) for number in range(3)]
    journal.close()
    witness = folder / "journal.db.witness"
    match damage:
        case "flipped":
            for slot in range(6):
                edit(witness, flipped(slot * 2_048 + 60))
        case "gone":
            witness.unlink()
        case "cut":
            edit(witness, lambda data: data[:5_000])
        case _:
            witness.unlink()
            JournalWitness(folder / "journal.db", RowSeal(bytes(32))).close()
    again = open_journal(folder)
    assert not again.halted
    assert append(again, "after").seq == 4
    again.close()
    kept = JournalWitness(folder / "journal.db", RowSeal(DATA_KEY))
    assert {3, 4} <= set(kept.verdicts)
    assert kept.verdicts[3].wrapper == stored[2].wrapper
    kept.close()


def test_a_witness_that_cannot_be_opened_is_named(journal: Journal, folder: Path) -> None:
    journal.close()
    (folder / "journal.db.witness").unlink()
    (folder / "journal.db.witness").mkdir()
    with pytest.raises(JournalError, match=r"journal\.db\.witness cannot be opened or made"):
        open_journal(folder)


@pytest.mark.parametrize(("slot", "left"), [(0, 3), (1, 2)])
def test_a_torn_write_of_numbers_leaves_those_before(tmp_path: Path, slot: int, left: int) -> None:
    path, seal = tmp_path / "journal.db", RowSeal(DATA_KEY)
    for turns in ((1,), (2, 3)):
        witness = JournalWitness(path, seal)
        for turn in turns:
            witness.keep_numbers(Numbers(turn, in_applied_seq=turn, out_seq=0, out_acked_seq=0, halted=""))
        witness.close()
    edit(tmp_path / "journal.db.witness", flipped(slot * 2_048 + 60))
    again = JournalWitness(path, seal)
    again.close()
    assert again.numbers is not None
    assert again.numbers.turn == left


def test_an_older_journal_beside_a_newer_witness_goes_on_or_halts(
    tmp_path: Path, journal: Journal, folder: Path
) -> None:
    append(journal, "0")
    older = shutil.copytree(folder, tmp_path / "older")
    for number in range(1, VERDICTS + 20):
        append(journal, str(number))
    journal.close()
    shutil.copyfile(folder / "journal.db.witness", older / "journal.db.witness")
    again = open_journal(older)
    assert f"verdict_seq {VERDICTS + 20} was assigned" in again.halted
    again.close()


@pytest.mark.parametrize("made", [VERDICTS - 1, VERDICTS, VERDICTS + 1, VERDICTS + 20])
def test_more_verdicts_than_the_witness_has_are_never_in_the_log_alone(
    tmp_path: Path, made: int, journal: Journal, folder: Path
) -> None:
    stored = [append(journal, str(number)) for number in range(made)]
    taken = taken_from(journal, folder, tmp_path / "taken")
    (taken / "journal.db-wal").unlink()
    again = open_journal(taken)
    assert not again.halted
    assert chain_of(again, made) == stored
    again.close()


def mailed(journal: Journal) -> None:
    for seq in (1, 2):
        journal.mail.append(OutboxEntry(seq, b"record %d" % seq), "svc.device.report")
    journal.mail.applied(1, acked_upto_seq=1)
    journal.mail.append(OutboxEntry(3, b"record 3"), "svc.device.report")
    journal.mail.applied(2)


def test_no_flipped_bit_in_the_log_takes_a_number_of_the_mail_back(
    tmp_path: Path, journal: Journal, folder: Path
) -> None:
    mailed(journal)
    before = journal.mail.position()
    taken = taken_from(journal, folder, tmp_path / "taken")
    for number, place in enumerate(range(0, (taken / "journal.db-wal").stat().st_size, 131)):
        damaged = shutil.copytree(taken, tmp_path / str(number))
        edit(damaged / "journal.db-wal", flipped(place))
        again = open_journal(damaged)
        assert (again.mail.position(), again.halted) == (before, "")
        for seq in (2, 3):
            assert again.mail.next_record(seq - 1) == OutboxEntry(seq, b"record %d" % seq)
        again.close()
        shutil.rmtree(damaged)


def changed(folder: Path, sql: str, *parameters: object) -> None:
    """The file of a closed journal, changed by another program."""
    with closing(sqlite3.connect(folder / "journal.db", isolation_level=None)) as db:
        db.execute(sql, parameters)


@pytest.mark.parametrize(
    ("name", "value"),
    [("in_applied_seq", 1), ("in_applied_seq", 3), ("in_applied_seq", 130), ("out_seq", 2), ("out_seq", 7)],
)
def test_a_number_that_changed_in_the_file_is_put_right(
    name: str, value: int, journal: Journal, folder: Path
) -> None:
    mailed(journal)
    before, turn = journal.mail.position(), newest_turn(journal, folder)
    changed(folder, "UPDATE mail_state SET value = ? WHERE name = ?", value, name)
    again = open_journal(folder)
    assert (again.mail.position(), again.halted) == (before, "")
    assert newest_turn(again, folder) == turn + 1, "of two states with one turn nothing says which is newer"


def newest_turn(journal: Journal, folder: Path) -> int:
    """Closes the journal."""
    journal.close()
    witness = JournalWitness(folder / "journal.db", RowSeal(DATA_KEY))
    witness.close()
    assert witness.numbers is not None
    return witness.numbers.turn


def test_numbers_of_the_mail_that_the_witness_does_not_have_yet_count(
    tmp_path: Path, journal: Journal, folder: Path
) -> None:
    """The power went between the database and its witness."""
    mailed(journal)
    witness = (folder / "journal.db.witness").read_bytes()
    journal.mail.applied(3, acked_upto_seq=2)
    after = journal.mail.position()
    taken = taken_from(journal, folder, tmp_path / "taken")
    (taken / "journal.db.witness").write_bytes(witness)
    again = open_journal(taken)
    assert (again.mail.position(), again.halted) == (after, "")
    again.close()


def test_an_inbox_record_that_the_witness_did_not_take_is_noted_there_when_it_is_noted_again(
    monkeypatch: pytest.MonkeyPatch, journal: Journal, folder: Path
) -> None:
    mailed(journal)

    with monkeypatch.context() as broken:
        broken.setattr(Slots, "write", refused_write)
        with pytest.raises(JournalError, match="witness"):
            journal.mail.applied(3, acked_upto_seq=2)
    after, behind = journal.mail.position(), (folder / "journal.db.witness").read_bytes()
    journal.mail.applied(3, acked_upto_seq=2)
    assert journal.mail.position() == after
    assert (folder / "journal.db.witness").read_bytes() != behind
    for seq in (2, 5):
        with pytest.raises(JournalError, match=f"inbox record {seq} does not follow 3"):
            journal.mail.applied(seq)
    journal.close()


def test_a_witness_may_be_further_behind_where_one_of_its_writes_had_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: Journal, folder: Path
) -> None:
    """The power goes after the next commit, before the witness has it."""
    mailed(journal)
    with monkeypatch.context() as broken:
        broken.setattr(Slots, "write", refused_write)
        for seq in (3, 4):
            with pytest.raises(JournalError, match="witness"):
                journal.mail.applied(seq, acked_upto_seq=2)
    after = journal.mail.position()
    again = open_journal(taken_from(journal, folder, tmp_path / "taken"))
    assert (again.mail.position(), again.halted) == (after, "")
    again.close()


@pytest.mark.parametrize("noted_meanwhile", [False, True], ids=["alone", "an inbox record was noted"])
def test_an_outbox_record_that_only_the_log_has_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted_meanwhile: bool, journal: Journal, folder: Path
) -> None:
    """The checkpoint after it failed; with its log the number would go, and be given to another record."""
    made = OutboxEntry(1, b"record 1")

    def refuse(_rows: Rows) -> None:
        raise JournalError("disk I/O error")

    with monkeypatch.context() as broken:
        broken.setattr(Rows, "bring_in", refuse)
        with pytest.raises(JournalError):
            journal.mail.append(made, "svc.device.report")
        if noted_meanwhile:
            journal.mail.applied(1)
        with pytest.raises(JournalError):
            journal.mail.next_record(0)
    for _ in range(2):
        assert journal.mail.next_record(0) == made
    taken = taken_from(journal, folder, tmp_path / "taken")
    (taken / "journal.db-wal").unlink()
    again = open_journal(taken)
    assert (again.mail.next_record(0), again.mail.position().out_seq, again.halted) == (made, 1, "")
    again.close()


def test_an_outbox_is_counted_where_no_number_of_it_is_right(journal: Journal, folder: Path) -> None:
    mailed(journal)
    before = journal.mail.position()
    journal.close()
    (folder / "journal.db.witness").unlink()
    changed(folder, "UPDATE mail_state SET value = 2 WHERE name = 'out_seq'")
    again = open_journal(folder)
    assert (again.mail.position(), again.halted) == (before, "")
    again.close()


def test_a_sound_start_complains_of_nothing_and_writes_nothing_again(
    caplog: pytest.LogCaptureFixture, journal: Journal, folder: Path
) -> None:
    mailed(journal)
    append(journal, "0")
    journal.close()
    witness = (folder / "journal.db.witness").read_bytes()
    open_journal(folder).close()
    assert (folder / "journal.db.witness").read_bytes() == witness
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_an_outbox_record_that_is_gone_halts_and_its_number_is_used_up(
    journal: Journal, folder: Path
) -> None:
    mailed(journal)
    journal.close()
    changed(folder, "DELETE FROM outbox WHERE seq = 3")
    changed(folder, "UPDATE mail_state SET value = 2 WHERE name = 'out_seq'")
    again = open_journal(folder)
    assert "outbox records up to 3" in again.halted
    assert again.mail.position().out_seq == 3
    again.close()


def test_the_first_outbox_record_that_is_gone_halts(journal: Journal, folder: Path) -> None:
    """Nothing was acknowledged yet, so the file has no number for that."""
    journal.mail.append(OutboxEntry(1, b"record 1"), "svc.device.report")
    journal.close()
    changed(folder, "DELETE FROM outbox")
    again = open_journal(folder)
    assert "outbox records up to 1" in again.halted
    again.close()


def test_a_halt_outlives_its_row(journal: Journal, folder: Path) -> None:
    journal.halt("the service knows more")
    journal.close()
    changed(folder, "DELETE FROM meta WHERE name = 'halted'")
    again = open_journal(folder)
    assert again.halted == "the service knows more"
    again.close()


def test_a_verdict_that_the_witness_does_not_take_is_not_said(
    monkeypatch: pytest.MonkeyPatch, journal: Journal, folder: Path
) -> None:
    append(journal, "0")

    with monkeypatch.context() as broken:
        broken.setattr(Slots, "write", refused_write)
        with pytest.raises(JournalError, match="witness"):
            append(journal, "1")
        with pytest.raises(JournalError, match="witness"):
            journal.probe()
    journal.probe()
    assert append(journal, "2").seq == 3
    journal.close()
    again = open_journal(folder)
    assert not again.halted
    assert [one.seq for one in chain_of(again, 3)] == [1, 2, 3]
    again.close()


def test_a_verdict_that_was_not_said_is_never_given_and_goes_to_the_service_without_an_outcome(
    monkeypatch: pytest.MonkeyPatch, journal: Journal, folder: Path
) -> None:

    with monkeypatch.context() as broken:
        broken.setattr(Slots, "write", refused_write)
        with pytest.raises(JournalError, match="witness"):
            append(journal, "0")
    assert journal.remember_end(txn_id_of("0"), "1" * 32, ErrorCode.EXPIRED)
    journal.close()
    again = open_journal(folder)
    assert again.find_txn(txn_id_of("0")) == TxnMemory(txn_id_of("0"), "1" * 32, ended=ErrorCode.EXPIRED)
    assert again.unacknowledged(after_seq=0, upto_seq=9, limit=9) == []
    (item,) = again.mail.unmailed(9).items
    assert (item["signed_verdict"]["verdict"]["verdict_seq"], item["outcome_unknown"]) == (1, True)
    assert append(again, "1").seq == 2
    again.close()


def test_an_object_with_a_checksum_is_taken_as_it_was_or_not_at_all() -> None:
    obj = {"v": 1, "bundle_seq": 7}
    kept = with_checksum(obj)
    assert without_checksum(kept) == obj
    assert without_checksum(obj) == obj, "as written before there were checksums"
    for changed in (kept | {"bundle_seq": 5}, kept | {"more": 1}, kept | {"sha256": "0" * 64}):
        with pytest.raises(FormatError):
            without_checksum(changed)
