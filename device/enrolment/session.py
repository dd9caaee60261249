"""The session of an enrolment, read from a QR code or from the service's answer to a short code; and the
bytes of ``POST /v1/enrollments`` that end it, written so that every copy of a vector can be overwritten.

Python's strings and bytes cannot be overwritten: their content stays in freed memory until it is reused. So
vectors go from their array through arrays into one `bytearray` of the final size.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from cloud_client.contract import QR_PREFIX
from device.enrolment.consent import AcceptedPurpose
from device.values.recognition import HandName, PalmCapture
from link1 import members
from link1.canonical import JsonObject, canonical_bytes, read_with_fractions
from link1.errors import FormatError
from link1.members import NAME

Bytes = npt.NDArray[np.uint8]

_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_TEXT_BYTES: Final = 2732
"""2,048 bytes in base64."""
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
    answer: JsonObject = read_with_fractions(body, max_bytes=ANSWER_MAX_BYTES)
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


def write_enrolment(
    token: str, model_id: str, captures: Sequence[PalmCapture], consents: Sequence[AcceptedPurpose]
) -> bytearray:
    """The body that completes an enrolment. The captures' vectors (512,) float32 are unchanged; the caller
    overwrites the result."""
    head = canonical_bytes(
        {"consents": [consent.to_obj() for consent in consents], "model_id": model_id, "token": token}
    )
    starts = [
        canonical_bytes({"hand": of.hand, "pad": of.pad.to_obj(), "quality_q": of.quality_q})[:-1]
        + b',"vector_b64":"'
        for of in captures
    ]
    frame = head[:-1] + b',"hands":['
    size = len(frame) + sum(len(start) + _TEXT_BYTES + len(b'"},') for start in starts) + 1
    body = bytearray(size)
    place = np.frombuffer(body, np.uint8)
    at = _put(place, 0, frame)
    for start, capture in zip(starts, captures, strict=True):
        at = _put(place, at, start)
        _put_base64(place[at : at + _TEXT_BYTES], capture.vector)
        at = _put(place, at + _TEXT_BYTES, b'"},')
    _put(place, at - 1 if starts else at, b"]}")
    return body


def write_failure(token: str) -> bytearray:
    """The report that no capture was good enough, without the reason."""
    return bytearray(canonical_bytes({"token": token, "failed": "capture_rejected"}))


def _put(place: Bytes, at: int, text: bytes) -> int:
    place[at : at + len(text)] = np.frombuffer(text, np.uint8)
    return at + len(text)


def _put_base64(place: Bytes, vector: npt.NDArray[np.float32]) -> None:
    """Base64 of the vector's 2,048 little-endian bytes into `place` (2732,) uint8.

    No expression here makes an array: NumPy keeps small ones for its next, and they are not overwritten.
    """
    # Of the type of an index, into which `take` would copy any other.
    padded, sixes, part = np.zeros(2049, np.intp), np.zeros((683, 4), np.intp), np.zeros(683, np.intp)
    padded[:2048] = vector.astype("<f4", copy=False).view(np.uint8)
    first, second, third = padded.reshape(683, 3).T
    np.right_shift(first, 2, out=sixes[:, 0])
    for column, low, mask, left, high, right in ((1, first, 3, 4, second, 4), (2, second, 15, 2, third, 6)):
        np.bitwise_and(low, mask, out=part)
        np.left_shift(part, left, out=sixes[:, column])
        np.right_shift(high, right, out=part)
        np.bitwise_or(sixes[:, column], part, out=sixes[:, column])
    np.bitwise_and(third, 63, out=sixes[:, 3])
    # Any mode other than the default writes directly into `place`, without a buffer.
    np.take(np.frombuffer(_ALPHABET, np.uint8), sixes.reshape(-1), out=place, mode="clip")
    place[-1] = ord("=")
    for scratch in (padded, sixes, part):
        scratch.fill(0)
