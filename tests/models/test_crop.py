"""The palm crop: where the valleys land, and how little it moves while a hand is held still."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.crop import cut_palm
from models.crop_geometry import CROP_SIZE, Handedness, similarity_from_valleys, valley_targets
from models.frames import CameraFrame
from models.hand import HandFinder
from models.synthesis.background import Look
from models.synthesis.person import make_person
from models.synthesis.render import render_frame_with_truth
from models.synthesis.scene import random_pose, random_setting
from tests.models.made_hand import hand_at
from tests.shares import share_of

SIDES: tuple[Handedness, Handedness] = ("L", "R")


@pytest.mark.parametrize("look", ["rgb", "nir"])
@share_of("people", 3, 8)
def test_the_crop_of_a_held_hand_stays_put(look: Look, people: int) -> None:
    """Corner jitter against the generator's truth, in crop pixels: median under 1, 95 % under 2.5."""
    jitter = []
    for i in range(people):
        rng = np.random.default_rng([9, i])
        pose, setting = random_pose(rng), random_setting(rng, i)
        side = SIDES[i % 2]
        finder, offsets = HandFinder(), []
        for _ in range(6):
            x, y = np.array(pose.centre_px) + rng.normal(0.0, 0.5, 2)
            pixels, truth = render_frame_with_truth(
                make_person(50 + i), side, replace(pose, centre_px=(x, y)), look, rng, setting=setting
            )
            hand = finder.find(CameraFrame.from_pixels(pixels))
            assert hand is not None
            assert truth is not None
            found = similarity_from_valleys(hand.valleys, hand.handedness)
            true = similarity_from_valleys(truth.valleys, truth.handedness)
            corners = np.array([[0, 0], [CROP_SIZE, 0], [0, CROP_SIZE], [CROP_SIZE, CROP_SIZE]])
            source = np.linalg.solve(found[:, :2], (corners - found[:, 2]).T)
            offsets.append((true[:, :2] @ source).T + true[:, 2] - corners)
        spread = np.array(offsets) - np.mean(offsets, axis=0)
        jitter.append(np.hypot(spread[:, :, 0], spread[:, :, 1]).ravel())
    moved = np.concatenate(jitter)
    assert np.median(moved) < 1.0
    assert np.percentile(moved, 95) < 2.5


@pytest.mark.parametrize("side", ["L", "R"])
@pytest.mark.parametrize("angle", [0.0, 30.0, -75.0, 180.0])
@pytest.mark.parametrize("scale", [0.5, 2.0, 6.0])
def test_marks_at_known_places_of_the_palm_land_there(side: Handedness, angle: float, scale: float) -> None:
    turn = np.deg2rad(angle)
    spin = scale * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    targets = valley_targets(side) * CROP_SIZE - 0.5
    marks = np.array([[20.0, 20.0], [90.0, 30.0], [56.0, 95.0]])
    points = np.vstack([targets, marks]) @ spin.T
    shift = 40.0 - points.min(axis=0)
    points += shift
    width, height = (np.ceil(points.max(axis=0)) + 40).astype(int)
    image = np.zeros((height, width), np.uint8)
    for x, y in points[3:]:
        cv2.circle(image, (round(x), round(y)), max(1, round(2 * scale)), 255, cv2.FILLED)
    crop = cut_palm(CameraFrame.from_pixels(image), hand_at(np.vstack([points[:1], points[:3]]), side))
    assert crop.shape == (CROP_SIZE, CROP_SIZE)
    assert crop.dtype == np.uint8
    for x, y in marks.astype(int):
        assert crop[y - 1 : y + 2, x - 1 : x + 2].max() > 60


def test_a_large_palm_is_averaged_before_it_is_sampled() -> None:
    rng = np.random.default_rng(1)
    noise = rng.integers(0, 256, (2000, 2000), dtype=np.uint8)
    valleys = np.array([[200.0, 700.0], [400.0, 300.0], [800.0, 250.0], [1200.0, 300.0]])
    crop = cut_palm(CameraFrame.from_pixels(noise), hand_at(valleys))
    assert crop.std() < 25.0


@settings(max_examples=40)
@given(
    points=st.lists(
        st.tuples(st.floats(-3000, 3000, width=32), st.floats(-3000, 3000, width=32)), min_size=3, max_size=3
    ),
    size=st.sampled_from([(1, 1), (3, 200), (120, 160)]),
)
def test_valleys_outside_the_frame_repeat_its_edge(
    points: list[tuple[float, float]], size: tuple[int, int]
) -> None:
    valleys = np.array([(0.0, 0.0), *points])
    if np.ptp(valleys[1:], axis=0).max() < 1.0:
        return
    crop = cut_palm(CameraFrame.from_pixels(np.full((*size, 3), 77, np.uint8)), hand_at(valleys))
    assert crop.shape == (CROP_SIZE, CROP_SIZE)
    assert np.abs(crop.astype(int) - 77).max() <= 1
