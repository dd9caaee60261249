"""The two ends of the mail without a server or a cable: a post office in memory, and a device's mail desk.

`PostOffice` seals what a service would send and reads what devices send back. `Mailed` is a device's state
directory with everything that mail touches; `running` is its desk for one life of the program, which a
`Fuse` ends as a power cut would.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from cloud_client.reference_server.contract.sealed import check_outbox_record
from device.journal.journal import Journal
from device.mail.apply import MailApply
from device.mail.desk import MailDesk
from device.mail.outbox import ReportedState, Sender
from device.platform.clock import SystemClock
from device.platform.threads import StoreThread
from device.trust.service_status import ServiceStatus, StatusReader
from device.values.status import HeldGallery, MailStatus
from device.values.transactions import StoredVerdict
from gallery.freshness import GalleryNow
from gallery.gallery import Gallery
from link1.bodies import Box, MailChunk, MailPull
from link1.canonical import JsonObject, canonical_bytes, read_strict
from link1.device_end import DeviceEnd
from link1.events import Down, Proven
from link1.keys import SealKey, SigningKey
from link1.sealed import (
    SignerCertificate,
    SignerPurpose,
    open_record,
    seal_record,
)
from link1.signed import Kind, sign_object
from link1.validator.mail import InboxSettled, MailEvent, OutboxCollected, ValidatorMail
from tests.device.carrier_setting import MODEL_ID, SERVICE_KEY, STREAM, Service, service_key
from tests.device.journal.journal_makers import make_journal
from tests.device.status_makers import some_device_status, some_report
from tests.link1.cable import DEVICE_KEY, Cable, device_status, make_device, make_validator

T = TypeVar("T")

DEVICE_ID = "dev-1"
DATA_KEY = bytes(range(32))
ROOT_KEY = SigningKey.from_seed(b"\x11" * 32)
POST_KEY = SigningKey.from_seed(b"\x12" * 32)
DEVICE_SEAL_KEY = SealKey.from_seed(b"\x13" * 32)
SERVICE_SEAL_KEY = SealKey.from_seed(b"\x14" * 32)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def sealed(seq: int, type_: str, body: JsonObject, **changed: Any) -> JsonObject:
    """An inbox record of the service's."""
    not_after_ms = changed.pop("not_after_ms", wall_ms() + 3_600_000)
    root = changed.pop("root", ROOT_KEY)
    given: dict[str, Any] = {
        "box": Box.IN,
        "src": "svc",
        "dst": DEVICE_ID,
        "seq": seq,
        "rid": f"{seq:032x}",
        "created_ms": wall_ms(),
        "type_": type_,
        "body": body,
        "to": DEVICE_SEAL_KEY.public,
        "signer": POST_KEY,
        "certificate": SignerCertificate.issue(SignerPurpose.POST, POST_KEY.public, not_after_ms, root),
    }
    return seal_record(**(given | changed))


def status_wrapper(issued_at_ms: int = 1_000, **changed: Any) -> JsonObject:
    """A signed device_status_obj of this device."""
    obj = some_device_status(device_id=DEVICE_ID, issued_at_ms=issued_at_ms) | changed
    return sign_object(Kind.DEVICE_STATUS, obj, SERVICE_KEY)


@dataclass
class PostOffice:
    """The service's side: an inbox, what came out of the outbox, and the gallery's stream."""

    stream: Service = field(default_factory=Service)
    inbox: list[bytes] = field(default_factory=list)
    read: dict[int, tuple[str, JsonObject]] = field(default_factory=dict)
    applied_seq: int = 0

    def post(self, type_: str, body: JsonObject) -> int:
        seq = len(self.inbox) + 1
        self.inbox.append(canonical_bytes(sealed(seq, type_, body)))
        return seq

    def post_deltas(self, after_seq: int, limit: int = 200) -> int:
        return self.post("svc.gallery.deltas", json.loads(self.stream.page(after_seq, limit)))

    def post_head(self) -> int:
        return self.post("svc.gallery.head", self.stream.head(issued_at_ms=wall_ms()))

    def post_receipt(self, acked_upto_seq: int | None = None) -> int:
        upto = self.applied_seq if acked_upto_seq is None else acked_upto_seq
        return self.post("svc.post.receipt", {"device_id": DEVICE_ID, "acked_upto_seq": upto})

    def take(self, data: bytes) -> None:
        """A record of the outbox, checked and read; a seq keeps its first content."""
        record = read_strict(data, max_bytes=1 << 20)
        post, ciphertext = check_outbox_record(record, device_id=DEVICE_ID, signer=DEVICE_KEY.public)
        content = open_record(record, ciphertext, SERVICE_SEAL_KEY)
        assert self.read.setdefault(post.seq, content) == content, "one seq, two contents"
        while self.applied_seq + 1 in self.read:
            self.applied_seq += 1

    def verdict_seqs(self) -> list[int]:
        """Of every verdict in the outbox, by rising seq of the records."""
        return [
            item["signed_verdict"]["verdict"]["verdict_seq"]
            for _, (type_, body) in sorted(self.read.items())
            if type_ == "svc.verdicts.batch"
            for item in body["items"]
        ]

    def reports(self) -> list[JsonObject]:
        return [body for _, (type_, body) in sorted(self.read.items()) if type_ == "svc.device.report"]


@dataclass
class Ears:
    """The core's ears."""

    gallery_changes: int = 0
    statuses: list[ServiceStatus] = field(default_factory=list)
    configs: list[JsonObject] = field(default_factory=list)
    bundles: list[JsonObject] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    rollbacks: list[str] = field(default_factory=list)

    def gallery_changed(self) -> None:
        self.gallery_changes += 1

    async def status_received(self, status: ServiceStatus) -> str | None:
        self.statuses.append(status)
        return None

    async def config_received(self, wrapper: JsonObject) -> None:
        self.configs.append(wrapper)

    async def service_time(self, at_ms: int) -> None:
        self.times.append(at_ms)

    async def bundle_received(self, wrapper: JsonObject) -> None:
        self.bundles.append(wrapper)

    async def rolled_back(self, why: str) -> None:
        self.rollbacks.append(why)


@dataclass
class MovingClock(SystemClock):
    """The wall clock is real; monotonic time is the cable's."""

    now_ms: int = 1_000

    def monotonic_ms(self) -> int:
        return self.now_ms


class PowerCut(Exception):
    """The program ends here, whatever it was doing."""


class Fuse:
    """Blows at the nth durable step of all threads together: before the step, or just after it."""

    def __init__(self, steps: int | None = None, *, after: bool = False) -> None:
        self.steps = steps
        self.after = after
        self.blown = False

    def before_step(self) -> bool:
        """Whether it blows after this step; raises PowerCut when it is blown or blows now."""
        if self.steps is not None:
            self.steps -= 1
            if self.steps == 0 and self.after:
                return True
            self.blown = self.blown or self.steps == 0
        if self.blown:
            raise PowerCut
        return False


class FusedThread(StoreThread):
    """Everything durable is done on such threads, so a fuse here cuts between any two steps."""

    def __init__(self, name: str, fuse: Fuse) -> None:
        super().__init__(name)
        self.fuse = fuse

    async def do(self, work: Callable[[], T]) -> T:
        blows_after = self.fuse.before_step()
        done = await super().do(work)
        if blows_after:
            self.fuse.blown = True
            raise PowerCut
        return done


@dataclass
class Living:
    """One life of the device's program, with a validator at the other end of the cable."""

    journal: Journal
    gallery: Gallery
    threads: tuple[FusedThread, FusedThread]
    fuse: Fuse
    desk: MailDesk
    apply: MailApply
    cable: Cable
    mail: ValidatorMail
    clock: MovingClock
    ears: Ears
    office: PostOffice
    settled: list[InboxSettled] = field(default_factory=list)

    async def decide(self, number: int) -> StoredVerdict:
        """A verdict that waits for no decision any more."""
        txn_id = f"{number:032x}"

        def build(seq: int, prev_ref: str) -> JsonObject:
            verdict = {"v": 1, "txn_id": txn_id, "verdict_seq": seq, "prev_ref": prev_ref}
            return sign_object(Kind.VERDICT, verdict, DEVICE_KEY)

        def work() -> StoredVerdict:
            stored = self.journal.append_verdict(txn_id, "0" * 32, build)
            self.journal.record_outcome_unknown(stored.ref)
            return stored

        return await self.threads[0].do(work)

    async def pending_uploads(self) -> int:
        return await self.threads[0].do(self.journal.pending_uploads)

    async def outbox_is_empty(self) -> bool:
        return await self.threads[0].do(lambda: self.journal.mail.next_record(0)) is None

    async def carry(self, rounds: int = 1, step_ms: int = 500) -> None:
        """Let the validator and the device talk; whatever the office has is offered."""
        for _ in range(rounds):
            done = self.mail.last_offered_seq or 0
            for seq in range(done + 1, len(self.office.inbox) + 1):
                self.mail.offer(seq, self.office.inbox[seq - 1])
            self.cable.run(step_ms)
            self.clock.now_ms = self.cable.now_ms
            await self.desk.finish()
            self.cable.exchange()

    async def carry_until(self, done: Callable[[], bool], rounds: int = 400) -> None:
        for _ in range(rounds):
            if done():
                return
            await self.carry()
        raise AssertionError("the mail never arrived")


class MailedValidator:
    """A validator's end with its mail, driven as a desk would."""

    def __init__(self, seed: int, on_mail: Callable[[MailEvent], None]) -> None:
        self.end = make_validator(seed=seed)
        self.mail = ValidatorMail(self.end)
        self.on_mail = on_mail

    def _follow(self, events: list[Any], now_ms: int) -> list[Any]:
        for event in events:
            for said in self.mail.follow(event, now_ms):
                self.on_mail(said)
        return events

    def port_opened(self, now_ms: int) -> list[Any]:
        return self._follow(self.end.port_opened(now_ms), now_ms)

    def port_closed(self, now_ms: int) -> list[Any]:
        return self._follow(self.end.port_closed(now_ms), now_ms)

    def receive(self, data: bytes, now_ms: int) -> list[Any]:
        return self._follow(self.end.receive(data, now_ms), now_ms)

    def tick(self, now_ms: int) -> list[Any]:
        events = self._follow(self.end.tick(now_ms), now_ms)
        self.mail.tick(now_ms)
        return events

    def next_deadline_ms(self) -> int | None:
        due = [at for at in (self.end.next_deadline_ms(), self.mail.next_deadline_ms()) if at is not None]
        return min(due, default=None)

    def data_to_send(self, now_ms: int, max_bytes: int = 4096) -> bytes:
        return self.end.data_to_send(now_ms, max_bytes)

    def sent(self, count: int, now_ms: int, in_port: int = 0) -> list[Any]:
        return self._follow(self.end.sent(count, now_ms, in_port), now_ms)


def open_gallery(folder: Path, clock: MovingClock) -> Gallery:
    return Gallery(
        folder,
        data_key=DATA_KEY,
        model_id=MODEL_ID,
        stream=STREAM,
        epoch=1,
        gallery_key=service_key,
        now=GalleryNow(clock.boottime_ms(), clock.wall_ms()),
    )


@dataclass
class Mailed:
    """A device's state directory, and the office that its mail comes from and goes to."""

    folder: Path
    office: PostOffice = field(default_factory=PostOffice)
    ears: Ears = field(default_factory=Ears)
    validator: MailedValidator | None = None
    online: bool = False
    network_awaited: bool = False
    revoked: tuple[str, ...] = ()
    lives: int = 0
    now_ms: int = 1_000

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Living]:
        """The device's program, from start to end; the validator outlives it."""
        self.lives += 1
        fuse = Fuse()
        threads = FusedThread("journal", fuse), FusedThread("gallery", fuse)
        clock = MovingClock(self.now_ms)
        identity = {"device_id": DEVICE_ID, "verdict_kid": DEVICE_KEY.kid}
        journal = await threads[0].do(lambda: make_journal(self.folder, clock, **identity))
        gallery = await threads[1].do(lambda: open_gallery(self.folder / "gallery", clock))
        apply = MailApply(
            device_id=DEVICE_ID,
            seal_key=DEVICE_SEAL_KEY,
            roots=lambda: (ROOT_KEY.public,),
            revoked=lambda: self.revoked,
            gallery=lambda: gallery,
            statuses=StatusReader(DEVICE_ID, service_key),
            gallery_thread=threads[1],
            clock=clock,
            gallery_changed=self.ears.gallery_changed,
            status_received=self.ears.status_received,
            take_config=self.ears.config_received,
            take_bundle=self.ears.bundle_received,
            service_heard=self.ears.service_time,
            updates=lambda: None,
        )

        def report(position: MailStatus) -> ReportedState:
            at = gallery.position
            held = HeldGallery(at.stream, at.epoch, at.seq)
            return ReportedState(some_report(gallery=held), position.refused)

        end = make_device(seed=self.lives + 10)
        desk = MailDesk(
            position=await threads[0].do(journal.mail.position),
            boxes=journal.mail,
            journal_thread=threads[0],
            sender=Sender(DEVICE_ID, DEVICE_KEY, lambda: SERVICE_SEAL_KEY.public),
            apply=apply,
            end=end,
            clock=clock,
            online=lambda: self.online,
            network_awaited=lambda: self.network_awaited,
            report=report,
            kick=lambda: None,
            store_failed=lambda _error: None,
            wipe_collected=lambda: None,
            rolled_back=self.ears.rolled_back,
        )
        settled: list[InboxSettled] = []

        def on_mail(event: MailEvent) -> None:
            if isinstance(event, OutboxCollected):
                self.office.take(event.data)
            elif isinstance(event, InboxSettled):
                settled.append(event)

        if self.validator is None:
            self.validator = MailedValidator(2, on_mail)
        self.validator.on_mail = on_mail
        cable = Cable(end, self.validator, now_ms=self.now_ms)
        cable.on_left = _to_desk(desk, end)
        living = Living(
            journal, gallery, threads, fuse, desk, apply, cable, self.validator.mail, clock, self.ears,
            self.office, settled,
        )  # fmt: skip
        if self.lives == 1:
            cable.open()
        else:
            cable.left.port_opened(cable.now_ms)
        try:
            yield living
        finally:
            await asyncio.gather(desk.finish(), return_exceptions=True)
            self.now_ms = cable.now_ms
            fuse.steps, fuse.blown = None, False
            await threads[1].do(gallery.close)
            await threads[0].do(journal.close)
            for thread in threads:
                thread.close()


def _to_desk(desk: MailDesk, end: DeviceEnd) -> Callable[[Any], None]:
    def handle(event: Any) -> None:
        match event:
            case MailChunk() as chunk:
                desk.received(chunk)
            case MailPull() as pull:
                desk.pulled(pull)
            case Proven():
                desk.session_began()
                end.send_status(device_status(mail=desk.marks))
            case Down():
                desk.session_ended()

    return handle
