"""Liveness: generated hands pass from their second sharp frame on; a simulated attack regression.

The attacks are simulated (see ``simulated_attacks``): what is counted here is no attack error rate.
"""

import re
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from itertools import product

import cv2
import numpy as np
import pytest

from link1.objects import Pad
from models import liveness
from models.crop import cut_palm
from models.crop_geometry import Handedness
from models.frames import CameraFrame, as_grey
from models.hand import HandFinder
from models.liveness import PEAK_LIMIT, LivenessCheck
from models.liveness_cues import Spectrum, red_against_blue
from models.quality import assess, fine_detail
from models.synthesis.background import Look, Pixels
from models.synthesis.person import make_person
from models.synthesis.scene import passage, poor_capture
from tests.models.made_hand import hand_at
from tests.models.simulated_attacks import fill_the_view, shone_upon, shown_on
from tests.models.simulated_cameras import DEMOSAICINGS, PATTERNS, through_a_mosaic
from tests.shares import share_of

SIDES: tuple[Handedness, Handedness] = ("L", "R")

Seen = tuple[int, int, Pad]


def watched(film: Iterable[Pixels]) -> list[Seen]:
    """Frame number, quality and finding of every frame with an open hand."""
    finder, check, previous, seen = HandFinder(), LivenessCheck(), None, []
    for k, pixels in enumerate(film):
        frame = CameraFrame.from_pixels(pixels, at_ms=33 * k, number=k)
        hand = finder.find(frame)
        if hand is not None:
            crop = cut_palm(frame, hand)
            quality = assess(frame, hand, crop, previous)
            seen.append((k, quality.quality_q, check.check(frame, hand, quality.detail)))
        previous = hand
    return seen


def as_jpeg(film: Iterable[Pixels]) -> Iterable[Pixels]:
    for pixels in film:
        _, coded = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 70])
        yield np.asarray(cv2.imdecode(coded, cv2.IMREAD_UNCHANGED), np.uint8)


@pytest.mark.parametrize("look", ["rgb", "nir"])
@pytest.mark.parametrize("coded", [False, True])
@share_of("people", 3, 8)
def test_hands_pass_by_the_time_they_are_held(look: Look, coded: bool, people: int) -> None:
    frames, passed = 0, 0
    for s in range(people):
        film: Iterable[Pixels] = passage(
            make_person(500 + s), SIDES[s % 2], s, look=look, scene_seed=s, frames_held=4, frames_out=0
        )
        held = [pad for k, quality, pad in watched(as_jpeg(film) if coded else film) if k >= 6]
        assert held
        frames += len(held)
        passed += sum(pad.res == "pass" for pad in held)
    assert passed >= 0.99 * frames


def by_every_mosaic(film: list[Pixels], seed: int) -> list[Pad]:
    """The finding on a film, once for each pattern of colours on the sensor and each way to fill them in."""
    hands = [HandFinder().find(CameraFrame.from_pixels(pixels)) for pixels in film]
    found = []
    for camera, (pattern, way) in enumerate(product(PATTERNS, DEMOSAICINGS)):
        check, pad = LivenessCheck(), None
        for k, (pixels, hand) in enumerate(zip(film, hands, strict=True)):
            assert hand is not None
            seen = through_a_mosaic(pixels, pattern, way, 100 * seed + camera)
            frame = CameraFrame.from_pixels(seen, at_ms=33 * k, number=k)
            pad = check.check(frame, hand, fine_detail(cut_palm(frame, hand)))
            if pad.res == "fail":
                break
        assert pad is not None
        found.append(pad)
    return found


@share_of("people", 4, 17)
def test_no_cameras_own_mosaic_is_taken_for_a_screen(people: int) -> None:
    """The peak that it leaves lies at the very edge of the spectrum, where nothing is counted."""
    found, at_the_edge = Counter[str](), 0
    for s in range(people):
        film = list(passage(make_person(40 + s), SIDES[s % 2], s, frames_in=0, frames_held=2, frames_out=0))
        found.update(pad.res for pad in by_every_mosaic(film, s))
        plane = red_against_blue(CameraFrame.from_pixels(through_a_mosaic(film[0], "RGGB", "bilinear", s)))
        spectrum = np.abs(np.fft.fft2(plane - cv2.GaussianBlur(plane, (0, 0), 6.0)))
        height, width = plane.shape
        edge = max(spectrum[height // 2, 0], spectrum[0, width // 2], spectrum[height // 2, width // 2])
        at_the_edge += bool(edge > 4.0 * np.median(spectrum))
    assert found["fail"] == 0 and found.total() == 12 * people
    assert at_the_edge == people


@share_of("people", 2, 4)
def test_simulated_attack_regression_screen_before_every_mosaic(people: int) -> None:
    found = Counter[str]()
    for s in range(people):
        film = list(passage(make_person(s), SIDES[s % 2], s, frames_in=0, frames_held=2, frames_out=0))
        found.update(pad.res for pad in by_every_mosaic(list(fill_the_view(film, s, coloured=False)), s))
    assert found["fail"] > 0.9 * found.total() > 0


@pytest.mark.parametrize("look", ["rgb", "nir"])
@share_of("people", 3, 7)
def test_simulated_attack_regression_screen(look: Look, people: int) -> None:
    found = Counter[str]()
    for s in range(people):
        film = list(
            passage(make_person(s), SIDES[s % 2], s, look=look, scene_seed=s, frames_held=4, frames_out=0)
        )
        found.update(
            pad.res for _, quality, pad in watched(shown_on("screen", film, s, look)) if quality >= 60
        )
    assert found["fail"] > 0.9 * found.total() > 0


@share_of("people", 3, 6)
def test_simulated_attack_regression_print(people: int) -> None:
    found = Counter[str]()
    for s in range(people):
        film = list(passage(make_person(s), SIDES[s % 2], s, scene_seed=s, frames_held=4, frames_out=0))
        shown = shown_on("print", film, s, "rgb", dots=s % 2 == 0)
        found.update(pad.res for _, quality, pad in watched(shown) if quality >= 60)
    assert found["pass"] < 0.1 * found.total()
    assert found["fail"] > 0.6 * found.total()


@pytest.mark.parametrize("coloured", [False, True])
@share_of("people", 3, 6)
def test_simulated_attack_regression_replay_that_fills_the_view(coloured: bool, people: int) -> None:
    found, seen = Counter[str](), 0
    for s in range(people):
        film = list(passage(make_person(s), SIDES[s % 2], s, frames_in=0, frames_held=4, frames_out=0))
        shown = list(fill_the_view(film, s, coloured=coloured))
        results = [pad for _, quality, pad in watched(shown) if quality >= 45]
        found.update(pad.res for pad in results)
        seen += sum("tint" in pad.mech and "frame" in pad.mech for pad in results)
    assert found["fail"] > 0.9 * found.total() > 0
    assert seen == found.total()


def test_coloured_beats_are_seen_by_their_colour() -> None:
    film = list(passage(make_person(2), "L", 2, frames_in=0, frames_held=1, frames_out=0))
    for pixels, is_picture in ((film[0], False), (next(fill_the_view(film, 2, coloured=True)), True)):
        frame = CameraFrame.from_pixels(pixels)
        hand = HandFinder().find(frame)
        assert hand is not None
        in_light, in_colour = (Spectrum().peak(p, hand) for p in (as_grey(frame), red_against_blue(frame)))
        assert in_light < 3.0
        assert (in_colour > PEAK_LIMIT + 1.0) == is_picture


@pytest.mark.parametrize("look", ["rgb", "nir"])
def test_simulated_attack_regression_reflection_across_the_hand(look: Look) -> None:
    """The same light behind the hand, as a lamp or a window, says nothing."""
    found = Counter[str]()
    for s in (0, 2, 3, 5):
        film = list(
            passage(make_person(s), SIDES[s % 2], s, look=look, frames_in=0, frames_held=3, frames_out=0)
        )
        hand = HandFinder().find(CameraFrame.from_pixels(film[0]))
        assert hand is not None
        across = hand.palm_width_px * (0.5 if s % 2 else -0.5)
        middle = float(hand.centre[0]) + across, float(hand.centre[1])
        shown = list(shone_upon(film, middle, 0.18 * hand.palm_width_px))
        found.update(pad.res for _, _, pad in watched(shown)[1:])  # one frame alone accuses nobody
        height, width = film[0].shape[:2]
        palm = cv2.resize(hand.mask, (width, height), interpolation=cv2.INTER_LINEAR) > 60
        for lit, plain in zip(shown, film, strict=True):
            lit[palm] = plain[palm]
        assert all(pad.res != "fail" for _, _, pad in watched(shown))
    assert found["fail"] == found.total() >= 4


def test_only_cues_that_spoke_are_named() -> None:
    """One camera gives one look: no colours in near infrared, no parallax of a hand that is still."""
    still = {
        look: watched(passage(make_person(4), "R", 4, look=look, frames_in=0, frames_held=3, frames_out=0))
        for look in ("rgb", "nir")
    }
    assert still["rgb"][-1][2].mech == "passive3:moire+tint+glare+frame"
    assert still["nir"][-1][2].mech == "passive3:moire+glare+frame"
    moving = watched(passage(make_person(4), "R", 4, scene_seed=7, frames_held=2, frames_out=0))
    assert moving[-1][2].mech == "passive3:moire+tint+glare+frame+parallax"


def test_a_still_photograph_gives_no_parallax_and_is_judged_by_the_rest() -> None:
    """What a row of still pictures before the camera means: nothing moves, so nothing is told by movement."""
    (picture,) = passage(make_person(6), "L", 6, frames_in=0, frames_held=1, frames_out=0)
    seen = watched([picture] * 4)
    assert [pad.res for _, _, pad in seen] == ["unknown", "pass", "pass", "pass"]
    assert all("parallax" not in pad.mech for _, _, pad in seen)


@share_of("people", 2, 4)
def test_a_blurred_hand_is_not_vouched_for(people: int) -> None:
    """Blur hides a screen's pixels as well: nothing seen is not nothing there."""
    for s in range(people):
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
        frame = CameraFrame.from_pixels(pixels)
        hand = finder.find(frame)
        if hand is None:
            continue
        if pixels is film[0]:
            check.reset()
        results.append(check.check(frame, hand, fine_detail(cut_palm(frame, hand))).res)
    assert results[0] == "fail"
    assert results[-2:] == ["unknown", "pass"]


def test_what_is_kept_of_a_hand_that_stays_does_not_grow() -> None:
    frame = CameraFrame.from_pixels(np.full((40, 60), 90, np.uint8))
    hand = hand_at(np.array([[1, 9], [2, 3], [5, 2], [8, 3]]), palm_width_px=9.0, in_mask=False)
    check, kept = LivenessCheck(), []
    of_this_module = tracemalloc.Filter(inclusive=True, filename_pattern=liveness.__file__)
    tracemalloc.start()
    try:
        for _ in range(2):
            for _ in range(100):
                check.check(frame, hand, 100.0)
            snapshot = tracemalloc.take_snapshot().filter_traces([of_this_module])
            kept.append(sum(trace.size for trace in snapshot.traces))
    finally:
        tracemalloc.stop()
    assert kept[1] < kept[0] + 500


@pytest.mark.parametrize("size", [(1, 1), (40, 300), (480, 640)])
@pytest.mark.parametrize("level", [0, 255])
def test_flat_frames_are_unknown(size: tuple[int, int], level: int) -> None:
    frame = CameraFrame.from_pixels(np.full(size, level, np.uint8))
    hand = hand_at(np.array([[1, 9], [2, 3], [5, 2], [8, 3]]), palm_width_px=9.0, in_mask=False)
    check = LivenessCheck()
    for _ in range(3):
        assert check.check(frame, hand, fine_detail(np.full((112, 112), level, np.uint8))).res == "unknown"
