"""The core's side of the carrier's socket: what the carrier may ask, and what it may deliver.

The carrier is trusted only with delivery. A page or status that it delivers is parsed and verified here or in
the gallery's thread; what it takes away is already signed. `device.values.carrier` says what each
operation takes and answers.

A delta's journey: page → `Gallery.apply_deltas` in the gallery's thread (verified head chain, one
transaction, index) → `gallery_changed` → the position in the reply, which the carrier's next request
acknowledges.

The `.next` operations wait for an item, and end when the carrier disconnects. All others are shielded from
that: a page that is being stored is completed, and its position reported.
"""

import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from cloud_client.contract import MAX_BATCH_ITEMS, MAX_CHUNK_BYTES
from device.core.attestations import Attestations
from device.enrolment.outbox import LONGEST_WAIT_MS, EnrolmentAnswer, EnrolmentOutbox, WaitingEnrolment
from device.errors import DeviceError, IpcRefused, TrustError
from device.journal.journal import Journal
from device.journal.upload import UploadBatch
from device.platform.clock import Clock
from device.platform.ipc import Handler, Packet, finishing, reply, reply_with
from device.platform.threads import StoreThread, wait_at_most
from device.trust.known_time import gallery_now
from device.trust.service_status import ServiceStatus, StatusReader
from device.updates.desk import UpdateDesk
from device.updates.manifest import MAX_MANIFEST_BYTES, OfferReader
from device.values import carrier
from device.values.status import SelfReport
from device.wipe.wipe import IS_WIPED
from gallery.errors import GalleryError, PageRefused
from gallery.gallery import Gallery
from link1 import members
from link1.canonical import JsonObject, read_with_fractions
from link1.errors import FormatError, Link1Error, SignatureError, reason_of
from link1.members import WORD
from link1.sealed import INBOX_CT_MAX_BYTES
from link1.signed import object_ref

_MAX_BATCH_ANSWER_BYTES: Final = 32 * 1024
"""An answer about 100 items has under 8 KiB. The journal's thread parses it, where a verdict may wait."""
_MAX_KEYS_BYTES: Final = 64 * 1024
_MAX_SERVICE_KEYS: Final = 64
_MAX_OFFER_BYTES: Final = 4 * MAX_MANIFEST_BYTES
_MAX_CHUNK_ANSWER_BYTES: Final = 2 * MAX_CHUNK_BYTES
"""A chunk in base64 has a third more."""
SEQ_CONFLICT: Final = "seq_conflict"
"""The service's code for a verdict_seq that it knows with another content (device surface §3)."""
_MAX_DETAIL_CHARACTERS: Final = 200
_CODE = re.compile(r"[a-z_]{1,64}")

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Errands:
    """Requests of an enrolment that wait for the carrier."""

    def __init__(self, clock: Clock) -> None:
        self.submitted = asyncio.Event()
        """Set when there may be something to fetch."""
        self.outbox = EnrolmentOutbox(wake=self._wake)
        self._clock = clock

    def _wake(self) -> None:
        self.submitted.set()
        # Also without a carrier: no palm data stays in memory longer than a session.
        asyncio.get_running_loop().call_later(
            LONGEST_WAIT_MS / 1000 + 1, lambda: self.outbox.expire(self._clock.monotonic_ms())
        )


@dataclass(eq=False)
class CarrierApi:
    """Answers one carrier. `handle` is the handler of an `IpcServer`. Everything runs on the core's loop,
    except work on a database.

    `gallery` returns None while there is none to serve (wiped, model mismatch), `updates` once a wipe has
    begun.
    """

    gallery: Callable[[], Gallery | None]
    journal: Journal
    http_key: Callable[[], bytes | None]
    """The 32 bytes that sign requests to the service; None once a wipe has taken them."""
    statuses: StatusReader
    journal_thread: StoreThread
    gallery_thread: StoreThread
    clock: Clock
    enrolments: Errands
    redeems: Errands
    gallery_changed: Callable[[], None]
    """A page was applied: position, freshness or both have changed."""
    status_received: Callable[[ServiceStatus], Awaitable[str | None]]
    """Returns the wipe_id once everything but the http key is destroyed, so that the carrier confirms the
    wipe to the service; else None."""
    wipe_confirmed: Callable[[str], Awaitable[None]]
    """The service knows that this device is wiped: the http key may be destroyed."""
    rolled_back: Callable[[str], Awaitable[None]]
    """The service knows a later state of this device than the present one. Raises JournalError."""
    keys_published: Callable[[list[JsonObject]], Awaitable[None]]
    """The items of GET /v1/keys. Raises TrustError."""
    server_time: Callable[[int], None]
    """The service's clock in epoch ms. It is unsigned, so it is used only for health."""
    link_state: Callable[[carrier.CloudState], None]
    """Whether the service is reachable."""
    wipe_id: Callable[[], str | None]
    """Of a completed wipe that is not yet reported to the service."""
    wipe_ended: Callable[[], bool]
    """The service knows of the wipe, or the validator has its record: the http key is destroyed."""
    report: Callable[[], SelfReport]
    updates: Callable[[], UpdateDesk | None]
    offers: OfferReader
    attestations: Attestations

    def __post_init__(self) -> None:
        self.refused_uploads: Counter[str] = Counter()
        """Since the start: code → how many items the service refused with it. The journal keeps them."""
        self.verdict_waiting, self.report_due = asyncio.Event(), asyncio.Event()
        """Set when the journal has a new entry for upload, and when a report may be due before its time."""
        self._last_ticket = 0
        self._batch: tuple[int, UploadBatch] | None = None
        self._reported: tuple[object, ...] = ()
        self._operations: dict[str, Handler] = {
            "verdicts.next": self._verdicts_next,
            "enrolment.next": partial(self._errand_next, self.enrolments),
            "redeem.next": partial(self._errand_next, self.redeems),
            "report.next": self._report_next,
            "hello": self._hello,
            "http_key": self._http_key,
            "gallery.deltas": self._gallery_deltas,
            "gallery.snapshot": self._gallery_snapshot,
            "verdicts.done": self._verdicts_done,
            "enrolment.done": partial(self._errand_done, self.enrolments),
            "redeem.done": partial(self._errand_done, self.redeems),
            "status": self._status,
            "wiped": self._wiped,
            "keys": self._keys,
            "time": self._time,
            "link_state": self._link_state,
            "attest": self._attest,
            "attested": self._attested,
            "updates": self._updates,
            "updates.wanted": self._updates_wanted,
            "updates.chunk": self._updates_chunk,
            "updates.gone": self._updates_gone,
        }

    async def handle(self, request: Packet) -> Packet:
        """Answer one request; raises IpcRefused."""
        op = str(request.header.get("op"))
        operation = self._operations.get(op)
        if operation is None:
            raise IpcRefused("unknown_op", "no such operation")
        try:
            if op.endswith(".next"):
                return await operation(request)
            return await finishing(operation)(request)
        except PageRefused as error:
            raise IpcRefused(str(error.code), str(error)) from error
        except SignatureError as error:
            raise IpcRefused("bad_signature", str(error)) from error
        except Link1Error as error:
            raise IpcRefused("malformed", str(error)) from error
        except TrustError as error:
            raise IpcRefused("untrusted", str(error)) from error
        except IpcRefused:
            raise
        except (GalleryError, DeviceError) as error:
            _log.error("%s cannot be carried out: %s", op, error)
            raise IpcRefused("store", str(error)) from error

    async def _hello(self, _request: Packet) -> Packet:
        if self.wipe_ended():  # maybe by mail, and then the carrier still has its copy of the http key
            raise IpcRefused(carrier.WIPED_CODE, IS_WIPED)
        gallery = self.gallery()
        position = None if gallery is None else _position(gallery)
        return reply_with(carrier.HelloAnswer(position, self.wipe_id()))

    async def _http_key(self, _request: Packet) -> Packet:
        key = self.http_key()
        if key is None:
            raise IpcRefused(carrier.WIPED_CODE, IS_WIPED)
        return reply(key)

    async def _gallery_deltas(self, request: Packet) -> Packet:
        gallery = self._serving_gallery()
        now = gallery_now(self.clock)
        await self.gallery_thread.do(lambda: gallery.apply_deltas(request.payload, now))
        self.gallery_changed()
        return reply_with(_position(gallery))

    async def _gallery_snapshot(self, request: Packet) -> Packet:
        gallery = self._serving_gallery()
        now = gallery_now(self.clock)
        applied = await self.gallery_thread.do(lambda: gallery.apply_snapshot_page(request.payload, now))
        if applied.done:
            self.gallery_changed()
        return reply_with(carrier.SnapshotPageTaken(applied.done, _position(gallery)))

    async def _verdicts_next(self, request: Packet) -> Packet:
        asked = carrier.BatchAsked.from_obj(request.header)
        batch = await _wait_for(
            self.verdict_waiting,
            lambda: self.journal_thread.do(lambda: self._next_batch(asked.limit)),
            asked.wait_ms,
        )
        if batch is None:
            return reply_with(carrier.BatchOffered(0, 0))
        items, body = batch
        self._last_ticket += 1
        # One batch is out at a time: a request for the next one invalidates it.
        self._batch = (self._last_ticket, items)
        return reply_with(carrier.BatchOffered(self._last_ticket, len(items.items)), body)

    def _next_batch(self, limit: int) -> tuple[UploadBatch, bytes] | None:
        """In the journal's thread."""
        batch = self.journal.next_upload(limit)
        if not batch.items:
            return None
        body = json.dumps({"items": batch.items}, ensure_ascii=False, separators=(",", ":"))
        return batch, body.encode("utf-8")

    async def _verdicts_done(self, request: Packet) -> Packet:
        answered = carrier.BatchAnswered.from_obj(request.header)
        if self._batch is None or self._batch[0] != answered.ticket:
            raise IpcRefused("unknown_ticket", "this batch is no longer valid; ask for the next one")
        batch = self._batch[1]
        self._batch = None
        code = "" if answered.status == 200 else _refusal_of(answered)
        taken, refused = await self.journal_thread.do(lambda: _judged(batch, code, request.payload))
        if SEQ_CONFLICT in refused.values():
            # First: what is settled is not offered again, and this word of the service would be lost.
            await self.rolled_back("the service holds another verdict with the same number")
        settled = sorted(taken | refused.keys())
        tickets = tuple(batch.tickets[index] for index in settled)
        await self.journal_thread.do(lambda: self.journal.uploaded(tickets))
        if refused:
            self.refused_uploads.update(refused.values())
            words = ", ".join(sorted(set(refused.values())))
            _log.error(
                "the service refused %d uploaded items (%s); the journal keeps them", len(refused), words
            )
        if silent_on := len(batch.items) - len(settled):
            raise IpcRefused("malformed", f"the answer is silent on {silent_on} items")
        return reply()

    async def _errand_next(self, errands: Errands, request: Packet) -> Packet:
        async def oldest() -> WaitingEnrolment | None:
            return errands.outbox.next(self.clock.monotonic_ms())

        asked = carrier.WaitAsked.from_obj(request.header)
        upload = await _wait_for(errands.submitted, oldest, asked.wait_ms)
        if upload is None:
            return reply_with(carrier.ErrandOffered(0))
        return reply_with(carrier.ErrandOffered(upload.ticket, upload.idempotency_key), upload.body)

    async def _errand_done(self, errands: Errands, request: Packet) -> Packet:
        answered = carrier.ErrandAnswered.from_obj(request.header)
        code = "" if 200 <= answered.status < 300 else _refusal_of(answered)
        if not errands.outbox.answered(
            answered.ticket, EnrolmentAnswer(answered.status, code, request.payload)
        ):
            raise IpcRefused("unknown_ticket", "this request was answered or withdrawn before")
        return reply()

    async def _status(self, request: Packet) -> Packet:
        # No longer than in a mail record, where an order to wipe is the same object.
        wrapper = await asyncio.to_thread(read_with_fractions, request.payload, max_bytes=INBOX_CT_MAX_BYTES)
        status = self.statuses.read(wrapper)
        wiped = await self.status_received(status)
        attest = wiped is None and self.attestations.due(status)
        return reply_with(carrier.StatusTaken(wiped, attest))

    async def _attest(self, _request: Packet) -> Packet:
        return reply(await self.attestations.body())

    async def _attested(self, request: Packet) -> Packet:
        answered = carrier.AttestAnswered.from_obj(request.header)
        try:
            await self.attestations.answered(answered.status, answered.code)
        except OSError as error:
            raise IpcRefused("store", f"the attestation cannot be noted: {reason_of(error)}") from error
        return reply()

    async def _wiped(self, request: Packet) -> Packet:
        await self.wipe_confirmed(carrier.WipeConfirmed.from_obj(request.header).wipe_id)
        return reply()

    async def _keys(self, request: Packet) -> Packet:
        listed = read_with_fractions(request.payload, max_bytes=_MAX_KEYS_BYTES)
        await self.keys_published(members.array(listed, "keys", 0, _MAX_SERVICE_KEYS))
        return reply()

    async def _time(self, request: Packet) -> Packet:
        self.server_time(carrier.ServiceTime.from_obj(request.header).server_time_ms)
        return reply()

    async def _link_state(self, request: Packet) -> Packet:
        state = carrier.CloudState.from_obj(request.header)
        self.link_state(carrier.CloudState(state.online, state.detail[:_MAX_DETAIL_CHARACTERS]))
        return reply()

    async def _report_next(self, request: Packet) -> Packet:
        async def news() -> SelfReport | None:
            report = self.report()
            return report if report.news != self._reported else None

        asked = carrier.WaitAsked.from_obj(request.header)
        report = await _wait_for(self.report_due, news, asked.wait_ms) or self.report()
        self._reported = report.news
        return reply(json.dumps(report.to_obj(), separators=(",", ":")).encode("ascii"))

    async def _updates(self, request: Packet) -> Packet:
        desk = self._accepting()
        answer = read_with_fractions(request.payload, max_bytes=_MAX_OFFER_BYTES)
        newest = None if desk.state is None else desk.state.offer
        offered = self.offers.read(answer, newest)
        self.attestations.service_wants(offered.attest_due)
        await desk.take_offer(offered)
        return reply_with(carrier.OfferTaken(offered.next_after_s, await _wanted(desk)))

    async def _updates_wanted(self, _request: Packet) -> Packet:
        return reply_with(carrier.UpdateChunkTaken(await _wanted(self._accepting())))

    async def _updates_chunk(self, request: Packet) -> Packet:
        desk = self._accepting()
        body = await asyncio.to_thread(
            read_with_fractions, request.payload, max_bytes=_MAX_CHUNK_ANSWER_BYTES
        )
        await desk.take_chunk(body)
        return reply_with(carrier.UpdateChunkTaken(await _wanted(desk)))

    async def _updates_gone(self, request: Packet) -> Packet:
        desk = self._accepting()
        await desk.withdraw(carrier.ReleaseGone.from_obj(request.header).release_seq)
        return reply_with(carrier.UpdateChunkTaken(await _wanted(desk)))

    def _accepting(self) -> UpdateDesk:
        desk = self.updates()
        if desk is None:
            raise IpcRefused(carrier.WIPED_CODE, "this device accepts no updates now")
        return desk

    def _serving_gallery(self) -> Gallery:
        gallery = self.gallery()
        if gallery is None:
            raise IpcRefused("no_gallery", "this device serves no gallery now; palmctl status says why")
        return gallery


async def _wait_for(
    waiting: asyncio.Event, look: Callable[[], Awaitable[_T | None]], wait_ms: int
) -> _T | None:
    """The result of `look`, now or when `waiting` is set; None when the time is over."""
    now_s = asyncio.get_running_loop().time
    until_s = now_s() + wait_ms / 1000
    while True:
        # Cleared before looking: an item added meanwhile sets it again.
        waiting.clear()
        found = await look()
        if found is not None:
            return found
        if not await wait_at_most(waiting, until_s - now_s()):
            return None


async def _wanted(desk: UpdateDesk) -> carrier.ChunkWanted | None:
    wanted = await desk.wanted_chunk()
    return None if wanted is None else carrier.ChunkWanted(*wanted)


def _position(gallery: Gallery) -> carrier.GalleryPosition:
    return carrier.GalleryPosition(gallery.position.epoch, gallery.position.seq)


def _refusal_of(answered: carrier.BatchAnswered | carrier.ErrandAnswered) -> str:
    if _CODE.fullmatch(answered.code) is None:
        raise FormatError(f"member code is not a string of the form {_CODE.pattern}")
    return answered.code


def _judged(batch: UploadBatch, code: str, answer: bytes) -> tuple[frozenset[int], dict[int, str]]:
    """The service's answer for each item. `code`: it refuses the whole body; the carrier has then reduced it
    to the one item at fault. Raises FormatError."""
    if code:
        return frozenset(), dict.fromkeys(range(len(batch.items)), code)
    return read_batch_answer(read_with_fractions(answer, max_bytes=_MAX_BATCH_ANSWER_BYTES), batch)


def read_batch_answer(answer: JsonObject, batch: UploadBatch) -> tuple[frozenset[int], dict[int, str]]:
    """The service's answer for each item: the indices it accepted, and index → code of those it refused.

    An item may be in both: its verdict is accepted, and its decision refused. Raises FormatError.
    """
    known = {
        ref
        for name in ("accepted", "duplicates")
        for ref in members.array(answer, name, 0, MAX_BATCH_ITEMS)
        if isinstance(ref, str)
    }
    refused = {}
    for item in members.array(answer, "rejected", 0, MAX_BATCH_ITEMS):
        if not isinstance(item, dict):
            raise FormatError("an item of rejected is not an object")
        index = members.integer(item, "index", 0, len(batch.items) - 1)
        refused[index] = members.text(item, "code", WORD)
    refs = [object_ref(item["signed_verdict"]) for item in batch.items]
    return frozenset(index for index, ref in enumerate(refs) if ref in known), refused
