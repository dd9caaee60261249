"""Cut the palm out of a frame: one transform from the finger valleys, no mirroring."""

import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import CROP_SIZE
from models.frames import CameraFrame, as_grey
from models.hand import Hand


def cut_palm(frame: CameraFrame, hand: Hand, side: int = CROP_SIZE) -> NDArray[np.uint8]:
    """The palm (side, side) uint8 grey, fingers up, as ``crop_geometry`` lays it.

    Where the square reaches over the frame's edge, the edge is repeated. A palm that is larger in the frame
    than in the crop is averaged first, so that fine skin texture does not alias.
    """
    matrix = hand.to_crop(side)
    grey = as_grey(frame)
    shrink = 1.0 / max(float(np.hypot(matrix[0, 0], matrix[0, 1])), 1e-6)
    if shrink > 1.5:
        grey, matrix = _reduced(grey, matrix, side, shrink)
    crop = cv2.warpAffine(grey, matrix, (side, side), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(crop, dtype=np.uint8)


def _reduced(
    grey: NDArray[np.uint8], matrix: NDArray[np.float64], side: int, shrink: float
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Only the part of the image that the crop needs, smoothed to the crop's resolution."""
    corners = np.array([[0.0, 0.0], [side, 0.0], [0.0, side], [side, side]])
    source = np.linalg.solve(matrix[:, :2], (corners - matrix[:, 2]).T).T
    margin = 2.0 * shrink
    height, width = grey.shape
    first, last = np.floor(source.min(axis=0) - margin), np.ceil(source.max(axis=0) + margin)
    left, top = np.clip(first, 0, [width - 1, height - 1]).astype(int)
    right, bottom = np.clip(last, [left + 1, top + 1], [width, height]).astype(int)
    part = np.ascontiguousarray(grey[top:bottom, left:right])
    sigma = 0.4 * float(np.sqrt(shrink * shrink - 1.0))
    smooth = cv2.GaussianBlur(part, (0, 0), sigma)
    moved = matrix.copy()
    moved[:, 2] += matrix[:, :2] @ np.array([left, top], dtype=np.float64)
    return np.asarray(smooth, dtype=np.uint8), moved
