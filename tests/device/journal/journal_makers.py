"""A journal in a folder, and verdicts in it."""

from pathlib import Path

from device.journal.journal import Journal
from device.values.transactions import StoredVerdict
from link1.canonical import JsonObject
from link1.signed import object_ref
from tests.device.core_makers import (
    DATA_KEY,
    DEVICE_ID,
    REJECTED,
    VERDICT_KEY,
    HandClock,
    make_request,
    sign_verdict,
)


def make_journal(folder: Path, clock: HandClock | None = None) -> Journal:
    """The journal in `folder`, made where there is none."""
    path = folder / "journal.db"
    if not path.exists():
        Journal.create(path, device_id=DEVICE_ID, verdict_kid=VERDICT_KEY.kid, data_key=DATA_KEY)
    return open_journal(folder, clock)


def open_journal(folder: Path, clock: HandClock | None = None) -> Journal:
    return Journal(
        folder / "journal.db",
        device_id=DEVICE_ID,
        verdict_kid=VERDICT_KEY.kid,
        data_key=DATA_KEY,
        clock=clock or HandClock(),
    )


def append(journal: Journal, name: str) -> StoredVerdict:
    request, wrapper = make_request(name)

    def build(seq: int, prev_ref: str) -> JsonObject:
        return sign_verdict(request, REJECTED, seq, prev_ref)

    return journal.append_verdict(request.txn_id, object_ref(wrapper), build)
