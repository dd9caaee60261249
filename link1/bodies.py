"""Bodies of the messages that are not signed objects, as typed values (LINK/1 §3 to §5).

`from_obj` parses strictly what is known and ignores other members; it raises FormatError, which is
answered with `error malformed`. `to_obj` gives the body to send.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from link1 import members
from link1.canonical import JsonObject, b64_decode, b64_encode
from link1.envelope import Role
from link1.errors import FormatError
from link1.members import HEX32, WORD
from link1.objects import Count, GuideHint, Id32, Name, Seq, Word
from link1.wire import Base64Bytes, Between, WireObject

NONCE_BYTES = 32
MAX_REFS = 32
"""Most verdict_refs in one `resolve` or `unknown` (LINK/1 §4): what fits in two fragments."""
VerdictRefs = Annotated[tuple[Id32, ...], Between(1, MAX_REFS)]
MAX_CHUNK_BYTES = 2880
"""A mail chunk in base64 with its envelope still fits in one message (LINK/1 §5)."""
MAX_RECORD_BYTES = 4 * -(-512 * 1024 // 3) + 4096
"""A sealed record: 512 KiB of ciphertext in base64, and 4 KiB for everything around it."""

HelloNonce = Annotated[str, Base64Bytes(NONCE_BYTES, NONCE_BYTES)]


class Hello(WireObject):
    """Who an end says it is; `prove` shows whether that is so."""

    role: Role
    id: Name
    gate_id: Name
    kid: Id32
    nonce_b64: HelloNonce


class Guide(WireObject):
    txn_id: Id32
    hint: GuideHint


class ErrorBody(WireObject):
    """`code` is one of ErrorCode or a word of a later version; `about` a type, or `message`."""

    code: Word
    about: Word
    txn_id: Annotated[str | None, HEX32] = None


class Box(StrEnum):
    """Direction of mail, as the device sees it."""

    IN = "in"
    OUT = "out"


@dataclass(frozen=True, slots=True)
class MailChunk:
    """Bytes `offset` to `offset + len(data)` of the record with number `seq`, which has `total` bytes."""

    box: Box
    seq: int
    offset: int
    total: int
    data: bytes

    @classmethod
    def from_obj(cls, obj: Mapping[str, Any], box: Box) -> "MailChunk":
        members.one_of(obj, "box", frozenset({box.value}))
        total = members.integer(obj, "total", 1, MAX_RECORD_BYTES)
        offset = members.integer(obj, "offset", 0, total - 1)
        data = b64_decode(members.member(obj, "data_b64"), max_length=min(MAX_CHUNK_BYTES, total - offset))
        if not data:
            raise FormatError("member data_b64 holds no byte")
        return cls(box, members.integer(obj, "seq", 1), offset, total, data)

    def to_obj(self) -> JsonObject:
        return {
            "box": self.box.value,
            "seq": self.seq,
            "offset": self.offset,
            "total": self.total,
            "data_b64": b64_encode(self.data),
        }


class MailState(StrEnum):
    """The state of the inbox record that a chunk belongs to."""

    MORE = "more"
    APPLIED = "applied"
    REFUSED = "refused"
    GAP = "gap"


class MailAck(WireObject):
    """The device's answer to a chunk; `code` says why a record was refused."""

    constants: ClassVar = {"box": "in"}
    seq: Seq
    next_offset: Annotated[int, Between(0, MAX_RECORD_BYTES)]
    state: MailState
    applied_seq: Count
    code: Annotated[str | None, WORD] = None


class MailPull(WireObject):
    """The validator asks for the outbox record after `after_seq`, from `offset` on."""

    constants: ClassVar = {"box": "out"}
    after_seq: Count
    offset: Annotated[int, Between(0, MAX_RECORD_BYTES)]


class MailNone(WireObject):
    """The outbox holds nothing after `after_seq`."""

    constants: ClassVar = {"box": "out"}
    after_seq: Count
