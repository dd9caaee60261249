"""Chunks of an inbox record, however they come (LINK/1 §5)."""

from hypothesis import given
from hypothesis import strategies as st

from device.mail.apply import InboxAssembly
from link1.bodies import Box, MailAck, MailChunk, MailState


def chunk(data: bytes, offset: int, length: int, seq: int = 1) -> MailChunk:
    return MailChunk(Box.IN, seq, offset, len(data), data[offset : offset + length])


@given(
    st.binary(min_size=1, max_size=200),
    st.lists(st.tuples(st.integers(0, 199), st.integers(1, 60)), max_size=60),
    st.lists(st.integers(1, 60), min_size=200, max_size=200),
)
def test_any_chunking_and_any_repeat_gives_the_record_once(
    record: bytes, strays: list[tuple[int, int]], sizes: list[int]
) -> None:
    whole: list[bytes] = []
    inbox, offset = InboxAssembly(0), 0
    stray = iter(strays)
    for size in sizes:
        if (at := next(stray, None)) is not None and at[0] < len(record) and not whole:
            answer = inbox.take(chunk(record, *at))
            if isinstance(answer, bytes):
                whole.append(answer)
            elif answer is not None:
                assert answer.state is MailState.MORE
                assert answer.next_offset >= offset
                offset = answer.next_offset
        if whole:
            break
        answer = inbox.take(chunk(record, offset, size))
        if isinstance(answer, bytes):
            whole.append(answer)
            break
        assert answer is not None
        offset = answer.next_offset
    assert whole == [record]
    assert inbox.take(chunk(record, 0, 10)) is None, "it is being judged"
    assert inbox.applied() == MailAck(1, 0, MailState.APPLIED, 1)
    assert inbox.take(chunk(record, 0, 10)) == MailAck(1, 0, MailState.APPLIED, 1)


def test_another_total_begins_anew() -> None:
    inbox = InboxAssembly(0)
    inbox.take(chunk(b"abcdef", 0, 4))
    assert inbox.take(chunk(b"xyz", 0, 2)) == MailAck(1, 2, MailState.MORE, 0)
    assert inbox.take(chunk(b"xyz", 2, 2)) == b"xyz"


def test_a_chunk_elsewhere_is_answered_with_the_offset_that_is_expected() -> None:
    inbox = InboxAssembly(4)
    inbox.take(chunk(b"abcdef", 0, 4, seq=5))
    assert inbox.take(chunk(b"abcdef", 1, 2, seq=5)) == MailAck(5, 4, MailState.MORE, 4)
    assert inbox.take(chunk(b"abcdef", 0, 6, seq=5)) == MailAck(5, 4, MailState.MORE, 4)


def test_what_lies_before_is_applied_and_what_lies_beyond_is_a_gap() -> None:
    inbox = InboxAssembly(4)
    assert inbox.take(chunk(b"ab", 0, 2, seq=4)) == MailAck(4, 0, MailState.APPLIED, 4)
    assert inbox.take(chunk(b"ab", 0, 2, seq=6)) == MailAck(6, 0, MailState.GAP, 4)


def test_after_a_refusal_only_that_seq_is_taken_and_from_its_beginning() -> None:
    inbox = InboxAssembly(0)
    assert inbox.take(chunk(b"ab", 0, 2)) == b"ab"
    assert inbox.refused("bad_signature") == MailAck(1, 0, MailState.REFUSED, 0, "bad_signature")
    assert inbox.take(chunk(b"cd", 0, 2, seq=2)) == MailAck(2, 0, MailState.GAP, 0)
    assert inbox.take(chunk(b"xy", 1, 1)) == MailAck(1, 0, MailState.MORE, 0)
    assert inbox.take(chunk(b"xy", 0, 2)) == b"xy"
    inbox.applied()
    assert inbox.applied_seq == 1


def test_a_record_that_could_not_be_judged_is_judged_again_when_asked_again() -> None:
    inbox = InboxAssembly(0)
    assert inbox.take(chunk(b"ab", 0, 2)) == b"ab"
    inbox.postponed()
    assert inbox.take(chunk(b"ab", 0, 2)) == b"ab"
