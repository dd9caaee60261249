"""Picture files, read by OpenCV at a cost that their own size bounds."""

from pathlib import Path
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from link1.plain_file import read_plain_file

MOST_BYTES: Final = 64 * 1024 * 1024
"""Larger files are not read: no photograph is so large, and a small board has little memory."""
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_JPEG: Final = b"\xff\xd8\xff"
_MOST_SEGMENTS: Final = 1_024
"""Of 64 KiB each they fill a file of MOST_BYTES."""
_BEGINNINGS: Final = (
    _PNG,
    _JPEG,
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
    """Whether a PNG's chunks lead to its last one, which is empty (PNG, third edition, 11.2.5), and a JPEG
    has its end after the beginning of its pixels.

    True of what is neither. OpenCV reserves what a chunk announces, up to 4 GiB, before it looks whether the
    file has as much, and fills the missing part of a cut JPEG with grey. What follows the end of a JPEG is
    not looked at: telephones put a film there.
    """
    if data.startswith(_JPEG):
        return data.find(b"\xff\xd9", _pixels_of_jpeg(data)) >= 0
    if not data.startswith(_PNG):
        return True
    at = len(_PNG)
    while (kind := data[at + 4 : at + 8]) and kind != b"IEND":
        at += 12 + int.from_bytes(data[at : at + 4], "big")
    return data[at : at + 8] == bytes(4) + b"IEND"


def _pixels_of_jpeg(data: bytes) -> int:
    """Where a JPEG's first scan begins, after all segments that say how long they are (ITU-T T.81, B.1.1.4):
    a thumbnail, which has an end of its own, is in one of them."""
    at = 2
    for _ in range(_MOST_SEGMENTS):
        marker = data[at : at + 2]
        if not marker.startswith(b"\xff") or marker in (b"\xff", b"\xff\xda"):
            break
        # A marker may have more of 0xFF before it.
        at += 1 if marker == b"\xff\xff" else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return at


def depth_of(picture: NDArray[np.generic]) -> int:
    """With how many bits a camera took a picture of 8 or 16 bits a sample: guessed from the brightest one."""
    if picture.dtype == np.uint8:
        return 8
    colours = picture[..., :3] if picture.ndim == 3 else picture  # an alpha channel is always at full depth
    brightest_bits = int(colours.max()).bit_length()
    return next(bits for bits in (8, 10, 12, 14, 16) if brightest_bits <= bits)


def to_eight_bits(picture: NDArray[np.generic], depth_bits: int) -> NDArray[np.uint8]:
    """Its upper 8 of ``depth_bits``; of an alpha channel of 16 bits."""
    if picture.dtype == np.uint8:
        same: NDArray[np.uint8] = picture.view(np.uint8)
        return same
    eight = np.right_shift(picture.astype(np.uint16, copy=False), depth_bits - 8)
    if picture.ndim == 3 and picture.shape[2] == 4:
        eight[..., 3] = picture[..., 3].astype(np.uint16) >> 8
    clipped: NDArray[np.uint8] = np.minimum(eight, 255).astype(np.uint8)
    return clipped


def read_picture(path: Path, how: int) -> NDArray[np.uint8] | None:
    """As ``cv2.imread`` with the flags ``how``: None of what cannot be read, or not within bounds.

    More than 8 bits a sample become 8 as a camera's are, where ``cv2.imread`` takes all for 16. Each picture
    by itself: a set may be of several cameras.
    """
    try:
        data = read_plain_file(path, MOST_BYTES)
        taken = is_of_a_known_kind(data) and ends_as_it_says(data)
        picture = cv2.imdecode(np.frombuffer(data, np.uint8), how | cv2.IMREAD_ANYDEPTH) if taken else None
    except (OSError, cv2.error):
        return None
    if picture is None or picture.dtype not in (np.uint8, np.uint16):
        return None
    return to_eight_bits(picture, depth_of(picture))
