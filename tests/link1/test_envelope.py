"""Messages are sent in one spelling and read strictly (LINK/1 §2)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from link1.bodies import MAX_CHUNK_BYTES, MAX_RECORD_BYTES, Box, MailChunk
from link1.envelope import RULES, MessageRefused, MessageType, Role, encode_message, read_message
from link1.errors import FormatError
from link1.frames import MAX_MESSAGE_BYTES, Channel


def read(data: bytes) -> MessageType:
    return read_message(data, Role.VALIDATOR, Channel.CONTROL).type


def test_sent_as_rfc_8785() -> None:
    data = encode_message(MessageType.READY, {"passage_sensor": True})
    assert data == b'{"body":{"passage_sensor":true},"type":"ready","v":1}'


def test_read_in_any_order_and_with_spaces() -> None:
    assert read(b' { "v" : 1, "type":"cancel",\n"body":{"txn_id":"x"} }') is MessageType.CANCEL


MALFORMED = {
    "not UTF-8": b'{"v":1,"type":"cancel\xff","body":{}}',
    "not JSON": b'{"v":1,"type":"cancel","body":{}',
    "not an object": b'["v",1]',
    "duplicate key": b'{"v":1,"type":"cancel","type":"cancel","body":{}}',
    "duplicate key inside": b'{"v":1,"type":"cancel","body":{"a":1,"a":1}}',
    "lone surrogate": b'{"v":1,"type":"cancel","body":{"a":"\\ud800"}}',
    "fraction": b'{"v":1.0,"type":"cancel","body":{}}',
    "exponent": b'{"v":1e0,"type":"cancel","body":{}}',
    "minus zero": b'{"v":1,"type":"cancel","body":{"a":-0}}',
    "beyond 2^53": b'{"v":1,"type":"cancel","body":{"a":9007199254740992}}',
    "NaN": b'{"v":1,"type":"cancel","body":{"a":NaN}}',
    "true is not 1": b'{"v":true,"type":"cancel","body":{}}',
    "no v": b'{"type":"cancel","body":{}}',
    "no body": b'{"v":1,"type":"cancel"}',
    "body no object": b'{"v":1,"type":"cancel","body":[]}',
    "type no string": b'{"v":1,"type":7,"body":{}}',
    "member too many": b'{"v":1,"type":"cancel","body":{},"x":1}',
    "trailing bytes": b'{"v":1,"type":"cancel","body":{}}x',
    "depth 17": b'{"v":1,"type":"cancel","body":' + b'{"a":' * 15 + b"{}" + b"}" * 15 + b"}",
}
TYPE_READ = ("true is not 1", "no v", "no body", "body no object", "member too many")
"""Those of a form that can be read: the error names the type."""


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed(data: bytes) -> None:
    with pytest.raises(MessageRefused) as refused:
        read(data)
    about = "cancel" if data in map(MALFORMED.get, TYPE_READ) else "message"
    assert (refused.value.code, refused.value.about) == ("malformed", about)


def test_depth_16_is_read() -> None:
    data = b'{"v":1,"type":"cancel","body":' + b'{"a":' * 14 + b"{}" + b"}" * 14 + b"}"
    assert read(data) is MessageType.CANCEL


@pytest.mark.parametrize("version", [b"0", b"2", b"-1", b"9007199254740991"])
def test_another_version_is_told_from_a_malformed_message_whatever_else_it_holds(version: bytes) -> None:
    with pytest.raises(MessageRefused) as refused:
        read(b'{"v":' + version + b',"something":"else"}')
    assert (refused.value.code, refused.value.about) == ("unsupported_version", "message")
    with pytest.raises(MessageRefused) as refused:
        read(b'{"v":' + version + b',"type":"cancel"}')
    assert (refused.value.code, refused.value.about) == ("unsupported_version", "cancel")


@pytest.mark.parametrize(
    ("data", "code", "about"),
    [
        (b'{"v":1,"type":"dance","body":{}}', "unsupported_type", "message"),
        (b'{"v":1,"type":"CANCEL","body":{}}', "unsupported_type", "message"),
        (b'{"v":1,"type":"verdict","body":{}}', "unsupported_type", "verdict"),
        (b'{"v":1,"type":"mail_pull","body":{}}', "malformed", "mail_pull"),
    ],
    ids=["unknown", "unknown by case", "of the other end", "on the other channel"],
)
def test_types_that_do_not_belong_here(data: bytes, code: str, about: str) -> None:
    with pytest.raises(MessageRefused) as refused:
        read(data)
    assert (refused.value.code, refused.value.about) == (code, about)


@given(st.binary(max_size=5000))
def test_no_bytes_upset_the_reader(data: bytes) -> None:
    with pytest.raises(MessageRefused):
        read(data)


def test_every_type_has_a_rule_and_mail_travels_on_its_own_channel() -> None:
    assert set(RULES) == set(MessageType)
    mail = {type_ for type_, rule in RULES.items() if rule.channel is Channel.MAIL}
    assert mail == {type_ for type_ in MessageType if type_.startswith("mail")}
    assert [t for t, rule in RULES.items() if rule.channel is None] == [MessageType.GUIDE]


def test_the_largest_mail_chunk_fits_in_a_message() -> None:
    chunk = MailChunk(
        Box.OUT, 2**53 - 1, MAX_RECORD_BYTES - MAX_CHUNK_BYTES, MAX_RECORD_BYTES, b"\xff" * MAX_CHUNK_BYTES
    )
    assert len(encode_message(MessageType.MAIL, chunk.to_obj())) <= MAX_MESSAGE_BYTES
    assert MailChunk.from_obj(chunk.to_obj(), Box.OUT) == chunk


def test_a_message_beyond_4096_bytes_is_not_made() -> None:
    without = len(encode_message(MessageType.ERROR, {"code": ""}))
    assert len(encode_message(MessageType.ERROR, {"code": "x" * (4096 - without)})) == 4096
    with pytest.raises(FormatError):
        encode_message(MessageType.ERROR, {"code": "x" * (4097 - without)})
