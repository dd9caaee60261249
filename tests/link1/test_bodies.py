"""Bodies that are no signed objects: what each member may be, to the last value (LINK/1 §3 to §5)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from link1.bodies import (
    MAX_RECORD_BYTES,
    Box,
    ErrorBody,
    Guide,
    Hello,
    MailAck,
    MailChunk,
    MailNone,
    MailPull,
)
from link1.canonical import JsonObject, b64_encode
from link1.errors import FormatError
from link1.validator.events import ResolveReceived

READERS: dict[str, Callable[[JsonObject], Any]] = {
    "hello": Hello.from_obj,
    "guide": Guide.from_obj,
    "error": ErrorBody.from_obj,
    "mail": partial(MailChunk.from_obj, box=Box.IN),
    "mail_ack": MailAck.from_obj,
    "mail_pull": MailPull.from_obj,
    "mail_none": MailNone.from_obj,
    "resolve": ResolveReceived.from_obj,
}
REF = "ab" * 16
BODIES: dict[str, JsonObject] = {
    "hello": {"role": "device", "id": "a", "gate_id": "g", "kid": REF, "nonce_b64": b64_encode(bytes(32))},
    "guide": {"txn_id": REF, "hint": "closer"},
    "error": {"code": "malformed", "about": "message", "txn_id": REF},
    "mail": {"box": "in", "seq": 1, "offset": 0, "total": 2880, "data_b64": b64_encode(bytes(2880))},
    "mail_ack": {"box": "in", "seq": 1, "next_offset": 0, "state": "more", "applied_seq": 0},
    "mail_pull": {"box": "out", "after_seq": 0, "offset": 0},
    "mail_none": {"box": "out", "after_seq": 0},
    "resolve": {"verdict_refs": [REF]},
}
MAY_BE = [
    ("mail", {"total": MAX_RECORD_BYTES}),
    ("mail", {"total": MAX_RECORD_BYTES, "offset": MAX_RECORD_BYTES - 2880}),
    ("mail", {"total": 1, "data_b64": b64_encode(b"x")}),
    ("mail", {"offset": 2879, "data_b64": b64_encode(b"x")}),
    ("mail_ack", {"next_offset": MAX_RECORD_BYTES}),
    ("mail_ack", {"code": "bad_signature"}),
    ("mail_pull", {"offset": MAX_RECORD_BYTES}),
    ("resolve", {"verdict_refs": [REF] * 32}),
]
MAY_NOT_BE = [
    ("hello", {"role": "cloud"}),
    ("hello", {"nonce_b64": b64_encode(bytes(31))}),
    ("hello", {"nonce_b64": b64_encode(bytes(33))}),
    ("guide", {"hint": "dance"}),
    ("error", {"txn_id": REF.upper()}),
    ("mail", {"box": "out"}),
    ("mail", {"seq": 0}),
    ("mail", {"total": 0}),
    ("mail", {"total": MAX_RECORD_BYTES + 1}),
    ("mail", {"total": 2879}),
    ("mail", {"offset": 1}),
    ("mail", {"offset": -1}),
    ("mail", {"data_b64": ""}),
    ("mail", {"total": 9_000, "data_b64": b64_encode(bytes(2881))}),
    ("mail_ack", {"box": "out"}),
    ("mail_ack", {"seq": 0}),
    ("mail_ack", {"next_offset": -1}),
    ("mail_ack", {"next_offset": MAX_RECORD_BYTES + 1}),
    ("mail_ack", {"state": "lost"}),
    ("mail_ack", {"applied_seq": -1}),
    ("mail_ack", {"code": ""}),
    ("mail_pull", {"box": "in"}),
    ("mail_pull", {"after_seq": -1}),
    ("mail_pull", {"offset": -1}),
    ("mail_pull", {"offset": MAX_RECORD_BYTES + 1}),
    ("mail_none", {"box": "in"}),
    ("mail_none", {"after_seq": -1}),
    ("resolve", {"verdict_refs": [REF] * 33}),
    ("resolve", {"verdict_refs": [REF, "x"]}),
]
OTHER_TYPES: tuple[Any, ...] = (None, True, 1.5, {}, [], "é")


def test_a_record_may_hold_512_kib_of_ciphertext() -> None:
    assert len(b64_encode(bytes(512 * 1024))) + 4096 == MAX_RECORD_BYTES


@pytest.mark.parametrize(("type_", "change"), [*((type_, {}) for type_ in BODIES), *MAY_BE])
def test_what_a_body_may_be_is_read_and_written_back(type_: str, change: JsonObject) -> None:
    body = BODIES[type_] | change
    read = READERS[type_](body)
    assert read.to_obj() == body


@pytest.mark.parametrize(("type_", "change"), MAY_NOT_BE)
def test_what_a_body_may_not_be_is_refused(type_: str, change: JsonObject) -> None:
    with pytest.raises(FormatError):
        READERS[type_](BODIES[type_] | change)


@pytest.mark.parametrize("type_", BODIES)
def test_every_member_has_to_be_there_and_of_its_type(type_: str) -> None:
    for member in BODIES[type_].keys() - {"txn_id" if type_ == "error" else ""}:
        without = {name: value for name, value in BODIES[type_].items() if name != member}
        for body in (without, *(without | {member: value} for value in OTHER_TYPES)):
            with pytest.raises(FormatError):
                READERS[type_](body)
