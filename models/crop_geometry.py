"""Where a hand's finger valleys land in the palm crop: the one geometry shared by capture and training.

The crop is a square, fingers up, never mirrored. Its frame is fixed by the three valleys between the four
fingers: index–middle and ring–little land symmetrically just above the crop's upper edge, so the crop is
all palm, about 1.6 times as wide as the distance between those two valleys. Crop coordinates run from 0 to 1,
x to the right and y downwards, over the whole square.

A left palm seen from the front with the fingers up has its thumb, and so its index–middle valley, on the
image's left; a right palm has them on the right. The crop keeps them there.
"""

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from models.errors import PixelsError

Handedness = Literal["L", "R"]

CROP_SIZE: Final = 112
"""Side of a palm crop, in pixels."""

VALLEY_X: Final = (0.19, 0.50, 0.81)
"""Crop x of the index–middle, middle–ring and ring–little valleys of a LEFT palm (mirrored for a right)."""

VALLEY_Y: Final = (-0.06, -0.09, -0.06)
"""Crop y of the same three valleys: just above the upper edge."""


def valley_targets(handedness: Handedness) -> NDArray[np.float64]:
    """Crop coordinates (3, 2) of the index–middle, middle–ring and ring–little valleys."""
    x = np.array(VALLEY_X, dtype=np.float64)
    return np.stack([x if handedness == "L" else 1.0 - x, np.array(VALLEY_Y, dtype=np.float64)], axis=1)


def similarity_from_valleys(
    valleys: NDArray[np.floating], handedness: Handedness, size: int = CROP_SIZE
) -> NDArray[np.float64]:
    """The 2x3 matrix that takes image pixels to crop pixels: rotation, one scale and a shift, no mirroring.

    ``valleys`` is (4, 2) in image pixels (x, y), rows thumb–index, index–middle, middle–ring, ring–little;
    the first row is not used, since the thumb moves. The matrix is the least-squares similarity (Umeyama
    1991) over the three others. Pixel centres have integer coordinates on both sides, as in OpenCV's
    ``warpAffine``. Raises ``PixelsError`` for another shape or for valleys that coincide.
    """
    if valleys.shape != (4, 2):
        raise PixelsError(f"valleys must have shape (4, 2), found {valleys.shape}")
    source = np.asarray(valleys[1:], dtype=np.float64)
    target = valley_targets(handedness) * size - 0.5
    source_mean, target_mean = source.mean(axis=0), target.mean(axis=0)
    s, t = source - source_mean, target - target_mean
    spread = float((s * s).sum())
    if not spread > 1e-6:
        raise PixelsError("the finger valleys coincide, so they give no direction and no scale")
    # A similarity is a complex factor a + ib; least squares gives it in closed form.
    a = float((s * t).sum()) / spread
    b = float((s[:, 0] * t[:, 1] - s[:, 1] * t[:, 0]).sum()) / spread
    linear = np.array([[a, -b], [b, a]])
    return np.hstack([linear, (target_mean - linear @ source_mean)[:, None]])


def pulled_apart(matrix: NDArray[np.float64], times: float, size: int = CROP_SIZE) -> NDArray[np.float64]:
    """The same 2x3 matrix for a palm that leans and so is shown too short along the fingers: from the valleys
    on, the crop is this many times as long as the picture shows it."""
    longer = matrix.copy()
    longer[1] *= times
    longer[1, 2] += (1.0 - times) * (float(np.mean(VALLEY_Y)) * size - 0.5)
    return longer
