"""Picture files, read by OpenCV at a cost that their own size bounds."""

from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from link1.plain_file import read_plain_file

MOST_BYTES: Final = 64 * 1024 * 1024
"""Larger files are not read: no photograph is so large, and a small board has little memory."""
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_BEGINNINGS: Final = (
    _PNG,
    b"\xff\xd8\xff",
    b"BM",
    b"II*\x00",
    b"MM\x00*",
    *(b"P%d" % n for n in range(1, 8)),
)


def is_of_a_known_kind(data: bytes) -> bool:
    """Whether it begins as a JPEG, PNG, BMP, WebP, TIFF or PNM file.

    What else OpenCV reads (GIF, JPEG 2000, AVIF, HDR, Sun raster) no camera writes: only more code to attack.
    """
    return data.startswith(_BEGINNINGS) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP")


def ends_as_it_says(data: bytes) -> bool:
    """Whether a PNG's chunks lead to its last one, which is empty (PNG, third edition, 11.2.5).

    True of what is no PNG. OpenCV reserves what a chunk announces, up to 4 GiB, before it looks whether the
    file has as much.
    """
    if not data.startswith(_PNG):
        return True
    at = len(_PNG)
    while (kind := data[at + 4 : at + 8]) and kind != b"IEND":
        at += 12 + int.from_bytes(data[at : at + 4], "big")
    return data[at : at + 8] == bytes(4) + b"IEND"


def read_picture(path: Path, how: int) -> NDArray[Any] | None:
    """As ``cv2.imread`` with the flags ``how``: None of what cannot be read, or not within bounds."""
    try:
        data = read_plain_file(path, MOST_BYTES)
        taken = is_of_a_known_kind(data) and ends_as_it_says(data)
        return cv2.imdecode(np.frombuffer(data, np.uint8), how) if taken else None
    except (OSError, cv2.error):
        return None
