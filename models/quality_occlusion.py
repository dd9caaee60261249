"""How much of a palm crop shows something else than the palm: a plaster, a sleeve, a strap, dirt.

Skin under one light is a smooth surface with fine lines on it. What differs from that surface over a whole
cell, in lightness or in colour, is something else.
"""

from functools import cache
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import CROP_SIZE, similarity_from_valleys
from models.frames import CameraFrame
from models.hand import Hand

CELLS: Final = 16
"""The crop is looked at as 16x16 cells of 7 pixels, wider than any crease."""
LIGHT_LIMIT: Final = 0.25
"""In log lightness: what creases, veins and shading of generated palms stay below in 99 % of cells."""
COLOUR_LIMIT: Final = 0.12
"""Difference of Cr or Cb from the palm's own, as part of the lightness."""
_DARK: Final = 60.0
"""Below this lightness noise dominates the colour: the colour is divided by this instead."""
_ROUNDS: Final = 3


def foreign_share(frame: CameraFrame, hand: Hand, crop: NDArray[np.uint8]) -> float:
    """0..1: share of the cells of ``crop`` (112, 112) uint8 that do not look like the rest of the palm.

    A frame without colours is judged by lightness alone. Never raises. About 0.3 ms.
    """
    cells = cv2.resize(crop, (CELLS, CELLS), interpolation=cv2.INTER_AREA)
    foreign = np.abs(_off_surface(np.log(cells.reshape(-1).astype(np.float64) + 8.0))) > LIGHT_LIMIT
    if frame.is_colour:
        foreign |= _off_colour(frame, hand) > COLOUR_LIMIT
    return float(foreign.mean())


def _off_surface(light: NDArray[np.float64]) -> NDArray[np.float64]:
    """Residuals of a quadratic surface through most of the cells: least squares, outliers left out."""
    terms = _terms()
    weight = np.ones(len(light))
    residual = light
    for _ in range(_ROUNDS):
        weighted = terms * weight[:, None]
        # The small ridge keeps the system regular where nearly every cell was left out.
        surface = np.linalg.solve(weighted.T @ terms + 1e-6 * np.eye(6), weighted.T @ light)
        residual = light - terms @ surface
        spread = max(1.48 * float(np.median(np.abs(residual))), 0.04)
        weight = (np.abs(residual) < 2.5 * spread).astype(np.float64)
    return residual


def _off_colour(frame: CameraFrame, hand: Hand) -> NDArray[np.float64]:
    """Each cell's distance from the palm's median colour."""
    twice = 2 * CELLS
    matrix = similarity_from_valleys(hand.valleys, hand.handedness) * (twice / CROP_SIZE)
    small = cv2.warpAffine(
        frame.pixels, matrix, (twice, twice), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
    )
    small = cv2.resize(small, (CELLS, CELLS), interpolation=cv2.INTER_AREA)
    cells = cv2.cvtColor(small, cv2.COLOR_BGR2YCrCb).reshape(-1, 3).astype(np.float64)
    colours = (cells[:, 1:] - 128.0) / np.maximum(cells[:, :1], _DARK)
    return np.asarray(np.abs(colours - np.median(colours, axis=0)).max(axis=1))


@cache
def _terms() -> NDArray[np.float64]:
    """(cells, 6): 1, x, y, x², y², xy."""
    y, x = np.mgrid[0:CELLS, 0:CELLS].reshape(2, -1) / (CELLS - 1) * 2.0 - 1.0
    return np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1)
