"""The validator's driving of the mail: one question at a time, and on from where the device says it is."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from link1.bodies import (
    MAX_CHUNK_BYTES,
    MAX_RECORD_BYTES,
    Box,
    MailAck,
    MailChunk,
    MailNone,
    MailPull,
    MailState,
)
from link1.errors import FormatError
from link1.events import Down, ErrorReceived
from link1.link_states import DownReason
from link1.objects import MailMarks
from link1.validator.events import (
    DeviceProven,
    MailAckReceived,
    MailChunkReceived,
    MailNoneReceived,
    StatusReceived,
)
from link1.validator.mail import (
    ANSWER_WITHIN_MS,
    MAX_OFFERED,
    NO_ROOM_MS,
    PULL_EVERY_MS,
    RETRY_MS,
    InboxSettled,
    MailUnsupported,
    OutboxCollected,
    ValidatorMail,
)
from tests.link1.cable import device_status


@dataclass
class FakeEnd:
    room: bool = True
    asked: list[Any] = field(default_factory=list)

    def send_mail(self, chunk: MailChunk) -> bool:
        return self._send(chunk)

    def send_mail_pull(self, pull: MailPull) -> bool:
        return self._send(pull)

    def _send(self, question: Any) -> bool:
        if self.room:
            self.asked.append(question)
        return self.room

    def take(self) -> Any:
        """The one question that was asked since the last call."""
        (question,) = self.asked
        self.asked.clear()
        return question


@dataclass
class Bench:
    end: FakeEnd = field(default_factory=FakeEnd)
    now_ms: int = 0

    def __post_init__(self) -> None:
        self.mail = ValidatorMail(self.end)

    def prove(self, kid: str = "a" * 32, applied_seq: int = 0) -> None:
        self.follow(DeviceProven("dev-1", kid))
        self.status(applied_seq)

    def status(self, applied_seq: int = 0, out_seq: int = 9) -> list[Any]:
        return self.follow(StatusReceived(device_status(mail=MailMarks(applied_seq, out_seq, 0)), {}))

    def follow(self, event: Any) -> list[Any]:
        return self.mail.follow(event, self.now_ms)

    def after(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        self.mail.tick(self.now_ms)

    def ack(self, seq: int, next_offset: int, state: MailState, applied_seq: int = 0) -> list[Any]:
        code = "malformed" if state is MailState.REFUSED else None
        return self.follow(MailAckReceived(MailAck(seq, next_offset, state, applied_seq, code)))

    def quiet_outbox(self) -> None:
        """Answer the pull that is open."""
        pull = self.end.take()
        assert isinstance(pull, MailPull)
        self.follow(MailNoneReceived(MailNone(pull.after_seq)))

    def chunk(self, seq: int, offset: int, record: bytes, size: int = MAX_CHUNK_BYTES) -> list[Any]:
        piece = record[offset : offset + size]
        return self.follow(MailChunkReceived(MailChunk(Box.OUT, seq, offset, len(record), piece)))


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.prove()
    bench.quiet_outbox()
    return bench


RECORD = bytes(range(256)) * 30


def test_nothing_is_asked_before_the_device_has_proven_itself() -> None:
    bench = Bench()
    bench.mail.offer(1, RECORD)
    bench.after(60_000)
    assert bench.end.asked == []
    assert bench.mail.next_deadline_ms() is None


def test_nothing_is_asked_before_the_first_status() -> None:
    """The device has not taken this end's proof before, and mail could overtake it on its own channel."""
    bench = Bench()
    bench.mail.offer(1, RECORD)
    bench.follow(DeviceProven("dev-1", "a" * 32))
    bench.after(1_000)
    assert bench.end.asked == []
    bench.follow(StatusReceived(device_status(mail=MailMarks(0, 0, 0)), {}))
    assert isinstance(bench.end.take(), MailChunk | MailPull)


@pytest.mark.parametrize(("first", "later"), [(0, 0), (7, 7), (7, 8)])
def test_the_outbox_begins_behind_what_a_receipt_covers(first: int, later: int) -> None:
    bench = Bench()
    bench.follow(DeviceProven("dev-1", "a" * 32))
    bench.follow(StatusReceived(device_status(mail=MailMarks(0, 9, first)), {}))
    assert bench.end.take() == MailPull(first, 0)
    bench.follow(Down(DownReason.SILENT, True))
    bench.follow(DeviceProven("dev-1", "a" * 32))
    bench.follow(StatusReceived(device_status(mail=MailMarks(0, 9, later)), {}))
    assert bench.end.take() == MailPull(later, 0)


def test_a_record_goes_in_chunk_by_chunk(bench: Bench) -> None:
    bench.mail.offer(1, RECORD)
    bench.after(0)
    got = b""
    while len(got) < len(RECORD):
        chunk = bench.end.take()
        assert (chunk.seq, chunk.offset, chunk.total) == (1, len(got), len(RECORD))
        assert len(chunk.data) <= MAX_CHUNK_BYTES
        got += chunk.data
        if len(got) < len(RECORD):
            assert bench.ack(1, len(got), MailState.MORE) == []
    assert got == RECORD
    assert bench.ack(1, 0, MailState.APPLIED, 1) == [InboxSettled(1, MailState.APPLIED, 1)]
    assert bench.mail.applied_seq == 1


def test_it_goes_on_where_the_device_says_it_is(bench: Bench) -> None:
    bench.mail.offer(1, RECORD)
    bench.after(0)
    bench.end.take()
    bench.ack(1, 5_000, MailState.MORE)
    assert bench.end.take().offset == 5_000
    bench.ack(1, 0, MailState.MORE)
    assert bench.end.take().offset == 0


def test_an_unanswered_question_is_asked_anew_and_a_late_answer_to_it_counts_once(bench: Bench) -> None:
    bench.mail.offer(1, b"small")
    bench.after(0)
    first = bench.end.take()
    bench.after(ANSWER_WITHIN_MS - 1)
    assert bench.end.asked == []
    bench.after(1)
    again = bench.end.take() if isinstance(bench.end.asked[0], MailChunk) else None
    if again is None:
        bench.quiet_outbox()
        again = bench.end.take()
    assert again == first
    assert bench.ack(1, 0, MailState.APPLIED, 1) == [InboxSettled(1, MailState.APPLIED, 1)]
    assert bench.ack(1, 0, MailState.APPLIED, 1) == []


def test_a_refused_record_is_offered_again_later_and_gives_way_to_another(bench: Bench) -> None:
    bench.mail.offer(1, b"bad")
    bench.after(0)
    bench.end.take()
    assert bench.ack(1, 0, MailState.REFUSED) == [InboxSettled(1, MailState.REFUSED, 0, "malformed")]
    assert bench.mail.offer(1, b"good")
    bench.after(PULL_EVERY_MS)
    bench.quiet_outbox()
    assert bench.end.take().data == b"good"
    bench.ack(1, 0, MailState.REFUSED)
    bench.after(RETRY_MS - 1)
    bench.quiet_outbox()
    assert bench.end.asked == []
    bench.after(1)
    assert bench.end.take().data == b"good"


def test_after_a_gap_everything_is_offered_anew(bench: Bench) -> None:
    bench.mail.offer(3, b"three")
    bench.after(0)
    bench.end.take()
    assert bench.ack(3, 0, MailState.GAP, 1) == [InboxSettled(3, MailState.GAP, 1)]
    assert bench.mail.last_offered_seq == 1
    bench.mail.offer(3, b"three")
    bench.mail.offer(2, b"two")
    bench.after(RETRY_MS)
    if isinstance(bench.end.asked[0], MailPull):
        bench.quiet_outbox()
    assert bench.end.take().seq == 2


def test_what_the_device_has_is_not_offered(bench: Bench) -> None:
    bench.follow(StatusReceived(device_status(mail=MailMarks(7, 0, 0)), {}))
    assert not bench.mail.offer(7, b"old")
    assert bench.mail.offer(8, b"new")


def test_a_record_applied_by_a_device_that_restarts_before_it_answers_is_settled_by_its_status(
    bench: Bench,
) -> None:
    for seq in (1, 2, 3):
        bench.mail.offer(seq, b"in")
    bench.after(0)
    bench.end.take()
    bench.follow(Down(DownReason.SILENT, True))
    bench.follow(DeviceProven("dev-1", "a" * 32))
    told = bench.follow(StatusReceived(device_status(mail=MailMarks(2, 0, 0)), {}))
    assert told == [InboxSettled(seq, MailState.APPLIED, 2) for seq in (1, 2)]
    assert bench.mail.last_offered_seq == 3


def test_an_answer_about_a_record_behind_a_newer_offer_settles_nothing(bench: Bench) -> None:
    bench.mail.offer(2, b"two")
    bench.after(0)
    bench.end.take()
    bench.mail.offer(1, b"one")
    assert bench.ack(2, 0, MailState.GAP, 0) == []
    if isinstance(bench.end.asked[0], MailPull):
        bench.quiet_outbox()
    assert bench.end.take().seq == 1


def test_only_so_many_records_are_held(bench: Bench) -> None:
    for seq in range(1, MAX_OFFERED + 1):
        assert bench.mail.offer(seq, b"x")
    assert not bench.mail.offer(MAX_OFFERED + 1, b"x")
    assert bench.mail.offer(1, b"y")


def test_a_record_beyond_the_limit_is_not_taken(bench: Bench) -> None:
    for size in (0, MAX_RECORD_BYTES + 1):
        with pytest.raises(FormatError):
            bench.mail.offer(1, bytes(size))


def test_outbox_records_are_collected_one_after_the_other(bench: Bench) -> None:
    bench.after(PULL_EVERY_MS)
    assert bench.end.take() == MailPull(0, 0)
    assert bench.chunk(1, 0, RECORD) == []
    assert bench.end.take() == MailPull(0, MAX_CHUNK_BYTES)
    assert bench.chunk(1, MAX_CHUNK_BYTES, RECORD) == []
    assert bench.end.take() == MailPull(0, 2 * MAX_CHUNK_BYTES)
    assert bench.chunk(1, 2 * MAX_CHUNK_BYTES, RECORD) == [OutboxCollected(1, RECORD)]
    assert bench.end.take() == MailPull(1, 0)
    bench.follow(MailNoneReceived(MailNone(1)))
    assert bench.end.asked == []
    bench.after(PULL_EVERY_MS)
    assert bench.end.take() == MailPull(1, 0)


def test_a_record_that_changes_while_it_is_collected_is_begun_anew(bench: Bench) -> None:
    bench.after(PULL_EVERY_MS)
    bench.end.take()
    bench.chunk(1, 0, RECORD)
    bench.end.take()
    # A receipt has released record 1 meanwhile; the answer is about record 2.
    assert bench.chunk(2, MAX_CHUNK_BYTES, RECORD + b"x") == []
    assert bench.end.take() == MailPull(0, 0)
    assert bench.chunk(2, 0, b"tiny") == [OutboxCollected(2, b"tiny")]


def test_both_directions_take_turns(bench: Bench) -> None:
    for seq in (1, 2):
        bench.mail.offer(seq, b"in")
    bench.after(PULL_EVERY_MS)
    order = []
    for _ in range(4):
        question = bench.end.take()
        order.append(type(question).__name__)
        if isinstance(question, MailChunk):
            bench.ack(question.seq, 0, MailState.APPLIED, question.seq)
        else:
            bench.chunk(question.after_seq + 1, 0, b"out")
    assert sorted(order) == ["MailChunk", "MailChunk", "MailPull", "MailPull"]
    assert order[0] != order[1]


def test_a_reset_keeps_both_transfers(bench: Bench) -> None:
    bench.after(PULL_EVERY_MS)
    bench.end.take()
    bench.chunk(1, 0, RECORD)
    bench.end.take()
    bench.follow(Down(DownReason.SILENT, True))
    bench.after(3_000)
    assert bench.end.asked == []
    bench.prove()
    assert bench.end.take() == MailPull(0, MAX_CHUNK_BYTES)


def test_new_keys_of_a_device_begin_both_boxes_anew(bench: Bench) -> None:
    bench.after(PULL_EVERY_MS)
    bench.end.take()
    bench.chunk(1, 0, b"out")
    bench.mail.offer(1, b"for the old keys")
    bench.end.asked.clear()
    bench.prove(kid="b" * 32)
    assert bench.end.take() == MailPull(0, 0)
    assert bench.mail.room == MAX_OFFERED


@pytest.mark.parametrize("about", ["mail", "message"])
def test_a_device_that_takes_no_mail_is_left_alone_until_the_next_session(bench: Bench, about: str) -> None:
    bench.mail.offer(1, b"in")
    bench.after(0)
    bench.end.take()
    assert bench.follow(ErrorReceived("unsupported_type", about, None)) == [MailUnsupported()]
    bench.after(60_000)
    assert bench.end.asked == []
    bench.prove()
    assert bench.end.asked != []


def test_an_error_about_mail_begins_the_transfer_anew_after_a_while(bench: Bench) -> None:
    bench.after(PULL_EVERY_MS)
    bench.end.take()
    bench.chunk(1, 0, RECORD)
    bench.end.take()
    bench.follow(ErrorReceived("malformed", "mail_pull", None))
    assert bench.end.asked == []
    bench.after(RETRY_MS)
    assert bench.end.take() == MailPull(0, 0)


def test_a_full_channel_is_waited_for(bench: Bench) -> None:
    bench.mail.offer(1, b"in")
    bench.end.room = False
    bench.after(PULL_EVERY_MS)
    deadline = bench.mail.next_deadline_ms()
    assert deadline is not None
    assert deadline == bench.now_ms + NO_ROOM_MS
    bench.end.room = True
    bench.after(NO_ROOM_MS)
    assert len(bench.end.asked) == 1


def test_answers_to_nothing_change_nothing(bench: Bench) -> None:
    assert bench.ack(9, 0, MailState.APPLIED, 9) == []
    assert bench.chunk(4, 0, b"unasked") == []
    assert bench.follow(MailNoneReceived(MailNone(77))) == []
    assert bench.mail.applied_seq == 0


def test_what_was_offered_before_the_first_device_was_met_is_for_it() -> None:
    bench = Bench()
    assert bench.mail.offer(1, RECORD)
    bench.prove()
    assert bench.end.take().seq == 1


def test_new_keys_begin_both_boxes_anew_and_at_the_first_byte(bench: Bench) -> None:
    bench.mail.offer(1, RECORD)
    bench.after(0)
    bench.end.take()
    bench.ack(1, 2 * MAX_CHUNK_BYTES, MailState.MORE)
    bench.end.take()
    bench.prove(kid="b" * 32)
    bench.end.asked.clear()
    assert bench.mail.last_offered_seq == 0
    bench.mail.offer(1, b"short")
    bench.follow(MailNoneReceived(MailNone(0)))
    question = bench.end.take()
    assert (question.offset, question.data) == (0, b"short")


def test_collecting_anew_while_an_answer_is_on_its_way_loses_no_record() -> None:
    bench = Bench()
    bench.prove()
    bench.end.take()
    assert bench.chunk(1, 0, b"first") == [OutboxCollected(1, b"first")]
    assert bench.end.take() == MailPull(1, 0)
    bench.mail.pull_again()
    # What was asked after record 1 comes now; taken for the first record, it would hide that one.
    assert bench.chunk(2, 0, b"second") == []
    assert bench.end.take() == MailPull(0, 0)
    assert bench.chunk(1, 0, b"first") == [OutboxCollected(1, b"first")]


def test_a_forged_record_of_a_number_to_come_does_not_end_the_collecting() -> None:
    bench = Bench()
    bench.prove()
    bench.end.take()
    assert bench.chunk(2**53 - 1, 0, b"forged") == [OutboxCollected(2**53 - 1, b"forged")]
    assert bench.end.take() == MailPull(2**53 - 1, 0)
    bench.status()
    bench.follow(MailNoneReceived(MailNone(2**53 - 1)))
    bench.after(PULL_EVERY_MS)
    assert bench.end.take() == MailPull(0, 0)
    assert bench.chunk(1, 0, b"first") == [OutboxCollected(1, b"first")]


def test_a_record_that_cannot_be_gone_on_with_is_begun_again() -> None:
    bench = Bench()
    bench.prove()
    bench.end.take()
    assert bench.chunk(1, 0, RECORD) == []
    assert bench.end.take() == MailPull(0, MAX_CHUNK_BYTES)
    bench.after(ANSWER_WITHIN_MS)
    assert bench.end.take() == MailPull(0, 0)
