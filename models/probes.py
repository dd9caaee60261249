"""Several probes from one capture: what a search is repeated with when one did not settle it."""

from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import CROP_SIZE
from models.errors import PixelsError

SLIP_PX: Final = 5
"""How far the cutter's crop may have slipped, in crop pixels, that a shifted probe makes good."""

Crops = NDArray[np.uint8]


def probe_crops(crop: Crops, slip_px: int = SLIP_PX) -> Crops:
    """The crop (112, 112) and its eight neighbours ``slip_px`` away, (9, 112, 112), the crop itself first.

    A search with all nine vectors (the gallery takes the best of several probes) forgives a crop that
    slipped.
    """
    if crop.shape != (CROP_SIZE, CROP_SIZE) or crop.dtype != np.uint8:
        raise PixelsError(f"a palm crop is uint8 {(CROP_SIZE, CROP_SIZE)}, found {crop.dtype} {crop.shape}")
    wide = cv2.copyMakeBorder(crop, slip_px, slip_px, slip_px, slip_px, cv2.BORDER_REFLECT_101)
    places = [(0, 0)] + [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if (y, x) != (0, 0)]
    starts = [((y + 1) * slip_px, (x + 1) * slip_px) for y, x in places]
    return np.stack([wide[top : top + CROP_SIZE, left : left + CROP_SIZE] for top, left in starts])
