"""The outline of a hand: the directions of its fingers in one posture, its silhouette and its valleys."""

from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.synthesis.person import HandShape
from models.synthesis.raster import Plane, Points, Window, blurred, smooth_curve

# The average left hand, in hand coordinates.
_KNUCKLES: Final = np.array([[0.12, 0.06], [0.40, -0.01], [0.66, 0.0], [0.91, 0.10]])
_FINGER_ANGLES_DEG: Final = np.array([-7.0, -1.0, 6.0, 15.0])
_FINGER_WIDTHS: Final = np.array([1.0, 1.03, 0.98, 0.86])
_PALM: Final = np.array(
    [
        [0.005, 0.02], [-0.035, 0.2], [-0.03, 0.42], [0.02, 0.7], [0.10, 0.98], [0.17, 1.2], [0.165, 1.45],
        [0.10, 2.2], [0.02, 3.4], [1.04, 3.4], [0.97, 2.2], [0.905, 1.45], [0.91, 1.2], [0.985, 0.98],
        [1.05, 0.7], [1.07, 0.4], [1.06, 0.15], [1.03, 0.06], [0.79, 0.02], [0.53, -0.03], [0.27, 0.0],
    ]
)  # fmt: skip
PALM_WIDTH: Final = 1.08
"""Breadth of the average palm below the fingers, in hand coordinates."""
PALM_CENTRE: Final = (0.52, 0.45)


@dataclass(frozen=True, slots=True)
class Posture:
    """How a hand is held: what changes from one capture to the next."""

    spread: float = 1.0
    """Finger angles relative to a relaxed open hand; 0 is fingers side by side, 1.6 a wide fan."""
    thumb_deg: float = 0.0
    """Thumb drawn away from the palm (positive) or towards it."""
    sway_deg: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """Each finger's own deviation."""
    seed: int = 0
    """Feeds skin stretch and flexion folds."""


def random_posture(rng: np.random.Generator) -> Posture:
    """A natural open hand."""
    # More would press two neighbours together, which is no longer an open hand.
    sway = np.clip(rng.normal(0.0, 0.9, 4), -1.2, 1.2)
    return Posture(
        float(rng.uniform(0.95, 1.5)),
        float(np.clip(rng.normal(3.0, 5.0), -5.0, 14.0)),
        (float(sway[0]), float(sway[1]), float(sway[2]), float(sway[3])),
        int(rng.integers(1 << 31)),
    )


@dataclass(frozen=True, slots=True)
class Limb:
    """A tapered capsule between two points."""

    start: Points
    end: Points
    start_radius: float
    end_radius: float


@dataclass(frozen=True, slots=True)
class Outline:
    """A left hand in one posture, in hand coordinates."""

    fingers: tuple[Limb, Limb, Limb, Limb]
    thumb: tuple[Limb, Limb, Limb]
    palm: Points


def outline_of(shape: HandShape, posture: Posture) -> Outline:
    """Place the parts of a left hand of this shape in this posture."""
    stretch = np.array(shape.palm_stretch)
    centre = np.array(PALM_CENTRE)
    shift = np.array(shape.valley_shift)
    feet = _KNUCKLES + np.vstack([shift[0], (shift[0] + shift[1]) / 2, (shift[1] + shift[2]) / 2, shift[2]])
    fingers = []
    for i in range(4):
        angle = np.deg2rad(_FINGER_ANGLES_DEG[i] * posture.spread + posture.sway_deg[i])
        direction = np.array([np.sin(angle), -np.cos(angle)])
        width = shape.finger_width * float(_FINGER_WIDTHS[i])
        foot = (feet[i] - centre) * stretch + centre
        tip = foot + direction * (shape.finger_lengths[i] + 0.02)
        fingers.append(Limb(foot, tip, width, width * 0.76))
    palm = (_PALM - centre) * stretch + centre
    return Outline((fingers[0], fingers[1], fingers[2], fingers[3]), _thumb(shape, posture), palm)


def _thumb(shape: HandShape, posture: Posture) -> tuple[Limb, Limb, Limb]:
    root = np.array([0.22, 0.86])
    width = shape.finger_width / 0.118
    points = [root]
    radii = [0.26 * width, 0.165 * width, 0.130 * width, 0.094 * width]
    for length, angle_deg in ((0.44, -47.0), (0.36, -36.0), (0.27, -28.0)):
        angle = np.deg2rad(angle_deg - posture.thumb_deg)
        points.append(points[-1] + np.array([np.sin(angle), -np.cos(angle)]) * length)
    limbs = [Limb(points[i], points[i + 1], radii[i], radii[i + 1]) for i in range(3)]
    return limbs[0], limbs[1], limbs[2]


def silhouette(window: Window, outline: Outline) -> Plane:
    """Coverage of the hand (0 to 1) over the window, with rounded webs between the fingers."""
    mask = np.zeros(window.shape, dtype=np.uint8)
    palm = smooth_curve(np.vstack([outline.palm, outline.palm[:1]]), 160)
    cv2.fillPoly(mask, [_fixed(window.to_px(palm))], (255,), cv2.LINE_AA, 4)
    for limb in (*outline.fingers, *outline.thumb):
        cv2.fillPoly(mask, [_fixed(window.to_px(_capsule(limb)))], (255,), cv2.LINE_AA, 4)
    # Blurring and cutting at the half rounds every corner, as skin does at a web.
    soft = blurred(np.asarray(mask, dtype=np.float32) / np.float32(255.0), 0.022 * window.px_per_unit)
    sharpness = np.float32(0.022 * window.px_per_unit * 2.4)
    cover = np.clip((soft - np.float32(0.5)) * sharpness + np.float32(0.5), 0.0, 1.0)
    return np.asarray(cover, dtype=np.float32)


def _fixed(px: Points) -> NDArray[np.int32]:
    return np.round(px * 16).astype(np.int32)


def _capsule(limb: Limb) -> Points:
    axis = limb.end - limb.start
    heading = float(np.arctan2(axis[1], axis[0]))
    tip = heading + np.linspace(-np.pi / 2, np.pi / 2, 17)
    foot = heading + np.linspace(np.pi / 2, 3 * np.pi / 2, 9)
    bulge = heading + np.array([np.pi / 2, -np.pi / 2])
    middle = limb.start + axis * 0.55
    radius = limb.start_radius * 0.35 + limb.end_radius * 0.65
    side = np.stack([np.cos(bulge), np.sin(bulge)], axis=1) * radius + middle
    return np.vstack(
        [
            limb.end + np.stack([np.cos(tip), np.sin(tip)], axis=1) * limb.end_radius,
            side[:1],
            limb.start + np.stack([np.cos(foot), np.sin(foot)], axis=1) * limb.start_radius,
            side[1:],
        ]
    )


def valleys_of(outline: Outline) -> Points:
    """Thumb–index, index–middle, middle–ring and ring–little valleys (4, 2) of the silhouette.

    Each is found by walking from between two fingertips towards the palm until skin begins.
    """
    window = Window(-0.75, -0.95, 400, 380, 200.0)
    mask = silhouette(window, outline)
    valleys = [_thumb_valley(window, mask, outline)]
    for a, b in zip(outline.fingers[:-1], outline.fingers[1:], strict=True):
        foot = (a.start + b.start) / 2
        # The middle of the gap, not of the tips: a fan of fingers of unequal length leans.
        reach = min(float(np.linalg.norm(a.end - a.start)), float(np.linalg.norm(b.end - b.start))) * 0.8
        heads = [f.start + (f.end - f.start) / np.linalg.norm(f.end - f.start) * reach for f in (a, b)]
        valleys.append(_first_skin(window, mask, (heads[0] + heads[1]) / 2, foot))
    return np.array(valleys)


def _thumb_valley(window: Window, mask: Plane, outline: Outline) -> Points:
    thumb = outline.thumb[1]
    index = outline.fingers[0]
    between = (thumb.end + index.start - (index.start_radius, 0.0)) / 2
    return _first_skin(window, mask, between, np.array([0.10, 0.66]))


def _first_skin(window: Window, mask: Plane, outer: Points, inner: Points) -> Points:
    steps = np.linspace(0.0, 1.0, 400)[:, None]
    path = outer + (inner - outer) * steps
    px = np.round(window.to_px(path)).astype(int)
    inside = (px[:, 0] >= 0) & (px[:, 1] >= 0) & (px[:, 0] < window.width) & (px[:, 1] < window.height)
    px = np.clip(px, 0, (window.width - 1, window.height - 1))
    skin = (mask[px[:, 1], px[:, 0]] > 0.5) & inside
    # The last gap on the way in: a closed pair of fingers may touch further out.
    gaps = np.flatnonzero(~skin)
    return np.asarray(path[min(len(path) - 1, int(gaps[-1]) + 1 if gaps.size else 0)], dtype=np.float64)
