"""Inbox records: put together (LINK/1 §5), checked, opened, then applied by the same code that handles them
from the network.

A record's journey: `read_strict → check_inbox_record (shape, certificate, signature, box, src, dst, length,
hash, seq) → open_record → the handler of its type`. Parsing and pages run on the gallery's thread, so that
no passage waits for them. Every handler may run again for the same record after a power cut.
"""

import logging
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from device.errors import DeviceError, Outdated, TrustError, UpdateRefused
from device.platform.clock import Clock
from device.platform.threads import StoreThread
from device.trust.known_time import gallery_now, known_time_ms
from device.trust.service_status import ServiceStatus, StatusReader
from gallery.errors import GalleryError, PageRefused
from gallery.freshness import GalleryNow
from gallery.gallery import Applied, Gallery
from link1 import members
from link1.bodies import MAX_RECORD_BYTES, MailAck, MailChunk, MailState
from link1.canonical import JsonObject, canonical_bytes, read_strict
from link1.errors import FormatError, SealError, SignatureError
from link1.keys import PublicKey, SealKey
from link1.members import NAME
from link1.sealed import check_inbox_record, open_record

_log = logging.getLogger(__name__)


class InboxAssembly:
    """Assembles the record after the last applied: `take` returns the answer, or the whole record.

    The bytes received survive a reset of the link, so that a transfer continues; after a restart of the
    program it begins at 0 again."""

    def __init__(self, applied_seq: int) -> None:
        self.applied_seq = applied_seq
        self._total = 0
        self._data = bytearray()
        self._judging = False

    @property
    def next_seq(self) -> int:
        """The only record that is accepted now."""
        return self.applied_seq + 1

    def take(self, chunk: MailChunk) -> MailAck | bytes | None:
        """The answer to a chunk; the bytes of the record when it is complete and has to be judged; None while
        it is being judged."""
        if chunk.seq <= self.applied_seq:
            return self._ack(chunk.seq, MailState.APPLIED)
        if chunk.seq != self.next_seq:
            return self._ack(chunk.seq, MailState.GAP)
        if self._judging:
            return None
        if chunk.total != self._total:
            self._total = chunk.total
            self._data.clear()
        if chunk.offset == len(self._data):
            self._data += chunk.data
        if len(self._data) < self._total:
            return self._ack(chunk.seq, MailState.MORE)
        self._judging = True
        return bytes(self._data)

    def applied(self) -> MailAck:
        """The record has taken effect, durably."""
        self.applied_seq += 1
        self._restart()
        return self._ack(self.applied_seq, MailState.APPLIED)

    def refused(self, code: str) -> MailAck:
        """The record is rejected; it has to be sent again from the beginning."""
        self._restart()
        return self._ack(self.next_seq, MailState.REFUSED, code)

    def postponed(self) -> None:
        """The record cannot be judged now; the next question has it judged again."""
        self._judging = False

    def _restart(self) -> None:
        self._judging = False
        self._total = 0
        self._data.clear()

    def _ack(self, seq: int, state: MailState, code: str | None = None) -> MailAck:
        next_offset = len(self._data) if state is MailState.MORE else 0
        return MailAck(seq, next_offset, state, self.applied_seq, code)


class InboxType(StrEnum):
    GALLERY_HEAD = "svc.gallery.head"
    GALLERY_DELTAS = "svc.gallery.deltas"
    GALLERY_SNAPSHOT_PAGE = "svc.gallery.snapshot.page"
    REVOKE = "svc.device.revoke"
    CONFIG = "svc.config"
    TRUST_BUNDLE = "svc.trust.bundle"
    UPDATE_MANIFEST = "svc.update.manifest"
    UPDATE_CHUNK = "svc.update.chunk"
    RECEIPT = "svc.post.receipt"


class RecordRefused(DeviceError):
    """An inbox record that is rejected; `code` says why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


@dataclass(frozen=True, slots=True)
class AppliedRecord:
    """The effect of a record. `acked_upto_seq`: of a receipt, else 0. `behind`: the service's gallery is
    ahead of this device's, so a report of the device's position is due."""

    acked_upto_seq: int = 0
    behind: bool = False


class TakesUpdates(Protocol):
    """The receiver of releases. Raises TrustError, UpdateRefused, FormatError."""

    async def take_manifest(self, wrapper: JsonObject) -> object: ...

    async def take_chunk(self, body: JsonObject) -> None: ...


@dataclass(frozen=True, slots=True)
class MailApply:
    """Opens and applies one record after the other.

    `gallery` returns None while there is none to fill (revoked, or its store cannot be opened), `updates`
    while no updates are accepted. The functions after `clock` are called on the core's loop.
    """

    device_id: str
    seal_key: SealKey
    roots: Callable[[], tuple[PublicKey, ...]]
    revoked: Callable[[], Container[str]]
    """The kids of signers that count no more."""
    gallery: Callable[[], Gallery | None]
    statuses: StatusReader
    gallery_thread: StoreThread
    clock: Clock
    gallery_changed: Callable[[], None]
    """A page was applied: position, freshness or both have changed."""
    status_received: Callable[[ServiceStatus], Awaitable[str | None]]
    take_config: Callable[[JsonObject], Awaitable[None]]
    """Raises TrustError when no pinned root vouches for it."""
    take_bundle: Callable[[JsonObject], Awaitable[None]]
    """Raises TrustError when no pinned root vouches for it."""
    service_heard: Callable[[int], Awaitable[None]]
    """The service signed a record at this time (epoch) and it was verified."""
    updates: Callable[[], TakesUpdates | None]

    async def take(self, data: bytes, next_seq: int) -> AppliedRecord:
        """Apply a record: the bytes of its JSON. `next_seq`: the number expected now.

        Raises RecordRefused, and then nothing has changed; GalleryError or DeviceError when the device itself
        fails and the record has to be tried again.
        """
        created_ms, type_, body = await self.gallery_thread.do(lambda: self._open(data, next_seq))
        await self.service_heard(created_ms)
        try:
            return await self._apply(type_, body)
        except PageRefused as error:
            if error.superseded:
                _log.info("inbox record %d is older than the gallery (%s)", next_seq, error.code)
                return AppliedRecord()
            raise RecordRefused(str(error.code), str(error)) from error
        except Outdated as error:
            _log.info("inbox record %d holds nothing new: %s", next_seq, error)
            return AppliedRecord()
        except TrustError as error:
            raise RecordRefused("untrusted", str(error)) from error
        except UpdateRefused as error:
            raise RecordRefused(error.code, str(error)) from error
        except SignatureError as error:
            raise RecordRefused("bad_signature", str(error)) from error
        except FormatError as error:
            raise RecordRefused("malformed", str(error)) from error

    def _open(self, data: bytes, next_seq: int) -> tuple[int, InboxType, JsonObject]:
        try:
            record = read_strict(data, max_bytes=MAX_RECORD_BYTES)
            post, ciphertext = check_inbox_record(
                record,
                device_id=self.device_id,
                roots=list(self.roots()),
                now_ms=known_time_ms(self.gallery(), self.clock),
                next_seq=next_seq,
                revoked=self.revoked(),
            )
            word, body = open_record(record, ciphertext, self.seal_key)
        except SealError as error:
            raise RecordRefused(error.code, str(error)) from error
        except FormatError as error:
            raise RecordRefused("malformed", str(error)) from error
        if word not in {known.value for known in InboxType}:
            # The service replaces a refused record, so the records after it still arrive.
            raise RecordRefused("unsupported_type", "this software does not know this type of record")
        return post.created_ms, InboxType(word), body

    async def _apply(self, type_: InboxType, body: JsonObject) -> AppliedRecord:  # noqa: C901 - one line a type
        match type_:
            case InboxType.GALLERY_HEAD:
                return await self._page(lambda to, now: to.apply_head(body, now))
            case InboxType.GALLERY_DELTAS:
                return await self._page(lambda to, now: to.apply_deltas(canonical_bytes(body), now))
            case InboxType.GALLERY_SNAPSHOT_PAGE:
                return await self._page(lambda to, now: to.apply_snapshot_page(canonical_bytes(body), now))
            case InboxType.REVOKE:
                await self.status_received(self.statuses.read(body))
            case InboxType.CONFIG:
                await self.take_config(body)
            case InboxType.TRUST_BUNDLE:
                await self.take_bundle(body)
            case InboxType.UPDATE_MANIFEST:
                await self._accepting().take_manifest(body)
            case InboxType.UPDATE_CHUNK:
                await self._accepting().take_chunk(body)
            case InboxType.RECEIPT:
                if members.text(body, "device_id", NAME) != self.device_id:
                    raise FormatError("the receipt is for another device")
                return AppliedRecord(acked_upto_seq=members.integer(body, "acked_upto_seq"))
        return AppliedRecord()

    async def _page(self, apply: Callable[[Gallery, GalleryNow], Applied]) -> AppliedRecord:
        gallery = self.gallery()
        if gallery is None:
            return AppliedRecord()  # no gallery to apply it to
        now = gallery_now(self.clock)
        applied = await self.gallery_thread.do(lambda: apply(gallery, now))
        if applied.done:
            self.gallery_changed()
        return AppliedRecord(behind=applied.behind and applied.done)

    def _accepting(self) -> TakesUpdates:
        updates = self.updates()
        if updates is None:
            raise RecordRefused("unsupported_type", "this device accepts no updates now")
        return updates


Fault = (GalleryError, DeviceError, OSError)
"""What `MailApply.take` raises, besides RecordRefused, when the device itself fails."""
