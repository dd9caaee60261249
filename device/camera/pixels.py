"""Decoding one image file of any camera into pixels that the models take."""

from typing import Any, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from device.camera.source import LONGEST_SIDE_PX, Pixels
from models import MOST_PIXELS
from models.picture_files import depth_of, ends_as_it_says, is_of_a_known_kind, to_eight_bits

_Sample = TypeVar("_Sample", bound=np.integer[Any] | np.floating[Any])
SHORTEST_SIDE_PX = 64
_BACKDROP = 128.0  # transparent pictures are blended onto mid grey: neither a dark nor a bright background


class Unreadable(ValueError):
    """These bytes are not a usable picture; the message says why."""


def decode_image(data: bytes, *, depth_bits: int = 8) -> tuple[Pixels, int, bool]:
    """`data` (a JPEG, PNG, BMP, WebP, TIFF or PNM file) as `(pixels, depth_bits, scaled_down)`.

    Turned upright by its EXIF orientation. Grey stays (H, W), colour becomes BGR, an alpha channel is blended
    onto mid grey. With more than 8 bits a sample, the depth is guessed from the brightest sample and is at
    least `depth_bits` (pass the depth returned before, so that a dark picture in a series is not stretched).
    The longer side is at most LONGEST_SIDE_PX. A picture of more than MOST_PIXELS is rejected by its header.
    Raises Unreadable.
    """
    if not is_of_a_known_kind(data):
        raise Unreadable("no JPEG, PNG, BMP, WebP, TIFF or PNM file")
    if not ends_as_it_says(data):
        raise Unreadable("a PNG without its end" if data[1:4] == b"PNG" else "a JPEG without its end")
    raw = np.frombuffer(data, np.uint8)
    try:
        picture = cv2.imdecode(raw, cv2.IMREAD_UNCHANGED) if _may_have_alpha(data) else None
        if picture is None or picture.ndim != 3 or picture.shape[2] != 4:
            # IMREAD_UNCHANGED ignores the EXIF orientation of photographs taken with telephones.
            picture = None  # freed first, so that only one of them is in memory
            picture = cv2.imdecode(raw, cv2.IMREAD_ANYCOLOR | cv2.IMREAD_ANYDEPTH)
    except cv2.error as error:
        if "CV_IO_MAX_IMAGE" in str(error):
            raise Unreadable(f"more than {MOST_PIXELS // 10**6} megapixels; scale it down") from error
        raise Unreadable("OpenCV cannot decode it") from error
    if picture is None:
        raise Unreadable("OpenCV cannot decode it")
    if min(picture.shape[:2]) < SHORTEST_SIDE_PX:
        raise Unreadable(f"smaller than {SHORTEST_SIDE_PX} pixels")
    if picture.dtype not in (np.uint8, np.uint16):
        raise Unreadable(f"samples are {picture.dtype}, not 8 or 16 bit integers")
    depth_bits = max(depth_bits, depth_of(picture))
    small = shrink(picture)
    return _without_alpha(to_eight_bits(small, depth_bits)), depth_bits, small is not picture


def shrink(picture: npt.NDArray[_Sample]) -> npt.NDArray[_Sample]:
    """`picture` with its longer side at most LONGEST_SIDE_PX; itself where it is."""
    longer = max(picture.shape[:2])
    if longer <= LONGEST_SIDE_PX:
        return picture
    factor = LONGEST_SIDE_PX / longer
    size = (max(1, round(picture.shape[1] * factor)), max(1, round(picture.shape[0] * factor)))
    return np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), picture.dtype)


def _may_have_alpha(data: bytes) -> bool:
    return data[:4] in (b"\x89PNG", b"RIFF", b"II*\x00", b"MM\x00*")


def _without_alpha(picture: Pixels) -> Pixels:
    if picture.ndim == 2 or picture.shape[2] == 3:
        return picture
    if picture.shape[2] == 4:
        weight = picture[..., 3:].astype(np.float32) / 255.0
        blended = picture[..., :3].astype(np.float32) * weight + _BACKDROP * (1.0 - weight)
        flat: Pixels = np.rint(blended).astype(np.uint8)
        return flat
    return np.ascontiguousarray(picture[..., 0])
