"""The lasting look of one hand, drawn once on a canvas and warped into frames or training crops."""

from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.synthesis.anatomy import Outline, Posture, silhouette
from models.synthesis.person import HandIdentity
from models.synthesis.raster import (
    Plane,
    SkinLine,
    Window,
    blurred,
    draw_lines,
    draw_tapered,
    smooth_curve,
    smooth_noise,
)

CANVAS_PX_PER_UNIT: Final = 200.0
PALM_WINDOW: Final = Window(-0.25, -0.45, 310, 330, CANVAS_PX_PER_UNIT)
"""What palm crops are cut from."""
HAND_WINDOW: Final = Window(-0.95, -1.35, 470, 850, CANVAS_PX_PER_UNIT)
"""A whole hand with the forearm below it; holds PALM_WINDOW at a whole number of pixels."""


_FOLD_COURSE: Final = np.array([[0.16, 0.40], [0.36, 0.55], [0.50, 0.74], [0.58, 0.95]])


@dataclass(frozen=True, slots=True, eq=False)
class SkinLayers:
    """Skin of one hand over a window; all float32 planes of the window's shape."""

    creases: Plane
    """0 to about 1: how deep the skin is folded."""
    grain: Plane
    """Fine texture, about zero, unit-like variance."""
    mottle: Plane
    """Blotches, about zero, unit-like variance."""
    veins: Plane
    """0 to 1: blood near the surface."""
    relief: Plane
    """Height of the skin in pixels: rounding of fingers and pads, folds and texture."""
    mask: Plane
    """0 to 1: skin covers the pixel."""


def draw_skin(identity: HandIdentity, posture: Posture, outline: Outline, window: Window) -> SkinLayers:
    """Draw a left hand's skin over a window of scale CANVAS_PX_PER_UNIT (a right hand is flipped later)."""
    rng = np.random.default_rng([*identity.seed, 7])
    scale = window.px_per_unit
    folds = _flexion_folds(np.random.default_rng([*identity.seed, 8, posture.seed]), posture)
    lines = identity.lines
    joints = _joint_creases(np.random.default_rng([*identity.seed, 9]), outline)
    broad = blurred(draw_tapered(window, lines.main), 0.0055 * scale)
    middle = blurred(draw_tapered(window, (*lines.secondary, *joints)), 0.0040 * scale)
    fine = blurred(draw_lines(window, (*lines.fine, *folds)), 0.0030 * scale)
    creases = broad + np.float32(0.8) * middle + np.float32(0.7) * fine
    # Skin is pushed up next to a fold: the flanks are lighter than the skin around.
    creases -= np.float32(0.30) * blurred(creases, 0.020 * scale)
    veins = np.clip(blurred(draw_tapered(window, lines.veins), 0.012 * scale) * 1.3, 0.0, 1.0)
    grain, mottle = _texture(rng, window)
    mask = silhouette(window, outline)
    relief = _relief(window, mask) - creases * np.float32(2.4) + grain * np.float32(0.16)
    return SkinLayers(creases, grain, mottle, veins, relief, mask)


def _texture(rng: np.random.Generator, window: Window) -> tuple[Plane, Plane]:
    """Grain and mottling, always drawn over the palm and continued by reflection over anything larger."""
    shape = PALM_WINDOW.shape
    grain = (
        np.float32(0.55) * smooth_noise(rng, shape, 1.6)
        + np.float32(0.75) * smooth_noise(rng, shape, 3.2)
        + np.float32(0.50) * _brushed(rng, shape)
    )
    mottle = np.float32(0.6) * smooth_noise(rng, shape, 11.0) + np.float32(0.8) * smooth_noise(
        rng, shape, 40.0
    )
    if window == PALM_WINDOW:
        return grain, mottle
    left = round((PALM_WINDOW.left - window.left) * window.px_per_unit)
    top = round((PALM_WINDOW.top - window.top) * window.px_per_unit)
    right = window.width - left - PALM_WINDOW.width
    bottom = window.height - top - PALM_WINDOW.height
    grown = [
        cv2.copyMakeBorder(plane, top, bottom, left, right, cv2.BORDER_REFLECT_101)
        for plane in (grain, mottle)
    ]
    return np.asarray(grown[0], dtype=np.float32), np.asarray(grown[1], dtype=np.float32)


def _brushed(rng: np.random.Generator, shape: tuple[int, int]) -> Plane:
    """Ridge-like texture: noise drawn out across the palm."""
    height, width = shape
    noise = smooth_noise(rng, (height, max(2, width // 3)), 2.2)
    return np.asarray(cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC), dtype=np.float32)


def _relief(window: Window, mask: Plane) -> Plane:
    """Rounded edges, the pads below the fingers, the balls of thumb and little finger, a hollow between."""
    scale = window.px_per_unit
    solid = (mask > np.float32(0.5)).astype(np.uint8)
    depth = np.asarray(cv2.distanceTransform(solid, cv2.DIST_L2, 5), dtype=np.float32)
    radius = np.float32(0.115 * scale)
    inset = np.float32(1.0) - np.minimum(depth / radius, np.float32(1.0))
    rounded = (
        np.sqrt(np.maximum(np.float32(1.0) - inset * inset, np.float32(0.0))) * radius * np.float32(0.75)
    )
    rounded = blurred(np.asarray(rounded, dtype=np.float32), 0.016 * scale)
    x = (np.arange(window.width, dtype=np.float32) + np.float32(0.5)) / np.float32(scale) + np.float32(
        window.left
    )
    y = (np.arange(window.height, dtype=np.float32) + np.float32(0.5)) / np.float32(scale) + np.float32(
        window.top
    )
    # (x, y, radius x, radius y, height), in hand coordinates
    bumps = (
        (0.14, 0.66, 0.20, 0.26, 0.075), (0.88, 0.72, 0.18, 0.34, 0.055), (0.52, 0.58, 0.17, 0.24, -0.045),
        (0.14, 0.10, 0.11, 0.10, 0.025), (0.40, 0.05, 0.11, 0.10, 0.025), (0.66, 0.06, 0.11, 0.10, 0.025),
        (0.92, 0.16, 0.11, 0.11, 0.025),
    )  # fmt: skip
    for cx, cy, rx, ry, height in bumps:
        across = np.exp(-(((x - np.float32(cx)) / np.float32(rx)) ** 2))
        along = np.exp(-(((y - np.float32(cy)) / np.float32(ry)) ** 2))
        rounded += np.outer(along, across) * np.float32(height * scale)
    return rounded


def _joint_creases(rng: np.random.Generator, outline: Outline) -> list[SkinLine]:
    """Creases at the foot and the joints of every finger, of the thumb, and at the wrist."""
    lines = []
    for finger in outline.fingers:
        lines.extend(_across(rng, finger.start, finger.end, finger.start_radius, (0.14, 0.17, 0.45, 0.74)))
    tip = outline.thumb[2]
    lines.extend(_across(rng, tip.start, tip.end, tip.start_radius, (0.02, 0.10)))
    for y in (1.20, 1.26):
        course = smooth_curve(np.array([[0.2, y], [0.4, y + 0.03], [0.65, y + 0.03], [0.88, y]]), 24)
        lines.append(SkinLine(course + rng.normal(0.0, 0.003, course.shape), 0.012, rng.uniform(0.4, 0.8)))
    return lines


def _across(
    rng: np.random.Generator,
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    radius: float,
    where: tuple[float, ...],
) -> list[SkinLine]:
    axis = end - start
    side = np.array([-axis[1], axis[0]]) / np.linalg.norm(axis)
    lines = []
    for at in where:
        middle = start + axis * (at + rng.normal(0.0, 0.006))
        sag = axis * 0.015
        course = smooth_curve(
            np.array([middle - side * radius * 0.9, middle + sag, middle + side * radius * 0.9]), 16
        )
        lines.append(
            SkinLine(
                course + rng.normal(0.0, 0.003, course.shape),
                rng.uniform(0.009, 0.014),
                rng.uniform(0.4, 0.8),
            )
        )
    return lines


def _flexion_folds(rng: np.random.Generator, posture: Posture) -> list[SkinLine]:
    """Folds of a slightly cupped hand next to the life line: they come and go with the posture."""
    if posture.seed == 0:
        return []
    lines = []
    for _ in range(int(rng.integers(0, 5))):
        offset = rng.uniform(-0.12, 0.05)
        moved = _FOLD_COURSE + np.array([offset, -offset * 0.4])
        course = smooth_curve(moved, 40)
        first = int(rng.integers(0, 24))
        piece = course[first : first + int(rng.integers(8, 16))]
        lines.append(SkinLine(piece + rng.normal(0.0, 0.002, piece.shape), 0.008, rng.uniform(0.2, 0.55)))
    return lines
