"""The tasks of the carrier: gallery, verdicts, status, keys, link state, enrolments and their short codes.

A task has one connection to the core and repeats `step`, which does one piece of work and returns the seconds
to wait before the next. Tasks do not wait for each other: a long poll delays no verdict. The decisions are in
`device.syncd.policy`; this module does the communication.

When the core is lost, the task's runner calls `core_lost` and reconnects, so that nothing is assumed about a
core that may have restarted.
"""

import asyncio
import contextlib
import json
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, NoReturn, TypeVar

from cloud_client.client import Answer, CloudClient
from cloud_client.contract import ServiceCode
from cloud_client.errors import CloudError, CloudProblem
from cloud_client.retry import Backoff, Random
from device.errors import IpcError, IpcRefused
from device.platform.clock import Clock
from device.platform.ipc import IpcClient, Packet
from device.platform.threads import wait_at_most
from device.syncd.policy import (
    BatchSize,
    FetchDeltas,
    GalleryCourse,
    Reachability,
    is_judged,
    next_cursor_of,
)
from device.values import carrier
from link1.errors import FormatError
from link1.wire import WireObject

CORE_ANSWERS_S: Final = 60.0
"""For all requests but a snapshot page; a busy gate delays the core by seconds at most."""
LAST_PAGE_TAKES_S: Final = 1_200.0
"""With a million templates the last page rebuilds the index and overwrites the old rows for a minute, at a
busy gate only between the hands."""

WAIT_MS: Final = 30_000
NO_GALLERY_S: Final = 30.0
KEYS_EVERY_S: Final = 600.0
"""A rotation is announced a day ahead, so ten minutes are soon enough."""

FIRST_PICTURE_S: Final = 10.0
"""How long the report of the link state waits for the service's first answer."""

STATUS_EVERY_S: Final = 60.0
STATUS_AT_MOST_EVERY_S: Final = 1.0

_log = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT", bound=WireObject)


class CoreLine:
    """A task's connection to the core, made when it is first needed and again after each loss."""

    def __init__(self, socket_path: Path) -> None:
        self._path = socket_path
        self._client: IpcClient | None = None

    async def call(
        self,
        op: str,
        request: WireObject | None = None,
        payload: bytes = b"",
        *,
        timeout_s: float = CORE_ANSWERS_S,
    ) -> Packet:
        """One request to the core; raises what `IpcClient.call` raises."""
        if self._client is not None and self._client.closed:
            self.close()  # the core closes idle connections
        if self._client is None:
            self._client = await IpcClient.connect(self._path)
        members = {} if request is None else request.to_obj()
        return await self._client.call(op, payload, timeout_s=timeout_s, **members)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class DeviceWiped(Exception):
    """Nothing is left to carry, and the http key must leave memory: the process ends."""


@dataclass(eq=False)
class SyncContext:
    """Shared by the tasks: the service, the clock, a random source, and the state of the link."""

    cloud: CloudClient
    clock: Clock
    random: Random
    on_link_change: Callable[[carrier.CloudState], None]

    def __post_init__(self) -> None:
        self.status_wanted, self.link_news = asyncio.Event(), asyncio.Event()
        self.reachability = Reachability()
        self._online = asyncio.Event()

    async def ask(self, request: Awaitable[Answer]) -> Answer:
        """The service's answer to a request, which also shows whether it is reachable. Raises CloudError."""
        try:
            answer = await request
        except CloudError as error:
            if isinstance(error, CloudProblem) and error.status == 401:
                # A revoked device learns of its wipe by asking for its status.
                self.status_wanted.set()
            self.noticed(self.reachability.failed(error))
            raise
        self.noticed(self.reachability.answered())
        return answer

    async def pause(self, seconds: float) -> None:
        """Wait; while the service is unreachable, only until another task has reached it."""
        if self.reachability.state.online:
            await asyncio.sleep(seconds)
        else:
            await wait_at_most(self._online, seconds)

    def noticed(self, change: carrier.CloudState | None) -> None:
        """The state of the link, where it has changed."""
        if change is None:
            return
        if change.online:
            self._online.set()
        else:
            self._online.clear()
        self.link_news.set()
        self.on_link_change(change)


class SyncTask(ABC):
    """A task of the carrier."""

    name: ClassVar[str]

    def __init__(self, context: SyncContext) -> None:
        self.backoff = Backoff(context.random)
        self._context = context
        self._cloud = context.cloud

    @abstractmethod
    async def step(self, core: CoreLine) -> float:
        """Do one piece of work; seconds to wait before the next. Raises IpcError when the core is lost, and
        CloudError to be called again after a growing time."""

    def core_lost(self) -> None:  # noqa: B027 - most tasks keep nothing that the core does not hold
        """The connection to the core was lost."""

    async def hand_over(
        self,
        core: CoreLine,
        op: str,
        what: str,
        request: WireObject | None = None,
        *,
        payload: bytes,
        timeout_s: float = CORE_ANSWERS_S,
    ) -> Packet:
        """Give the core an answer of the service, which `what` names; whether it takes it is part of the
        link's state. Raises IpcError."""
        try:
            taken = await core.call(op, request, payload, timeout_s=timeout_s)
        except IpcRefused as error:
            _log.warning("%s: the core refuses %s: %s", self.name, what, error)
            self._context.noticed(self._context.reachability.refused(self.name, str(error)))
            raise
        self._context.noticed(self._context.reachability.taken(self.name))
        return taken


class GalleryTask(SyncTask):
    """Long-polls for deltas, and fetches a snapshot when deltas cannot continue."""

    name = "gallery"
    _course: GalleryCourse | None = None

    def core_lost(self) -> None:
        self._course = None

    async def step(self, core: CoreLine) -> float:
        if self._course is None:
            position = await _position_of(core)
            if position is None:
                return NO_GALLERY_S
            self._course = GalleryCourse(position, self.backoff)
        course = self._course
        request = course.next_request()
        asked_ms = self._context.clock.monotonic_ms()
        try:
            if isinstance(request, FetchDeltas):
                at = request.position
                fetched = self._cloud.gallery_deltas(epoch=at.epoch, after_seq=at.seq, wait_s=request.wait_s)
            else:
                fetched = self._cloud.gallery_snapshot(request.cursor)
            page = await self._context.ask(fetched)
        except CloudError as error:
            return course.failed(error)
        try:
            if isinstance(request, FetchDeltas):
                taken = await self.hand_over(core, "gallery.deltas", "a page", payload=page.body)
                elapsed_s = (self._context.clock.monotonic_ms() - asked_ms) / 1000
                return course.deltas_taken(read_answer(carrier.GalleryPosition, taken), elapsed_s)
            taken = await self.hand_over(
                core, "gallery.snapshot", "a page", payload=page.body, timeout_s=LAST_PAGE_TAKES_S
            )
        except IpcRefused as error:
            position = await _position_of(core)
            if position is None:
                self._course = None
                return NO_GALLERY_S
            return course.page_refused(error.code, position)
        applied = read_answer(carrier.SnapshotPageTaken, taken)
        return course.snapshot_page_taken(
            applied.position, done=applied.done, next_cursor=next_cursor_of(page.body)
        )


class VerdictTask(SyncTask):
    """Takes verdicts and their outcomes to the service within a second after they are in the journal."""

    name = "verdicts"

    def __init__(self, context: SyncContext) -> None:
        super().__init__(context)
        self._size = BatchSize()

    async def step(self, core: CoreLine) -> float:
        batch = await core.call(
            "verdicts.next",
            carrier.BatchAsked(WAIT_MS, self._size.size),
            timeout_s=WAIT_MS / 1000 + CORE_ANSWERS_S,
        )
        offered = read_answer(carrier.BatchOffered, batch)
        if offered.ticket == 0:
            return 0.0
        key = f"verdicts-{secrets.token_hex(16)}"
        while True:
            try:
                answer = await self._context.ask(self._cloud.upload_verdicts(batch.payload, key))
            except CloudError as error:
                if is_judged(error):
                    return await self._refused(core, error, offered)
                await self._context.pause(self.backoff.failed(error.retry_after_s))
                continue
            return await self._answered(core, answer, offered.ticket)

    async def _answered(self, core: CoreLine, answer: Answer, ticket: int) -> float:
        answered = carrier.BatchAnswered(ticket, answer.status, "")
        try:
            await self.hand_over(core, "verdicts.done", "the answer", answered, payload=answer.body)
        except IpcRefused:
            return self.backoff.failed()
        self.backoff.succeeded()
        self._size.taken()
        return 0.0

    async def _refused(self, core: CoreLine, error: CloudProblem, batch: carrier.BatchOffered) -> float:
        if not self._size.refused(batch.items):
            _log.warning("verdicts: %d items refused as a whole (%s), trying fewer", batch.items, error)
            return 0.0
        _log.error("verdicts: one item is refused and set aside: %s", error)
        await core.call("verdicts.done", carrier.BatchAnswered(batch.ticket, error.status, error.code))
        return self.backoff.failed()


class KeysTask(SyncTask):
    """Fetches the service's published keys regularly, so that a rotation is known before it takes effect."""

    name = "keys"

    async def step(self, core: CoreLine) -> float:
        answer = await self._context.ask(self._cloud.signing_keys())
        self.backoff.succeeded()
        with contextlib.suppress(IpcRefused):
            await self.hand_over(core, "keys", "them", payload=answer.body)
        return KEYS_EVERY_S


class StatusTask(SyncTask):
    """Fetches this device's status every minute, and sooner after a 401."""

    name = "status"

    async def step(self, core: CoreLine) -> float:
        self._context.status_wanted.clear()
        try:
            pending = read_answer(carrier.HelloAnswer, await core.call("hello")).wipe_id
        except IpcRefused as error:
            if error.code == carrier.WIPED_CODE:
                raise DeviceWiped from error
            raise
        if pending is not None:
            # Interrupted after the order: the status may no longer be available to this key.
            await self._confirm_wipe(core, pending)
        try:
            answer = await self._context.ask(self._cloud.device_status())
        except CloudError:
            # A 401 to this request is no reason to ask again at once.
            self._context.status_wanted.clear()
            raise
        self.backoff.succeeded()
        if answer.server_time_ms is not None:
            await core.call("time", carrier.ServiceTime(answer.server_time_ms))
        try:
            taken = await self.hand_over(core, "status", "it", payload=answer.body)
        except IpcRefused:
            return STATUS_EVERY_S
        told = read_answer(carrier.StatusTaken, taken)
        if told.wiped is not None:
            await self._confirm_wipe(core, told.wiped)
        elif told.attest:
            await self._attest(core)
        await asyncio.sleep(STATUS_AT_MOST_EVERY_S)
        await wait_at_most(self._context.status_wanted, STATUS_EVERY_S - STATUS_AT_MOST_EVERY_S)
        return 0.0

    async def _attest(self, core: CoreLine) -> None:
        """Take the core's answer to the challenge of the newest status to the service."""
        try:
            made = await core.call("attest")
            try:
                key = f"attest-{secrets.token_hex(16)}"
                answer = await self._context.ask(self._cloud.attest(made.payload, key))
                answered = carrier.AttestAnswered(answer.status, "")
            except CloudProblem as error:
                if not is_judged(error):
                    raise
                answered = carrier.AttestAnswered(error.status, error.code)
            await core.call("attested", answered)
        except IpcRefused as error:
            _log.error("status: the keys are not attested: %s", error)
        except CloudError:
            return  # the next status asks for it again

    async def _confirm_wipe(self, core: CoreLine, wipe_id: str) -> NoReturn:
        """Report to the service that its order is carried out; a 401 means that it knows already. Raises
        DeviceWiped once both core and service know; CloudError to be tried again."""
        body = json.dumps({"wipe_id": wipe_id}).encode("ascii")
        try:
            await self._context.ask(self._cloud.wiped(body, f"wiped-{wipe_id}"))
        except CloudProblem as error:
            if error.code != ServiceCode.UNAUTHENTICATED:  # a 401 of a proxy has no code
                _log.error("status: the wipe is not confirmed: %s", error)
                raise
        await core.call("wiped", carrier.WipeConfirmed(wipe_id))
        raise DeviceWiped


class LinkStateTask(SyncTask):
    """Reports to the core whether the service is reachable, after each change and each reconnection."""

    name = "link state"

    async def step(self, core: CoreLine) -> float:
        if not self._context.reachability.known:
            # The start of the carrier is not an outage; the first request is on its way.
            await wait_at_most(self._context.link_news, FIRST_PICTURE_S)
        self._context.link_news.clear()
        await core.call("link_state", self._context.reachability.state)
        await wait_at_most(self._context.link_news, STATUS_EVERY_S)
        return 0.0


class EnrolmentTask(SyncTask):
    """Takes enrolments to the service and its answers back. Bodies are never logged or written to disk."""

    name = "enrolments"

    async def step(self, core: CoreLine) -> float:
        upload = await _next_errand(core, "enrolment")
        if upload is None:
            return 0.0
        try:
            answer = await self._context.ask(self._cloud.enroll(upload.body, upload.idempotency_key))
        except CloudProblem as error:
            if not is_judged(error):
                raise  # the next step asks the core again, which still has it or has dropped it by then
            taken = await upload.done(core, error.status, error.code)
        else:
            taken = await upload.done(core, answer.status, answer=answer.body)
        return _rest_s(self.backoff, taken=taken)


class RedeemTask(SyncTask):
    """Takes short codes to the service, or reports at once that it is unreachable, because a person waits."""

    name = "short codes"

    async def step(self, core: CoreLine) -> float:
        asked = await _next_errand(core, "redeem")
        if asked is None:
            return 0.0
        try:
            answer = await self._context.ask(self._cloud.redeem(asked.body, asked.idempotency_key))
        except CloudError as error:
            if isinstance(error, CloudProblem) and error.code:
                taken = await asked.done(core, error.status, error.code)
            else:  # the error page of a proxy is no answer of the service
                taken = await asked.done(core, 0, "unreachable")
        else:
            taken = await asked.done(core, answer.status, answer=answer.body)
        return _rest_s(self.backoff, taken=taken)


@dataclass(frozen=True, slots=True)
class _Errand:
    """A body that the core holds for the service; `kind` names its pair of operations."""

    kind: str
    ticket: int
    idempotency_key: str
    body: bytes = field(repr=False)

    async def done(self, core: CoreLine, status: int, code: str = "", answer: bytes = b"") -> bool:
        """Bring the core the answer; False when it refuses it, and may then offer the body again."""
        try:
            await core.call(f"{self.kind}.done", carrier.ErrandAnswered(self.ticket, status, code), answer)
        except IpcRefused as error:
            _log.warning("%s: the core refuses the answer: %s", self.kind, error)
            return False
        return True


def _rest_s(backoff: Backoff, *, taken: bool) -> float:
    """Seconds to wait after the core took an answer, or refused it."""
    if not taken:
        return backoff.failed()
    backoff.succeeded()
    return 0.0


async def _next_errand(core: CoreLine, kind: str) -> _Errand | None:
    taken = await core.call(
        f"{kind}.next", carrier.WaitAsked(WAIT_MS), timeout_s=WAIT_MS / 1000 + CORE_ANSWERS_S
    )
    offered = read_answer(carrier.ErrandOffered, taken)
    if offered.ticket == 0:
        return None
    return _Errand(kind, offered.ticket, offered.idempotency_key, taken.payload)


async def _position_of(core: CoreLine) -> carrier.GalleryPosition | None:
    return read_answer(carrier.HelloAnswer, await core.call("hello")).gallery


def read_answer(kind: type[AnswerT], answer: Packet) -> AnswerT:
    """The core's reply. Raises IpcError."""
    try:
        return kind.from_obj(answer.header)
    except FormatError as error:
        raise IpcError(
            f"the core's reply is not understood ({error}); are palmd and palm-syncd of one version?"
        ) from error
