"""Bodies of the messages that are not signed objects, as typed values (LINK/1 §3 to §5).

`from_obj` parses strictly what is known and ignores other members; it raises FormatError, which is
answered with `error malformed`. `to_obj` gives the body to send.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from link1 import members
from link1.canonical import JsonObject, b64_decode, b64_encode
from link1.envelope import Role
from link1.errors import FormatError
from link1.members import HEX32, NAME, WORD
from link1.objects import GuideHint

NONCE_BYTES = 32
MAX_REFS = 32
"""Most verdict_refs in one `resolve` or `unknown` (LINK/1 §4): what fits in two fragments."""
MAX_CHUNK_BYTES = 2880
"""A mail chunk in base64 with its envelope still fits in one message (LINK/1 §5)."""
MAX_RECORD_BYTES = 4 * -(-512 * 1024 // 3) + 4096
"""A sealed record: 512 KiB of ciphertext in base64, and 4 KiB for everything around it."""

_ROLES = frozenset(Role)
_HINTS = frozenset(GuideHint)


@dataclass(frozen=True, slots=True)
class Hello:
    """Who an end says it is; `prove` shows whether that is so."""

    role: Role
    id: str
    gate_id: str
    kid: str
    nonce_b64: str

    @classmethod
    def from_obj(cls, obj: Mapping[str, Any]) -> "Hello":
        return cls(
            role=Role(members.one_of(obj, "role", _ROLES)),
            id=members.text(obj, "id", NAME),
            gate_id=members.text(obj, "gate_id", NAME),
            kid=members.text(obj, "kid", HEX32),
            nonce_b64=members.base64_text(obj, "nonce_b64", NONCE_BYTES, NONCE_BYTES),
        )

    def to_obj(self) -> JsonObject:
        return {
            "role": self.role.value,
            "id": self.id,
            "gate_id": self.gate_id,
            "kid": self.kid,
            "nonce_b64": self.nonce_b64,
        }


@dataclass(frozen=True, slots=True)
class Guide:
    txn_id: str
    hint: GuideHint

    @classmethod
    def from_obj(cls, obj: Mapping[str, Any]) -> "Guide":
        return cls(members.text(obj, "txn_id", HEX32), GuideHint(members.one_of(obj, "hint", _HINTS)))

    def to_obj(self) -> JsonObject:
        return {"txn_id": self.txn_id, "hint": self.hint.value}


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """`code` is one of ErrorCode or a word of a later version; `about` a type, or `message`."""

    code: str
    about: str
    txn_id: str | None = None

    @classmethod
    def from_obj(cls, obj: Mapping[str, Any]) -> "ErrorBody":
        return cls(
            code=members.text(obj, "code", WORD),
            about=members.text(obj, "about", WORD),
            txn_id=members.optional_text(obj, "txn_id", HEX32),
        )

    def to_obj(self) -> JsonObject:
        obj: JsonObject = {"code": self.code, "about": self.about}
        if self.txn_id is not None:
            obj["txn_id"] = self.txn_id
        return obj


def refs_from_obj(obj: Mapping[str, Any]) -> tuple[str, ...]:
    """The verdict_refs of `resolve` and `unknown`: 1 to 32 of them."""
    refs = members.array(obj, "verdict_refs", 1, MAX_REFS)
    if not all(isinstance(ref, str) and HEX32.fullmatch(ref) for ref in refs):
        raise FormatError("member verdict_refs is not an array of 32-hex strings")
    return tuple(refs)


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


@dataclass(frozen=True, slots=True)
class MailAck:
    """The device's answer to a chunk; `code` says why a record was refused."""

    seq: int
    next_offset: int
    state: MailState
    applied_seq: int
    code: str | None = None

    @classmethod
    def from_obj(cls, obj: Mapping[str, Any]) -> "MailAck":
        members.one_of(obj, "box", frozenset({Box.IN.value}))
        return cls(
            seq=members.integer(obj, "seq", 1),
            next_offset=members.integer(obj, "next_offset", 0, MAX_RECORD_BYTES),
            state=MailState(members.one_of(obj, "state", frozenset(MailState))),
            applied_seq=members.integer(obj, "applied_seq"),
            code=members.optional_text(obj, "code", WORD),
        )

    def to_obj(self) -> JsonObject:
        obj: JsonObject = {
            "box": Box.IN.value,
            "seq": self.seq,
            "next_offset": self.next_offset,
            "state": self.state.value,
            "applied_seq": self.applied_seq,
        }
        if self.code is not None:
            obj["code"] = self.code
        return obj


@dataclass(frozen=True, slots=True)
class MailPull:
    """The validator asks for the outbox record after `after_seq`, from `offset` on."""

    after_seq: int
    offset: int

    @classmethod
    def from_obj(cls, obj: Mapping[str, Any]) -> "MailPull":
        members.one_of(obj, "box", frozenset({Box.OUT.value}))
        return cls(members.integer(obj, "after_seq"), members.integer(obj, "offset", 0, MAX_RECORD_BYTES))

    def to_obj(self) -> JsonObject:
        return {"box": Box.OUT.value, "after_seq": self.after_seq, "offset": self.offset}


@dataclass(frozen=True, slots=True)
class MailNone:
    """The outbox holds nothing after `after_seq`."""

    after_seq: int

    @classmethod
    def from_obj(cls, obj: Mapping[str, Any]) -> "MailNone":
        members.one_of(obj, "box", frozenset({Box.OUT.value}))
        return cls(members.integer(obj, "after_seq"))

    def to_obj(self) -> JsonObject:
        return {"box": Box.OUT.value, "after_seq": self.after_seq}
