"""Rules for a device: mail in both directions (LINK/1 §5).

The records are made up, because only the service can seal one: the device takes the chunks, and refuses the
record when it is whole. The service's true record unblocks the inbox again.
"""

from collections.abc import Callable

from link1.bodies import MAX_CHUNK_BYTES, MailAck, MailNone
from link1.canonical import b64_decode, b64_encode, canonical_bytes, read_strict
from link1.errors import FormatError
from tools.kit.conform.end_under_test import EndUnderTest, read_body, said
from tools.kit.conform.peer import Broken, Heard, NotTried
from tools.kit.conform.rules import ConformanceRule

MAIL_SECTION = "§5 Mail over the cable"
BEYOND = 2**40
"""A seq that no box comes to."""
JUNK = b"{" + b" " * 3_998 + b"}"
"""A record of two chunks with no valid seal."""
JUDGED_MS = 10_000
"""How long a device may take to judge a record that is whole, or to seal one that is asked for."""
MOST_BYTES = 800_000
"""More than any record has: an outbox whose total is larger is not collected."""


def _offer(bench: EndUnderTest, seq: int, offset: int, data: bytes, total: int) -> MailAck:
    """One chunk, and the answer to it."""
    body = {"box": "in", "seq": seq, "offset": offset, "total": total, "data_b64": b64_encode(data)}
    mark = bench.peer.say("mail", body, 1)
    heard = _answer(bench, ("mail_ack",), "mail", mark)
    if heard.type != "mail_ack":
        raise Broken(f"error {said(heard.body)}")
    ack = read_body(heard, MailAck.from_obj)
    if ack.seq != seq:
        raise Broken(f"mail_ack about seq {ack.seq}, and {seq} was sent")
    return ack


def _answer(bench: EndUnderTest, types: tuple[str, ...], about: str, mark: int) -> Heard:
    """The answer to a question of the mail, which may be an error about it."""

    def wanted(heard: Heard) -> bool:
        refused = heard.type == "error" and heard.body.get("about") in (about, "message")
        return heard.type in types or refused

    heard = bench.peer.wait(wanted, JUDGED_MS, mark)
    if heard is None:
        raise Broken(f"no answer within {JUDGED_MS} ms")
    if heard.type in types and heard.frame.chan != 1:
        raise Broken(f"{heard.type} came on the control channel")
    return heard


def _want(ack: MailAck, state: str, next_offset: int) -> None:
    if (ack.state, ack.next_offset) != (state, next_offset):
        raise Broken(f"mail_ack {ack.state} with next_offset {ack.next_offset}")


def _begun(bench: EndUnderTest) -> int:
    """A record of two chunks of which the device has the first; its seq."""
    seq = bench.first_status().mail.in_applied_seq + 1
    # The part it may hold of this seq has another total, so the transfer starts again.
    _offer(bench, seq, 0, b"{", 2)
    _want(_offer(bench, seq, 0, JUNK[:MAX_CHUNK_BYTES], len(JUNK)), "more", MAX_CHUNK_BYTES)
    return seq


def _expected_offset(bench: EndUnderTest) -> None:
    seq = _begun(bench)
    for offset in (0, 1, MAX_CHUNK_BYTES + 1):
        _want(_offer(bench, seq, offset, JUNK[offset : offset + 100], len(JUNK)), "more", MAX_CHUNK_BYTES)


def _resumes(bench: EndUnderTest) -> None:
    seq = _begun(bench)
    bench.prove()
    _want(_offer(bench, seq, 1, JUNK[1:100], len(JUNK)), "more", MAX_CHUNK_BYTES)


def _other_total(bench: EndUnderTest) -> None:
    seq = _begun(bench)
    _want(_offer(bench, seq, 0, JUNK[:100], len(JUNK) + 1), "more", 100)
    _begun(bench)
    _want(_offer(bench, seq, 50, JUNK[50:100], len(JUNK) + 1), "more", 0)


def _refuses(bench: EndUnderTest) -> None:
    """A record without a valid seal is not applied, and nothing behind it is taken."""
    seq = _begun(bench)
    ack = _offer(bench, seq, MAX_CHUNK_BYTES, JUNK[MAX_CHUNK_BYTES:], len(JUNK))
    _want(ack, "refused", 0)
    if ack.code is None:
        raise Broken("refused without a code")
    if ack.applied_seq != seq - 1:
        raise Broken(f"applied_seq {ack.applied_seq} after a refusal of {seq}")
    later = _offer(bench, seq + 1, 0, JUNK[:MAX_CHUNK_BYTES], len(JUNK))
    if later.state not in ("gap", "refused") or later.next_offset != 0:
        raise Broken(f"the record after it: mail_ack {later.state} with next_offset {later.next_offset}")


def _applied(bench: EndUnderTest) -> None:
    applied_seq = bench.first_status().mail.in_applied_seq
    if applied_seq < 1:
        raise NotTried("the device has applied no record yet; let it have mail from its service first")
    ack = _offer(bench, applied_seq, 0, JUNK[:10], len(JUNK))
    _want(ack, "applied", 0)
    if ack.applied_seq != applied_seq:
        raise Broken(f"applied_seq {ack.applied_seq}, and its status said {applied_seq}")


def _gap(bench: EndUnderTest) -> None:
    bench.first_status()
    _want(_offer(bench, BEYOND, 0, b"mail", 4), "gap", 0)


def _too_long(bench: EndUnderTest) -> None:
    seq = _begun(bench)
    data = JUNK[: MAX_CHUNK_BYTES + 1]
    body = {"box": "in", "seq": seq, "offset": 0, "total": 9_000, "data_b64": b64_encode(data)}
    mark = bench.peer.say("mail", body, 1)
    heard = _answer(bench, ("mail_ack",), "mail", mark)
    if heard.type != "error" or heard.body.get("code") != "malformed":
        raise Broken(f"{heard.type} {said(heard.body)}")


def _restarted(bench: EndUnderTest) -> None:
    """What was received in part is gone with the program: the device asks from 0 again."""
    seq = _begun(bench)
    bench.restart()
    bench.prove()
    _want(_offer(bench, seq, MAX_CHUNK_BYTES, JUNK[MAX_CHUNK_BYTES:], len(JUNK)), "more", 0)


def _pull(bench: EndUnderTest, after_seq: int, offset: int) -> Heard:
    mark = bench.peer.say("mail_pull", {"box": "out", "after_seq": after_seq, "offset": offset}, 1)
    return _answer(bench, ("mail", "mail_none"), "mail_pull", mark)


def _nothing(bench: EndUnderTest) -> None:
    bench.prove()
    heard = _pull(bench, BEYOND, 0)
    if heard.type != "mail_none" or _nothing_after(heard) != BEYOND:
        raise Broken(f"{heard.type} {said(heard.body)}")


def _nothing_after(heard: Heard) -> int:
    return read_body(heard, MailNone.from_obj).after_seq


def _newest(bench: EndUnderTest) -> None:
    """Two questions at once: the second is answered, whether the first is or not."""
    bench.prove()
    mark = bench.peer.mark
    for after_seq in (BEYOND, BEYOND + 1):
        body = {"box": "out", "after_seq": after_seq, "offset": 0}
        bench.peer.say("mail_pull", body, 1)
    answered = bench.peer.wait(
        lambda h: h.type == "mail_none" and _nothing_after(h) == BEYOND + 1, JUDGED_MS, mark
    )
    if answered is None:
        raise Broken("the newest question is not answered")


def _chunk(bench: EndUnderTest, after_seq: int, offset: int) -> tuple[int, int, bytes]:
    """seq, total and bytes of one chunk of the record after `after_seq`."""
    heard = _pull(bench, after_seq, offset)
    if heard.type == "mail_none" and offset == 0:
        raise NotTried(
            "the outbox is empty; take the device's network away, so that its mail carries reports"
        )
    body = heard.body
    if heard.type != "mail":
        raise Broken(f"{heard.type} {said(body)}")
    try:
        data = b64_decode(body.get("data_b64"), max_length=MAX_CHUNK_BYTES)
    except FormatError as error:
        raise Broken(f"mail: {error}") from None
    seq, total = body.get("seq"), body.get("total")
    if type(seq) is not int or type(total) is not int:
        raise Broken("mail without seq or total")
    if body.get("box") != "out" or body.get("offset") != offset or seq <= after_seq or not data:
        raise Broken(f"mail {said(body)}, asked for after_seq {after_seq} and offset {offset}")
    if not offset + len(data) <= total <= MOST_BYTES:
        raise Broken(f"{len(data)} bytes at {offset} of a record of {total}")
    return seq, total, data


def _collects(bench: EndUnderTest) -> None:
    """A whole record, interrupted by a reset after its first chunk."""
    after_seq = bench.first_status().mail.out_acked_seq
    seq, total, record = _chunk(bench, after_seq, 0)
    bench.prove()
    while len(record) < total:
        at = _chunk(bench, after_seq, len(record))
        if at[:2] != (seq, total):
            raise Broken(f"record {at[0]} of {at[1]} bytes in the middle of record {seq} of {total}")
        record += at[2]
    try:
        obj = read_strict(record, max_bytes=MOST_BYTES)
    except FormatError as error:
        raise Broken(f"the record is no JSON object: {error}") from None
    if canonical_bytes(obj) != record:
        raise Broken("the record is not in its RFC 8785 form")
    post = obj.get("post")
    if not isinstance(post, dict) or (post.get("box"), post.get("seq")) != ("out", seq):
        raise Broken("the record's post names another box or seq")


def _past_the_end(bench: EndUnderTest) -> None:
    after_seq = bench.first_status().mail.out_acked_seq
    _, total, _ = _chunk(bench, after_seq, 0)
    for offset in (total, total + 1):
        heard = _pull(bench, after_seq, offset)
        if heard.type != "error" or heard.body.get("code") != "malformed":
            raise Broken(f"{heard.type} {said(heard.body)} at offset {offset} of {total}")


def _rule(id_: str, sentence: str, expected: str, check: Callable[[EndUnderTest], None]) -> ConformanceRule:
    return ConformanceRule(f"mail.{id_}", MAIL_SECTION, sentence, expected, check)


_ORDER = "a chunk at another offset than expected is answered with the expected one"

DEVICE_MAIL_RULES = (
    _rule("offset", _ORDER, "mail_ack more with the offset that comes next", _expected_offset),
    _rule(
        "resumes",
        "A reset keeps a partly received mail record; Interrupted anywhere, both directions resume",
        "the offset after the last chunk, in the session after a reset",
        _resumes,
    ),
    _rule(
        "other_total",
        "another total for the same seq restarts the record",
        "next_offset from 0",
        _other_total,
    ),
    _rule("gap", "gap when it is beyond applied_seq + 1", "mail_ack gap with next_offset 0", _gap),
    _rule("applied", "seq at or below applied_seq: applied", "mail_ack applied with next_offset 0", _applied),
    _rule("chunk_too_long", "chunks of at most 2880 bytes", "error malformed to a chunk of 2881", _too_long),
    _rule(
        "refused",
        "after refused nothing later is taken until a valid record with that seq arrives",
        "mail_ack refused with a code for a record without a valid seal, and nothing behind it taken",
        _refuses,
    ),
    _rule("nothing", "mail_none when there is nothing after it", "mail_none on channel 1", _nothing),
    _rule(
        "newest", "the device answers only the newest", "an answer to the second of two questions", _newest
    ),
    _rule(
        "collects",
        "mail {box: out, seq, offset, total, data_b64}; both directions resume at the offset",
        "one record in chunks of at most 2880 bytes, in its RFC 8785 form, across a reset",
        _collects,
    ),
    _rule("past_the_end", "an offset at or past total: error malformed", "error malformed", _past_the_end),
    _rule(
        "restart",
        "a mail sent in part goes on at the offset that mail_ack names, which is 0 after a restart",
        "next_offset 0 after a restart of the device",
        _restarted,
    ),
)
