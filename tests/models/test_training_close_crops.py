from pathlib import Path

import numpy as np
import pytest

from models.evaluation.gabor_code import compare_all_codes, competitive_codes
from models.training.close_crops import CloseVariation, sample_crop, turn_palm
from models.training.squares import PalmSquares, draw_squares, load_or_draw


@pytest.fixture(scope="module")
def squares() -> PalmSquares:
    return draw_squares(2, 2)


def test_crops_vary_but_follow_their_seed(squares: PalmSquares) -> None:
    def draw(seed: int, infrared: bool = False) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
        return np.asarray(sample_crop(squares, 5, np.random.default_rng(seed), infrared, CloseVariation()))

    assert draw(1).shape == (112, 112)
    assert draw(1).dtype == np.uint8
    np.testing.assert_array_equal(draw(1), draw(1))
    assert np.abs(draw(1).astype(int) - draw(2)).mean() > 2
    assert np.abs(draw(1).astype(int) - draw(1, infrared=True)).mean() > 2


def test_squares_are_kept_between_runs(tmp_path: Path) -> None:
    drawn = load_or_draw(1, 1, tmp_path)
    np.testing.assert_array_equal(drawn.planes, load_or_draw(1, 1, tmp_path).planes)
    assert len(drawn.planes) == 3


def test_a_palm_s_other_identity_is_always_turned_alike() -> None:
    crop = np.random.default_rng(0).integers(0, 255, (112, 112), dtype=np.uint8)
    np.testing.assert_array_equal(turn_palm(crop, 5, 0), crop)
    others = [turn_palm(crop, palm, 1) for palm in range(7)]
    assert len({other.tobytes() for other in others}) == 7
    assert crop.tobytes() not in {other.tobytes() for other in others}


def test_crops_of_one_palm_are_more_alike_than_those_of_two(squares: PalmSquares) -> None:
    rng = np.random.default_rng(5)
    palms = np.repeat(np.arange(len(squares.planes)) * 2, 4)
    gentle = CloseVariation(
        shift=0.03, scale=0.05, rotation_deg=4.0, perspective=0.03, flexion=0.02, wide=0.0
    )
    crops = np.stack([sample_crop(squares, int(palm) // 2, rng, False, gentle) for palm in palms])
    mated, non_mated = compare_all_codes(competitive_codes(crops), palms)
    assert np.median(mated) > np.median(non_mated) + 0.05
