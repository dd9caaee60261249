import numpy as np
import pytest

from models.errors import PixelsError
from models.templates import fuse_vectors, probe_crops, select_templates


def unit(*rows: list[float]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    vectors = np.zeros((len(rows), 512), dtype=np.float32)
    for i, row in enumerate(rows):
        vectors[i, : len(row)] = row
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


def test_probes_are_the_crop_and_its_eight_neighbours() -> None:
    crop = np.random.default_rng(0).integers(0, 255, (112, 112), dtype=np.uint8)
    probes = probe_crops(crop)
    assert probes.shape == (9, 112, 112)
    np.testing.assert_array_equal(probes[0], crop)
    # The second of them lies five pixels up and five to the left.
    np.testing.assert_array_equal(probes[1][5:, 5:], crop[:-5, :-5])
    with pytest.raises(PixelsError, match="uint8"):
        probe_crops(crop[:100])


def test_a_better_capture_weighs_more() -> None:
    vectors = unit([1.0, 0.0], [0.0, 1.0])
    fused = fuse_vectors(vectors, np.array([90, 10]))
    assert float(np.linalg.norm(fused)) == pytest.approx(1.0, abs=1e-6)
    assert fused @ vectors[0] > 3 * (fused @ vectors[1])
    with pytest.raises(PixelsError, match="a quality for every vector"):
        fuse_vectors(vectors, np.array([1]))


def test_templates_cover_the_palm_and_leave_out_what_disagrees() -> None:
    vectors = unit([1.0, 0.1], [1.0, 0.12], [1.0, -0.5], [0.0, 0.0, 1.0], [1.0, 0.5])
    quality = np.array([80, 60, 80, 100, 80])
    kept = select_templates(vectors, quality, 3, same=0.6)
    assert len(kept) == 3
    assert 3 not in kept  # another palm, however sharp
    assert {2, 4} <= set(kept)  # the two that are held differently
    assert select_templates(vectors[:1], quality[:1], 3, same=0.6) == [0]
