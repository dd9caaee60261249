"""Scenes for the hand finder: the same for the same seed, with their points where the hand is."""

import numpy as np
import pytest

from models.synthesis.clutter import clutter
from models.synthesis.hand_scenes import hand_scene

SIZE = (240, 320)


@pytest.mark.parametrize("kind", ["clean", "turned", "clutter", "small", "shut", "together", "folded"])
def test_points_lie_on_the_hand(kind: str) -> None:
    for i, look in enumerate(("rgb", "nir")):
        shown = hand_scene(i, kind, look, person=60 + i, handedness="LR"[i], size=SIZE)  # type: ignore[arg-type]
        assert shown.pixels.shape == ((240, 320, 3) if look == "rgb" else SIZE)
        assert shown.points is not None
        x, y = np.clip(np.round(shown.points[5]).astype(int), 0, (319, 239))
        assert shown.covered[y, x] == 255
        # Thumb and little finger lie on different sides of the hand, and which says the hand.
        up = shown.points[1:4].mean(axis=0) - shown.points[5]
        row = shown.points[1] - shown.points[3]
        assert (up[0] * row[1] - up[1] * row[0] > 0) == (shown.handedness == "R")
        assert shown.is_open == (kind not in {"shut", "folded"})


def test_an_empty_scene_has_no_hand_and_a_seed_is_a_scene() -> None:
    one, other = (hand_scene(7, "empty", "rgb", person=1, handedness="L", size=SIZE) for _ in range(2))
    assert one.points is None
    assert not one.covered.any()
    assert np.array_equal(one.pixels, other.pixels)
    assert not np.array_equal(clutter(1, "nir", SIZE), clutter(2, "nir", SIZE))
