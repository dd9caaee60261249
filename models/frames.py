"""One camera image, parsed once: everything downstream may rely on what a :class:`Frame` promises."""

from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.errors import PixelsError

MAX_SIDE_PX: Final = 16_384
"""Longest side taken; more is a decoder's mistake rather than a camera."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One image of the camera, palm side towards it, not mirrored.

    ``pixels``: uint8, (H, W, 3) in BGR order or (H, W) for a near-infrared camera; neither side empty nor
    longer than ``MAX_SIDE_PX``. ``at_ms``: monotonic clock at the moment it was read. ``number``: counts up
    within one opening of the camera. Raises ``PixelsError`` for any other pixels.
    """

    pixels: NDArray[np.uint8]
    at_ms: int
    number: int

    def __post_init__(self) -> None:
        pixels: object = self.pixels
        if not isinstance(pixels, np.ndarray):
            raise PixelsError(f"a frame must be a numpy array, found {type(pixels).__name__}")
        if pixels.dtype != np.uint8:
            raise PixelsError(
                f"a frame must be of type uint8, found {pixels.dtype}; "
                "scale 16-bit and floating-point images to 0..255 first"
            )
        if pixels.ndim not in {2, 3} or (pixels.ndim == 3 and pixels.shape[2] != 3):
            raise PixelsError(f"a frame must have the shape (H, W) or (H, W, 3), found {pixels.shape}")
        if min(pixels.shape[:2]) < 1 or max(pixels.shape[:2]) > MAX_SIDE_PX:
            raise PixelsError(f"a frame's sides must be 1 to {MAX_SIDE_PX} pixels, found {pixels.shape}")

    @classmethod
    def from_pixels(cls, pixels: object, *, at_ms: int = 0, number: int = 0) -> "Frame":
        """A frame of any array that holds an image: (H, W, 1) becomes (H, W), memory becomes contiguous."""
        if not isinstance(pixels, np.ndarray):
            raise PixelsError(f"a frame must be a numpy array, found {type(pixels).__name__}")
        if pixels.ndim == 3 and pixels.shape[2] == 1:
            pixels = pixels[:, :, 0]
        return cls(np.ascontiguousarray(pixels), at_ms, number)

    @property
    def height(self) -> int:
        return int(self.pixels.shape[0])

    @property
    def width(self) -> int:
        return int(self.pixels.shape[1])

    @property
    def is_colour(self) -> bool:
        """Whether the frame has three channels (they may still hold equal values)."""
        return self.pixels.ndim == 3


def as_grey(frame: Frame) -> NDArray[np.uint8]:
    """The frame's lightness (H, W) uint8 (ITU-R BT.601 weights); a grey frame's own pixels, not a copy."""
    if not frame.is_colour:
        return frame.pixels
    return np.asarray(cv2.cvtColor(frame.pixels, cv2.COLOR_BGR2GRAY), dtype=np.uint8)
