"""Writes docs/vectors/link1.json: every signed object, message and frame of the cable, with fixed keys.

`python -m tools.kit.golden.vectors` writes the file; the same bytes come out on every machine, and a test
fails when the file is out of date. docs/tutorials/VALIDATOR.md says how to use it.
"""

import json
import sys
from pathlib import Path
from typing import Any

from link1.canonical import JsonObject, canonical_bytes
from link1.channels import slices_of
from link1.envelope import RULES, MessageType, Role, encode_message
from link1.frames import (
    CRC_BYTES,
    MAX_PAYLOAD_BYTES,
    Channel,
    DropReason,
    Frame,
    FrameKind,
    cobs_encode,
    encode_frame,
)
from link1.signed import object_ref
from tools.kit.golden.dialogue import Dialogue
from tools.kit.golden.values import (
    DEVICE_TAG,
    KEYS,
    MESSAGES,
    SIGNED_OBJECTS,
    TAGS,
    VALIDATOR_TAG,
    GoldenObject,
)
from tools.kit.link_monitor import FrameLog
from tools.kit.raw_frames import raw_frame

FILE = Path(__file__).resolve().parents[3] / "docs" / "vectors" / "link1.json"


def vectors() -> JsonObject:
    """Everything that the file holds."""
    return {
        "about": "LINK/1 golden vectors; made by python -m tools.kit.golden.vectors; never use these keys",
        "keys": {role.value: _key(role) for role in Role},
        "tags": {role.value: tag.hex() for role, tag in TAGS.items()},
        "frames": [_frame(name, frame) for name, frame in _link_frames()],
        "signed_objects": [_signed(item) for item in SIGNED_OBJECTS],
        "messages": [_message(*item) for item in MESSAGES],
        "dropped_frames": [{"why": reason.value, "hex": data.hex()} for reason, data in _bad_frames()],
        "refused_messages": [
            {"why": why, "code": code, "hex": data.hex()} for why, code, data in UNREADABLE_MESSAGES
        ],
        "dialogue": _read(Dialogue().play()),
    }


def _key(role: Role) -> JsonObject:
    key = KEYS[role]
    return {"seed_hex": key.seed.hex(), "pub_hex": key.public.raw.hex()} | {
        "pub_b64": key.public.b64,
        "kid": key.kid,
    }


def _link_frames() -> list[tuple[str, Frame]]:
    to_device, to_validator = DEVICE_TAG[0], VALIDATOR_TAG[0]
    return [
        ("RST of the device", Frame(FrameKind.RST, payload=DEVICE_TAG)),
        ("RSTACK of the validator to it", Frame(FrameKind.RSTACK, payload=DEVICE_TAG + VALIDATOR_TAG)),
        ("RST of the validator", Frame(FrameKind.RST, payload=VALIDATOR_TAG)),
        ("RSTACK of the device to it", Frame(FrameKind.RSTACK, payload=VALIDATOR_TAG + DEVICE_TAG)),
        ("PING to the device", Frame(FrameKind.PING, sess=to_device)),
        ("PONG to the validator", Frame(FrameKind.PONG, sess=to_validator)),
        ("ACK of control message 5, to the device", Frame(FrameKind.ACK, sess=to_device, mid=5)),
        (
            "ACK of mail message 65535, to the validator",
            Frame(FrameKind.ACK, Channel.MAIL, to_validator, 65_535),
        ),
    ]


def _frame(name: str, frame: Frame) -> JsonObject:
    return {
        "name": name,
        "kind": int(frame.kind),
        "chan": int(frame.chan),
        "sess": frame.sess,
        "mid": frame.mid,
        "index": frame.index,
        "count": frame.count,
        "payload_hex": frame.payload.hex(),
        "hex": encode_frame(frame).hex(),
    }


def _signed(item: GoldenObject) -> JsonObject:
    wrapper = item.wrapper
    return {
        "name": item.name,
        "member": item.kind.member,
        "prefix": item.kind.prefix,
        "signer": item.signer.value,
        "object": item.obj,
        "rfc8785": canonical_bytes(item.obj).decode("utf-8"),
        "signed_hex": item.kind.signed_bytes(item.obj).hex(),
        "sig_b64": wrapper["sig_b64"],
        "wrapper": canonical_bytes(wrapper).decode("utf-8"),
        "wrapper_ref": object_ref(wrapper),
    }


def _message(type_: MessageType, sender: Role, body: JsonObject) -> JsonObject:
    data = encode_message(type_, body)
    sess = TAGS[sender.peer][0]
    channel = RULES[type_].channel
    if channel is None:
        frames = [Frame(FrameKind.HINT, sess=sess, payload=data)]
    else:
        slices = slices_of(data)
        frames = [
            Frame(FrameKind.DATA, channel, sess, 0, index, len(slices), piece)
            for index, piece in enumerate(slices)
        ]
    return {
        "type": type_.value,
        "from": sender.value,
        "carrier": "hint" if channel is None else channel.name.lower(),
        "text": data.decode("utf-8"),
        "mid": 0,
        "frames": [encode_frame(frame).hex() for frame in frames],
    }


def _bad_frames() -> list[tuple[DropReason, bytes]]:
    """Frames to the device that are dropped whole, one for each reason that bytes alone can give."""
    sess, slice_ = DEVICE_TAG[0], b"x" * MAX_PAYLOAD_BYTES
    good = raw_frame(FrameKind.PING, sess=sess)
    encoded = bytearray(good)
    encoded[-2] ^= 1
    return [
        (DropReason.BAD_CRC, bytes(encoded)),
        (DropReason.BAD_COBS, b"\x05\x01\x02\x00"),
        (DropReason.TOO_SHORT, cobs_encode(bytes(8 + CRC_BYTES - 1)) + b"\x00"),
        (DropReason.TOO_LONG, raw_frame(FrameKind.DATA, sess=sess, payload=slice_ + b"x")),
        (DropReason.WRONG_VERSION, raw_frame(FrameKind.PING, sess=sess, version=2)),
        (DropReason.UNKNOWN_KIND, raw_frame(3, sess=sess)),
        (DropReason.UNKNOWN_CHANNEL, raw_frame(FrameKind.DATA, chan=2, sess=sess, payload=b"{}")),
        (DropReason.BAD_COUNT, raw_frame(FrameKind.DATA, sess=sess, count=0, payload=b"{}")),
        (DropReason.BAD_COUNT, raw_frame(FrameKind.DATA, sess=sess, count=5, payload=slice_)),
        (DropReason.BAD_INDEX, raw_frame(FrameKind.DATA, sess=sess, index=1, payload=b"{}")),
        (DropReason.SHORT_SLICE, raw_frame(FrameKind.DATA, sess=sess, count=2, payload=b"{}")),
        (DropReason.EMPTY_LAST_FRAGMENT, raw_frame(FrameKind.DATA, sess=sess)),
        (DropReason.BAD_PAYLOAD, raw_frame(FrameKind.RST, payload=DEVICE_TAG[:7])),
        (DropReason.BAD_PAYLOAD, raw_frame(FrameKind.RSTACK, payload=DEVICE_TAG)),
        (DropReason.BAD_PAYLOAD, raw_frame(FrameKind.ACK, sess=sess, payload=b"x")),
        (DropReason.MEMBER_NOT_ALLOWED, raw_frame(FrameKind.RST, sess=sess, payload=VALIDATOR_TAG)),
        (DropReason.MEMBER_NOT_ALLOWED, raw_frame(FrameKind.PING, sess=sess, mid=1)),
        (DropReason.MEMBER_NOT_ALLOWED, raw_frame(FrameKind.PING, chan=1, sess=sess)),
        (DropReason.MEMBER_NOT_ALLOWED, raw_frame(FrameKind.ACK, sess=sess, count=2)),
    ]


def _read(lines: list[JsonObject]) -> list[JsonObject]:
    """Each line of the dialogue with what `palmctl link monitor` makes of it."""
    logs = {role.value: FrameLog() for role in Role}
    return [
        line | {"frame": frame}
        for line in lines
        for frame in logs[line["from"]].feed(bytes.fromhex(line["hex"]))
    ]


def _text(member: str) -> bytes:
    return f'{{"body":{{{member}}},"type":"no_such_type","v":1}}'.encode()


UNREADABLE_MESSAGES: tuple[tuple[str, str, bytes], ...] = (
    ("a member twice", "malformed", _text('"a":1,"a":1')),
    ("a fraction", "malformed", _text('"a":1.0')),
    ("an exponent", "malformed", _text('"a":1e2')),
    ("minus zero", "malformed", _text('"a":-0')),
    ("an integer beyond 2^53 - 1", "malformed", _text('"a":9007199254740992')),
    ("a lone surrogate", "malformed", _text('"a":"\\ud800"')),
    ("bad UTF-8", "malformed", b'{"body":{"a":"\xff"},"type":"no_such_type","v":1}'),
    ("NaN", "malformed", _text('"a":NaN')),
    ("depth 17", "malformed", _text('"a":' + "[" * 15 + "]" * 15)),
    ("v is true", "malformed", b'{"body":{},"type":"no_such_type","v":true}'),
    ("no body", "malformed", b'{"type":"no_such_type","v":1}'),
    ("something behind the object", "malformed", _text("") + b"x"),
    ("not an object", "malformed", b"[]"),
    ("another version", "unsupported_version", b'{"body":{},"type":"no_such_type","v":2}'),
    ("an unknown type", "unsupported_type", _text("")),
)
"""(what is wrong, the code that a proven end answers, the bytes)."""


def text_of(obj: Any) -> str:
    """The file as it is checked in."""
    return json.dumps(obj, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text_of(vectors()), encoding="utf-8")
    sys.stdout.write(f"{FILE} written\n")
