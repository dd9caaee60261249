import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.crop_geometry import (
    CROP_SIZE,
    Handedness,
    pulled_apart,
    similarity_from_valleys,
    valley_targets,
)
from models.errors import PixelsError

sides = st.sampled_from(["L", "R"])


@given(
    side=sides,
    scale=st.floats(0.2, 8.0),
    angle=st.floats(-np.pi, np.pi),
    x=st.floats(-500, 2000),
    y=st.floats(-500, 2000),
)
def test_a_moved_turned_and_scaled_hand_gives_the_same_crop(
    side: Handedness, scale: float, angle: float, x: float, y: float
) -> None:
    crop_px = valley_targets(side) * CROP_SIZE - 0.5
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    in_image = crop_px @ turn.T + (x, y)
    matrix = similarity_from_valleys(np.vstack([[0.0, 0.0], in_image]), side)
    back = in_image @ matrix[:, :2].T + matrix[:, 2]
    np.testing.assert_allclose(back, crop_px, atol=1e-6)
    assert np.linalg.det(matrix[:, :2]) > 0, "a crop is never mirrored"


@given(
    side=sides,
    angle=st.floats(-np.pi, np.pi),
    times=st.floats(1.0, 1.6),
    size=st.sampled_from([1, CROP_SIZE]),
)
def test_a_leaning_hand_gives_the_crop_of_the_upright_one(
    side: Handedness, angle: float, times: float, size: int
) -> None:
    in_crop = valley_targets(side) * size - 0.5
    foot = np.array([0.5 * size, in_crop[:, 1].mean()])
    turn = 3.0 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    shortened = turn @ np.diag([1.0, 1.0 / times])
    valleys = np.vstack([[0.0, 0.0], (in_crop - foot) @ turn.T])
    matrix = pulled_apart(similarity_from_valleys(valleys, side, size), times, size)
    corners = np.array([[0.0, 0.0], [size, 0.0], [0.0, size], [size, size]])
    found = ((corners - foot) @ shortened.T) @ matrix[:, :2].T + matrix[:, 2]
    np.testing.assert_allclose(found, corners, atol=1e-6 * size)


def test_the_thumb_side_stays_where_it_is() -> None:
    left, right = valley_targets("L"), valley_targets("R")
    assert left[0, 0] < left[2, 0]
    assert right[0, 0] > right[2, 0]


def test_the_thumb_valley_does_not_move_the_crop() -> None:
    rng = np.random.default_rng(1)
    valleys = rng.uniform(0, 400, (4, 2))
    other = valleys.copy()
    other[0] += 50
    np.testing.assert_array_equal(similarity_from_valleys(valleys, "L"), similarity_from_valleys(other, "L"))


@pytest.mark.parametrize("valleys", [np.zeros((3, 2)), np.zeros((4, 3)), np.full((4, 2), 7.0)])
def test_valleys_that_cannot_be_are_refused(
    valleys: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> None:
    with pytest.raises(PixelsError):
        similarity_from_valleys(valleys, "R")
