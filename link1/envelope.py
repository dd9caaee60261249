"""Messages: `{"v":1,"type":"<name>","body":{…}}`, sent canonical and read strictly (LINK/1 §2).

`RULES` says of every type who sends it, on what it travels, and which signed object its body is. A body
that is a signed wrapper is passed on as it came; the others are parsed in `link1.bodies`.

>>> encode_message(MessageType.CANCEL, {"txn_id": "00000000000000000000000000000001"})
b'{"body":{"txn_id":"00000000000000000000000000000001"},"type":"cancel","v":1}'
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from link1.canonical import JsonObject, canonical_bytes, read_strict
from link1.errors import FormatError
from link1.frames import MAX_MESSAGE_BYTES, Channel
from link1.objects import ErrorCode
from link1.signed import Kind


class Role(StrEnum):
    DEVICE = "device"
    VALIDATOR = "validator"

    @property
    def peer(self) -> "Role":
        return Role.VALIDATOR if self is Role.DEVICE else Role.DEVICE


class MessageType(StrEnum):
    HELLO = "hello"
    PROVE = "prove"
    STATUS = "status"
    READY = "ready"
    REQUEST = "request"
    GUIDE = "guide"
    CANCEL = "cancel"
    VERDICT = "verdict"
    DECISION = "decision"
    PASSAGE = "passage"
    RESOLVE = "resolve"
    UNKNOWN = "unknown"
    ERROR = "error"
    MAIL = "mail"
    MAIL_ACK = "mail_ack"
    MAIL_PULL = "mail_pull"
    MAIL_NONE = "mail_none"


ABOUT_MESSAGE = "message"
"""What an error is about when no type of the contract could be made out."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What the contract says of one type. `channel`: None for a HINT, which travels on none."""

    senders: frozenset[Role]
    channel: Channel | None = Channel.CONTROL
    signed: Kind | None = None


_DEVICE = frozenset({Role.DEVICE})
_VALIDATOR = frozenset({Role.VALIDATOR})
_EITHER = _DEVICE | _VALIDATOR

RULES: dict[MessageType, Rule] = {
    MessageType.HELLO: Rule(_EITHER),
    MessageType.PROVE: Rule(_EITHER, signed=Kind.HELLO),
    MessageType.STATUS: Rule(_DEVICE, signed=Kind.STATUS),
    MessageType.READY: Rule(_VALIDATOR),
    MessageType.REQUEST: Rule(_VALIDATOR, signed=Kind.REQUEST),
    MessageType.GUIDE: Rule(_DEVICE, None),
    MessageType.CANCEL: Rule(_VALIDATOR),
    MessageType.VERDICT: Rule(_DEVICE, signed=Kind.VERDICT),
    MessageType.DECISION: Rule(_VALIDATOR, signed=Kind.DECISION),
    MessageType.PASSAGE: Rule(_VALIDATOR, signed=Kind.PASSAGE),
    MessageType.RESOLVE: Rule(_DEVICE),
    MessageType.UNKNOWN: Rule(_VALIDATOR),
    MessageType.ERROR: Rule(_EITHER),
    MessageType.MAIL: Rule(_EITHER, Channel.MAIL),
    MessageType.MAIL_ACK: Rule(_DEVICE, Channel.MAIL),
    MessageType.MAIL_PULL: Rule(_VALIDATOR, Channel.MAIL),
    MessageType.MAIL_NONE: Rule(_DEVICE, Channel.MAIL),
}

BEFORE_PROOF = frozenset({MessageType.HELLO, MessageType.PROVE, MessageType.ERROR})
"""All that is served before both ends have proven who they are (LINK/1 §3)."""


class MessageRefused(FormatError):
    """A message that is answered with an error: `code`, and the type it is `about`."""

    def __init__(self, code: ErrorCode, about: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.about = about


@dataclass(frozen=True, slots=True)
class Message:
    type: MessageType
    body: JsonObject


def encode_message(type_: MessageType, body: Mapping[str, Any]) -> bytes:
    """The RFC 8785 bytes of a message; raises FormatError when it has no such form or exceeds 4096 bytes."""
    data = canonical_bytes({"v": 1, "type": type_.value, "body": dict(body)})
    if len(data) > MAX_MESSAGE_BYTES:
        raise FormatError(f"a message has at most {MAX_MESSAGE_BYTES} bytes, this {type_} has {len(data)}")
    return data


def read_message(data: bytes, sender: Role, channel: Channel | None) -> Message:
    """Parse what `sender` sent on `channel` (None for a HINT).

    Raises MessageRefused with the error to answer: `malformed`, `unsupported_version`, or
    `unsupported_type` also for a type that this sender does not send.
    """
    try:
        obj = read_strict(data, max_bytes=MAX_MESSAGE_BYTES)
    except FormatError as error:
        raise MessageRefused(ErrorCode.MALFORMED, ABOUT_MESSAGE, str(error)) from None
    version, name, body = obj.get("v"), obj.get("type"), obj.get("body")
    # The type first: an error is never answered, however the rest reads, and the answer names the type.
    type_ = MessageType(name) if isinstance(name, str) and name in RULES else None
    about = ABOUT_MESSAGE if type_ is None else type_
    if type(version) is not int:
        raise MessageRefused(ErrorCode.MALFORMED, about, "member v is not an integer")
    if version != 1:
        raise MessageRefused(ErrorCode.UNSUPPORTED_VERSION, about, "only v 1 is spoken here")
    if set(obj) != {"v", "type", "body"} or not isinstance(name, str) or not isinstance(body, dict):
        raise MessageRefused(ErrorCode.MALFORMED, about, "a message has the members v, type, body")
    if type_ is None:
        raise MessageRefused(ErrorCode.UNSUPPORTED_TYPE, ABOUT_MESSAGE, "no such type")
    rule = RULES[type_]
    if sender not in rule.senders:
        raise MessageRefused(ErrorCode.UNSUPPORTED_TYPE, type_, f"{type_} is not sent by the {sender}")
    if rule.channel != channel:
        raise MessageRefused(ErrorCode.MALFORMED, type_, f"{type_} does not travel on this channel")
    return Message(type_, body)
