"""How a validator drives the mail (LINK/1 §5): inbox records in, outbox records out, one question at a time.

It never looks inside a record; it carries. Sans-I/O like everything here: records are handed in with
`offer`, events come out, time is handed in. After a reset, a lost answer or a restart of either end it goes
on where the device says it is.

    mail = ValidatorMail(end)
    mail.offer(7, record_bytes)
    for event in mail.follow(validator_event, now_ms): ...   # InboxSettled, OutboxCollected
"""

from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from link1.bodies import (
    MAX_CHUNK_BYTES,
    MAX_RECORD_BYTES,
    Box,
    MailAck,
    MailChunk,
    MailPull,
    MailState,
)
from link1.envelope import ABOUT_MESSAGE, MessageType
from link1.errors import FormatError
from link1.events import Down, ErrorReceived
from link1.objects import ErrorCode
from link1.validator.events import (
    DeviceProven,
    MailAckReceived,
    MailChunkReceived,
    MailNoneReceived,
    StatusReceived,
    ValidatorEvent,
)

ANSWER_WITHIN_MS: Final = 10_000
"""A whole page takes the device a second or two; after this the question is asked again."""
PULL_EVERY_MS: Final = 1_000
"""How long after `mail_none` the outbox is asked for again."""
NO_ROOM_MS: Final = 200
"""How long after the channel had no room the question is put again."""
RETRY_MS: Final = 5_000
"""How long after a refusal, or an answer that moved nothing, the same record is offered again."""
MAX_OFFERED: Final = 8
"""Records held at a time; a record has up to 700 KiB."""


@dataclass(frozen=True, slots=True)
class InboxSettled:
    """What the device says of an offered record: `applied`, `refused` (with a code; it is kept and offered
    again later, unless another one is offered under its seq) or `gap` (everything from `applied_seq` + 1 on
    has to be offered again).
    """

    seq: int
    state: MailState
    applied_seq: int
    code: str | None = None


@dataclass(frozen=True, slots=True)
class OutboxCollected:
    """A whole outbox record, for the back office; `data` is the RFC 8785 bytes of its JSON."""

    seq: int
    data: bytes


@dataclass(frozen=True, slots=True)
class MailUnsupported:
    """The device's software takes no mail; it is not asked again in this session."""


MailEvent = InboxSettled | OutboxCollected | MailUnsupported


class MailEnd(Protocol):
    """What is needed of the validator's end."""

    def send_mail(self, chunk: MailChunk) -> bool: ...
    def send_mail_pull(self, pull: MailPull) -> bool: ...


@dataclass(slots=True)
class _Incoming:
    """The outbox record that is being collected."""

    seq: int = 0
    total: int = 0
    data: bytearray | None = None


class ValidatorMail:
    """The mail of one device on one cable."""

    def __init__(self, end: MailEnd) -> None:
        self._end = end
        self._offered: deque[tuple[int, bytes]] = deque()
        self._offset = 0
        self._offer_from_ms = 0
        self._pull_from_ms = 0
        self._after_seq = 0
        self._incoming = _Incoming()
        self._asked: MailChunk | MailPull | None = None
        self._answer_by_ms = 0
        self._unsupported = False
        self._turn_of_pull = False
        self._begun = False
        """The session's first status has come: before it the proofs may still be on their way."""
        self._device_kid = ""
        self.applied_seq: int | None = None
        """The last inbox record that the device has applied, as far as it has said."""

    # ---- commands

    @property
    def room(self) -> int:
        """How many more records may be offered."""
        return MAX_OFFERED - len(self._offered)

    @property
    def last_offered_seq(self) -> int | None:
        """The seq up to which the device has everything or it waits here."""
        return self._offered[-1][0] if self._offered else self.applied_seq

    def offer(self, seq: int, record: bytes) -> bool:
        """Carry an inbox record to the device: the bytes of its JSON. A record offered before under the same
        seq gives way to it. False when there is no room, or the device has it already.

        Raises FormatError when it is larger than any record.
        """
        if not 1 <= len(record) <= MAX_RECORD_BYTES:
            raise FormatError(f"a record has 1 to {MAX_RECORD_BYTES} bytes, not {len(record)}")
        if self.applied_seq is not None and seq <= self.applied_seq:
            return False
        first = self._offered[0] if self._offered else None
        records = dict(self._offered)
        if seq not in records and self.room == 0:
            return False
        self._offered = deque(sorted((records | {seq: record}).items()))
        if self._offered[0] != first:
            self._offset, self._offer_from_ms = 0, 0
        return True

    def pull_again(self) -> None:
        """Collect from the first record that the device still has: what was collected may be lost."""
        self._after_seq = 0
        self._incoming = _Incoming()
        self._pull_from_ms = 0

    # ---- driving

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; None while there is nothing to do."""
        if self._unsupported or not self._begun:
            return None
        if self._asked is not None:
            return self._answer_by_ms
        return min(self._offer_from_ms, self._pull_from_ms) if self._offered else self._pull_from_ms

    def tick(self, now_ms: int) -> None:
        """Ask again what was not answered in time, or ask the next question."""
        if self._asked is not None and now_ms >= self._answer_by_ms:
            if isinstance(self._asked, MailPull):
                # It may be what we asked that cannot be answered: the record from its beginning.
                self._incoming = _Incoming()
            self._asked = None
        self._ask(now_ms)

    def follow(self, event: ValidatorEvent, now_ms: int) -> list[MailEvent]:
        """What an event of the validator's end means to the mail."""
        said: list[MailEvent] = []
        match event:
            case DeviceProven(_, device_kid):
                self._meet(device_kid)
                self._asked, self._unsupported, self._begun = None, False, False
                self._offer_from_ms = self._pull_from_ms = now_ms
            case Down():
                self._asked, self._begun = None, False
            case StatusReceived(status):
                self._begun = True
                if self._after_seq > status.mail.out_seq:
                    self.pull_again()  # the device made no such record: a chunk is not signed
                self._after_seq = max(self._after_seq, status.mail.out_acked_seq)
                said = self._device_applied(status.mail.in_applied_seq)
            case MailAckReceived(ack):
                said = self._acked(ack, now_ms)
            case MailChunkReceived(chunk):
                said = self._collected(chunk, now_ms)
            case MailNoneReceived(none):
                if isinstance(self._asked, MailPull) and none.after_seq == self._asked.after_seq:
                    self._asked = None
                    self._pull_from_ms = now_ms + PULL_EVERY_MS
            case ErrorReceived(code, about, _) if self._is_about_mail(code, about):
                said = self._complained(code, now_ms)
            case _:
                return []
        self._ask(now_ms)
        return said

    def _meet(self, device_kid: str) -> None:
        """With another device, or new keys, both boxes start again; what was offered before any device was
        met is for the first device."""
        if device_kid == self._device_kid:
            return
        if self._device_kid:
            self._offered.clear()
        self._device_kid, self.applied_seq, self._offset = device_kid, None, 0
        self.pull_again()

    # ---- what is asked

    def _ask(self, now_ms: int) -> None:
        if self._asked is not None or self._unsupported or not self._begun:
            return
        offer_due = bool(self._offered) and now_ms >= self._offer_from_ms
        pull_due = now_ms >= self._pull_from_ms
        question: MailChunk | MailPull
        # Whole records take turns, so that neither direction starves the other.
        if pull_due and (self._turn_of_pull or not offer_due):
            data = self._incoming.data
            question = MailPull(self._after_seq, 0 if data is None else len(data))
            sent = self._end.send_mail_pull(question)
        elif offer_due:
            seq, record = self._offered[0]
            piece = record[self._offset : self._offset + MAX_CHUNK_BYTES]
            question = MailChunk(Box.IN, seq, self._offset, len(record), piece)
            sent = self._end.send_mail(question)
        else:
            return
        if sent:
            self._asked, self._answer_by_ms = question, now_ms + ANSWER_WITHIN_MS
        else:
            self._offer_from_ms = self._pull_from_ms = now_ms + NO_ROOM_MS

    # ---- inbox

    def _acked(self, ack: MailAck, now_ms: int) -> list[MailEvent]:
        asked = self._asked
        if not isinstance(asked, MailChunk) or ack.seq != asked.seq:
            return []  # the answer to a question that was given up
        self._asked = None
        settled = self._device_applied(ack.applied_seq)
        if not self._offered or self._offered[0][0] != ack.seq:
            self._turn_of_pull = True
            return settled
        if ack.state is MailState.MORE:
            total = len(self._offered[0][1])
            moved = asked.offset + len(asked.data) == ack.next_offset < total
            self._offset = ack.next_offset if ack.next_offset < total else 0
            if not moved and ack.next_offset == asked.offset:
                self._offer_from_ms = now_ms + RETRY_MS
            return settled
        if ack.state is MailState.GAP:
            self._offered.clear()
        self._offset = 0
        self._turn_of_pull = True
        self._offer_from_ms = now_ms + RETRY_MS
        return [*settled, InboxSettled(ack.seq, ack.state, ack.applied_seq, ack.code)]

    def _device_applied(self, applied_seq: int) -> list[MailEvent]:
        """Records up to here are done with. A device that restarts after it has applied one, and before it
        has answered, says so with its next status."""
        self.applied_seq = applied_seq
        settled: list[MailEvent] = []
        while self._offered and self._offered[0][0] <= applied_seq:
            seq, _ = self._offered.popleft()
            settled.append(InboxSettled(seq, MailState.APPLIED, applied_seq))
            self._offset, self._offer_from_ms = 0, 0
        return settled

    # ---- outbox

    def _collected(self, chunk: MailChunk, now_ms: int) -> list[MailEvent]:
        asked, incoming = self._asked, self._incoming
        if not isinstance(asked, MailPull) or chunk.seq <= asked.after_seq:
            return []
        self._asked = None
        if asked.after_seq != self._after_seq:
            return []  # started again meanwhile (`pull_again`): this would be counted as the first record
        if incoming.data is None or (chunk.seq, chunk.total) != (incoming.seq, incoming.total):
            incoming.seq, incoming.total, incoming.data = chunk.seq, chunk.total, bytearray()
        if chunk.offset != len(incoming.data):
            # The record asked about is gone (a receipt covered it): this one from its beginning.
            if chunk.offset != asked.offset:
                self._pull_from_ms = now_ms + RETRY_MS
            return []
        incoming.data += chunk.data
        if len(incoming.data) < incoming.total:
            return []
        self._after_seq, self._incoming = chunk.seq, _Incoming()
        self._turn_of_pull = False
        return [OutboxCollected(chunk.seq, bytes(incoming.data))]

    def _is_about_mail(self, code: str, about: str) -> bool:
        """A device that knows no mail cannot name its type: it says `message`."""
        unnamed = about == ABOUT_MESSAGE and code == ErrorCode.UNSUPPORTED_TYPE and self._asked is not None
        return unnamed or about in (MessageType.MAIL, MessageType.MAIL_PULL)

    def _complained(self, code: str, now_ms: int) -> list[MailEvent]:
        """An error about mail: an older device, or a record that has changed under our hands."""
        self._asked = None
        if code == ErrorCode.UNSUPPORTED_TYPE:
            self._unsupported = True
            return [MailUnsupported()]
        self._incoming, self._offset = _Incoming(), 0
        self._offer_from_ms = self._pull_from_ms = now_ms + RETRY_MS
        return []
