"""Hands as they come to a gate: with rings, watch and sleeve, fingers spread, pressed together or folded.

For teaching and judging the finding of hands, not their recognition: what is drawn here carries its points.
"""

from dataclasses import dataclass, replace
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import Handedness
from models.synthesis.anatomy import PALM_CENTRE, Outline, Posture, outline_of, valleys_of
from models.synthesis.background import Look, Pixels
from models.synthesis.clutter import skin_colour
from models.synthesis.hand_canvas import Light, hand_canvas
from models.synthesis.palm import HAND_WINDOW
from models.synthesis.person import HandIdentity, SyntheticPerson, make_person
from models.synthesis.raster import Points

FIST: Final = 0
POINTING: Final = 1
PRESSED: Final = 2

POINT_NAMES: Final = ("thumb_index", "index_middle", "middle_ring", "ring_little", "wrist", "centre")
_WRIST: Final = (0.53, 1.18)
_TOUCHING: Final = 0.12
"""A gap that ends so much farther out than in a relaxed hand (in hand coordinates) is closed at its foot."""


@dataclass(frozen=True, slots=True)
class FoldedPerson(SyntheticPerson):
    """A person some of whose fingers are folded away."""

    kept: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
    """What is left of the length of each finger, index to little."""

    def hand(self, handedness: Handedness) -> HandIdentity:
        """The same skin on shorter fingers."""
        identity = make_person(self.seed).hand(handedness)
        index, middle, ring, little = identity.shape.finger_lengths
        lengths = (index * self.kept[0], middle * self.kept[1], ring * self.kept[2], little * self.kept[3])
        return replace(identity, shape=replace(identity.shape, finger_lengths=lengths))


@dataclass(frozen=True, slots=True, eq=False)
class WornHand:
    """A drawn hand: ``pixels`` as in ``HandCanvas``, ``points`` (6, 2) in its pixels by ``POINT_NAMES``."""

    pixels: Pixels
    points: Points
    palm_width_px: float
    is_open: bool
    """Whether its fingers are apart and its palm can be recognised."""


def wide_posture(rng: np.random.Generator) -> Posture:
    """An open hand from nearly closed to a wide fan."""
    sway = np.clip(rng.normal(0.0, 2.0, 4), -4.0, 4.0)
    return Posture(
        float(rng.uniform(0.6, 1.75)),
        float(np.clip(rng.normal(3.0, 9.0), -14.0, 24.0)),
        (float(sway[0]), float(sway[1]), float(sway[2]), float(sway[3])),
        int(rng.integers(1 << 31)),
    )


def any_light(rng: np.random.Generator) -> Light:
    """Light from any side, seldom grazing."""
    return Light(
        float(np.clip(rng.normal(0.0, 0.7), -1.6, 1.6)), float(np.clip(rng.normal(-0.1, 0.7), -1.6, 1.6))
    )


def open_hand(
    rng: np.random.Generator, person: SyntheticPerson, handedness: Handedness, look: Look, posture: Posture
) -> WornHand:
    """An open hand with what its owner wears."""
    outline = outline_of(person.hand(handedness).shape, posture)
    relaxed = valleys_of(outline_of(person.hand(handedness).shape, Posture(1.2)))
    seen = valleys_of(outline)
    touching = relaxed[1:, 1] - seen[1:, 1] > _TOUCHING
    seen[1:][touching] = relaxed[1:][touching]
    canvas = hand_canvas(person, handedness, posture, look, any_light(rng))
    pixels = _left(canvas.pixels, handedness)
    _part_touching(pixels, outline, relaxed, touching)
    _dress(rng, pixels, outline)
    return _worn(_left(pixels, handedness), person, seen, handedness, is_open=int(touching.sum()) < 2)


def shut_hand(
    rng: np.random.Generator,
    seed: int,
    handedness: Handedness,
    look: Look,
    kinds: tuple[int, ...] = (FIST, POINTING, PRESSED),
) -> WornHand:
    """One of ``kinds``: a fist, a pointing hand, or fingers pressed together."""
    kind = kinds[int(rng.integers(len(kinds)))]
    kept = rng.uniform(0.08, 0.3, 4)
    if kind == POINTING:
        kept[: int(rng.integers(1, 3))] = 1.0
        kept = np.roll(kept, int(rng.integers(4)))
    elif kind == PRESSED:
        kept[:] = 1.0
    thumb_deg = float(rng.uniform(-25.0, -5.0) if kind == PRESSED else rng.uniform(-75.0, 10.0))
    spread = float(rng.uniform(-0.5, -0.1) if kind == PRESSED else rng.uniform(0.0, 0.35))
    posture = Posture(spread, thumb_deg, seed=int(rng.integers(1 << 31)))
    person = FoldedPerson(seed, (float(kept[0]), float(kept[1]), float(kept[2]), float(kept[3])))
    outline = outline_of(person.hand(handedness).shape, posture)
    relaxed = valleys_of(outline_of(make_person(seed).hand(handedness).shape, Posture(1.2)))
    pixels = _left(hand_canvas(person, handedness, posture, look, any_light(rng)).pixels, handedness)
    _part_touching(pixels, outline, relaxed, np.ones(3, dtype=np.bool_))
    if kind != PRESSED:
        _fold_fingers(rng, pixels, outline, kept)
    _dress(rng, pixels, outline)
    return _worn(_left(pixels, handedness), person, relaxed, handedness, is_open=False)


def _worn(
    pixels: Pixels, person: SyntheticPerson, valleys: Points, handedness: Handedness, *, is_open: bool
) -> WornHand:
    stretch = np.array(person.hand(handedness).shape.palm_stretch)
    wrist = (np.array(_WRIST) - PALM_CENTRE) * stretch + PALM_CENTRE
    points = HAND_WINDOW.to_px(np.vstack([valleys, wrist, PALM_CENTRE]))
    if handedness == "R":
        points[:, 0] = HAND_WINDOW.width - 1 - points[:, 0]
    width = 1.08 * float(stretch[0]) * HAND_WINDOW.px_per_unit
    return WornHand(pixels, points, width, is_open)


def _left(pixels: Pixels, handedness: Handedness) -> Pixels:
    """A copy as a left hand (and back again)."""
    return np.ascontiguousarray(pixels[:, ::-1]) if handedness == "R" else pixels.copy()


def _px(points: Points) -> NDArray[np.int32]:
    return np.round(HAND_WINDOW.to_px(points) * 16).astype(np.int32)


def _ink(pixels: Pixels, colour: tuple[float, float, float]) -> tuple[float, ...]:
    return (*colour, 255.0) if pixels.shape[2] == 4 else (sum(colour) / 3.0, 255.0)


def _darken(pixels: Pixels, mask: Pixels, amount: float) -> None:
    shade = 1.0 - np.float32(amount) * (mask.astype(np.float32) / np.float32(255.0))
    pixels[:, :, :-1] = (pixels[:, :, :-1] * shade[:, :, None]).astype(np.uint8)


def _part_touching(pixels: Pixels, outline: Outline, feet: Points, touching: NDArray[np.bool_]) -> None:
    """The dark line between fingers that lie side by side."""
    mask = np.zeros(pixels.shape[:2], dtype=np.uint8)
    for i in np.flatnonzero(touching):
        tip = (outline.fingers[i].end + outline.fingers[i + 1].end) / 2
        cv2.polylines(mask, [_px(np.array([feet[i + 1], tip]))], False, (255,), 5, cv2.LINE_AA, 4)
    if touching.any():
        _darken(pixels, np.asarray(cv2.GaussianBlur(mask, (0, 0), 1.5), dtype=np.uint8), 0.75)


def _fold_fingers(
    rng: np.random.Generator, pixels: Pixels, outline: Outline, kept: NDArray[np.float64]
) -> None:
    """Folded fingers lie on the palm below the knuckles."""
    mask = np.zeros(pixels.shape[:2], dtype=np.uint8)
    length = rng.uniform(0.3, 0.55)
    for finger, left in zip(outline.fingers, kept, strict=True):
        if left < 0.5:
            box = finger.start + np.array([[-0.11, -0.1], [0.11, -0.1], [0.11, length], [-0.11, length]])
            cv2.polylines(mask, [_px(box)], True, (255,), 6, cv2.LINE_AA, 4)
    _darken(pixels, np.asarray(cv2.GaussianBlur(mask, (0, 0), 2.0), dtype=np.uint8), 0.7)


def _dress(rng: np.random.Generator, pixels: Pixels, outline: Outline) -> None:
    for finger in outline.fingers:
        if rng.random() < 0.08:
            _ring(
                rng,
                pixels,
                finger.start + (finger.end - finger.start) * rng.uniform(0.22, 0.36),
                finger.start_radius,
                finger.end - finger.start,
            )
    if rng.random() < 0.3:
        _band(rng, pixels)
    if rng.random() < 0.45:
        _sleeve(rng, pixels)


def _metal(rng: np.random.Generator) -> tuple[float, float, float]:
    level = float(rng.uniform(20.0, 240.0))
    return level * float(rng.uniform(0.5, 1.0)), level * 0.9, level


def _ring(rng: np.random.Generator, pixels: Pixels, at: Points, radius: float, axis: Points) -> None:
    side = np.array([-axis[1], axis[0]]) / max(float(np.linalg.norm(axis)), 1e-6) * radius * 1.05
    wide = int(rng.integers(3, 11))
    cv2.polylines(
        pixels, [_px(np.array([at - side, at + side]))], False, _ink(pixels, _metal(rng)), wide, cv2.LINE_8, 4
    )


def _band(rng: np.random.Generator, pixels: Pixels) -> None:
    """A watch or a bracelet."""
    y, high = rng.uniform(1.3, 1.6), rng.uniform(0.03, 0.22)
    box = np.array([[0.12, y], [0.95, y], [0.95, y + high], [0.12, y + high]])
    cv2.fillPoly(pixels, [_px(box)], _ink(pixels, _metal(rng)), cv2.LINE_8, 4)
    if high > 0.12 and rng.random() < 0.5:
        x, middle = HAND_WINDOW.to_px(np.array([[0.53, y + high / 2]]))[0]
        cv2.circle(
            pixels,
            (round(x), round(middle)),
            int(rng.integers(28, 50)),
            _ink(pixels, _metal(rng)),
            cv2.FILLED,
        )


def _sleeve(rng: np.random.Generator, pixels: Pixels) -> None:
    """Cloth from somewhere below the wrist on."""
    y = float(rng.uniform(1.28, 2.4))
    flare = rng.uniform(0.0, 0.3)
    edge = np.linspace(0.06 - flare, 1.0 + flare, 12)
    top = np.stack([edge, y + rng.normal(0.0, 0.025, 12)], axis=1)
    shape = np.vstack([top, [[1.15 + flare, 3.5], [-0.1 - flare, 3.5]]])
    mask = np.zeros(pixels.shape[:2], dtype=np.uint8)
    cv2.fillPoly(mask, [_px(shape)], (255,), cv2.LINE_8, 4)
    b, g, r = skin_colour(rng) if rng.random() < 0.1 else rng.uniform(8.0, 235.0) * rng.uniform(0.6, 1.1, 3)
    x = np.arange(pixels.shape[1], dtype=np.float32)
    folds = 1.0 + 0.2 * np.sin(x / np.float32(rng.uniform(6.0, 30.0)) + np.float32(rng.uniform(0.0, 6.0)))
    cloth = np.clip(np.array(_ink(pixels, (float(b), float(g), float(r))))[None, :] * folds[:, None], 0, 255)
    cloth[:, -1] = 255.0
    inside = mask > 0
    pixels[inside] = np.broadcast_to(cloth.astype(np.uint8), pixels.shape)[inside]
