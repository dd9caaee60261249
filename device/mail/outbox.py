"""The content of the outbox and when it is made: batches of verdicts and reports, sealed to the service.

A record is made when the validator asks for one (`mail_pull`) and none waits, so the outbox never grows
without a carrier; until then the journal is the queue.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from device.journal.mail import OutboxEntry
from device.values.status import RefusedMail, SelfReport
from link1.bodies import MAX_CHUNK_BYTES, Box, MailChunk, MailPull
from link1.canonical import JsonObject, canonical_bytes
from link1.keys import SealPublicKey, SigningKey
from link1.sealed import OUTBOX_CT_MAX_BYTES, SERVICE_ID, seal_record

REPORT_EVERY_MS: Final = 30_000
"""A device without a network receives changes after reporting its position; this bounds the delay."""
REPORT_APART_MS: Final = 2_000
"""The least time between two reports, however much changes."""
MAX_UNSETTLED: Final = 256
"""Beyond so many records without a receipt, neither a report nor a batch of evidence is made."""

_AROUND_BYTES: Final = 256
"""More than enc (32), tag (16) and the JSON around the items of a batch (about 60)."""


class OutboxType(StrEnum):
    VERDICTS = "svc.verdicts.batch"
    REPORT = "svc.device.report"
    WIPED = "svc.device.wiped"


@dataclass(frozen=True, slots=True)
class Sender:
    """The sending device and the recipient: the service's seal key that is pinned now."""

    device_id: str
    verdict_key: SigningKey
    service_key: Callable[[], SealPublicKey]

    def seal(self, seq: int, type_: OutboxType, body: JsonObject, *, created_ms: int) -> OutboxEntry:
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
        return OutboxEntry(seq, canonical_bytes(record))


def fitting(items: Sequence[JsonObject]) -> int:
    """How many of the first items fit into one record; at least one."""
    room = OUTBOX_CT_MAX_BYTES - _AROUND_BYTES
    for count, item in enumerate(items):
        room -= len(canonical_bytes(item)) + 1
        if room < 0:
            return max(1, count)
    return len(items)


@dataclass(frozen=True, slots=True)
class ReportedState:
    """The content of a report by mail: what is reported by network too, and the record that was refused."""

    report: SelfReport
    refused: RefusedMail | None

    @property
    def news(self) -> tuple[object, ...]:
        """A report is due soon after a change of this."""
        return self.report.news, self.report.gallery, self.refused

    def to_body(self, in_applied_seq: int) -> JsonObject:
        """The body of `svc.device.report`."""
        refused = self.refused
        return self.report.to_obj() | {
            "refused": [] if refused is None else [{"seq": refused.seq, "code": refused.code}],
            "mail": {"in_applied_seq": in_applied_seq},
        }


class ReportClock:
    """When a report is due: soon after a change or a request, else every `REPORT_EVERY_MS`."""

    def __init__(self) -> None:
        self._last: tuple[object, ...] = ()
        self._last_ms: int | None = None
        self._wanted = True

    def want(self) -> None:
        """A report is due even without a change: a new session began, or the service is ahead of this
        device."""
        self._wanted = True

    def due(self, state: ReportedState, now_ms: int) -> bool:
        if self._last_ms is None:
            return True
        age_ms = now_ms - self._last_ms
        if self._wanted or state.news != self._last:
            return age_ms >= REPORT_APART_MS
        return age_ms >= REPORT_EVERY_MS

    def made(self, state: ReportedState, now_ms: int) -> None:
        """A report of `state` is in the outbox."""
        self._last, self._last_ms, self._wanted = state.news, now_ms, False


class OutboxWindow:
    """Caches the record that is being pulled, so that not every chunk is read from the disk."""

    def __init__(self) -> None:
        self._record: OutboxEntry | None = None
        self._after_seq = 0

    def show(self, record: OutboxEntry, after_seq: int) -> None:
        """`record` is the first one after `after_seq`."""
        self._record, self._after_seq = record, after_seq

    def clear(self) -> None:
        self._record = None

    def record_for(self, pull: MailPull) -> OutboxEntry | None:
        """The cached record, if the pull asks for it."""
        record = self._record
        return record if record is not None and self._after_seq <= pull.after_seq < record.seq else None


def chunk_of(record: OutboxEntry, offset: int) -> MailChunk | None:
    """The chunk of `record` at `offset`; None when the record ends before it."""
    data = record.data[offset : offset + MAX_CHUNK_BYTES]
    return MailChunk(Box.OUT, record.seq, offset, len(record.data), data) if data else None
