"""A hand's outline drawn anew from colours."""

import cv2
import numpy as np
import pytest

from models.hand_mask import learnt_region, make_view
from models.synthesis.hand_scenes import hand_scene


@pytest.mark.parametrize("look", ["rgb", "nir"])
def test_colours_mend_a_rough_outline(look: str) -> None:
    shown = hand_scene(3, "clean", look, person=70, handedness="L")  # type: ignore[arg-type]  # parametrised
    view = make_view(shown.pixels, 320)
    true = cv2.resize(shown.covered, view.light.shape[::-1], interpolation=cv2.INTER_AREA) > 127
    # Fingers cut off, edges frayed: what a coarse guess looks like.
    rough = cv2.morphologyEx(true.astype(np.uint8) * 255, cv2.MORPH_OPEN, np.ones((25, 25), np.uint8))
    seed = np.asarray(rough, np.uint8)
    mended = learnt_region(view, seed)
    assert mended is not None

    def agreement(mask: np.ndarray) -> float:
        return float(((mask > 0) & true).sum() / ((mask > 0) | true).sum())

    assert agreement(mended) > max(0.9, agreement(seed))
