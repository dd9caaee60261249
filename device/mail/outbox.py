"""What goes into the outbox, and when: batches of verdicts and reports, sealed to the service.

Records are made when somebody asks for them (`mail_pull`) and nothing waits, so the outbox never grows
without a carrier: until then the journal itself is the queue.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from device.journal.mail import OutboxRecord, RefusedRecord
from link1.bodies import MAX_CHUNK_BYTES, Box, MailChunk, MailPull
from link1.canonical import JsonObject, canonical_bytes
from link1.keys import SealPublicKey, SigningKey
from link1.objects import GalleryMark
from link1.sealed import OUTBOX_CT_MAX_BYTES, SERVICE_ID, seal_record

REPORT_EVERY_MS: Final = 30_000
"""A device without network learns of changes by reporting where it stands; this bounds how late."""
REPORT_APART_MS: Final = 2_000
"""However much changes, reports are at least so far apart."""
MAX_UNSETTLED: Final = 256
"""With so many records that no receipt covers, a report would tell nobody anything new."""

_AROUND_BYTES: Final = 256
"""More than enc (32), tag (16) and what stands around the items of a batch (about 60)."""


class OutboxType(StrEnum):
    VERDICTS = "svc.verdicts.batch"
    REPORT = "svc.device.report"
    WIPED = "svc.device.wiped"


@dataclass(frozen=True, slots=True)
class Sender:
    """Who seals, and to whom: the seal key of the service that is pinned now."""

    device_id: str
    verdict_key: SigningKey
    service_key: Callable[[], SealPublicKey]

    def seal(self, seq: int, type_: OutboxType, body: JsonObject, *, created_ms: int) -> OutboxRecord:
        """Record `seq` of the outbox. Raises FormatError when the body is too large."""
        record = seal_record(
            box=Box.OUT,
            src=self.device_id,
            dst=SERVICE_ID,
            seq=seq,
            rid=secrets.token_hex(16),
            created_ms=created_ms,
            type_=type_.value,
            body=body,
            to=self.service_key(),
            signer=self.verdict_key,
        )
        return OutboxRecord(seq, canonical_bytes(record))


def fitting(items: Sequence[JsonObject]) -> int:
    """How many of these items, from the first on, one record can carry; at least one."""
    room = OUTBOX_CT_MAX_BYTES - _AROUND_BYTES
    for count, item in enumerate(items):
        room -= len(canonical_bytes(item)) + 1
        if room < 0:
            return max(1, count)
    return len(items)


@dataclass(frozen=True, slots=True)
class Standing:
    """What a report tells of the device; `gallery` is None for a device that has none."""

    health: tuple[str, ...]
    gallery: GalleryMark | None
    refused: RefusedRecord | None

    def to_body(self, in_applied_seq: int) -> JsonObject:
        """The body of `svc.device.report`."""
        mark, refused = self.gallery, self.refused
        return {
            "health": list(self.health),
            "refused": [] if refused is None else [{"seq": refused.seq, "code": refused.code}],
            "gallery": None
            if mark is None
            else {"stream": mark.stream, "epoch": mark.epoch, "seq": mark.seq},
            "mail": {"in_applied_seq": in_applied_seq},
        }


class ReportClock:
    """When a report is due: soon after a change or when one was asked for, else every now and then."""

    def __init__(self) -> None:
        self._told: Standing | None = None
        self._told_at_ms: int | None = None
        self._wanted = True

    def want(self) -> None:
        """One is due whatever has changed: a new session, or the service is ahead of this device."""
        self._wanted = True

    def due(self, standing: Standing, now_ms: int) -> bool:
        if self._told_at_ms is None:
            return True
        age_ms = now_ms - self._told_at_ms
        if self._wanted or standing != self._told:
            return age_ms >= REPORT_APART_MS
        return age_ms >= REPORT_EVERY_MS

    def told(self, standing: Standing, now_ms: int) -> None:
        """A report of this is in the outbox."""
        self._told, self._told_at_ms, self._wanted = standing, now_ms, False


class OutboxWindow:
    """The record that is being pulled, so that not every chunk is read from the disk."""

    def __init__(self) -> None:
        self._record: OutboxRecord | None = None
        self._after_seq = 0

    def show(self, record: OutboxRecord, after_seq: int) -> None:
        """`record` is the first one behind `after_seq`."""
        self._record, self._after_seq = record, after_seq

    def clear(self) -> None:
        self._record = None

    def record_for(self, pull: MailPull) -> OutboxRecord | None:
        """The record that a pull asks for, if it is this one."""
        record = self._record
        return record if record is not None and self._after_seq <= pull.after_seq < record.seq else None


def chunk_of(record: OutboxRecord, offset: int) -> MailChunk | None:
    """The chunk of `record` from `offset` on; None when the record ends before it."""
    data = record.data[offset : offset + MAX_CHUNK_BYTES]
    return MailChunk(Box.OUT, record.seq, offset, len(record.data), data) if data else None
