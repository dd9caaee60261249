"""The carrier's tasks for a fleet's operator: reports out, releases in."""

import asyncio
import logging
import secrets
from typing import Final

from cloud_client.contract import ServiceCode
from cloud_client.errors import CloudError, CloudProblem
from device.errors import IpcRefused
from device.syncd.tasks import CORE_ANSWERS_S, CoreLine, SyncContext, SyncTask, read_answer
from device.values import carrier

REPORT_EVERY_S: Final = 60.0
REPORTS_APART_S: Final = 5.0
JITTER: Final = 0.1
"""So that the devices of a station, started by one switch, spread out."""
ROUTE_ABSENT_S: Final = 24 * 3600.0
CORE_REFUSES_S: Final = 600.0
"""A core that refuses an operation is of another version, or wiped."""

_log = logging.getLogger(__name__)


class ReportTask(SyncTask):
    """Takes reports to the service. One that fails is not repeated: the next one replaces it."""

    name = "reports"

    _wait_s = 0.0
    _not_before_ms = 0

    async def step(self, core: CoreLine) -> float:
        if (rest_s := _left_s(self._context, self._not_before_ms)) > 0:
            return rest_s
        asked = carrier.WaitAsked(min(carrier.MAX_WAIT_MS, round(self._wait_s * 1000)))
        try:
            report = await core.call("report.next", asked, timeout_s=self._wait_s + CORE_ANSWERS_S)
        except IpcRefused as error:
            _log.info("reports: the core makes none: %s", error)
            return CORE_REFUSES_S
        self._wait_s = _jittered(self._context, REPORT_EVERY_S) - REPORTS_APART_S
        pause_s = REPORTS_APART_S
        try:
            key = f"report-{secrets.token_hex(16)}"
            await self._context.ask(self._cloud.report(report.payload, key))
        except CloudError as error:
            if _is_absent(error):
                _log.info("reports: this service takes none")
                self._not_before_ms = _in_ms(self._context, ROUTE_ABSENT_S)
                return 0.0
            if isinstance(error, CloudProblem) and not error.retryable:
                _log.warning("reports: one is refused, and the next is sent in its turn: %s", error)
            pause_s = max(pause_s, error.retry_after_s)
        await asyncio.sleep(pause_s)
        return 0.0


class UpdatesTask(SyncTask):
    """Asks what the service offers to this device, and fetches its chunks one after the other."""

    name = "updates"

    def __init__(self, context: SyncContext) -> None:
        super().__init__(context)
        self._absent_until_ms = 0
        self.core_lost()

    def core_lost(self) -> None:
        """A core that has restarted knows what it lacks once it has an offer."""
        self._wanted: carrier.ChunkWanted | None = None
        self._ask_at_ms = self._absent_until_ms
        self._core_takes = False

    async def step(self, core: CoreLine) -> float:
        if not self._core_takes:
            try:
                await core.call("updates.wanted")
            except IpcRefused as error:
                _log.info("updates: the core takes none: %s", error)
                return CORE_REFUSES_S
            self._core_takes = True
        rest_s = _left_s(self._context, self._ask_at_ms)
        try:
            if rest_s <= 0:
                return await self._ask(core)
            return rest_s if self._wanted is None else await self._fetch(core, self._wanted)
        except CloudError as error:
            if rest_s <= 0 and _is_absent(error):
                _log.info("updates: this service offers none")
                self._ask_at_ms = self._absent_until_ms = _in_ms(self._context, ROUTE_ABSENT_S)
                return 0.0
            raise

    async def _ask(self, core: CoreLine) -> float:
        answer = await self._context.ask(self._cloud.updates())
        self.backoff.succeeded()
        self._wanted = None
        try:
            answered = await self.hand_over(core, "updates", "the offer", payload=answer.body)
        except IpcRefused:
            self._ask_at_ms = _in_ms(self._context, CORE_REFUSES_S)
            return 0.0
        taken = read_answer(carrier.OfferTaken, answered)
        self._ask_at_ms = _in_ms(self._context, _jittered(self._context, taken.next_after_s))
        self._wanted = taken.chunk
        return 0.0

    async def _fetch(self, core: CoreLine, wanted: carrier.ChunkWanted) -> float:
        op, request, body = "updates.chunk", None, b""
        try:
            chunk = await self._context.ask(self._cloud.update_chunk(wanted.release_seq, wanted.index))
            body = chunk.body
        except CloudProblem as error:
            if error.status != 404 or error.code != ServiceCode.UPDATE_NOT_FOUND:
                raise
            op, request = "updates.gone", carrier.ReleaseGone(wanted.release_seq)
        self.backoff.succeeded()
        try:
            taken = await core.call(op, request, body)
        except IpcRefused as error:
            _log.warning("%s: the core refuses it: %s", op, error)
            self._wanted = None
        else:
            self._wanted = read_answer(carrier.UpdateChunkTaken, taken).chunk
            if self._wanted == wanted:
                _log.warning("updates: the service answered with another chunk than the one asked for")
                self._wanted = None
        return 0.0


def _is_absent(error: CloudError) -> bool:
    """Whether the service does not have this route: it is of an earlier version."""
    if not isinstance(error, CloudProblem):
        return False
    return error.status == 405 or (error.status == 404 and error.code == ServiceCode.ROUTE_NOT_FOUND)


def _jittered(context: SyncContext, seconds: float) -> float:
    return seconds * (1 - JITTER + 2 * JITTER * context.random())


def _in_ms(context: SyncContext, seconds: float) -> int:
    """The monotonic time so many seconds from now."""
    return context.clock.monotonic_ms() + round(seconds * 1000)


def _left_s(context: SyncContext, until_ms: int) -> float:
    """A pause may end early, when the service is reached again."""
    return (until_ms - context.clock.monotonic_ms()) / 1000
