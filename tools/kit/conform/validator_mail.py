"""Rules for a validator that carries mail (LINK/1 §5). The record in our outbox is made up."""

from collections.abc import Callable

from link1.bodies import MAX_CHUNK_BYTES, Box, MailAck, MailChunk, MailNone, MailPull, MailState
from link1.canonical import JsonObject, canonical_bytes
from link1.objects import MailMarks
from tools.kit.conform.end_under_test import EndUnderTest, read_body, said
from tools.kit.conform.peer import Broken, Heard, NotTried
from tools.kit.conform.rules import ConformanceRule

MAIL_SECTION = "§5 Mail over the cable"
CARRIES_MS = 3_000
"""A validator that carries mail asks for it so soon after a handshake."""
UNANSWERED_MS = 700
"""How long a question of the validator is left unanswered to see whether it asks another one."""
NO_MAIL_THERE = "it asked for no mail; let it carry mail, or leave these rules out with --skip mail"


def _outbox(bench: EndUnderTest) -> tuple[MailMarks, bytes]:
    """A record that no validator has pulled before, and the marks that announce it."""
    # Rises from run to run: a validator may leave out what it has pulled before.
    seq = max(bench.wall_ms(), int(bench.notes.get("out_seq", 0)) + 1)
    bench.notes["out_seq"] = seq
    post: JsonObject = {"box": "out", "seq": seq, "src": bench.setup.own_id, "dst": "svc"}
    record = canonical_bytes({"post": post, "ct_b64": "A" * 4_000})
    return MailMarks(0, seq, seq - 1), record


def _question(bench: EndUnderTest, since: int, types: tuple[str, ...] = ("mail_pull",)) -> tuple[Heard, int]:
    """The validator's next question of these types; any other is answered so that the next one comes."""
    mark, until_ms = since, bench.peer.now_ms + CARRIES_MS
    while True:
        left_ms = until_ms - bench.peer.now_ms
        heard = bench.peer.wait(lambda h: h.type in ("mail_pull", "mail"), left_ms, mark)
        if heard is None:
            raise NotTried(NO_MAIL_THERE)
        mark = bench.peer.heard.index(heard) + 1
        if heard.frame.chan != 1:
            raise Broken(f"{heard.type} came on the control channel")
        if heard.type in types:
            return heard, mark
        _put_off(bench, heard)


def _put_off(bench: EndUnderTest, heard: Heard) -> None:
    """Answer a question that is not the one a rule is about: nothing there, or not its turn."""
    if heard.type == "mail_pull":
        bench.peer.say("mail_none", MailNone(_pull(heard).after_seq).to_obj(), 1)
    else:
        chunk = _piece(heard)
        bench.peer.say("mail_ack", MailAck(chunk.seq, 0, MailState.GAP, 0).to_obj(), 1)


def _pull(heard: Heard) -> MailPull:
    return read_body(heard, MailPull.from_obj)


def _piece(heard: Heard) -> MailChunk:
    return read_body(heard, lambda body: MailChunk.from_obj(body, Box.IN))


def _give(bench: EndUnderTest, seq: int, offset: int, record: bytes) -> int:
    chunk = MailChunk(Box.OUT, seq, offset, len(record), record[offset : offset + MAX_CHUNK_BYTES])
    return bench.peer.say("mail", chunk.to_obj(), 1)


def _first_pull(bench: EndUnderTest, marks: MailMarks) -> int:
    """A session in which it pulls our record from its beginning; the mark behind its question."""
    bench.prove(mail=marks)
    heard, mark = _question(bench, 0)
    pull = _pull(heard)
    if pull.after_seq > marks.out_acked_seq or pull.offset != 0:
        raise Broken(f"mail_pull {said(heard.body)}, and nothing of record {marks.out_seq} was given")
    return mark


def _collects(bench: EndUnderTest) -> None:
    marks, record = _outbox(bench)
    mark = _first_pull(bench, marks)
    _give(bench, marks.out_seq, 0, record)
    heard, mark = _question(bench, mark)
    if _pull(heard).offset != MAX_CHUNK_BYTES or _pull(heard).after_seq >= marks.out_seq:
        raise Broken(f"mail_pull {said(heard.body)} after a chunk of {MAX_CHUNK_BYTES} bytes")
    _give(bench, marks.out_seq, MAX_CHUNK_BYTES, record)
    heard, mark = _question(bench, mark)
    if _pull(heard).after_seq < marks.out_seq:
        raise Broken(f"mail_pull {said(heard.body)}, and record {marks.out_seq} was given whole")


def _resumes(bench: EndUnderTest) -> None:
    """After a reset it goes on, or restarts the record; it asks for no record that does not exist."""
    marks, record = _outbox(bench)
    _first_pull(bench, marks)
    _give(bench, marks.out_seq, 0, record)
    bench.peer.listen(UNANSWERED_MS)
    bench.prove(mail=marks)
    heard, _ = _question(bench, 0)
    pull = _pull(heard)
    if pull.offset not in (0, MAX_CHUNK_BYTES) or pull.after_seq >= marks.out_seq:
        raise Broken(f"mail_pull {said(heard.body)} after a reset")


def _one_question(bench: EndUnderTest) -> None:
    bench.prove()
    _, mark = _question(bench, 0, ("mail_pull", "mail"))
    other = bench.peer.wait(lambda h: h.type in ("mail", "mail_pull"), UNANSWERED_MS, mark)
    if other is not None:
        raise Broken(f"{other.type} came while a question was unanswered")


def _offers(bench: EndUnderTest) -> None:
    """It offers a record from the beginning, and goes on where we say."""
    bench.prove()
    try:
        heard, mark = _question(bench, 0, ("mail",))
    except NotTried:
        raise NotTried("it offered no inbox record; let it have one for this device") from None
    chunk = _piece(heard)
    if chunk.offset != 0:
        raise Broken(f"a record offered from offset {chunk.offset}")
    wanted = [len(chunk.data), 0] if len(chunk.data) < chunk.total else [0]
    for offset in wanted:
        bench.peer.say("mail_ack", MailAck(chunk.seq, offset, MailState.MORE, 0).to_obj(), 1)
        heard, mark = _question(bench, mark, ("mail",))
        piece = _piece(heard)
        if (piece.seq, piece.total, piece.offset) != (chunk.seq, chunk.total, offset):
            raise Broken(
                f"seq {piece.seq}, offset {piece.offset} after mail_ack more with next_offset {offset}"
            )


def _rule(id_: str, sentence: str, expected: str, check: Callable[[EndUnderTest], None]) -> ConformanceRule:
    return ConformanceRule(f"mail.{id_}", MAIL_SECTION, sentence, expected, check)


VALIDATOR_MAIL_RULES = (
    _rule(
        "offers",
        "a mail sent in part goes on at the offset that mail_ack names",
        "the chunk at next_offset, also when that is 0 again",
        _offers,
    ),
    _rule(
        "collects",
        "mail_pull {box: out, after_seq, offset}",
        "the record of the outbox is pulled chunk by chunk, and then the one after it",
        _collects,
    ),
    _rule(
        "resumes",
        "Interrupted anywhere, both directions resume at the offset",
        "after a reset the offset it has come to, or 0",
        _resumes,
    ),
    _rule(
        "one_question",
        "The validator keeps one mail or mail_pull unanswered at a time",
        f"no other question within {UNANSWERED_MS} ms of an unanswered one",
        _one_question,
    ),
)
