"""Capture quality: good and poor captures part at the floor, and every fault is named by its component."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.crop import cut_palm
from models.crop_geometry import Handedness
from models.errors import ManifestError
from models.frames import CameraFrame
from models.hand import Hand, HandFinder
from models.liveness import SHARP_ENOUGH
from models.quality import (
    COMPONENTS,
    WORST_LIMIT,
    Component,
    Quality,
    assess,
    fine_detail,
    foreign_share,
    read_calibration,
    sharpness,
    shipped_calibration,
)
from models.synthesis.background import Look
from models.synthesis.person import make_person
from models.synthesis.render import Setting, render_frame
from models.synthesis.scene import poor_capture, random_pose, random_setting
from tests.models.made_hand import hand_at
from tests.shares import share_of

SIDES: tuple[Handedness, Handedness] = ("L", "R")

FLOOR = 45
ENROL_FLOOR = 65
KNOTS = [[-4, 100], [0, 0]]
WEIGHTS = {name: [1, 1] for name in COMPONENTS}


def judged(i: int, look: Look, **setting: Any) -> Quality | None:
    rng = np.random.default_rng([78, i])
    pose, usual = random_pose(rng), random_setting(rng, i)
    pixels = render_frame(
        make_person(300 + i), SIDES[i % 2], pose, look, rng, setting=replace(usual, **setting)
    )
    frame = CameraFrame.from_pixels(pixels)
    hand = HandFinder().find(frame)
    return None if hand is None else assess(frame, hand, cut_palm(frame, hand), None)


@pytest.mark.parametrize("look", ["rgb", "nir"])
@share_of("people", 5, 14)
def test_good_captures_are_good(look: Look, people: int) -> None:
    for i in range(people):
        quality = judged(i, look)
        assert quality is not None
        assert quality.quality_q > 60
        assert quality.hint is None


@pytest.mark.parametrize("look", ["rgb", "nir"])
@share_of("people", 2, 5)
def test_poor_captures_stay_under_the_floor(look: Look, people: int) -> None:
    for seed in range(people):
        finder, previous = HandFinder(), None
        film = poor_capture(
            make_person(seed), SIDES[seed % 2], seed, look=look, frames_held=3, scene_seed=seed
        )
        for k, pixels in enumerate(film):
            frame = CameraFrame.from_pixels(pixels, at_ms=33 * k)
            hand = finder.find(frame)
            if hand is not None:
                assert assess(frame, hand, cut_palm(frame, hand), previous).quality_q < FLOOR
            previous = hand


@pytest.mark.parametrize("look", ["rgb", "nir"])
@pytest.mark.parametrize(
    ("fault", "component"),
    [({"blur_px": 12.0}, "sharpness"), ({"gain": 0.1}, "exposure"), ({"gain": 2.6}, "exposure")],
)
@share_of("people", 3, 6)
def test_a_fault_lowers_its_own_component(
    look: Look, fault: dict[str, float], component: str, people: int
) -> None:
    for i in range(people):
        quality = judged(i, look, **fault)
        if quality is not None:
            assert getattr(quality, component) < 40
            assert quality.quality_q < ENROL_FLOOR
            assert quality.coverage == 100.0
            assert quality.hint == "hold_still"


@pytest.mark.parametrize("look", ["rgb", "nir"])
def test_a_soft_palm_passes_and_cannot_be_enrolled(look: Look) -> None:
    found = [judged(i, look, blur_px=6.0) for i in range(6)]
    soft = [quality.quality_q for quality in found if quality is not None]
    assert len(soft) >= 5
    assert all(FLOOR <= quality_q < ENROL_FLOOR for quality_q in soft)


@pytest.mark.parametrize("look", ["rgb", "nir"])
def test_a_small_palm_passes_where_the_camera_is_sharp(look: Look) -> None:
    for i in range(6):
        rng = np.random.default_rng([78, i])
        pose, setting = replace(random_pose(rng), palm_width_px=80.0), random_setting(rng, i)
        for blur_px, passes in ((0.5, True), (5.0, False)):
            lens = replace(setting, blur_px=blur_px)
            pixels = render_frame(make_person(300 + i), SIDES[i % 2], pose, look, rng, setting=lens)
            frame = CameraFrame.from_pixels(pixels)
            hand = HandFinder().find(frame)
            assert hand is not None
            assert 60 <= hand.palm_width_px < 80
            quality = assess(frame, hand, cut_palm(frame, hand), None)
            assert (quality.quality_q >= FLOOR) == passes


@pytest.mark.parametrize("look", ["rgb", "nir"])
def test_faint_lines_are_sharp_where_noise_does_not_drown_them(look: Look) -> None:
    for i in range(6):
        crop = clean_crop(i, look).astype(np.float32)
        smooth = cv2.GaussianBlur(crop, (0, 0), 9.0)
        faint = np.asarray(smooth + 0.4 * (crop - smooth), dtype=np.float32)
        noise = np.random.default_rng(i).normal(0.0, 9.0, crop.shape).astype(np.float32)
        assert sharpness(as_crop(faint), 150.0) >= max(15, 2 * sharpness(as_crop(faint + noise), 150.0))
        assert sharpness(as_crop(faint), 150.0) > 1.5 * sharpness(as_crop(faint), 60.0)
        blurred = np.asarray(cv2.GaussianBlur(faint, (0, 0), 6.0), dtype=np.float32)
        assert sharpness(as_crop(blurred), 150.0) < 15


@pytest.mark.parametrize("look", ["rgb", "nir"])
def test_blur_that_the_vector_does_not_mind_hides_a_screens_pixels(look: Look) -> None:
    """Such a palm is sharp enough to be recognised, and liveness has nothing to judge by."""
    for i in range(6):
        crop = clean_crop(i, look)
        blurred = np.asarray(cv2.GaussianBlur(crop, (0, 0), 3.0), dtype=np.float32)
        soft = as_crop(blurred)
        assert fine_detail(crop) >= SHARP_ENOUGH > fine_detail(soft)
        assert sharpness(soft, 150.0) >= 35


def clean_crop(i: int, look: Look) -> NDArray[np.uint8]:
    rng = np.random.default_rng([78, i])
    setting = replace(random_setting(rng, i), noise=0.5, blur_px=0.4)
    pixels = render_frame(make_person(300 + i), SIDES[i % 2], random_pose(rng), look, rng, setting=setting)
    frame = CameraFrame.from_pixels(pixels)
    hand = HandFinder().find(frame)
    assert hand is not None
    return cut_palm(frame, hand)


def as_crop(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    return np.asarray(np.clip(np.round(values), 0, 255), dtype=np.uint8)


def steady(at_ms: int, dx: float = 0.0) -> tuple[CameraFrame, Hand]:
    rng = np.random.default_rng([78, 3])
    pose = random_pose(rng)
    moved = replace(pose, centre_px=(pose.centre_px[0] + dx, pose.centre_px[1]))
    pixels = render_frame(make_person(4), "R", moved, "rgb", rng, setting=Setting())
    frame = CameraFrame.from_pixels(pixels, at_ms=at_ms)
    hand = HandFinder().find(frame)
    assert hand is not None
    return frame, hand


def test_motion_is_speed_and_not_distance() -> None:
    _, before = steady(1000)
    for at_ms, dx, least, most in ((1033, 1.0, 90, 100), (1033, 60.0, 0, 20), (1500, 60.0, 100, 100)):
        frame, hand = steady(at_ms, dx)
        motion = assess(frame, hand, cut_palm(frame, hand), before).motion
        assert least <= motion <= most
    frame, hand = steady(1033, 60.0)
    assert assess(frame, hand, cut_palm(frame, hand), before).hint == "hold_still"
    assert assess(frame, hand, cut_palm(frame, hand), replace(before, handedness="L")).motion == 100.0


@pytest.mark.parametrize("look", ["rgb", "nir"])
def test_what_lies_on_the_palm_is_seen(look: Look) -> None:
    """A dark plaster. Skin alone, of any person in any usual light, has next to nothing like it."""
    for i in range(6):
        rng = np.random.default_rng([78, i])
        pose, setting = random_pose(rng), random_setting(rng, i)
        pixels = render_frame(make_person(300 + i), SIDES[i % 2], pose, look, rng, setting=setting)
        frame = CameraFrame.from_pixels(pixels)
        hand = HandFinder().find(frame)
        assert hand is not None
        clean = foreign_share(frame, hand, cut_palm(frame, hand))
        assert clean < 0.05
        x, y = (round(float(v)) for v in hand.centre)
        r = round(0.25 * hand.palm_width_px)
        dirty = pixels.copy()
        dirty[y - r : y + r, x - r : x + r] = dirty[y - r : y + r, x - r : x + r] // 3
        spoilt = CameraFrame.from_pixels(dirty)
        assert foreign_share(spoilt, hand, cut_palm(spoilt, hand)) > clean + 0.15
        quality = assess(spoilt, hand, cut_palm(spoilt, hand), None)
        assert quality.occlusion < 60
        assert quality.hint == "open_hand"


def test_half_a_palm_is_half_a_palm() -> None:
    frame, hand = steady(0)
    cut = hand.mask.copy()
    cut[:, : round(float(hand.valleys[1:, 0].mean()) * hand.mask_scale)] = 0
    quality = assess(frame, replace(hand, mask=cut), cut_palm(frame, hand), None)
    assert quality.coverage < 30
    assert quality.hint == "center"
    small = assess(frame, replace(hand, palm_width_px=35.0), cut_palm(frame, hand), None)
    assert small.pose < FLOOR
    assert small.hint == "closer"
    odd = assess(frame, replace(hand, confidence=0.15), cut_palm(frame, hand), None)
    assert odd.hint == "open_hand"
    assert assess(frame, replace(hand, hint="farther"), cut_palm(frame, hand), None).hint == "farther"


@settings(max_examples=40)
@given(kind=st.sampled_from(["black", "white", "noise", "stripes"]), seed=st.integers(0, 10_000))
def test_any_crop_gets_a_number_from_0_to_100(kind: str, seed: int) -> None:
    crop = {
        "black": np.zeros((112, 112), np.uint8),
        "white": np.full((112, 112), 255, np.uint8),
        "noise": np.random.default_rng(seed).integers(0, 256, (112, 112), dtype=np.uint8),
        "stripes": np.tile(np.array([0, 255], np.uint8), (112, 56)),
    }[kind]
    frame = CameraFrame.from_pixels(np.zeros((48, 64), np.uint8))
    hand = hand_at(np.array([[10, 30], [20, 10], [30, 8], [40, 10]]), palm_width_px=20.0, in_mask=False)
    quality = assess(frame, hand, crop, hand)
    assert 0 <= quality.quality_q <= 100
    assert quality.quality_q < FLOOR


PARTS = st.fixed_dictionaries({name: st.floats(0.0, 100.0) for name in COMPONENTS})


@given(
    parts=PARTS, detail=st.floats(0.0, 100.0), name=st.sampled_from(COMPONENTS), less=st.floats(0.0, 100.0)
)
def test_a_worse_component_or_less_detail_never_raises_the_quality(
    parts: dict[Component, float], detail: float, name: Component, less: float
) -> None:
    calibration = shipped_calibration()
    quality = calibration.quality(parts, detail)
    assert 0 <= quality <= 100
    assert quality <= min(parts.values()) + WORST_LIMIT + 0.5
    worse = parts | {name: max(0.0, parts[name] - less)}
    assert calibration.quality(worse, detail) <= quality
    assert calibration.quality(parts, max(0.0, detail - less)) <= quality


def test_a_capture_without_fine_detail_enrols_nobody() -> None:
    faultless: dict[Component, float] = dict.fromkeys(COMPONENTS, 100.0)
    qualities = [shipped_calibration().quality(faultless, detail) for detail in (0.0, 59.9, 60.0)]
    assert qualities == [64, 64, 100]


def test_the_scale_means_what_the_documentation_says() -> None:
    """45: one in four comparisons rejected; 65: one in ten; 100: a capture without any fault."""
    calibration = shipped_calibration()
    at = dict(zip(*reversed(list(zip(*calibration.knots, strict=True))), strict=True))
    for quality, share in ((65.0, 0.1), (45.0, 0.25), (0.0, 0.9)):
        assert 1.0 / (1.0 + np.exp(-at[quality])) == pytest.approx(share, abs=1e-4)
    faultless: dict[Component, float] = dict.fromkeys(COMPONENTS, 100.0)
    assert calibration.quality(faultless, 100.0) == 100
    assert at[100.0] == calibration.log_odds(faultless) < at[65.0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"faultless": -4}',
        '{"faultless": -4, "knots": [[-4, 100], [0, 0]], "weights": {"sharpness": [1, 1]}}',
        json.dumps({"faultless": -4, "knots": [[0, 100], [-4, 0]], "weights": WEIGHTS}),
        json.dumps({"faultless": -4, "knots": [[-4, 0], [0, 100]], "weights": WEIGHTS}),
        json.dumps({"faultless": -4, "knots": [], "weights": WEIGHTS}),
        json.dumps({"faultless": -4, "knots": KNOTS, "weights": WEIGHTS | {"pose": [-1, 0]}}),
        json.dumps({"faultless": None, "knots": KNOTS, "weights": WEIGHTS}),
    ],
)
def test_a_calibration_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(ManifestError, match=r"calibration\.json"):
        read_calibration(path)
