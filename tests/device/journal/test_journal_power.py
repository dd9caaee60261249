"""A journal whose power goes: what was promised is there, in one unbroken chain, wherever the log is cut."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from device.journal.journal import Journal
from device.values.transactions import StoredVerdict
from link1.canonical import JsonObject
from link1.objects import ErrorCode
from tests.device.core_makers import (
    make_decision,
    txn_id_of,
)
from tests.device.journal.journal_makers import append, make_journal, open_journal


def chain_of(journal: Journal, count: int) -> list[StoredVerdict]:
    memories = [journal.find_txn(txn_id_of(str(number))) for number in range(count)]
    return [memory.verdict for memory in memories if memory is not None and memory.verdict is not None]


@pytest.fixture(scope="module")
def cut_off(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int], list[StoredVerdict]]:
    """A journal as it lies on the disk while it is open, and the length of its log at each promise."""
    folder = tmp_path_factory.mktemp("running")
    journal = make_journal(folder)
    lengths, stored = [], []
    for number in range(12):
        stored.append(append(journal, str(number)))
        lengths.append((folder / "journal.db-wal").stat().st_size)
    taken = tmp_path_factory.mktemp("taken")
    for file in folder.iterdir():
        shutil.copyfile(file, taken / file.name)
    journal.close()
    return taken, lengths, stored


def lies_in_ruins(taken: Path, folder: Path, damage: Callable[[bytes], bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    shutil.copyfile(taken / "journal.db", folder / "journal.db")
    (folder / "journal.db-wal").write_bytes(damage((taken / "journal.db-wal").read_bytes()))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(promised=st.integers(0, 12), beyond=st.integers(0, 30_000), garbage=st.binary(max_size=64))
def test_wherever_the_log_is_cut_promises_hold(
    tmp_path: Path,
    cut_off: tuple[Path, list[int], list[StoredVerdict]],
    promised: int,
    beyond: int,
    garbage: bytes,
) -> None:
    taken, lengths, stored = cut_off
    synced = lengths[promised - 1] if promised else 0
    lies_in_ruins(taken, tmp_path / "x", lambda log: log[: synced + beyond] + garbage)
    journal = open_journal(tmp_path / "x")
    found = chain_of(journal, 12)
    assert len(found) >= promised
    assert found == stored[: len(found)]
    following = append(journal, "after")
    assert following.seq == len(found) + 1
    assert following.wrapper["verdict"]["prev_ref"] == (found[-1].ref if found else "0" * 32)
    journal.close()


class Uploading:
    """A journal beside a dictionary of what the service should know in the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = make_journal(folder)
        self.stored: list[StoredVerdict] = []
        self.news: dict[int, JsonObject] = {}
        self.service: dict[int, JsonObject] = {}
        self.ends = 0

    def verdict(self) -> None:
        self.stored.append(append(self.journal, str(len(self.stored))))
        self.news[len(self.stored)] = {"signed_verdict": self.stored[-1].wrapper}

    def end(self) -> None:
        self.ends += 1
        self.journal.remember_end(txn_id_of(f"ended {self.ends}"), "1" * 32, ErrorCode.EXPIRED)

    def decision(self) -> None:
        if self.stored and "signed_decision" not in self.news[len(self.stored)]:
            _, decision = make_decision(self.stored[-1], actuated=False)
            self.journal.record_decision(self.stored[-1].ref, decision, awaits_passage=False)
            self.news[len(self.stored)].pop("outcome_unknown", None)
            self.news[len(self.stored)]["signed_decision"] = decision

    def unknown(self) -> None:
        if self.stored:
            self.journal.record_outcome_unknown(self.stored[-1].ref)
            if "signed_decision" not in self.news[len(self.stored)]:
                self.news[len(self.stored)]["outcome_unknown"] = True

    def upload(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        batch = self.journal.next_upload(3)
        for item in batch.items:
            self.service[item["signed_verdict"]["verdict"]["verdict_seq"]] = item
        meanwhile()
        self.journal.uploaded(batch.tickets)

    def upload_while_news_come(self) -> None:
        self.upload(self.decision)

    def maintain(self) -> None:
        assert self.journal.maintain() == 0

    def restart(self) -> None:
        self.journal.close()
        self.journal = open_journal(self.folder)


operations = st.sampled_from(
    [
        Uploading.verdict,
        Uploading.upload,
        Uploading.decision,
        Uploading.unknown,
        Uploading.upload_while_news_come,
        Uploading.end,
        Uploading.maintain,
        Uploading.restart,
    ]
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=st.lists(operations, min_size=8, max_size=25))
def test_the_service_learns_everything(
    tmp_path_factory: pytest.TempPathFactory, run: list[Callable[[Uploading], None]]
) -> None:
    uploading = Uploading(tmp_path_factory.mktemp("model"))
    for operation in run:
        operation(uploading)
    while uploading.journal.pending_uploads():
        uploading.upload()
    assert uploading.service == uploading.news
    uploading.journal.close()
