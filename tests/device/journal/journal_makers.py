"""A journal in a folder, and verdicts in it."""

from pathlib import Path
from typing import Any

from device.journal.journal import Journal
from device.platform.clock import Clock
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

IDENTITY: dict[str, Any] = {
    "device_id": DEVICE_ID,
    "verdict_kid": VERDICT_KEY.kid,
    "data_key": DATA_KEY,
}


def make_journal(folder: Path, clock: Clock | None = None, **identity: Any) -> Journal:
    """The journal in `folder`, made where there is none."""
    if not (folder / "journal.db").exists():
        Journal.create(folder / "journal.db", **(IDENTITY | identity))
    return open_journal(folder, clock, **identity)


def open_journal(folder: Path, clock: Clock | None = None, **identity: Any) -> Journal:
    return Journal(folder / "journal.db", **(IDENTITY | identity), clock=clock or HandClock())


def append(journal: Journal, name: str) -> StoredVerdict:
    request, wrapper = make_request(name)

    def build(seq: int, prev_ref: str) -> JsonObject:
        return sign_verdict(request, REJECTED, seq, prev_ref)

    return journal.append_verdict(request.txn_id, object_ref(wrapper), build)
