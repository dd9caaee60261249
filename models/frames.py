"""One camera image, parsed once: everything downstream may rely on what a :class:`CameraFrame` promises."""

from dataclasses import dataclass, replace
from typing import Final, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from models.errors import PixelsError

NirHalf = Literal["none", "left", "right"]
"""Which half of a two-sensor module's combined picture is near infrared."""

MAX_SIDE_PX: Final = 16_384
"""Longest side taken; more is a decoder's mistake rather than a camera."""


@dataclass(frozen=True, slots=True, eq=False)
class CameraFrame:
    """One image of the camera, palm side towards it, not mirrored.

    ``pixels``: uint8, (H, W, 3) in BGR order or (H, W) for a near-infrared camera; neither side empty nor
    longer than ``MAX_SIDE_PX``. ``at_ms``: monotonic clock at the moment it was read. ``number``: counts up
    within one opening of the camera. ``nir``: (H, W) uint8, the same moment in near infrared, where the
    camera gives both. Raises ``PixelsError`` for any other pixels.
    """

    pixels: NDArray[np.uint8]
    at_ms: int
    number: int
    nir: NDArray[np.uint8] | None = None

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
        if self.nir is not None and (self.nir.dtype != np.uint8 or self.nir.shape != pixels.shape[:2]):
            raise PixelsError(
                f"a frame's near-infrared picture must be {pixels.shape[:2]} of type uint8, "
                f"found {self.nir.shape} of type {self.nir.dtype}"
            )

    @classmethod
    def from_pixels(
        cls, pixels: object, *, at_ms: int = 0, number: int = 0, nir: NirHalf = "none", grey: bool = False
    ) -> "CameraFrame":
        """A frame of any array that holds an image: (H, W, 1) becomes (H, W), memory becomes contiguous.

        ``nir``: the half of a picture, side by side with the other, that is near infrared. ``grey``: the
        camera sees no colour, though its driver may give three channels.
        """
        if not isinstance(pixels, np.ndarray):
            raise PixelsError(f"a frame must be a numpy array, found {type(pixels).__name__}")
        if pixels.ndim == 3 and pixels.shape[2] == 1:
            pixels = pixels[:, :, 0]
        if nir == "none" or pixels.ndim < 2 or pixels.shape[1] < 2:
            frame = cls(np.ascontiguousarray(pixels), at_ms, number)
            return replace(frame, pixels=as_grey(frame)) if grey else frame
        half = pixels.shape[1] // 2
        both = [np.ascontiguousarray(part) for part in (pixels[:, :half], pixels[:, -half:])]
        colour, infrared = both if nir == "right" else both[::-1]
        if infrared.ndim == 3:
            infrared = np.asarray(cv2.cvtColor(infrared, cv2.COLOR_BGR2GRAY), dtype=np.uint8)
        return cls(colour, at_ms, number, infrared)

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


def as_grey(frame: CameraFrame) -> NDArray[np.uint8]:
    """The frame's lightness (H, W) uint8 (ITU-R BT.601 weights); a grey frame's own pixels, not a copy."""
    if not frame.is_colour:
        return frame.pixels
    return np.asarray(cv2.cvtColor(frame.pixels, cv2.COLOR_BGR2GRAY), dtype=np.uint8)
