import random

import numpy as np
import pytest

from models.errors import PixelsError
from models.probes import MOST_PROBES, STILL, Slip, next_slips, probe_crops


def _crop() -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 255, (112, 112), dtype=np.uint8)


def test_a_probe_that_has_not_slipped_is_the_crop() -> None:
    np.testing.assert_array_equal(probe_crops(_crop(), [STILL])[0], _crop())


def test_a_step_right_and_down_is_five_pixels_each() -> None:
    probe = probe_crops(_crop(), [Slip(across=1, down=1)])[0]
    np.testing.assert_array_equal(probe[5:, 5:], _crop()[:-5, :-5])


def test_turning_there_and_back_gives_the_palm_again() -> None:
    smooth = np.add.outer(np.arange(112), 1.1 * np.arange(112)).astype(np.uint8)
    turned = probe_crops(smooth, [Slip(turn=1), Slip(growth=1)])
    for probe, back in zip(turned, (Slip(turn=-1), Slip(growth=-1)), strict=True):
        again = probe_crops(probe, [back])[0]
        assert np.abs(again.astype(int) - smooth)[30:80, 30:80].max() <= 3
        assert np.abs(probe.astype(int) - smooth)[30:80, 30:80].max() > 3


def test_far_shifts_come_first_then_the_neighbours_of_the_nearest() -> None:
    tried = [STILL]
    far = next_slips(tried, 0)
    assert {(slip.across, slip.down) for slip in far} == {(x, y) for x in (-3, 0, 3) for y in (-3, 0, 3)} - {
        (0, 0)
    }
    tried += far
    aside = next_slips(tried, tried.index(Slip(across=3, down=3)))
    assert {Slip(across=2, down=3), Slip(across=3, down=3, turn=1)} < set(aside)
    tried += next_slips(tried, 0)
    assert {Slip(across=1), Slip(down=-1), Slip(turn=-1), Slip(growth=1)} < set(tried)
    assert next_slips(tried, 0) == []
    again = next_slips(tried, tried.index(Slip(across=1, down=1)))
    assert {Slip(across=2, down=1), Slip(across=1, down=1, turn=1)} < set(again)
    assert not set(again) & set(tried)


@pytest.mark.parametrize(
    ("palm", "reached"),
    [
        (STILL, True),
        (Slip(1, 0, 1), True),
        (Slip(2, 1), True),
        (Slip(0, -1, -1), True),
        (Slip(4, -4), True),
        (Slip(-3, 2, 1), True),
        (Slip(4, 4, 4, 4), False),
    ],
)
def test_the_search_ends_at_the_palm_or_when_its_probes_are_spent(palm: Slip, reached: bool) -> None:
    def away(slip: Slip) -> float:
        return sum(
            (a - b) ** 2
            for a, b in zip(
                (slip.across, slip.down, slip.turn, slip.growth),
                (palm.across, palm.down, palm.turn, palm.growth),
                strict=True,
            )
        )

    tried = [STILL]
    while fresh := next_slips(tried, min(range(len(tried)), key=lambda i: away(tried[i]))):
        assert not set(fresh) & set(tried)
        tried += fresh
    assert (palm in tried) is reached
    assert reached or len(tried) == MOST_PROBES


@pytest.mark.parametrize("seed", range(5))
def test_no_picture_costs_more_than_so_many_probes(seed: int) -> None:
    tried, whim = [STILL], random.Random(seed)
    for _ in range(400):
        tried += next_slips(tried, whim.randrange(len(tried)))
    assert len(tried) == len(set(tried)) == MOST_PROBES


def test_what_is_no_crop_is_refused() -> None:
    with pytest.raises(PixelsError, match="uint8"):
        probe_crops(_crop()[:100], [STILL])
