"""Liveness: generated hands pass from their second sharp frame on; a simulated attack regression.

The attacks are simulated (see ``simulated_attacks``): what is counted here is no attack error rate.
"""

import re
from collections import Counter
from collections.abc import Iterable

import cv2
import numpy as np
import pytest
from simulated_attacks import shown_on

from models.crop import cut_palm
from models.crop_geometry import Handedness
from models.frames import Frame
from models.hand import Hand, HandFinder
from models.liveness import LivenessCheck, PadResult
from models.quality import assess
from models.synthesis.background import Look, Pixels
from models.synthesis.person import make_person
from models.synthesis.scene import passage, poor_capture

SIDES: tuple[Handedness, Handedness] = ("L", "R")

Seen = tuple[int, int, PadResult]


def watched(film: Iterable[Pixels]) -> list[Seen]:
    """Frame number, quality and finding of every frame with an open hand."""
    finder, check, previous, seen = HandFinder(), LivenessCheck(), None, []
    for k, pixels in enumerate(film):
        frame = Frame.from_pixels(pixels, at_ms=33 * k, number=k)
        hand = finder.find(frame)
        if hand is not None:
            crop = cut_palm(frame, hand)
            quality = assess(frame, hand, crop, previous)
            seen.append((k, quality.quality_q, check.check(frame, hand, crop)))
        previous = hand
    return seen


def as_jpeg(film: Iterable[Pixels]) -> Iterable[Pixels]:
    for pixels in film:
        _, coded = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 70])
        yield np.asarray(cv2.imdecode(coded, cv2.IMREAD_UNCHANGED), np.uint8)


@pytest.mark.parametrize("look", ["rgb", "nir"])
@pytest.mark.parametrize("coded", [False, True])
def test_hands_pass_by_the_time_they_are_held(look: Look, coded: bool) -> None:
    frames, passed = 0, 0
    for s in range(8):
        film: Iterable[Pixels] = passage(
            make_person(500 + s), SIDES[s % 2], s, look=look, scene_seed=s, frames_held=4, frames_out=0
        )
        held = [pad for k, quality, pad in watched(as_jpeg(film) if coded else film) if k >= 6]
        assert held
        frames += len(held)
        passed += sum(pad.res == "pass" for pad in held)
    assert passed >= 0.99 * frames


@pytest.mark.parametrize("look", ["rgb", "nir"])
def test_simulated_attack_regression_screen(look: Look) -> None:
    found = Counter[str]()
    for s in range(7):
        film = list(
            passage(make_person(s), SIDES[s % 2], s, look=look, scene_seed=s, frames_held=4, frames_out=0)
        )
        found.update(
            pad.res for _, quality, pad in watched(shown_on("screen", film, s, look)) if quality >= 60
        )
    assert found["fail"] > 0.9 * found.total() > 0


def test_simulated_attack_regression_print() -> None:
    found = Counter[str]()
    for s in range(6):
        film = list(passage(make_person(s), SIDES[s % 2], s, scene_seed=s, frames_held=4, frames_out=0))
        shown = shown_on("print", film, s, "rgb", dots=s % 2 == 0)
        found.update(pad.res for _, quality, pad in watched(shown) if quality >= 60)
    assert found["pass"] < 0.1 * found.total()
    assert found["fail"] > 0.6 * found.total()


def test_a_blurred_hand_is_not_vouched_for() -> None:
    """Blur hides a screen's pixels as well: nothing seen is not nothing there."""
    for s in range(4):
        film = poor_capture(make_person(s), SIDES[s % 2], s, frames_held=4, scene_seed=s)
        assert all(pad.res != "pass" for _, _, pad in watched(film))


def test_what_it_says_fits_the_verdict() -> None:
    for _, _, pad in watched(passage(make_person(1), "R", 1, frames_held=3)):
        assert re.fullmatch(r"[A-Za-z0-9_.+:-]{1,64}", pad.mech)
        assert 0 <= pad.score_q <= 10_000


def test_reset_forgets_the_hand_before() -> None:
    film = list(passage(make_person(3), "L", 3, frames_in=0, frames_held=2, frames_out=0))
    attack = list(shown_on("screen", film, 3, "rgb"))
    check, finder = LivenessCheck(), HandFinder()
    results = []
    for pixels in [*attack, *film]:
        frame = Frame.from_pixels(pixels)
        hand = finder.find(frame)
        if hand is None:
            continue
        if pixels is film[0]:
            check.reset()
        results.append(check.check(frame, hand, cut_palm(frame, hand)).res)
    assert results[0] == "fail"
    assert results[-2:] == ["unknown", "pass"]


@pytest.mark.parametrize("size", [(1, 1), (40, 300), (480, 640)])
@pytest.mark.parametrize("level", [0, 255])
def test_flat_frames_are_unknown(size: tuple[int, int], level: int) -> None:
    frame = Frame.from_pixels(np.full(size, level, np.uint8))
    hand = Hand(
        valleys=np.array([[1, 9], [2, 3], [5, 2], [8, 3]], np.float32),
        centre=np.array([5, 8], np.float32),
        palm_width_px=9.0,
        angle_deg=0.0,
        handedness="L",
        confidence=0.5,
        mask=np.zeros((240, 320), np.uint8),
        mask_scale=0.5,
        at_ms=0,
        hint=None,
    )
    check = LivenessCheck()
    for _ in range(3):
        assert check.check(frame, hand, np.full((112, 112), level, np.uint8)).res == "unknown"
