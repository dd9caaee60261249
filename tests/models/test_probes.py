import numpy as np
import pytest

from models.errors import PixelsError
from models.probes import probe_crops


def test_probes_are_the_crop_and_its_eight_neighbours() -> None:
    crop = np.random.default_rng(0).integers(0, 255, (112, 112), dtype=np.uint8)
    probes = probe_crops(crop)
    assert probes.shape == (9, 112, 112)
    np.testing.assert_array_equal(probes[0], crop)
    # The second of them lies five pixels up and five to the left.
    np.testing.assert_array_equal(probes[1][5:, 5:], crop[:-5, :-5])
    with pytest.raises(PixelsError, match="uint8"):
        probe_crops(crop[:100])
