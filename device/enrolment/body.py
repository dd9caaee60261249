"""The bytes of ``POST /v1/enrollments``, written so that every copy of a vector can be overwritten.

Python's strings and bytes cannot be overwritten: their content stays in freed memory until it is reused. So
vectors go from their array through arrays into one `bytearray` of the final size.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from device.enrolment.consent import AcceptedPurpose
from device.values.recognition import PalmCapture
from link1.canonical import canonical_bytes

Bytes = npt.NDArray[np.uint8]

_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_TEXT_BYTES: Final = 2732
"""2,048 bytes in base64."""


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
    """Base64 of the vector's 2,048 little-endian bytes into `place` (2732,) uint8."""
    padded = np.zeros(2049, np.uint8)
    padded[:2048] = vector.astype("<f4", copy=False).view(np.uint8)
    first, second, third = padded.reshape(683, 3).T
    sixes = np.empty((683, 4), np.uint8)
    sixes[:, 0] = first >> 2
    sixes[:, 1] = (first & 3) << 4 | second >> 4
    sixes[:, 2] = (second & 15) << 2 | third >> 6
    sixes[:, 3] = third & 63
    # Any mode other than the default writes directly into `place`, without a buffer.
    np.take(np.frombuffer(_ALPHABET, np.uint8), sixes.reshape(-1), out=place, mode="clip")
    place[-1] = ord("=")
    padded.fill(0)
    sixes.fill(0)
