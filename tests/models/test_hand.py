"""Frames and the hand finder: generated hands with known valleys, fists, empty scenes, strange frames."""

from collections import Counter
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings

from models.crop_geometry import Handedness, similarity_from_valleys
from models.errors import PixelsError
from models.frames import CameraFrame, as_grey
from models.hand import Hand, HandFinder, PartialHand
from models.synthesis.background import Look, Pixels
from models.synthesis.person import make_person
from models.synthesis.render import HandTruth, render_frame_with_truth
from models.synthesis.scene import empty_scene, random_pose, random_setting, show_qr
from tests.models.strange_frames import frames
from tests.shares import share_of

SIDES: tuple[Handedness, Handedness] = ("L", "R")

LOOKS: list[Look] = ["rgb", "nir"]


def capture(i: int, look: Look, **pose: Any) -> tuple[Pixels, HandTruth]:
    rng = np.random.default_rng([5, i])
    held = replace(random_pose(rng), **pose)
    setting = random_setting(rng, i % 40)
    pixels, truth = render_frame_with_truth(
        make_person(2000 + i // 2), SIDES[i % 2], held, look, rng, setting=setting
    )
    assert truth is not None
    return pixels, truth


def fist(look: Look) -> Pixels:
    """A closed hand on its forearm, knuckles barely showing."""
    y, x = np.mgrid[0:480, 0:640]
    shape = np.zeros((480, 640), np.uint8)
    cv2.ellipse(shape, (320, 230), (85, 95), 0, 0, 360, 255, cv2.FILLED)
    cv2.rectangle(shape, (265, 260), (375, 480), 255, cv2.FILLED)
    for k in range(4):
        cv2.circle(shape, (262 + 39 * k, 150), 24, 255, cv2.FILLED)
    shade = 1.0 + 0.0004 * (x - 320)
    skin = np.array([120.0, 150.0, 200.0]) if look == "rgb" else np.array([170.0])
    pixels = np.where(shape[:, :, None] > 0, skin * shade[:, :, None], 35.0 + 0.01 * y[:, :, None])
    pixels = cv2.GaussianBlur(np.clip(pixels, 0, 255).astype(np.uint8), (0, 0), 1.0)
    return np.asarray(pixels if pixels.ndim == 3 else pixels.reshape(480, 640), np.uint8)


@pytest.mark.parametrize("look", LOOKS)
@share_of("hands", 10, 30)
def test_finds_every_generated_hand_and_its_side(look: Look, hands: int) -> None:
    finder = HandFinder()
    worst = []
    for i in range(hands):
        pixels, truth = capture(i, look)
        hand = finder.find(CameraFrame.from_pixels(pixels, at_ms=7))
        assert isinstance(hand, Hand), i
        assert hand.handedness == truth.handedness, i
        assert hand.at_ms == 7
        assert hand.valleys.shape == (4, 2)
        assert hand.valleys.dtype == np.float32
        to_crop = similarity_from_valleys(truth.valleys, truth.handedness)
        error = (hand.valleys[1:] - truth.valleys[1:]) @ to_crop[:, :2].T
        worst.append(np.hypot(*error.T).max())
        assert abs(hand.palm_width_px / truth.palm_width_px - 1.0) < 0.3
    # In pixels of the 112 pixel crop; training shifts crops by 17.
    assert np.median(worst) < 4.5
    assert max(worst) < 12.0


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("angle", [-90.0, -45.0, -20.0, 20.0, 45.0, 90.0])
@share_of("hands", 2, 6)
def test_turned_hands_are_found_with_their_angle(look: Look, angle: float, hands: int) -> None:
    finder = HandFinder()
    for i in range(hands):
        pixels, truth = capture(i, look, angle_deg=angle, centre_px=(320.0, 250.0), palm_width_px=165.0)
        hand = finder.find(CameraFrame.from_pixels(pixels))
        assert hand is not None
        assert hand.handedness == truth.handedness
        # The row of valleys of some people leans by itself.
        assert abs((hand.angle_deg - angle + 180.0) % 360.0 - 180.0) < 16.0


@pytest.mark.parametrize("look", LOOKS)
def test_an_empty_scene_has_no_hand(look: Look) -> None:
    seen = Counter[str]()
    for seed in range(40):
        for pixels in empty_scene(seed, 1, look=look, scene_seed=seed):
            seen[type(HandFinder().look(CameraFrame.from_pixels(pixels))).__name__] += 1
    assert seen["Hand"] == 0
    assert seen["PartialHand"] <= 1


@pytest.mark.parametrize("look", LOOKS)
def test_a_card_with_a_code_is_no_hand(look: Look) -> None:
    for seed in range(6):
        for pixels in show_qr("PALM:0123456789abcdef", seed, 1, look=look, scene_seed=seed):
            assert HandFinder().look(CameraFrame.from_pixels(pixels)) is None


@pytest.mark.parametrize("look", LOOKS)
def test_a_fist_is_asked_to_open(look: Look) -> None:
    seen = HandFinder().look(CameraFrame.from_pixels(fist(look)))
    assert isinstance(seen, PartialHand)
    assert seen.hint == "open_hand"
    assert HandFinder().find(CameraFrame.from_pixels(fist(look))) is None


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("centre", [(20.0, 250.0), (620.0, 250.0), (320.0, 470.0)])
def test_a_palm_that_leaves_the_frame_is_asked_back(look: Look, centre: tuple[float, float]) -> None:
    for i in range(5):
        pixels, _ = capture(i, look, centre_px=centre, palm_width_px=215.0)
        seen = HandFinder().look(CameraFrame.from_pixels(pixels))
        assert not isinstance(seen, Hand) or seen.hint == "center"
        assert seen is None or seen.hint in {"center", "farther", "open_hand"}


def test_small_and_large_hands_get_their_hint() -> None:
    small, _ = capture(1, "rgb", palm_width_px=80.0, centre_px=(320.0, 260.0))
    large, _ = capture(1, "rgb", palm_width_px=380.0, centre_px=(320.0, 250.0))
    near, far = (HandFinder().look(CameraFrame.from_pixels(pixels)) for pixels in (large, small))
    assert far is not None
    assert far.hint == "closer"
    assert near is None or near.hint in {"farther", "center"}


def test_other_resolutions_give_the_same_palm() -> None:
    pixels, _ = capture(4, "rgb")
    base = HandFinder().find(CameraFrame.from_pixels(pixels))
    assert base is not None
    for factor in (0.5, 2.0, 4.5):
        scaled = cv2.resize(pixels, None, fx=factor, fy=factor, interpolation=cv2.INTER_LINEAR)
        hand = HandFinder().find(CameraFrame.from_pixels(np.asarray(scaled, np.uint8)))
        assert hand is not None
        assert np.abs(hand.valleys / factor - base.valleys)[1:].max() < 5.0


@settings(max_examples=60)
@given(frame=frames())
def test_no_frame_makes_the_finder_raise(frame: CameraFrame) -> None:
    finder = HandFinder()
    assert finder.look(frame) is None or finder.look(frame) is not None


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((4, 4), np.uint16),
        np.full((4, 4, 3), np.nan, np.float32),
        np.zeros((0, 5), np.uint8),
        np.zeros((5, 0, 3), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((2, 2, 2, 3), np.uint8),
        np.zeros((1, 20_000), np.uint8),
        np.zeros((4, 4), bool),
        [[1, 2], [3, 4]],
        None,
    ],
)
def test_a_frame_refuses_what_is_no_image(pixels: object) -> None:
    with pytest.raises(PixelsError):
        CameraFrame.from_pixels(pixels)
    with pytest.raises(PixelsError):
        CameraFrame(pixels, 0, 0)  # type: ignore[arg-type]  # what a caller without types may do


def test_a_frame_takes_one_channel_and_strided_memory() -> None:
    grey = np.arange(48, dtype=np.uint8).reshape(6, 8)
    frame = CameraFrame.from_pixels(grey[:, ::-1, None], at_ms=5, number=2)
    assert (frame.height, frame.width, frame.is_colour, frame.at_ms, frame.number) == (6, 8, False, 5, 2)
    assert np.array_equal(as_grey(frame), grey[:, ::-1])
