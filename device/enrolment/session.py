"""The session of an enrolment, read from a QR code or from the service's answer to a short code."""

import re
from dataclasses import dataclass, field
from typing import Final

from cloud_client.contract import QR_PREFIX
from device.values.recognition import HandName
from link1 import members
from link1.canonical import JsonObject, read_strict
from link1.errors import FormatError
from link1.members import NAME

ANSWER_MAX_BYTES: Final = 64 * 1024

_SESSION_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,256}")
_SHORT_CODE = re.compile(r"[0-9A-HJKMNP-TV-Z]{8}")
_READ_AS = str.maketrans({"I": "1", "L": "1", "O": "0", "-": None, " ": None})
_HANDS: Final[dict[str, HandName]] = {"L": "L", "R": "R"}


@dataclass(frozen=True, slots=True)
class EnrolmentSession:
    """An open session. A QR code names neither `hands_required` nor `terms_version`, which are then None, nor
    whether training data may be asked for (`dataset_collection`)."""

    session_id: str
    token: str = field(repr=False)
    hands_required: tuple[HandName, ...] | None = None
    terms_version: str | None = None
    dataset_collection: bool = False


def parse_qr(payload: str, prefix: str = QR_PREFIX) -> EnrolmentSession | None:
    """The session of `<prefix>1:ENR:<session_id>:<token>` (partner API, Enrollment session); else None."""
    found = re.fullmatch(rf"{re.escape(prefix)}1:ENR:({_SESSION_ID.pattern}):({_TOKEN.pattern})", payload)
    return EnrolmentSession(found[1], found[2]) if found else None


def normal_short_code(text: str) -> str | None:
    """A typed code as `XXXX-XXXX` of Crockford's base32 (O read as 0, I and L as 1); None if it is none."""
    code = text.upper().translate(_READ_AS)
    return f"{code[:4]}-{code[4:]}" if _SHORT_CODE.fullmatch(code) else None


def read_redeemed(body: bytes) -> EnrolmentSession:
    """The answer of ``POST /v1/enrollment-sessions/redeem``. Raises FormatError."""
    answer: JsonObject = read_strict(body, max_bytes=ANSWER_MAX_BYTES)
    hands = tuple(_HANDS.get(str(hand)) for hand in members.array(answer, "hands_required", 1, 2))
    known = tuple(hand for hand in hands if hand is not None)
    if len(known) != len(hands) or len(set(known)) != len(known):
        raise FormatError("member hands_required is not a list of distinct hands")
    return EnrolmentSession(
        session_id=members.text(answer, "session_id", _SESSION_ID),
        token=members.text(answer, "token", _TOKEN),
        hands_required=known,
        terms_version=members.text(answer, "terms_version", NAME),
        dataset_collection=members.boolean(answer, "dataset_collection"),
    )
