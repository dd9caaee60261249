"""A core for the carrier to talk to: the real API over the real gallery and journal, and what feeds it.

`Service` makes signed delta pages and statuses in memory, for tests without a server. `Core` is what palmd
composes, without camera and cable; its store thread is a thread.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from device.core.attestations import Attestations
from device.core.carrier_api import CarrierApi, Errands
from device.health import Health
from device.journal.journal import Journal
from device.platform.clock import SystemClock
from device.platform.ipc import IpcServer
from device.platform.threads import StoreThread
from device.trust.keystore import KeyStore
from device.trust.service_status import ServiceStatus, StatusReader
from device.updates.manifest import OfferReader
from device.values.carrier import CloudState
from device.values.transactions import StoredVerdict
from gallery.freshness import GalleryNow
from gallery.gallery import Gallery
from link1.canonical import JsonObject
from link1.keys import PublicKey, SealKey, SigningKey
from link1.signed import Kind, sign_object
from tests.device.journal.journal_makers import make_journal
from tests.device.status_makers import some_device_status, some_report
from tests.gallery import gallery_service

DEVICE_ID = "gate-7-left"
MODEL_ID = "m-test"
STREAM = "t1.test"
DATA_KEY = bytes(range(32))
SERVICE_KEY = SigningKey.from_seed(b"\x01" * 32)
VERDICT_KEY = SigningKey.from_seed(b"\x02" * 32)
HTTP_KEY = SigningKey.from_seed(bytes(range(32)))


def service_key(kid: str) -> PublicKey | None:
    return SERVICE_KEY.public if kid == SERVICE_KEY.kid else None


def vector(seed: int) -> bytes:
    values = np.random.default_rng(seed).standard_normal(512)
    return (values / np.linalg.norm(values)).astype("<f4").tobytes()


@dataclass
class Service(gallery_service.Service):
    """A stream of this device's tenant; each person has one template."""

    stream: str = STREAM
    key: SigningKey = SERVICE_KEY

    def enrol(self, person: int) -> None:
        self.upsert(gallery_service.entry(person, person, model_id=MODEL_ID))

    def page(self, after_seq: int = 0, limit: int = 200) -> bytes:
        return self.deltas(after_seq, limit, SystemClock().wall_ms())


def device_status(issued_at_ms: int = 1_000, key: SigningKey = SERVICE_KEY, **changed: Any) -> bytes:
    """A signed device_status_obj."""
    obj = some_device_status(issued_at_ms=issued_at_ms) | changed
    return json.dumps(sign_object(Kind.DEVICE_STATUS, obj, key)).encode()


@dataclass
class Heard:
    """The core's ears: everything that the API told it."""

    gallery_changes: int = 0
    statuses: list[ServiceStatus] = field(default_factory=list)
    links: list[CloudState] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    wiped: list[str] = field(default_factory=list)
    keys: list[list[JsonObject]] = field(default_factory=list)
    rollbacks: list[str] = field(default_factory=list)
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    def gallery_changed(self) -> None:
        self.gallery_changes += 1

    async def status_received(self, status: ServiceStatus) -> str | None:
        self.statuses.append(status)
        return status.wipe_id

    async def wipe_confirmed(self, wipe_id: str) -> None:
        self.wiped.append(wipe_id)

    async def rolled_back(self, why: str) -> None:
        self.rollbacks.append(why)

    async def keys_published(self, keys: list[JsonObject]) -> None:
        self.keys.append(keys)

    def server_time(self, wall_ms: int) -> None:
        self.times.append(wall_ms)

    def link_state(self, state: CloudState) -> None:
        self.links.append(state)


@dataclass
class Core:
    api: CarrierApi
    enrolments: Errands
    redeems: Errands
    gallery: Gallery
    journal: Journal
    store: StoreThread
    heard: Heard
    socket: Path

    async def in_store(self, work: Any, *arguments: Any, **named: Any) -> Any:
        return await self.store.do(lambda: work(*arguments, **named))

    async def decide(self, number: int) -> StoredVerdict:
        """A verdict becomes durable, as on a passage."""
        txn_id = f"{number:032x}"

        def build(seq: int, prev_ref: str) -> JsonObject:
            verdict = {"v": 1, "txn_id": txn_id, "verdict_seq": seq, "prev_ref": prev_ref}
            return sign_object(Kind.VERDICT, verdict, VERDICT_KEY)

        stored: StoredVerdict = await self.in_store(self.journal.append_verdict, txn_id, "0" * 32, build)
        self.api.verdict_waiting.set()
        return stored


@asynccontextmanager
async def running_core(
    folder: Path,
    *,
    stream: str = STREAM,
    epoch: int = 1,
    model_id: str = MODEL_ID,
    device_id: str = DEVICE_ID,
    key_of: Any = service_key,
    status_key: Any = service_key,
    newest_status_ms: int = 0,
    data_key: bytes = DATA_KEY,
    verdict_kid: str = VERDICT_KEY.kid,
    wiped: bool = False,
) -> AsyncIterator[Core]:
    """Open gallery and journal in `folder`, serve the carrier's socket, close everything again."""
    clock = SystemClock()
    store = StoreThread("store")
    identity = {"device_id": device_id, "verdict_kid": verdict_kid, "data_key": data_key}

    def open_all() -> tuple[Gallery, Journal]:
        gallery = Gallery(
            folder / "gallery",
            data_key=data_key,
            model_id=model_id,
            stream=stream,
            epoch=epoch,
            gallery_key=key_of,
            now=GalleryNow(clock.boottime_ms(), clock.wall_ms()),
        )
        return gallery, make_journal(folder, clock, **identity)

    gallery, journal = await store.do(open_all)
    heard = Heard()
    errands, redeems = Errands(clock), Errands(clock)
    keys = KeyStore(VERDICT_KEY, HTTP_KEY, SealKey.from_seed(b"\x04" * 32), data_key)
    api = CarrierApi(
        gallery=lambda: gallery,
        journal=journal,
        http_key=lambda: None if wiped else keys.http.seed,
        statuses=StatusReader(device_id, status_key, at_least_ms=lambda: newest_status_ms),
        journal_thread=store,
        gallery_thread=store,
        clock=clock,
        enrolments=errands,
        redeems=redeems,
        gallery_changed=heard.gallery_changed,
        status_received=heard.status_received,
        wipe_confirmed=heard.wipe_confirmed,
        rolled_back=heard.rolled_back,
        keys_published=heard.keys_published,
        server_time=heard.server_time,
        link_state=heard.link_state,
        wipe_id=lambda: None,
        wipe_ended=lambda: wiped,
        report=some_report,
        updates=lambda: None,
        offers=OfferReader(device_id, status_key, clock.wall_ms),
        attestations=Attestations(None, folder, keys, Health(lambda _words: None), clock),
    )
    server = await IpcServer.start(folder / "carrier.sock", api.handle)
    try:
        yield Core(api, errands, redeems, gallery, journal, store, heard, folder / "carrier.sock")
    finally:
        await server.close()
        await store.do(gallery.close)
        await store.do(journal.close)
        store.close()
