"""Good and poor captures of generated hands, each compared with a good enrolment of the same hand.

What quality is calibrated with (``calibrate_quality``) and judged by (``quality_curve``). Every probe has one
occasion's pose, light and ground, and none to three faults: defocus, too little or too much light, a tilted,
turned, small or large hand, a hand at the frame's edge, something on the palm, movement. In near infrared
the lines of some people are faint, as skin scatters that light.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop import cut_palm
from models.crop_geometry import Handedness, similarity_from_valleys
from models.embedding import Embedder
from models.frames import CameraFrame
from models.hand import Hand, HandFinder
from models.synthesis.anatomy import random_posture
from models.synthesis.background import Look, Pixels
from models.synthesis.person import SyntheticPerson, make_person
from models.synthesis.render import (
    FRAME_SIZE,
    HandTruth,
    Pose,
    Setting,
    expose,
    render_frame,
    render_frame_with_truth,
)
from models.synthesis.scene import random_pose, random_setting

REFERENCES: Final = 3
"""Captures enrolled of a hand, each a good one; a probe's score is its best cosine with them."""
POSTURES: Final = 2
PROBES_A_POSTURE: Final = 6
FRAME_MS: Final = 33
PLAIN_SHARE: Final = 0.2
"""Part of the probes without any fault."""
FAINTEST: Final = 0.25
"""The least part of the drawn contrast that lines have in near infrared; the logarithm is drawn evenly."""
_DOMAIN: Final = 0xACA1
_SHUTTER: Final = 0.5
"""Part of the time between two frames in which light is gathered."""


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """A capture as quality sees it, and what comparing it gave."""

    person: int
    faults: tuple[str, ...]
    frame: CameraFrame
    hand: Hand
    previous: Hand | None
    crop: NDArray[np.uint8]
    score: float
    """Best cosine with the hand's references."""


@dataclass(slots=True)
class Lost:
    """Probes in which no hand, or the wrong side, was found: they never get a quality."""

    shown: int = 0
    not_found: int = 0
    wrong_side: int = 0


@dataclass(slots=True)
class _Shot:
    pose: Pose
    setting: Setting
    speed: float = 0.0
    """Palm widths a second, downwards."""
    contrast: float = 1.0
    """Of what is finer than a tenth of the palm, as a part of what is drawn."""
    cover: Callable[[Pixels, HandTruth], Pixels] | None = None


def probes(embedder: Embedder, look: Look, people: int, *, first: int, lost: Lost) -> Iterator[Probe]:
    """Probes of one hand of each person, in the same order with the same scores for the same model.

    A person takes about a second and a half of one core.
    """
    for number in range(first, first + people):
        person = make_person(number)
        handedness: Handedness = "L" if number % 2 else "R"
        rng = np.random.default_rng([_DOMAIN, number, look == "nir"])
        contrast = float(FAINTEST ** rng.random()) if look == "nir" else 1.0
        references = _references(embedder, person, handedness, look, rng, contrast=contrast)
        if references is None:
            continue
        for _ in range(POSTURES):
            posture = random_posture(rng)
            for _ in range(PROBES_A_POSTURE):
                pose = replace(random_pose(rng), posture=posture)
                shot = _Shot(pose, random_setting(rng, number), contrast=contrast)
                faults = _spoil(shot, rng)
                lost.shown += 1
                seen = _see(person, handedness, look, shot, rng)
                if seen is None:
                    lost.not_found += 1
                    continue
                frame, hand = seen
                if hand.handedness != handedness:
                    lost.wrong_side += 1
                    continue
                crop = cut_palm(frame, hand)
                score = float((references @ embedder.embed(crop[None])[0]).max())
                yield Probe(number, faults, frame, hand, _before(hand, shot.speed), crop, score)


def _references(
    embedder: Embedder,
    person: SyntheticPerson,
    handedness: Handedness,
    look: Look,
    rng: np.random.Generator,
    *,
    contrast: float,
) -> NDArray[np.float32] | None:
    """(k, 512), one to three vectors: the captures of an enrolment."""
    crops = []
    for _ in range(REFERENCES):
        shot = _Shot(random_pose(rng), random_setting(rng, person.seed), contrast=contrast)
        seen = _see(person, handedness, look, shot, rng)
        if seen is not None and seen[1].handedness == handedness:
            crops.append(cut_palm(*seen))
    return embedder.embed(np.stack(crops)) if crops else None


def _see(
    person: SyntheticPerson, handedness: Handedness, look: Look, shot: _Shot, rng: np.random.Generator
) -> tuple[CameraFrame, Hand] | None:
    smear_px = shot.speed * shot.pose.palm_width_px * FRAME_MS / 1000 * _SHUTTER
    setting = replace(shot.setting, smear_px=smear_px)
    if shot.cover is None and shot.contrast == 1.0:
        pixels = render_frame(person, handedness, shot.pose, look, rng, setting=setting)
    else:
        clean = replace(setting, gain=1.0, noise=0.0, blur_px=0.0, smear_px=0.0)
        plain, truth = render_frame_with_truth(person, handedness, shot.pose, look, rng, setting=clean)
        if truth is not None:
            plain = _faint(plain, truth, shot.contrast)
            plain = shot.cover(plain, truth) if shot.cover is not None else plain
        pixels = expose(plain, setting, rng)
    frame = CameraFrame(pixels, 0, 0)
    hand = HandFinder().find(frame)
    return None if hand is None else (frame, hand)


def _faint(pixels: Pixels, truth: HandTruth, contrast: float) -> Pixels:
    """The palm with this part of its fine contrast, fading to all of it outside of the crop."""
    to_crop = similarity_from_valleys(truth.valleys, truth.handedness, size=1)
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    square = np.linalg.solve(to_crop[:, :2], (corners - 0.5 - to_crop[:, 2]).T).T
    area = np.zeros(pixels.shape[:2], np.float32)
    cv2.fillConvexPoly(area, np.round(square).astype(np.int32), (1.0,))
    share = cv2.GaussianBlur(area, (0, 0), 0.03 * truth.palm_width_px)
    share = share[:, :, None] if pixels.ndim == 3 else share
    bright = pixels.astype(np.float32)
    smooth = cv2.GaussianBlur(bright, (0, 0), 0.08 * truth.palm_width_px)
    return np.asarray(bright + share * np.float32(contrast - 1.0) * (bright - smooth), dtype=np.uint8)


def _before(hand: Hand, speed: float) -> Hand | None:
    """The hand one frame earlier, moving as it does; None for a hand that is held, as for a first frame."""
    if not speed:
        return None
    moved = np.array([0.0, -speed * hand.palm_width_px * FRAME_MS / 1000], np.float32)
    return replace(hand, valleys=hand.valleys + moved, at_ms=hand.at_ms - FRAME_MS)


def _spoil(shot: _Shot, rng: np.random.Generator) -> tuple[str, ...]:
    """Give a shot its faults; their names."""
    if rng.random() < PLAIN_SHARE:
        return ()
    faults: dict[str, Callable[[_Shot, np.random.Generator], None]] = {
        "blur": _blur,
        "dark": _dark,
        "bright": _bright,
        "tilt": _tilt,
        "size": _size,
        "edge": _edge,
        "cover": _cover,
        "motion": _motion,
    }
    count = int(rng.choice([1, 2, 3], p=[0.6, 0.3, 0.1]))
    chosen = tuple(str(name) for name in rng.choice(list(faults), count, replace=False))
    for name in chosen:
        faults[name](shot, rng)
    return chosen


def _blur(shot: _Shot, rng: np.random.Generator) -> None:
    shot.setting = replace(shot.setting, blur_px=float(rng.uniform(0.8, 6.0)))


def _dark(shot: _Shot, rng: np.random.Generator) -> None:
    shot.setting = replace(
        shot.setting, gain=float(np.exp(rng.uniform(np.log(0.06), np.log(0.7)))), noise=rng.uniform(2.0, 7.0)
    )


def _bright(shot: _Shot, rng: np.random.Generator) -> None:
    shot.setting = replace(shot.setting, gain=float(rng.uniform(1.15, 2.6)))


def _tilt(shot: _Shot, rng: np.random.Generator) -> None:
    across, along = rng.uniform(-0.3, 0.3, 2)
    shot.pose = replace(shot.pose, tilt=(float(across), float(along)), angle_deg=float(rng.normal(0.0, 35.0)))


def _size(shot: _Shot, rng: np.random.Generator) -> None:
    shot.pose = replace(shot.pose, palm_width_px=float(np.exp(rng.uniform(np.log(45.0), np.log(340.0)))))


def _edge(shot: _Shot, rng: np.random.Generator) -> None:
    height, width = FRAME_SIZE
    x, y = shot.pose.centre_px
    reach = 0.5 * shot.pose.palm_width_px * rng.uniform(0.7, 1.3)
    place = {0: (reach, y), 1: (width - reach, y), 2: (x, height - reach)}[int(rng.integers(3))]
    shot.pose = replace(shot.pose, centre_px=(float(place[0]), float(place[1])))


def _motion(shot: _Shot, rng: np.random.Generator) -> None:
    shot.speed = float(rng.uniform(0.5, 7.0))


def _cover(shot: _Shot, rng: np.random.Generator) -> None:
    """Something on the palm: a plaster, a strap, a sleeve's end, dirt, something that is held."""
    kind = int(rng.integers(3))
    colour = rng.uniform(10.0, 245.0, 3)
    if kind == 2:  # dirt: darker skin rather than a thing
        colour = np.array([25.0, 35.0, 45.0])
    place, extent = rng.uniform(-0.4, 0.4, 2), rng.uniform(0.06, 0.40, 2)
    turn, weight = float(rng.uniform(0, 180)), float(rng.uniform(0.6, 1.0))

    def paint(pixels: Pixels, truth: HandTruth) -> Pixels:
        unit = truth.palm_width_px
        area = np.zeros(pixels.shape[:2], np.uint8)
        middle = truth.centre + place * unit
        axes = (extent[0] * unit, extent[1] * unit) if kind else (2.0 * unit, 0.4 * extent[1] * unit)
        centre = (round(float(middle[0])), round(float(middle[1])))
        size = (max(1, round(float(axes[0]))), max(1, round(float(axes[1]))))
        cv2.ellipse(area, centre, size, turn, 0, 360, (255,), cv2.FILLED, cv2.LINE_AA)
        share = area.astype(np.float32) / np.float32(255.0) * np.float32(weight)
        thing = colour if pixels.ndim == 3 else colour[:1]
        share = share[:, :, None] if pixels.ndim == 3 else share
        return np.asarray(pixels * (1.0 - share) + thing.astype(np.float32) * share, dtype=np.uint8)

    shot.cover = paint
