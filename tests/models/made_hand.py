"""A hand at given valleys, as a finder would report it."""

import numpy as np

from models.crop_geometry import Handedness
from models.hand import Hand


def hand_at(
    valleys: np.ndarray, side: Handedness = "L", *, palm_width_px: float = 200.0, in_mask: bool = True
) -> Hand:
    return Hand(
        valleys=valleys.astype(np.float32),
        centre=valleys.mean(axis=0).astype(np.float32),
        palm_width_px=palm_width_px,
        angle_deg=0.0,
        handedness=side,
        confidence=1.0,
        mask=np.full((240, 320), 255 if in_mask else 0, np.uint8),
        mask_scale=0.5,
        at_ms=0,
        hint=None,
    )
