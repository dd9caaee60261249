"""Inbox records: checked, opened, then applied by the same code that handles them from the network.

A record's journey: `read_strict → check_inbox_record (shape, certificate, signature, box, src, dst, length,
hash, seq) → open_record → the handler of its type`. Parsing and pages run on the gallery's thread, so that
no passage waits for them. Every handler may run again for the same record after a power cut.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from device.errors import DeviceError, Outdated, TrustError, UpdateRefused
from device.platform.clock import Clock
from device.platform.threads import StoreThread
from device.trust.known_time import gallery_now, known_time_ms
from device.trust.service_status import ServiceStatus, StatusReader
from gallery.errors import GalleryError, PageRefused
from gallery.gallery import Applied, Gallery
from link1 import members
from link1.bodies import MAX_RECORD_BYTES
from link1.canonical import JsonObject, canonical_bytes, read_strict
from link1.errors import FormatError, SealError, SignatureError
from link1.keys import PublicKey, SealKey
from link1.members import NAME
from link1.sealed import check_inbox_record, open_record

_log = logging.getLogger(__name__)


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


class MailEvents(Protocol):
    """The core's reactions to mail. Called on the core's loop."""

    def gallery_changed(self) -> None:
        """A page was applied: position, freshness or both have changed."""
        ...

    async def status_received(self, status: ServiceStatus) -> str | None:
        """A verified status of this device."""
        ...

    async def config_received(self, wrapper: JsonObject) -> None:
        """A signed configuration. Raises TrustError when no pinned root vouches for it."""
        ...

    async def bundle_received(self, wrapper: JsonObject) -> None:
        """A signed trust bundle. Raises TrustError when no pinned root vouches for it."""
        ...

    async def service_time(self, at_ms: int) -> None:
        """The service signed a record at this time (epoch) and it was verified."""
        ...


class TakesUpdates(Protocol):
    """The receiver of releases. Raises TrustError, UpdateRefused, FormatError."""

    async def take_manifest(self, wrapper: JsonObject) -> object: ...

    async def take_chunk(self, body: JsonObject) -> None: ...


@dataclass(frozen=True, slots=True)
class ApplyParts:
    """What opening and applying needs. `gallery` returns None while there is none to fill (revoked, or its
    store cannot be opened), `updates` while no updates are accepted."""

    device_id: str
    seal_key: SealKey
    roots: Callable[[], tuple[PublicKey, ...]]
    gallery: Callable[[], Gallery | None]
    statuses: StatusReader
    gallery_thread: StoreThread
    clock: Clock
    events: MailEvents
    updates: Callable[[], TakesUpdates | None] = lambda: None


class MailApply:
    """Opens and applies one record after the other."""

    def __init__(self, parts: ApplyParts) -> None:
        self._parts = parts
        self._handlers: dict[InboxType, Callable[[JsonObject], Awaitable[AppliedRecord]]] = {
            InboxType.GALLERY_HEAD: lambda body: self._page(lambda to, now: to.apply_head(body, now)),
            InboxType.GALLERY_DELTAS: lambda body: self._page(
                lambda to, now: to.apply_deltas(canonical_bytes(body), now)
            ),
            InboxType.GALLERY_SNAPSHOT_PAGE: lambda body: self._page(
                lambda to, now: to.apply_snapshot_page(canonical_bytes(body), now)
            ),
            InboxType.REVOKE: self._status,
            InboxType.CONFIG: self._config,
            InboxType.TRUST_BUNDLE: self._bundle,
            InboxType.UPDATE_MANIFEST: self._manifest,
            InboxType.UPDATE_CHUNK: self._chunk,
            InboxType.RECEIPT: self._receipt,
        }

    async def take(self, data: bytes, next_seq: int) -> AppliedRecord:
        """Apply a record: the bytes of its JSON. `next_seq`: the number expected now.

        Raises RecordRefused, and then nothing has changed; GalleryError or DeviceError when the device itself
        fails and the record has to be tried again.
        """
        created_ms, type_, body = await self._parts.gallery_thread.do(lambda: self._open(data, next_seq))
        await self._parts.events.service_time(created_ms)
        try:
            return await self._handlers[type_](body)
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
        parts = self._parts
        try:
            record = read_strict(data, max_bytes=MAX_RECORD_BYTES)
            post, ciphertext = check_inbox_record(
                record,
                device_id=parts.device_id,
                roots=list(parts.roots()),
                now_ms=known_time_ms(parts.gallery(), parts.clock),
                next_seq=next_seq,
            )
            word, body = open_record(record, ciphertext, parts.seal_key)
        except SealError as error:
            raise RecordRefused(error.code, str(error)) from error
        except FormatError as error:
            raise RecordRefused("malformed", str(error)) from error
        type_ = next((known for known in InboxType if known == word), None)
        if type_ not in self._handlers:
            # The service replaces a refused record, so the records after it still arrive.
            raise RecordRefused("unsupported_type", "this software does not know this type of record")
        return post.created_ms, type_, body

    async def _page(self, apply: Callable[[Gallery, Any], Applied]) -> AppliedRecord:
        gallery = self._parts.gallery()
        if gallery is None:
            return AppliedRecord()  # no gallery to apply it to
        now = gallery_now(self._parts.clock)
        applied = await self._parts.gallery_thread.do(lambda: apply(gallery, now))
        if applied.done:
            self._parts.events.gallery_changed()
        return AppliedRecord(behind=applied.behind and applied.done)

    async def _status(self, body: JsonObject) -> AppliedRecord:
        await self._parts.events.status_received(self._parts.statuses.read(body))
        return AppliedRecord()

    async def _config(self, body: JsonObject) -> AppliedRecord:
        await self._parts.events.config_received(body)
        return AppliedRecord()

    async def _bundle(self, body: JsonObject) -> AppliedRecord:
        await self._parts.events.bundle_received(body)
        return AppliedRecord()

    async def _manifest(self, body: JsonObject) -> AppliedRecord:
        await self._updates().take_manifest(body)
        return AppliedRecord()

    async def _chunk(self, body: JsonObject) -> AppliedRecord:
        await self._updates().take_chunk(body)
        return AppliedRecord()

    def _updates(self) -> TakesUpdates:
        updates = self._parts.updates()
        if updates is None:
            raise RecordRefused("unsupported_type", "this device accepts no updates now")
        return updates

    async def _receipt(self, body: JsonObject) -> AppliedRecord:
        if members.text(body, "device_id", NAME) != self._parts.device_id:
            raise FormatError("the receipt is for another device")
        return AppliedRecord(acked_upto_seq=members.integer(body, "acked_upto_seq"))


Fault = (GalleryError, DeviceError, OSError)
"""What `MailApply.take` raises, besides RecordRefused, when the device itself fails."""
