"""Near infrared beside colour: hands stand out in both, pictures of hands do not. All of it simulated."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from link1.objects import Pad
from models.crop import cut_palm
from models.crop_geometry import Handedness
from models.errors import PixelsError
from models.frames import CameraFrame, NirHalf
from models.hand import HandFinder
from models.liveness import LivenessCheck
from models.liveness_cues import missing_in_nir, small_grey
from models.quality import fine_detail
from models.synthesis.person import make_person
from models.synthesis.scene import passage
from tests.models.simulated_attacks import shown_on
from tests.shares import share_of

SIDES: tuple[Handedness, Handedness] = ("L", "R")
Film = list[NDArray[np.uint8]]
IN_NIR = {"screen": 12, "print": 200}
"""What is left of the picture on it: dark glass, plain paper (most dyes let near infrared through)."""


@cache
def films(s: int) -> tuple[Film, Film]:
    """The same hand in the same pose, in colour and in near infrared."""
    shown = (
        list(passage(make_person(s), SIDES[s % 2], s, look=look, scene_seed=s, frames_in=2, frames_held=4))
        for look in ("rgb", "nir")
    )
    return tuple(film[:6] for film in shown)  # type: ignore[return-value]  # two of them


def watched(colour: Iterable[NDArray[np.uint8]], infrared: Iterable[NDArray[np.uint8]]) -> list[Pad]:
    finder, check, results = HandFinder(), LivenessCheck(), []
    for k, (seen, nir) in enumerate(zip(colour, infrared, strict=True)):
        frame = CameraFrame(seen, 33 * k, k, nir)
        hand = finder.find(frame)
        if hand is not None:
            results.append(check.check(frame, hand, fine_detail(cut_palm(frame, hand))))
    return results


@pytest.mark.parametrize("apart_px", [0, 30, -30])
def test_hands_stand_out_in_both_though_the_lenses_are_apart(apart_px: int) -> None:
    for s in (101, 102, 103):
        colour, infrared = films(s)
        last = watched(colour, (np.roll(nir, apart_px, axis=1) for nir in infrared))[-1]
        assert last.res == "pass"
        assert "+nir" in last.mech
        assert last.score_q > 9000


@pytest.mark.parametrize("medium", ["screen", "print"])
@share_of("people", 2, 4)
def test_simulated_attack_regression_picture_that_near_infrared_does_not_show(
    medium: str, people: int
) -> None:
    """The cue alone: the rest is content with these, or the test would say nothing about it."""
    missing: list[float | None] = []
    found = Counter[str]()
    for s in range(101, 101 + people):
        colour, infrared = films(s)
        blank = [np.full_like(infrared[0], IN_NIR[medium])] * len(colour)
        shown = list(shown_on(medium, colour, s, "rgb"))  # type: ignore[arg-type]  # parametrised
        beside = list(shown_on(medium, blank, s, "nir"))  # type: ignore[arg-type]  # parametrised
        found.update(pad.res for pad in watched(shown, beside)[1:])
        missing += cue(shown, beside)
    assert [m for m in missing if m is not None]
    assert all(m is None or m > 0.9 for m in missing)
    assert found["fail"] == found.total() > 0


def test_a_replay_that_nothing_else_sees_is_seen_by_its_darkness_in_near_infrared() -> None:
    colour, infrared = films(105)
    rng = np.random.default_rng(1)
    glass = [np.clip(12 + rng.normal(0, 2, nir.shape), 0, 255).astype(np.uint8) for nir in infrared]
    assert watched(colour, infrared)[-1].res == "pass"
    assert watched(colour, glass)[-1].res == "fail"


def cue(colour: Sequence[NDArray[np.uint8]], infrared: Sequence[NDArray[np.uint8]]) -> list[float | None]:
    told = []
    for seen, nir in zip(colour, infrared, strict=True):
        frame = CameraFrame.from_pixels(seen)
        hand = HandFinder().find(frame)
        if hand is not None:
            grey = np.asarray(seen.mean(axis=2), np.uint8)
            told.append(missing_in_nir(small_grey(grey, hand), small_grey(nir, hand), hand))
    return told


def test_the_cue_is_silent_where_near_infrared_is_burnt_out_or_colour_shows_no_outline() -> None:
    colour, infrared = films(106)
    assert cue(colour[-1:], [np.full_like(infrared[0], 255)]) == [None]
    frame = CameraFrame.from_pixels(colour[-1])
    hand = HandFinder().find(frame)
    assert hand is not None
    plain = np.full(hand.mask.shape, 90.0, np.float32)
    assert missing_in_nir(plain, small_grey(infrared[-1], hand), hand) is None


def test_without_a_near_infrared_picture_the_cue_is_not_named() -> None:
    colour, _ = films(101)
    check = LivenessCheck()
    frame = CameraFrame.from_pixels(colour[-1])
    hand = HandFinder().find(frame)
    assert hand is not None
    assert "nir" not in check.check(frame, hand, fine_detail(cut_palm(frame, hand))).mech


@pytest.mark.parametrize("nir", ["left", "right"])
@pytest.mark.parametrize("shape", [(40, 120, 3), (40, 121, 3), (40, 120)])
def test_the_halves_of_one_picture_become_colour_and_near_infrared(
    nir: NirHalf, shape: tuple[int, ...]
) -> None:
    both = np.zeros(shape, np.uint8)
    both[:, :60] = 50
    both[:, -60:] = 200
    frame = CameraFrame.from_pixels(both, nir=nir)
    assert frame.pixels.shape == (40, 60, *shape[2:])
    assert frame.nir is not None
    assert frame.nir.shape == (40, 60)
    assert set(np.unique(frame.pixels)) == {50 if nir == "right" else 200}
    assert set(np.unique(frame.nir)) == {200 if nir == "right" else 50}


def test_a_near_infrared_picture_of_another_size_is_refused() -> None:
    with pytest.raises(PixelsError, match="near-infrared"):
        CameraFrame(np.zeros((10, 10, 3), np.uint8), 0, 0, np.zeros((10, 9), np.uint8))
