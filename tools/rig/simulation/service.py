"""The service: the reference server's whole application over SQLite, called in this process.

Every request passes its real route, authentication, limits, idempotency and domain. Not here: HTTP itself,
TLS, the server's threads (their work is done where it is asked for) and a loss of the server's disk. Operator
and back office use the functions and routes that they have.
"""

import asyncio
import json
import secrets
import shutil
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
import numpy as np
from numpy.typing import NDArray

from cloud_client.client import CloudClient, ServerAddress
from cloud_client.reference_server.contract.words import Scope
from cloud_client.reference_server.domain.call import Service
from cloud_client.reference_server.domain.devices import config as device_config
from cloud_client.reference_server.domain.gallery import log as gallery_log
from cloud_client.reference_server.domain.gallery.palm_index import PalmIndex
from cloud_client.reference_server.domain.gallery.waiters import Waiters
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.ops import commands as operator
from cloud_client.reference_server.ops.data_directory import DataDirectory
from cloud_client.reference_server.store.async_store import AsyncStore
from cloud_client.reference_server.store.base import WHOLE, Change, CloudStore, Tx
from cloud_client.reference_server.store.engines import connect_store
from cloud_client.reference_server.store.health import StoreHealth
from cloud_client.reference_server.store.vault import FIRST_KEY, Vault
from cloud_client.reference_server.web.api.app import Api
from cloud_client.reference_server.web.api.changes import followed
from cloud_client.reference_server.web.api.operation import Operation
from cloud_client.reference_server.web.api.operations import OPERATIONS
from cloud_client.reference_server.web.api.rate_limit import LocalLimiter
from cloud_client.reference_server.web.routing import Routes
from device.config.config import (
    CameraSection,
    CloudSection,
    DeviceConfig,
    DeviceSection,
    EnrolmentSection,
    LinkSection,
    ModelSection,
)
from device.journal.journal import Journal
from device.provisioning.online import RegistrationFacts, check_registration, own_keys, registration_body
from device.trust.trust import save_trust
from device.updates.models import NO_MODEL_ID
from link1.canonical import JsonObject, b64_encode
from link1.keys import SigningKey
from tools.rig.simulation.crash_disk import Tree

ORIGIN: Final = "http://127.0.0.1:8710"
START_MS: Final = 1_790_000_000_000
"""The service's clock is right: this, and the simulation's time since its start."""
DEVICE_ID, GATE_ID, DBD_ID = "gate-7-left", "gate-7", "dbd-7"
DBD_KEYS: Final = [SigningKey.from_seed(bytes([number]) * 32) for number in (30, 31, 32)]
"""The validator's: one of before the run, the one in use, and the next."""
DBD_KEY: Final = DBD_KEYS[1]
PEOPLE: Final = 8
ENROLLED_AT_START: Final = 5
TTL_MS: Final = 90_000
"""The gallery's time to live as the service configures it here; six hours would be simulated by sleep
alone."""
DECISION_MS, PASSAGE_MS = 5_000, 10_000

T = TypeVar("T")
Answered = tuple[int, list[tuple[bytes, bytes]], bytes]


@cache
def palm(person: int) -> NDArray[np.float32]:
    """The (512,) float32 unit vector of a person's hand."""
    vector = np.random.default_rng(person).standard_normal(512).astype("<f4")
    unit: NDArray[np.float32] = vector / np.linalg.norm(vector)
    return unit


class InlineStore(AsyncStore):
    """The server's store without its threads: work is done in the caller's step, between two awaits."""

    def __init__(self, store: CloudStore) -> None:
        self._inline = store
        self._news = asyncio.Event()
        self.engine = store.engine
        self.written = False
        """Whether anything was committed since this was last set to False."""

    async def write(self, work: Callable[[Tx], T], *, durable: bool = True, lock: str | None = WHOLE) -> T:
        await asyncio.sleep(0)
        return self.write_now(work, durable=durable, lock=lock)

    def write_now(self, work: Callable[[Tx], T], *, durable: bool = True, lock: str | None = WHOLE) -> T:
        """The same, without a step in between."""
        with self._inline.writing(durable=durable, lock=lock) as tx:
            result = work(tx)
        self.written = True
        if tx.purge_after_commit:
            self._inline.purge()
        if tx.announced:
            self._news.set()
        return result

    async def read(self, work: Callable[[Tx], T]) -> T:
        return self._inline.read(work)

    async def read_aside(self, work: Callable[[Tx], T]) -> T:
        await asyncio.sleep(0)
        return self._inline.read(work)

    def read_now(self, work: Callable[[Tx], T]) -> T:
        return self._inline.read(work)

    @property
    def queued(self) -> dict[str, int]:
        return {"write": 0, "read": 0}

    def changes(self) -> AsyncGenerator[list[Change], None]:
        return self._changes()

    async def _changes(self) -> AsyncGenerator[list[Change], None]:
        while True:
            self._news.clear()
            yield []
            await self._news.wait()

    def close(self) -> None:
        self._inline.close()


_TABLE: Final[dict[str, dict[str, Operation]]] = {}
for _operation in OPERATIONS:
    _TABLE.setdefault(_operation.path, {})[_operation.method] = _operation
_ROUTES: Final = Routes(_TABLE)


@dataclass(frozen=True)
class Prepared:
    """What every run begins with: a registered device, its validator, people. Made once a process."""

    folder: Path
    device: Tree
    environment: Environment
    api_key: str
    subjects: tuple[str, ...]
    """subject_id of each person."""
    refs: tuple[str, ...]
    """subject_ref of each person."""
    verdict_key: SigningKey
    http_key: SigningKey
    data_key: bytes = field(repr=False)


class RunningService:
    """One start of the server process over a data directory."""

    def __init__(self, folder: Path, now_ms: Callable[[], int], monotonic_s: Callable[[], float]) -> None:
        self.now_ms = now_ms
        self.vault = Vault.open(folder / "secrets", FIRST_KEY)
        self.store = InlineStore(connect_store(folder / "cloud.db"))
        service = Service(self.vault, now_ms, PalmIndex(), Waiters(), StoreHealth())
        self.api = Api(service, self.store, LocalLimiter(monotonic_s))

    async def follow_changes(self) -> None:
        """What the application's lifespan does."""
        async with followed(self.api.service, self.store):
            await asyncio.Event().wait()

    async def answer(self, request: httpx.Request, body: bytes) -> Answered:
        """One HTTP request through the whole application."""
        path, _, query = request.url.raw_path.partition(b"?")
        scope = {
            "type": "http",
            "method": request.method,
            "scheme": "http",
            "path": path.decode(),
            "raw_path": path,
            "query_string": query,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "client": ("192.0.2.1", 1),
            "state": {},
        }
        sent: list[Any] = []
        left = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return left.pop() if left else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        await self.api.handle(_ROUTES, _TABLE, scope, receive, send)
        whole = b"".join(message.get("body", b"") for message in sent)
        return sent[0]["status"], sent[0]["headers"], whole

    # The operator

    def operate(self, work: Callable[[Tx, Vault, int], T]) -> T:
        """What ``palmctl cloud …`` does."""
        return self.store.write_now(lambda tx: work(tx, self.vault, self.now_ms()))

    def state_of_stream(self, environment: Environment) -> gallery_log.StreamState:
        return self.store.read_now(lambda tx: gallery_log.state_of_stream(tx, environment))


class DirectTransport(httpx.AsyncBaseTransport):
    """A network without any trouble."""

    def __init__(self, service: RunningService) -> None:
        self._service = service

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        status, headers, body = await self._service.answer(request, await request.aread())
        return httpx.Response(status, headers=headers, stream=httpx.ByteStream(body))


class PartnerOffice:
    """A partner with an API key."""

    def __init__(self, transport: httpx.AsyncBaseTransport, api_key: str) -> None:
        self._http = httpx.AsyncClient(
            transport=transport,
            base_url=ORIGIN,
            headers={"Authorization": f"Bearer {api_key}"},
            trust_env=False,
        )

    async def post(self, path: str, body: JsonObject) -> JsonObject:
        return _good(
            await self._http.post(path, json=body, headers={"Idempotency-Key": secrets.token_hex(16)})
        )

    async def delete(self, path: str) -> JsonObject:
        return _good(await self._http.delete(path))

    async def session(self, subject_id: str, hands: Sequence[str] = ("L",)) -> str:
        """A token with which a device enrols this person."""
        asked = {"subject_id": subject_id, "hands_required": list(hands)}
        made = await self.post("/v1/enrollment-sessions", asked)
        return str(made["token"])


def _good(response: httpx.Response) -> JsonObject:
    if not response.is_success:
        raise RuntimeError(f"the service answered {response.status_code}: {response.text}")
    answer: JsonObject = response.json()
    return answer


def captured_hand(hand: str, vector: NDArray[np.float32], quality_q: int) -> JsonObject:
    """One vector (512,) of a live hand, `L` or `R`, as ``POST /v1/enrollments`` takes it."""
    pad = {"res": "pass", "mech": "texture", "score_q": 9000}
    encoded = b64_encode(vector.astype("<f4").tobytes())
    return {"hand": hand, "vector_b64": encoded, "quality_q": quality_q, "pad": pad}


def enrolment_body(token: str, hands: list[JsonObject], model_id: str) -> bytes:
    """The body of ``POST /v1/enrollments``."""
    body = {"token": token, "model_id": model_id, "hands": hands, "consents": []}
    return json.dumps(body).encode()


def config_of(state: Path) -> DeviceConfig:
    """The configuration of the device in a folder."""
    return DeviceConfig(
        device=DeviceSection(DEVICE_ID, GATE_ID, DBD_ID, state, state),
        camera=CameraSection("file:none", 30, False, "rgb"),
        link=LinkSection("simulated", 921_600),
        cloud=CloudSection(ORIGIN, None),
        model=ModelSection(state / "no-model"),
        enrolment=EnrolmentSection(("L",)),
    )


@dataclass(frozen=True, slots=True)
class Premises:
    """What a world begins with: who there is, and how devices are configured.

    `people`: external references, of which the first `enrolled` are enrolled. `hands`: a person's
    captures, as `captured_hand` makes them. `settings`: the service's configuration of devices. `config`: the
    device's own, in a folder.
    """

    people: tuple[str, ...]
    enrolled: int
    hands: Callable[[int], list[JsonObject]]
    model_id: str
    settings: Mapping[str, int]
    config: Callable[[Path], DeviceConfig]


DRAWN: Final = Premises(
    people=tuple(f"person-{person}" for person in range(PEOPLE)),
    enrolled=ENROLLED_AT_START,
    hands=lambda person: [captured_hand("L", palm(person), 90)],
    model_id=NO_MODEL_ID,
    settings={
        "gallery_ttl_ms": TTL_MS,
        "decision_timeout_ms": DECISION_MS,
        "passage_timeout_ms": PASSAGE_MS,
    },
    config=config_of,
)
"""People whose vectors are drawn; no picture and no model."""


async def prepare(folder: Path, premises: Premises = DRAWN) -> Prepared:
    """Set up a service, a tenant, a validator's key, a device and people below `folder`."""
    data, state = folder / "cloud", folder / "device"
    config = premises.config(state)
    state.mkdir(mode=0o700)
    store, _ = DataDirectory.of(data).open(START_MS)
    store.close()
    service = RunningService(data, lambda: START_MS, lambda: 0.0)
    tenant = str(
        service.operate(lambda tx, vault, now: operator.create_tenant(tx, vault, "metro", now))["tenant_id"]
    )
    environment = Environment(tenant, livemode=False)

    def settings(tx: Tx, _vault: Vault, now: int) -> tuple[str, str]:
        for key in (DBD_KEYS[0], DBD_KEY):  # so the span of the key in use begins now
            operator.add_dbd(tx, environment, DBD_ID, key.public.b64, now)
        device_config.change_config(tx, environment, dict(premises.settings), now)
        made = operator.create_key(tx, environment, [scope.value for scope in Scope], now)
        return made["api_key"], operator.create_token(tx, environment, DEVICE_ID, 3600, now)["token"]

    api_key, token = service.operate(settings)
    keys, _ = own_keys(config)
    Journal.create(
        config.journal_path, device_id=DEVICE_ID, verdict_kid=keys.verdict.kid, data_key=keys.data_key
    )
    facts = RegistrationFacts(
        DEVICE_ID, GATE_ID, DBD_ID, passage_sensor=True, app_version="1", model_id=premises.model_id
    )
    transport = DirectTransport(service)
    office = PartnerOffice(transport, api_key)
    address = ServerAddress.parse(ORIGIN)
    # `/v1/devices/register` answers once a second for one token: the limiter's clock stands still here.
    device = CloudClient(address, keys.http, lambda: START_MS, transport=transport)
    answer = await device.register(registration_body(facts, keys, token), token, "register-1")
    save_trust(config.trust_path, check_registration(answer.body, facts, keys, START_MS))
    subjects, refs = [], []
    for person, name in enumerate(premises.people):
        made = await office.post("/v1/subjects", {"external_ref": name})
        subjects.append(str(made["subject_id"]))
        refs.append(str(made["subject_ref"]))
        evidence = {
            "method": "paper",
            "terms_version": "v1",
            "accepted_at": "2026-01-01T00:00:00.000Z",
            "evidence_sha256": "0" * 64,
        }
        for purpose in ("enrollment", "identification"):
            await office.post(
                f"/v1/subjects/{subjects[-1]}/consents", {"purpose": purpose, "evidence": evidence}
            )
        if person < premises.enrolled:
            hands = premises.hands(person)
            token = await office.session(subjects[-1], sorted({hand["hand"] for hand in hands}))
            await device.enroll(enrolment_body(token, hands, premises.model_id), f"enrol-{person}")
    service.store.close()
    tree = tree_of(state)
    shutil.rmtree(state)
    return Prepared(
        folder=data,
        device=tree,
        environment=environment,
        api_key=api_key,
        subjects=tuple(subjects),
        refs=tuple(refs),
        verdict_key=keys.verdict,
        http_key=keys.http,
        data_key=keys.data_key,
    )


def tree_of(folder: Path) -> Tree:
    """The files below a folder."""
    tree: Tree = {}
    for path in sorted(folder.rglob("*")):
        tree[str(path.relative_to(folder))] = None if path.is_dir() else path.read_bytes()
    return tree


def copied(prepared: Prepared, folder: Path) -> Path:
    """The service's data directory, for one run."""
    shutil.copytree(prepared.folder, folder)
    return folder


Headers = Mapping[str, str]
