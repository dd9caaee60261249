import numpy as np
import pytest

from models.synthesis.close_up import LINES, LINES_ZERO, MASK, SIDE_PX, crop_to_close_up, draw_close_up


def test_a_number_is_one_palm_for_ever() -> None:
    one = draw_close_up(5)
    assert one.shape == (SIDE_PX, SIDE_PX, 4)
    np.testing.assert_array_equal(one, draw_close_up(5))
    assert np.abs(one.astype(int) - draw_close_up(6)).mean() > 3


@pytest.mark.parametrize("seed", range(12))
def test_every_palm_has_lines_in_its_crop(seed: int) -> None:
    planes = draw_close_up(seed)
    left, right = (round(v) for v in (crop_to_close_up()[0, 2], SIDE_PX - crop_to_close_up()[0, 2]))
    crop = planes[left:right, left:right, LINES].astype(float) - LINES_ZERO
    assert (np.abs(crop) > 12).mean() > 0.02
    assert (planes[:, :, MASK] == 255).all()
