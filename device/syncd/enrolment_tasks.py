"""The carrier's tasks for an enrolment: exchanging short codes, and uploading palms."""

import logging
from dataclasses import dataclass, field

from cloud_client.errors import CloudError, CloudProblem
from device.errors import IpcRefused
from device.syncd.policy import is_judged
from device.syncd.tasks import CORE_ANSWERS_S, WAIT_MS, CoreLine, SyncTask, read_answer
from device.values.carrier import ErrandAnswered, ErrandOffered, WaitAsked

_log = logging.getLogger(__name__)


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
            await upload.done(core, error.status, error.code)
        else:
            await upload.done(core, answer.status, answer=answer.body)
        self.backoff.succeeded()
        return 0.0


class RedeemTask(SyncTask):
    """Takes short codes to the service, or reports at once that it is unreachable, because a person waits."""

    name = "short codes"

    async def step(self, core: CoreLine) -> float:
        asked = await _next_errand(core, "redeem")
        if asked is None:
            return 0.0
        try:
            answer = await self._context.ask(self._cloud.redeem(asked.body, asked.idempotency_key))
        except CloudProblem as error:
            await asked.done(core, error.status, error.code)
        except CloudError:
            await asked.done(core, 0, "unreachable")
        else:
            await asked.done(core, answer.status, answer=answer.body)
        return 0.0


@dataclass(frozen=True, slots=True)
class _Errand:
    """A body that the core holds for the service; `kind` names its pair of operations."""

    kind: str
    ticket: int
    idempotency_key: str
    body: bytes = field(repr=False)

    async def done(self, core: CoreLine, status: int, code: str = "", answer: bytes = b"") -> None:
        try:
            await core.call(f"{self.kind}.done", ErrandAnswered(self.ticket, status, code), answer)
        except IpcRefused as error:
            _log.warning("%s: the core refuses the answer: %s", self.kind, error)


async def _next_errand(core: CoreLine, kind: str) -> _Errand | None:
    taken = await core.call(f"{kind}.next", WaitAsked(WAIT_MS), timeout_s=WAIT_MS / 1000 + CORE_ANSWERS_S)
    offered = read_answer(ErrandOffered, taken)
    if offered.ticket == 0:
        return None
    return _Errand(kind, offered.ticket, offered.idempotency_key, taken.payload)
