"""What a camera with one colour filter on each pixel makes of a picture: mosaic, then demosaicing.

Three ways to fill in the colours: bilinear, along edges (OpenCV's), and Malvar, He and Cutler 2004. Each
leaves a weak regular pattern in smooth skin, two pixels long.
"""

from typing import Final, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Pattern = Literal["RGGB", "BGGR", "GRBG", "GBRG"]
Demosaicing = Literal["bilinear", "edges", "malvar"]
PATTERNS: Final[tuple[Pattern, ...]] = ("RGGB", "BGGR", "GRBG", "GBRG")
DEMOSAICINGS: Final[tuple[Demosaicing, ...]] = ("bilinear", "edges", "malvar")

_GAINS: Final = (1.6, 1.0, 1.9)
"""White balance of a silicon sensor under daylight: blue, green, red."""
_SECOND_GREEN: Final = 1.02
_NOISE: Final = 0.7
"""Levels of the sensor."""
_OPENCV: Final = {
    ("RGGB", "bilinear"): cv2.COLOR_BayerRGGB2BGR,
    ("BGGR", "bilinear"): cv2.COLOR_BayerBGGR2BGR,
    ("GRBG", "bilinear"): cv2.COLOR_BayerGRBG2BGR,
    ("GBRG", "bilinear"): cv2.COLOR_BayerGBRG2BGR,
    ("RGGB", "edges"): cv2.COLOR_BayerRGGB2BGR_EA,
    ("BGGR", "edges"): cv2.COLOR_BayerBGGR2BGR_EA,
    ("GRBG", "edges"): cv2.COLOR_BayerGRBG2BGR_EA,
    ("GBRG", "edges"): cv2.COLOR_BayerGBRG2BGR_EA,
}
_GREEN: Final = np.array(
    [[0, 0, -1, 0, 0], [0, 0, 2, 0, 0], [-1, 2, 4, 2, -1], [0, 0, 2, 0, 0], [0, 0, -1, 0, 0]], np.float32
)
_ROW: Final = np.array(
    [[0, 0, 0.5, 0, 0], [0, -1, 0, -1, 0], [-1, 4, 5, 4, -1], [0, -1, 0, -1, 0], [0, 0, 0.5, 0, 0]],
    np.float32,
)
_OTHER: Final = np.array(
    [[0, 0, -1.5, 0, 0], [0, 2, 0, 2, 0], [-1.5, 0, 6, 0, -1.5], [0, 2, 0, 2, 0], [0, 0, -1.5, 0, 0]],
    np.float32,
)


def through_a_mosaic(pixels: Pixels, pattern: Pattern, way: Demosaicing, seed: int) -> Pixels:
    """A BGR picture (H, W, 3), even sides, as such a camera gives it."""
    rng = np.random.default_rng(seed)
    sensor = pixels.astype(np.float32) / np.array(_GAINS, np.float32)
    raw = np.zeros(pixels.shape[:2], np.float32)
    for place, colour in enumerate(pattern):
        at = np.s_[place // 2 :: 2, place % 2 :: 2]
        # The two greens of a sensor are never quite as sensitive as each other.
        raw[at] = sensor[:, :, "BGR".index(colour)][at] * (
            _SECOND_GREEN if place > 1 and colour == "G" else 1.0
        )
    raw += rng.normal(0.0, _NOISE, raw.shape).astype(np.float32)
    mosaic = np.clip(np.round(raw), 0, 255).astype(np.uint8)
    filled = _malvar(mosaic, pattern) if way == "malvar" else cv2.cvtColor(mosaic, _OPENCV[pattern, way])
    return np.clip(np.round(filled.astype(np.float32) * np.array(_GAINS, np.float32)), 0, 255).astype(
        np.uint8
    )


def _malvar(mosaic: Pixels, pattern: Pattern) -> NDArray[np.float32]:
    raw = mosaic.astype(np.float32)
    green, along, down, other = (
        cv2.filter2D(raw, -1, kernel / 8.0, borderType=cv2.BORDER_REFLECT_101)
        for kernel in (_GREEN, _ROW, _ROW.T, _OTHER)
    )
    out = np.zeros((*raw.shape, 3), np.float32)
    for place, colour in enumerate(pattern):
        at = np.s_[place // 2 :: 2, place % 2 :: 2]
        beside, across = pattern[place ^ 1], pattern[place ^ 2]
        out[:, :, "BGR".index(colour)][at] = raw[at]
        if colour == "G":
            out[:, :, "BGR".index(beside)][at] = along[at]
            out[:, :, "BGR".index(across)][at] = down[at]
        else:
            out[:, :, 1][at] = green[at]
            out[:, :, 0 if colour == "R" else 2][at] = other[at]
    return np.clip(out, 0.0, 255.0)
