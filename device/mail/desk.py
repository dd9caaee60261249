"""The device's mail: sealed records that the validator carries in and out.

Chunks are assembled on the loop and answered at once; applying a whole record and filling the outbox run in
separate tasks. Only the validator's newest question is answered, and none of an earlier session. A rejected
record blocks the inbox, never a passage.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from cloud_client.contract import MAX_BATCH_ITEMS
from device.errors import JournalError
from device.journal.mail import MailBoxes, OutboxEntry
from device.mail import outbox
from device.mail.apply import Fault, InboxAssembly, MailApply, RecordRefused
from device.platform.clock import Clock
from device.platform.threads import RunningTasks, StoreThread
from device.values.status import MailStatus
from link1.bodies import MailChunk, MailNone, MailPull
from link1.canonical import JsonObject
from link1.device_end import DeviceEnd
from link1.envelope import MessageType
from link1.objects import ErrorCode, MailMarks

_log = logging.getLogger(__name__)

_Question = MailChunk | MailPull


@dataclass(eq=False)
class MailDesk:
    """Answers the validator's `mail` and `mail_pull`. Every method runs on the loop's thread.

    `position`: of the boxes (`MailBoxes.position`). `online`: the network carries verdicts and reports, so
    mail need not; `network_awaited`: after a start, that is not known yet; `report`: the content of a report
    now; `kick`: something was queued for the cable; `store_failed`: a write to the journal failed;
    `wipe_collected`: the validator has the record of the wipe; `rolled_back`: the service knows of a later
    state.
    """

    position: MailStatus
    boxes: MailBoxes
    journal_thread: StoreThread
    sender: outbox.Sender
    apply: MailApply
    end: DeviceEnd
    clock: Clock
    online: Callable[[], bool]
    network_awaited: Callable[[], bool]
    report: Callable[[MailStatus], outbox.ReportedState]
    kick: Callable[[], None]
    store_failed: Callable[[JournalError], None]
    wipe_collected: Callable[[], None]
    rolled_back: Callable[[str], Awaitable[None]]

    def __post_init__(self) -> None:
        self._inbox = InboxAssembly(self.position.in_applied_seq)
        self._window = outbox.OutboxWindow()
        self._reports = outbox.ReportClock()
        self._asked: _Question | None = None
        self._looking = False
        """Whether the outbox is looked at for a question."""
        self._wiped_seq: int | None = None
        self._making = asyncio.Lock()
        self._tasks = RunningTasks(_failed)

    @property
    def marks(self) -> MailMarks:
        """The mail's positions for the signed status."""
        at = self.position
        return MailMarks(at.in_applied_seq, at.out_seq, at.out_acked_seq)

    async def finish(self) -> None:
        await self._tasks.finish()

    # The validator's questions

    def session_began(self) -> None:
        self._reports.want()

    def session_ended(self) -> None:
        self._asked = None

    def received(self, chunk: MailChunk) -> None:
        """A piece of an inbox record."""
        self._asked = chunk
        answer = self._inbox.take(chunk)
        if isinstance(answer, bytes):
            self._tasks.start(self._judge(answer))
        elif answer is not None:
            self._asked = None
            self.end.send_mail_ack(answer)
            self.kick()

    def pulled(self, pull: MailPull) -> None:
        """A request for a record of the outbox."""
        self._asked = pull
        if self._wiped_seq is not None and pull.after_seq >= self._wiped_seq:
            self.wipe_collected()
        record = self._window.record_for(pull)
        if record is not None:
            self._answer_pull(pull, record)
        elif not self._looking:
            self._looking = True
            self._tasks.start(self._look_for_newest())

    # The inbox

    async def _judge(self, data: bytes) -> None:
        """Apply a whole record; its effect is durable before it is acknowledged."""
        seq = self._inbox.next_seq
        try:
            try:
                taken = await self.apply.take(data, seq)
            except RecordRefused as refused:
                _log.warning("inbox record %d is refused: %s", seq, refused)
                code = refused.code
                await self.journal_thread.do(lambda: self.boxes.refused(seq, code))
                await self._reread()
                answer = self._inbox.refused(code)
            else:
                acked = taken.acked_upto_seq
                if acked > self.position.out_seq:
                    await self.rolled_back("a receipt covers outbox records that are not here")
                await self.journal_thread.do(lambda: self.boxes.applied(seq, acked_upto_seq=acked))
                await self._reread()
                self._window.clear()
                answer = self._inbox.applied()
                if taken.behind:
                    self._reports.want()
        except Fault as error:
            # Not the record's fault: no answer, and the next question has it judged again.
            _log.error("inbox record %d cannot be applied now: %s", seq, error)
            self._inbox.postponed()
            if isinstance(error, JournalError):
                self.store_failed(error)
            return
        except BaseException:
            self._inbox.postponed()
            raise
        if isinstance(self._asked, MailChunk) and self._asked.seq == seq:
            self._asked = None
            self.end.send_mail_ack(answer)
            self.kick()

    async def _reread(self) -> None:
        self.position = await self.journal_thread.do(self.boxes.position)

    # The outbox

    async def _look_for_newest(self) -> None:
        """One look after the other, however many questions come meanwhile."""
        looked: _Question | None = None
        try:
            while isinstance(self._asked, MailPull) and self._asked is not looked:
                looked = self._asked
                await self._look(looked)
        finally:
            self._looking = False

    async def _look(self, pull: MailPull) -> None:
        """Find the record that is asked for; when none waits, make one from what the service lacks."""
        async with self._making:
            if self._asked is not pull:
                return
            try:
                record = await self.journal_thread.do(lambda: self.boxes.next_record(pull.after_seq))
                if record is None and await self._make():
                    record = await self.journal_thread.do(lambda: self.boxes.next_record(pull.after_seq))
            except JournalError as error:
                _log.error("the outbox cannot be read or written: %s", error)
                self.store_failed(error)
                return
        if record is not None:
            self._window.show(record, pull.after_seq)
        if self._asked is pull:
            self._answer_pull(pull, record)

    def _answer_pull(self, pull: MailPull, record: OutboxEntry | None) -> None:
        self._asked = None
        if record is None:
            self.end.send_mail_none(MailNone(pull.after_seq))
        elif (chunk := outbox.chunk_of(record, pull.offset)) is not None:
            self.end.send_mail(chunk)
        else:
            self.end.send_error(ErrorCode.MALFORMED, MessageType.MAIL_PULL)
        self.kick()

    async def _make(self) -> bool:
        """Put the next batch or report into the outbox, if one is due."""
        if self._wiped_seq is not None:
            return False  # the keys of a revoked device sign only its wipe
        return await self._make_batch() or await self._make_report()

    async def _make_batch(self) -> bool:
        # A device in an earlier state learns of it when the service's answer refuses a number that it holds
        # another verdict of. A receipt would settle that verdict without a word.
        if self.online() or self.network_awaited():
            return False
        batch = await self.journal_thread.do(lambda: self.boxes.unmailed(MAX_BATCH_ITEMS))
        if not batch.items:
            return False
        if batch.tickets[0].table == "evidence" and self._many_unsettled():
            return False  # of forged messages there may be any number; a batch of verdicts is never held back
        count = await asyncio.to_thread(outbox.fitting, batch.items)
        await self._append(
            outbox.OutboxType.VERDICTS, {"items": list(batch.items[:count])}, batch.tickets[:count]
        )
        return True

    async def _make_report(self) -> bool:
        at = self.position
        state, now_ms = self.report(at), self.clock.monotonic_ms()
        if self.online() and state.refused is None:
            return False
        if self._many_unsettled() or not self._reports.due(state, now_ms):
            return False
        await self._append(outbox.OutboxType.REPORT, state.to_body(at.in_applied_seq))
        self._reports.made(state, now_ms)
        return True

    def _many_unsettled(self) -> bool:
        return self.position.out_seq - self.position.out_acked_seq >= outbox.MAX_UNSETTLED

    async def wiped(self, wipe_id: str, destroy: Callable[[OutboxEntry], Awaitable[None]]) -> None:
        """Seal the record of the wipe, have everything else destroyed, then offer only that record.

        `destroy` gets the sealed record, and leaves the boxes in memory. Raises what `destroy` raises.
        """
        async with self._making:
            record = await self._seal(outbox.OutboxType.WIPED, {"wipe_id": wipe_id})
            await destroy(record)
            await self.journal_thread.do(lambda: self.boxes.append(record, outbox.OutboxType.WIPED.value))
            await self._reread()
            self._window.clear()
            self._wiped_seq = record.seq

    async def _append(self, type_: outbox.OutboxType, body: JsonObject, carries: Any = ()) -> None:
        record = await self._seal(type_, body)
        try:
            await self.journal_thread.do(lambda: self.boxes.append(record, type_.value, carries))
        finally:  # when only the last step failed, the record exists and its number is used
            await self._reread()

    async def _seal(self, type_: outbox.OutboxType, body: JsonObject) -> OutboxEntry:
        seq = self.position.out_seq + 1
        created_ms = self.clock.wall_ms()
        return await asyncio.to_thread(self.sender.seal, seq, type_, body, created_ms=created_ms)


def _failed(error: BaseException) -> None:
    _log.critical("the mail failed unexpectedly; passages go on", exc_info=error)
