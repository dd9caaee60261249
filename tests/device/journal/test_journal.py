import contextlib
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlite_utils import Database

from device.errors import JournalError
from device.journal import journal as journal_module
from device.journal.journal import MEMORY_MS, PURGE_ROWS, Journal
from device.journal.mail import OutboxEntry
from device.journal.rows import Rows
from device.journal.schema import make_tables
from device.journal.seal import RowSeal
from device.values.transactions import StoredVerdict
from link1.canonical import JsonObject
from link1.events import Backing
from link1.objects import ErrorCode, LastVerdict
from link1.signed import object_ref
from tests.device.core_makers import (
    DATA_KEY,
    DEVICE_ID,
    HTTP_KEY,
    REJECTED,
    VERDICT_KEY,
    HandClock,
    make_decision,
    make_passage,
    make_request,
    sign_verdict,
    txn_id_of,
)
from tests.device.journal.journal_makers import append, make_journal, open_journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Journal.create(
        tmp_path / "journal.db", device_id=DEVICE_ID, verdict_kid=VERDICT_KEY.kid, data_key=DATA_KEY
    )
    return tmp_path / "journal.db"


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def journal(path: Path, clock: HandClock) -> Iterator[Journal]:
    journal = open_journal(path.parent, clock)
    yield journal
    journal.close()


def tamper(path: Path, sql: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute(sql)


def upload_all(journal: Journal) -> list[JsonObject]:
    batch = journal.next_upload(100)
    journal.uploaded(batch.tickets)
    return list(batch.items)


# The chain


def test_numbers_and_refs_form_a_chain_across_restarts(path: Path) -> None:
    stored: list[StoredVerdict] = []
    for start in range(3):
        journal = open_journal(path.parent)
        stored += [append(journal, f"{start}-{number}") for number in range(4)]
        assert journal.last() == LastVerdict(stored[-1].seq, stored[-1].ref)
        journal.close()
    prev_ref = "0" * 32
    for seq, verdict in enumerate(stored, start=1):
        assert verdict.seq == seq
        assert verdict.wrapper["verdict"]["verdict_seq"] == seq
        assert verdict.wrapper["verdict"]["prev_ref"] == prev_ref
        assert verdict.ref == object_ref(verdict.wrapper)
        prev_ref = verdict.ref


@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=20, unique=True), st.data())
def test_a_txn_id_is_found_wherever_its_verdict_is(numbers: list[int], data: st.DataObject) -> None:
    """Also one of two that begin alike."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        db = Database(connection)
        make_tables(db)
        rows = Rows(db, RowSeal(DATA_KEY))
        beginnings = st.binary(min_size=4, max_size=4) | st.just(bytes(4))
        held = {data.draw(beginnings) + seq.to_bytes(12, "big"): seq for seq in numbers}
        db.table("verdicts").insert_all(
            {"seq": seq, "ref": "", "txn_id": txn_id, "request_ref": "", "operating_ms": 0}
            for txn_id, seq in held.items()
        )
        for txn_id, seq in held.items():
            assert rows.number_of(txn_id) == seq
            assert rows.number_of(txn_id[:4] + bytes(12)) is None


def test_no_txn_id_is_in_an_empty_journal(journal: Journal) -> None:
    assert journal.find_txn("00" * 16) is None


def test_an_empty_journal_has_no_last_verdict(journal: Journal) -> None:
    assert journal.last() is None
    assert journal.next_upload(10).items == ()


def test_a_signer_that_fails_uses_no_number_up(journal: Journal) -> None:
    def fails(_seq: int, _prev_ref: str) -> JsonObject:
        raise RuntimeError("the key is gone")

    append(journal, "a")
    with pytest.raises(RuntimeError):
        journal.append_verdict(txn_id_of("b"), "0" * 32, fails)
    assert append(journal, "c").seq == 2
    assert journal.find_txn(txn_id_of("b")) is None


def test_a_signer_that_signs_something_else_is_refused(journal: Journal) -> None:
    request, _ = make_request("a")
    wrong: list[tuple[str, Callable[[int, str], JsonObject]]] = [
        ("a", lambda seq, prev_ref: sign_verdict(request, REJECTED, seq + 1, prev_ref)),
        ("a", lambda seq, _prev_ref: sign_verdict(request, REJECTED, seq, "1" * 32)),
        ("b", lambda seq, prev_ref: sign_verdict(request, REJECTED, seq, prev_ref)),
    ]
    for name, build in wrong:
        with pytest.raises(JournalError, match="another number, prev_ref or txn_id"):
            journal.append_verdict(txn_id_of(name), "0" * 32, build)
    assert journal.last() is None


def test_one_verdict_for_each_txn(journal: Journal) -> None:
    first = append(journal, "a")
    with pytest.raises(JournalError, match="already has a verdict"):
        append(journal, "a")
    journal.remember_end(txn_id_of("b"), "0" * 32, ErrorCode.CANCELLED)
    with pytest.raises(JournalError, match="has ended"):
        append(journal, "b")
    assert journal.last() == LastVerdict(1, first.ref)


# Memory


def test_what_is_remembered_of_a_txn(path: Path, journal: Journal) -> None:
    stored = append(journal, "a")
    _, request_wrapper = make_request("a")
    _, decision = make_decision(stored)
    _, passage = make_passage(stored)
    assert journal.record_decision(stored.ref, decision, awaits_passage=True)
    assert journal.record_passage(stored.ref, passage)
    assert not journal.record_passage(stored.ref, passage), "the first alone is recorded"
    journal.close()
    again = open_journal(path.parent)
    memory = again.find_txn(txn_id_of("a"))
    assert memory is not None
    assert memory.verdict == stored
    assert memory.request_ref == object_ref(request_wrapper)
    assert (memory.decision_ref, memory.passage_ref) == (object_ref(decision), object_ref(passage))
    assert memory.ended is None
    assert again.find_txn(txn_id_of("z")) is None
    again.close()


def test_the_first_end_of_a_txn_stands(journal: Journal) -> None:
    journal.remember_end(txn_id_of("a"), "1" * 32, ErrorCode.EXPIRED)
    journal.remember_end(txn_id_of("a"), "2" * 32, ErrorCode.CANCELLED)
    memory = journal.find_txn(txn_id_of("a"))
    assert memory is not None
    assert (memory.ended, memory.request_ref, memory.verdict) == (ErrorCode.EXPIRED, "1" * 32, None)


def test_thirty_days_of_running_are_remembered(path: Path, clock: HandClock) -> None:
    journal = open_journal(path.parent, clock)
    append(journal, "old")
    journal.remember_end(txn_id_of("ended"), "1" * 32, ErrorCode.EXPIRED)
    append(journal, "unsent")
    upload = journal.next_upload(1)
    journal.uploaded(upload.tickets)
    clock.now_ms += MEMORY_MS
    append(journal, "new")
    assert journal.maintain() == 0
    journal.close()

    clock.now_ms = 5  # a restart: the monotonic clock begins anew, the time run does not
    journal = open_journal(path.parent, clock)
    clock.now_ms += 1
    assert journal.maintain() == 2
    assert journal.find_txn(txn_id_of("old")) is None
    assert journal.find_txn(txn_id_of("ended")) is None
    assert journal.find_txn(txn_id_of("unsent")) is not None
    assert append(journal, "newer").seq == 4
    journal.close()
    open_journal(path.parent).close()


def test_nothing_is_left_of_a_verdict_that_is_forgotten(path: Path, clock: HandClock) -> None:
    journal = open_journal(path.parent, clock)
    for name in "ab":
        stored = append(journal, name)
        decision, passage = make_decision(stored)[1], make_passage(stored)[1]
        journal.record_decision(stored.ref, decision, awaits_passage=True)
        journal.record_passage(stored.ref, passage)
        wrong = make_decision(stored, decision_seq=99)[1]
        journal.record_evidence("decision", wrong, txn_id_of(name))
    while upload_all(journal):
        pass
    clock.now_ms += MEMORY_MS + 1
    assert journal.maintain() == 1
    journal.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        for table in ("verdicts", "verdict_objects", "evidence"):
            assert db.execute(f"SELECT seq FROM {table}").fetchall() == [(2,)]
        assert db.execute("SELECT id / 2 FROM answers").fetchall() == [(2,), (2,)]


def test_evidence_that_the_service_does_not_have_keeps_its_verdict(path: Path, clock: HandClock) -> None:
    journal = open_journal(path.parent, clock)
    stored = append(journal, "a")
    append(journal, "b")
    upload_all(journal)
    clock.now_ms += MEMORY_MS - 1
    _, wrong = make_decision(stored, verdict_ref="e" * 32)
    journal.record_evidence("decision", wrong, txn_id_of("a"))
    clock.now_ms += 2
    assert journal.maintain() == 0
    assert upload_all(journal) == [{"signed_verdict": stored.wrapper, "signed_decision": wrong}]
    assert journal.maintain() == 1
    journal.close()


def test_the_newest_verdict_is_never_forgotten(path: Path, clock: HandClock) -> None:
    journal = open_journal(path.parent, clock)
    stored = append(journal, "a")
    upload_all(journal)
    clock.now_ms += 2 * MEMORY_MS
    assert journal.maintain() == 0
    assert append(journal, "b").wrapper["verdict"]["prev_ref"] == stored.ref
    journal.close()


def test_a_hole_left_by_forgetting_is_no_broken_chain(path: Path, clock: HandClock) -> None:
    journal = open_journal(path.parent, clock)
    for name in "abcd":
        append(journal, name)
    batch = journal.next_upload(4)
    journal.uploaded(batch.tickets[1:3])  # the service lacks the first and the last
    clock.now_ms += MEMORY_MS + 1
    assert journal.maintain() == 2
    journal.close()
    journal = open_journal(path.parent)
    assert [item["signed_verdict"]["verdict"]["verdict_seq"] for item in upload_all(journal)] == [1, 4]
    journal.close()


# What comes of verdicts, and its upload


def test_each_news_is_uploaded_once_with_the_verdict(journal: Journal) -> None:
    stored = append(journal, "a")
    _, decision = make_decision(stored)
    _, passage = make_passage(stored)
    assert upload_all(journal) == [{"signed_verdict": stored.wrapper}]
    assert upload_all(journal) == []

    journal.record_decision(stored.ref, decision, awaits_passage=True)
    journal.record_decision(stored.ref, decision, awaits_passage=True)
    assert upload_all(journal) == [{"signed_verdict": stored.wrapper, "signed_decision": decision}]

    assert journal.record_outcome_unknown(stored.ref)
    assert not journal.record_outcome_unknown(stored.ref)
    unknown = {"signed_verdict": stored.wrapper, "signed_decision": decision, "outcome_unknown": True}
    assert upload_all(journal) == [unknown]
    assert upload_all(journal) == []

    journal.record_passage(stored.ref, passage)
    whole = {"signed_verdict": stored.wrapper, "signed_decision": decision, "signed_passage": passage}
    assert upload_all(journal) == [whole]
    journal.record_outcome_unknown(stored.ref)
    assert upload_all(journal) == []


def test_news_that_come_during_an_upload_are_not_lost(journal: Journal) -> None:
    stored = append(journal, "a")
    batch = journal.next_upload(10)
    _, decision = make_decision(stored)
    journal.record_decision(stored.ref, decision, awaits_passage=False)
    journal.uploaded(batch.tickets)
    assert journal.pending_uploads() == 1
    assert upload_all(journal) == [{"signed_verdict": stored.wrapper, "signed_decision": decision}]
    journal.uploaded(batch.tickets)  # an answer that comes twice, and late
    assert journal.pending_uploads() == 0


def test_uploads_go_in_order_and_within_the_limit(journal: Journal) -> None:
    stored = [append(journal, name) for name in "abcde"]
    batch = journal.next_upload(3)
    assert [item["signed_verdict"] for item in batch.items] == [verdict.wrapper for verdict in stored[:3]]
    assert journal.next_upload(3) == batch  # not acknowledged: given again
    journal.uploaded(batch.tickets)
    assert [item["signed_verdict"] for item in upload_all(journal)] == [v.wrapper for v in stored[3:]]


def test_a_refused_item_waits_for_something_new(journal: Journal) -> None:
    stored = append(journal, "a")
    append(journal, "b")
    batch = journal.next_upload(10)
    journal.uploaded(batch.tickets)
    assert journal.pending_uploads() == 0
    _, decision = make_decision(stored)
    journal.record_decision(stored.ref, decision, awaits_passage=False)
    assert journal.pending_uploads() == 1


def test_a_late_decision_takes_the_unknown_back(journal: Journal) -> None:
    stored = append(journal, "a")
    journal.record_outcome_unknown(stored.ref)
    assert upload_all(journal) == [{"signed_verdict": stored.wrapper, "outcome_unknown": True}]
    _, decision = make_decision(stored)
    journal.record_decision(stored.ref, decision, awaits_passage=True)
    assert "outcome_unknown" not in upload_all(journal)[0]


def test_a_passage_may_come_before_its_decision(journal: Journal) -> None:
    stored = append(journal, "a")
    _, passage = make_passage(stored)
    _, decision = make_decision(stored)
    journal.record_passage(stored.ref, passage)
    assert open_seqs(journal) == [1]
    journal.record_decision(stored.ref, decision, awaits_passage=True)
    assert open_seqs(journal) == []


def test_answers_to_nothing_are_not_recorded(journal: Journal) -> None:
    stored = append(journal, "a")
    _, decision = make_decision(stored)
    assert not journal.record_decision("f" * 32, decision, awaits_passage=False)
    assert open_seqs(journal) == [1]
    assert journal.record_decision(stored.ref, decision, awaits_passage=False)
    assert not journal.record_decision(stored.ref, decision, awaits_passage=False)


def open_seqs(journal: Journal, after_seq: int = 0, upto_seq: int = 100, limit: int = 32) -> list[int]:
    found = journal.unacknowledged(after_seq=after_seq, upto_seq=upto_seq, limit=limit)
    return [verdict.verdict_seq for verdict in found]


def test_what_is_still_awaited(journal: Journal) -> None:
    stored = [append(journal, name) for name in "abcd"]
    _, decision = make_decision(stored[0])
    journal.record_decision(stored[0].ref, decision, awaits_passage=False)
    _, actuated = make_decision(stored[1])
    journal.record_decision(stored[1].ref, actuated, awaits_passage=True)
    journal.record_disowned([stored[2].ref, stored[1].ref, "f" * 32])
    assert open_seqs(journal) == [2, 4]
    assert open_seqs(journal, after_seq=2) == [4]
    assert open_seqs(journal, upto_seq=3) == [2]
    assert open_seqs(journal, limit=1) == [2]
    items = upload_all(journal)
    assert ["outcome_unknown" in item for item in items] == [False, False, True, False]
    _, late = make_decision(stored[2])
    journal.record_decision(stored[2].ref, late, awaits_passage=False)  # overrides `unknown`
    assert upload_all(journal) == [{"signed_verdict": stored[2].wrapper, "signed_decision": late}]


def test_after_a_start_what_was_awaited_is_unknown(journal: Journal) -> None:
    stored = [append(journal, name) for name in "abc"]
    _, decision = make_decision(stored[0])
    journal.record_decision(stored[0].ref, decision, awaits_passage=False)
    upload_all(journal)
    assert journal.close_open_outcomes() == 2
    assert journal.close_open_outcomes() == 0
    assert [item.get("outcome_unknown") for item in upload_all(journal)] == [True, True]
    assert open_seqs(journal) == [2, 3]


# Evidence


def test_evidence_is_kept_once_and_uploaded_beside_its_verdict(journal: Journal) -> None:
    stored = append(journal, "a")
    _, wrong = make_decision(stored, verdict_ref="e" * 32)
    _, stray = make_passage(stored, txn_id=txn_id_of("unheard of"))
    assert journal.record_evidence("decision", wrong, txn_id_of("a"))
    assert not journal.record_evidence("decision", wrong, txn_id_of("a"))
    assert journal.record_evidence("passage", stray, txn_id_of("unheard of"))
    assert not journal.record_evidence("passage", stray, None)
    assert upload_all(journal) == [{"signed_verdict": stored.wrapper}]
    assert upload_all(journal) == [{"signed_verdict": stored.wrapper, "signed_decision": wrong}]
    assert upload_all(journal) == []


def test_signed_evidence_is_bounded_for_a_txn_and_in_all(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "MAX_SIGNED_WAITING", 40)
    stored = {name: append(journal, name) for name in "abc"}
    upload_all(journal)
    for number in range(1, 21):
        for name in "abc":
            _, wrong = make_decision(stored[name], verdict_ref="e" * 32, decision_seq=number)
            assert journal.record_evidence("decision", wrong, txn_id_of(name))
    items = upload_all(journal)
    of_txn = Counter(item["signed_decision"]["decision_obj"]["txn_id"] for item in items)
    assert sorted(of_txn.values()) == [13, 13, 14]
    assert journal.evidence_beyond == 20
    for number in range(21, 31):  # there is room again, for each txn_id up to its own limit
        _, wrong = make_decision(stored["a"], verdict_ref="e" * 32, decision_seq=number)
        journal.record_evidence("decision", wrong, txn_id_of("a"))
    assert len(upload_all(journal)) == 16 - of_txn[txn_id_of("a")]


@pytest.mark.parametrize("backing", [Backing.UNSIGNED, Backing.REVOKED])
def test_no_number_of_unbacked_messages_hides_what_the_validator_signed(
    path: Path, journal: Journal, backing: Backing
) -> None:
    stored = append(journal, "a")
    _, first = make_decision(stored, actuated=True)
    journal.record_decision(stored.ref, first, awaits_passage=False)
    upload_all(journal)
    for number in range(1, 1_101):
        wrapper = {"decision_obj": {"n": number}, "alg": "ed25519", "signer_kid": "0" * 32, "sig_b64": ""}
        assert journal.record_evidence("decision", wrapper, txn_id_of("a"), backing)
    _, opposite = make_decision(stored, actuated=False)
    assert journal.record_evidence("decision", opposite, txn_id_of("a"))
    journal.close()
    again = open_journal(path.parent)
    items = upload_all(again)
    assert items[0] == {"signed_verdict": stored.wrapper, "signed_decision": opposite}, "it goes first"
    numbers = [item["signed_decision"]["decision_obj"]["n"] for item in items[1:]]
    assert numbers == list(range(1_085, 1_101)), "the last 16 of the others"
    again.close()


def test_a_month_of_wrong_decisions_makes_nothing_slow(path: Path, clock: HandClock) -> None:
    """A validator with a fault in it may sign one for each passage."""
    journal = open_journal(path.parent, clock)
    for number in range(PURGE_ROWS + 1):
        append(journal, str(number))
    stored = append(journal, "newest")
    while upload_all(journal):
        pass
    journal.close()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.executemany(
            "INSERT INTO evidence (ref, kind, seq, txn_id, backing, sealed, operating_ms, uploaded)"
            " VALUES (?, 'decision', ?, ?, 'signed', zeroblob(600), 0, 1)",
            ((f"{n:032x}", 1_000 + n, f"{n:032x}") for n in range(60_000)),
        )
    journal = open_journal(path.parent, clock)
    before_s = time.process_time()
    for number in range(10):
        _, wrong = make_decision(stored, verdict_ref="e" * 32, decision_seq=number + 1)
        assert journal.record_evidence("decision", wrong, txn_id_of("newest"))
    clock.now_ms += MEMORY_MS + 1
    assert journal.maintain() == PURGE_ROWS
    assert time.process_time() - before_s < 0.7, "each looks at what is its own"
    journal.close()


# Sealing


def test_nothing_about_a_person_stands_in_the_file(
    path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain: list[bytes] = []
    seal = RowSeal.seal

    def remembered(self: RowSeal, plaintext: bytes, *, table: str, row_id: str, seq: int) -> bytes:
        plain.append(plaintext)
        return seal(self, plaintext, table=table, row_id=row_id, seq=seq)

    monkeypatch.setattr(RowSeal, "seal", remembered)
    stored = append(journal, "a")
    _, decision = make_decision(stored)
    journal.record_decision(stored.ref, decision, awaits_passage=False)
    files = b"".join(file.read_bytes() for file in path.parent.iterdir())
    for secret in (b"NO_MATCH", b"LIBERAR", b"score_q", stored.wrapper["sig_b64"].encode()):
        assert secret not in files
    assert len(plain) == 3, "the verdict, its copy in the witness, the decision"
    assert not [packed for packed in plain if packed in files], "nor as it is packed"
    assert "NO_MATCH" not in repr(journal.next_upload(9)), "nor in a log that names a batch"


def test_every_release_knows_the_file_as_a_journal(path: Path) -> None:
    """By the four bytes that SQLite keeps at 68 for the program's own mark."""
    assert path.read_bytes()[68:72] == b"PAJ1"


@pytest.mark.parametrize(
    "sealed", ["(SELECT sealed FROM verdict_objects ORDER BY seq LIMIT 1)", "CAST(sealed AS TEXT)", "1"]
)
def test_rows_open_in_their_own_place_only_and_with_their_own_type(path: Path, sealed: str) -> None:
    journal = open_journal(path.parent)
    append(journal, "a")
    append(journal, "b")
    journal.close()
    tamper(path, f"UPDATE verdict_objects SET sealed = {sealed}")
    with pytest.raises(JournalError, match=r"does not open|Could not decode"):
        open_journal(path.parent)


# Opening


def refused(path: Path, words: str, **changes: str | bytes) -> None:
    members = {"device_id": DEVICE_ID, "verdict_kid": VERDICT_KEY.kid, "data_key": DATA_KEY} | changes
    with pytest.raises(JournalError, match=words):
        Journal(path, clock=HandClock(), **members)  # type: ignore[arg-type] # str and bytes mixed


def test_a_journal_that_leads_round_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "journal.db").symlink_to("journal.db")
    refused(tmp_path / "journal.db", "cannot be read .*; check its owner and mode")


def test_a_missing_journal_is_not_made_anew(tmp_path: Path) -> None:
    refused(tmp_path / "journal.db", "is missing although this device has keys; restore")
    assert not (tmp_path / "journal.db").exists()


def test_a_journal_is_never_overwritten(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(JournalError, match="never overwritten"):
        Journal.create(path, device_id=DEVICE_ID, verdict_kid=VERDICT_KEY.kid, data_key=DATA_KEY)
    assert path.read_bytes() == before


def test_a_left_over_log_is_not_played_into_a_new_journal(tmp_path: Path) -> None:
    (tmp_path / "journal.db-wal").write_bytes(b"of another database")
    with pytest.raises(JournalError, match="already exists"):
        Journal.create(
            tmp_path / "journal.db", device_id=DEVICE_ID, verdict_kid=VERDICT_KEY.kid, data_key=DATA_KEY
        )


def test_a_creation_that_was_cut_off_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "journal.db.partial").write_bytes(b"half")
    Journal.create(
        tmp_path / "journal.db", device_id=DEVICE_ID, verdict_kid=VERDICT_KEY.kid, data_key=DATA_KEY
    )
    assert [file.name for file in tmp_path.iterdir()] == ["journal.db"]
    assert (tmp_path / "journal.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"not a database", b"SQLite format 3\x00" + bytes(500)])
def test_a_file_that_is_no_journal(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    refused(path, "is damaged|cannot be opened|another program")
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "column", ["ended SET operating_ms", "mail_state SET value", "verdicts SET operating_ms"]
)
def test_a_column_that_damage_gave_another_type_is_damage_at_the_start(path: Path, column: str) -> None:
    journal = open_journal(path.parent)
    append(journal, "a")
    journal.remember_end(txn_id_of("ended"), "1" * 32, ErrorCode.EXPIRED)
    journal.mail.applied(1)
    journal.close()
    tamper(path, f"UPDATE {column} = 'text'")
    with pytest.raises(JournalError, match="damaged"):
        open_journal(path.parent)


def test_an_end_with_a_code_that_damage_changed_is_damage(path: Path) -> None:
    journal = open_journal(path.parent)
    journal.remember_end(txn_id_of("ended"), "1" * 32, ErrorCode.EXPIRED)
    journal.close()
    tamper(path, "UPDATE ended SET code = 'expibed'")
    journal = open_journal(path.parent)
    with pytest.raises(JournalError, match="damaged"):
        journal.find_txn(txn_id_of("ended"))
    assert append(journal, "a").seq == 1
    journal.close()


def test_a_torn_journal(path: Path) -> None:
    journal = open_journal(path.parent)
    for number in range(40):
        append(journal, str(number))
    journal.close()
    data = bytearray(path.read_bytes())
    for offset in range(4096 * 4, len(data), 4096):
        data[offset : offset + 600] = b"\xa5" * 600
    path.write_bytes(data)
    refused(path, "is damaged.*never put an empty or older journal in its place")


def test_a_journal_cut_short(path: Path) -> None:
    journal = open_journal(path.parent)
    for number in range(40):
        append(journal, str(number))
    journal.close()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    refused(path, "is damaged|cannot be opened")


def test_somebody_elses_journal(path: Path) -> None:
    refused(path, "belongs to another device", device_id="gate-8")
    refused(path, "belongs to another verdict key", verdict_kid=HTTP_KEY.kid)
    refused(path, "sealed with another key", data_key=bytes(32))
    open_journal(path.parent).close()


def test_a_journal_of_newer_software(path: Path) -> None:
    tamper(path, "PRAGMA user_version = 99")
    refused(path, r"written by newer software \(version 99")
    tamper(path, "PRAGMA user_version = 2")
    refused(path, r"written by software that is too old \(version 2")


def test_another_programs_database(tmp_path: Path) -> None:
    tamper(tmp_path / "journal.db", "CREATE TABLE t (x)")
    refused(tmp_path / "journal.db", "another program's database")


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE verdicts SET ref = lower(hex(randomblob(16))) WHERE seq = 2",
        "DELETE FROM verdict_objects WHERE seq = 1",
    ],
)
def test_a_broken_chain_is_not_continued(path: Path, damage: str) -> None:
    journal = open_journal(path.parent)
    for name in "abc":
        append(journal, name)
    journal.close()
    tamper(path, damage)
    refused(path, "the journal is damaged")


def test_a_verdict_that_another_one_took_the_place_of_breaks_the_chain(path: Path, tmp_path: Path) -> None:
    """Sealed for its place by this very device, as from an older card."""
    other = tmp_path / "other"
    other.mkdir()
    for place, names in ((tmp_path, "abc"), (other, "xyz")):
        journal = make_journal(place)
        for name in names:
            append(journal, name)
        journal.close()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("ATTACH ? AS other", (str(other / "journal.db"),))
        for table in ("verdicts", "verdict_objects"):
            db.execute(f"DELETE FROM {table} WHERE seq = 2")
            db.execute(f"INSERT INTO {table} SELECT * FROM other.{table} WHERE seq = 2")
    refused(path, "the chain of verdicts breaks below verdict_seq 3")


def test_only_one_process_writes(path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "connect", _impatient(sqlite3.connect))
    refused(path, "in use by another process; only one palmd may run")
    assert append(journal, "a").seq == 1


def _impatient(connect: Callable[..., sqlite3.Connection]) -> Callable[..., sqlite3.Connection]:
    return lambda *args, **kwargs: connect(*args, **(kwargs | {"timeout": 0.05}))


def test_an_inbox_begins_where_the_registration_says_and_never_goes_back(
    path: Path, journal: Journal
) -> None:
    journal.mail.begin_inbox(5)
    assert journal.mail.position().in_applied_seq == 4
    journal.mail.applied(5)
    journal.mail.begin_inbox(3)
    assert journal.mail.position().in_applied_seq == 5
    journal.close()
    journal = open_journal(path.parent)
    assert journal.mail.position().in_applied_seq == 5
    journal.close()


def test_an_outbox_record_whose_bytes_changed_is_not_sent(path: Path) -> None:
    journal = open_journal(path.parent)
    for seq in (1, 2):
        journal.mail.append(OutboxEntry(seq, b"record %d" % seq), "svc.device.report")
    journal.close()
    tamper(path, "UPDATE outbox SET record = X'00' WHERE seq = 2")
    journal = open_journal(path.parent)
    assert journal.mail.next_record(0) == OutboxEntry(1, b"record 1")
    with pytest.raises(JournalError, match="the bytes of outbox record 2 have changed"):
        journal.mail.next_record(1)
    journal.close()


def test_nothing_is_left_of_outbox_records_that_are_received(path: Path) -> None:
    journal = open_journal(path.parent)
    for seq in (1, 2, 3):
        journal.mail.append(OutboxEntry(seq, b"record %d" % seq), "svc.device.report")
    journal.mail.applied(1, acked_upto_seq=2)
    assert journal.mail.next_record(0) == OutboxEntry(3, b"record 3")
    journal.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT name FROM mail_state WHERE name LIKE 'sha256%'").fetchall() == [
            ("sha256 3",)
        ]


def test_a_journal_that_has_left_the_disk_goes_on_with_its_numbers(path: Path, journal: Journal) -> None:
    last = append(journal, "a")
    journal.mail.applied(1)
    journal.leave_disk()
    for file in path.parent.iterdir():
        file.unlink()
    journal.probe()
    after = append(journal, "b")
    assert (after.seq, after.wrapper["verdict"]["prev_ref"]) == (2, last.ref)
    assert journal.mail.position().in_applied_seq == 1
    assert journal.find_txn(txn_id_of("a")) is not None
    assert journal.pending_uploads() == 1, "what was before is uploaded no more"
    assert list(path.parent.iterdir()) == []


def test_a_killed_process_loses_nothing_it_promised(path: Path) -> None:
    child = os.fork()
    if child == 0:
        journal = open_journal(path.parent)
        append(journal, "a")
        append(journal, "b")
        os._exit(0)  # no close, no checkpoint
    os.waitpid(child, 0)
    journal = open_journal(path.parent)
    assert append(journal, "c").seq == 3
    journal.close()
