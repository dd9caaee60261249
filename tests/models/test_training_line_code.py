"""The line code: run where torch is installed (the ``train`` extra)."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch comes with the dependency group train only")


def test_the_basis_whitens_what_palms_differ_in() -> None:
    from models.training.line_code import FEATURES, learn_basis

    rng = np.random.default_rng(0)
    mixed = rng.standard_normal((400, 12)) @ rng.standard_normal((12, FEATURES)) + 3.0
    basis = learn_basis(mixed.astype(np.float32), 8)
    shown = mixed @ basis.directions.T + basis.offsets
    np.testing.assert_allclose(shown.mean(axis=0), 0.0, atol=0.05)
    np.testing.assert_allclose(np.cov(shown.T), np.eye(8), atol=0.1)


def test_a_line_answers_in_its_direction_and_a_small_slip_hardly_matters() -> None:
    import cv2

    from models.training.line_code import CELLS, DIRECTIONS, LineCode

    def features(shift: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        crop = np.full((112, 112), 150, dtype=np.uint8)
        cv2.line(crop, (8, 56 + shift), (104, 56 + shift), (110,), 3, cv2.LINE_AA)
        code = LineCode(16)
        with torch.inference_mode():
            found = code.features(code.seen(torch.from_numpy(crop[None])))
        return np.asarray(found[0].numpy())

    still = features(0).reshape(-1, DIRECTIONS, CELLS, CELLS)[0]
    assert int(np.argmax(still[:, 5, 5])) == 0  # the first direction is along the crop's rows
    one, near, far = (f / np.linalg.norm(f) for f in (features(0), features(2), features(40)))
    assert one @ near > 0.8
    assert one @ far < one @ near - 0.3


def test_the_edge_of_the_crop_counts_less_than_its_middle() -> None:
    from models.training.line_code import CELLS, DIRECTIONS, LineCode, rim_weights

    weights = rim_weights()
    assert weights.shape == (CELLS, CELLS)
    torch.testing.assert_close(weights, weights.T)
    torch.testing.assert_close(weights, weights.flip(0))
    assert weights[0, 5] < weights[1, 5] < weights[5, 5] == 1.0
    crop = np.full((112, 112), 150, dtype=np.uint8)
    crop[::9] = 120
    code = LineCode(16)
    with torch.inference_mode():
        strength = code.features(code.seen(torch.from_numpy(crop[None])))[0].abs()
    by_place = strength.reshape(-1, DIRECTIONS, CELLS, CELLS).amax((0, 1))
    assert by_place[0, 5] < 0.6 * by_place[5, 5]
