from pathlib import Path

import numpy as np
import pytest

from models.evaluation.gabor_code import compare_all_codes, competitive_codes
from models.training.canvases import PalmCanvases, draw_canvases, load_or_draw
from models.training.crops import Variation, sample_crop


@pytest.fixture(scope="module")
def canvases() -> PalmCanvases:
    return draw_canvases(3)


def test_crops_vary_but_follow_their_seed(canvases: PalmCanvases) -> None:
    def draw(seed: int, infrared: bool = False) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
        return np.asarray(sample_crop(canvases, 0, np.random.default_rng(seed), infrared, Variation()))

    assert draw(1).shape == (112, 112)
    assert draw(1).dtype == np.uint8
    np.testing.assert_array_equal(draw(1), draw(1))
    assert np.abs(draw(1).astype(int) - draw(2)).mean() > 2
    assert np.abs(draw(1).astype(int) - draw(1, infrared=True)).mean() > 2


def test_canvases_are_kept_between_runs(tmp_path: Path) -> None:
    drawn = load_or_draw(1, tmp_path)
    kept = load_or_draw(1, tmp_path)
    np.testing.assert_array_equal(drawn.planes, kept.planes)
    np.testing.assert_array_equal(drawn.to_canvas, kept.to_canvas)


def test_crops_of_one_hand_are_more_alike_than_those_of_two(canvases: PalmCanvases) -> None:
    """Judged by the untrained code, so that neither the generator nor the code is broken alone."""
    rng = np.random.default_rng(5)
    hands = np.repeat(np.arange(len(canvases.planes)), 4)
    gentle = Variation(shift=0.03, scale=0.05, rotation_deg=4.0, perspective=0.03, elastic_px=0.8)
    crops = np.stack([sample_crop(canvases, int(hand), rng, False, gentle) for hand in hands])
    mated, non_mated = compare_all_codes(competitive_codes(crops), hands)
    assert np.median(mated) > np.median(non_mated) + 0.08
    assert len(mated) == 6 * 6
