"""A palm seen close: the square a cutter takes and a margin around it, drawn in far more variety than
hands.

Whole hands (``palm.py``) show a device a scene. What an embedding has to learn is finer and wider: faint
and deep creases, rare courses of the main lines, families of parallel wrinkles, streaks and blotches of the
skin, another scale and place for every person, and crops that some other program cut with the fingers in
any direction.
"""

from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import CROP_SIZE
from models.synthesis.creases import rare_courses, sample_main_creases
from models.synthesis.raster import Plane, Points, smooth_curve, smooth_noise

SIDE_PX: Final = 232
"""Side of the drawn square."""
CROP_SIDE_PX: Final = 138.0
"""Side of the crop in its middle, so that a crop may slip and grow by a third without leaving the square."""
LINES: Final = 0
TEXTURE: Final = 1
VEINS: Final = 2
MASK: Final = 3
LINES_ZERO: Final = 64.0
"""Byte of a skin without any line; above it the folds are dark, below it they are pushed up and light."""
LINES_STEP: Final = 1.0 / 160.0
TEXTURE_ZERO: Final = 128.0
TEXTURE_STEP: Final = 1.0 / 32.0

_DOMAIN: Final = 0xC105E
_FINE: Final = 2
"""Lines are drawn at this multiple of the square's resolution."""
_BITS: Final = 4
_HOME: Final = (0.53, 0.38)
"""Where the crop's middle lies in the coordinates of the crease statistics; next, how wide it is there."""
_HOME_SIDE: Final = 0.84


@dataclass(slots=True, eq=False)
class _CloseUpSheet:
    """Layers being drawn, and the way from palm coordinates to their pixels."""

    centre: Points
    px_per_unit: float
    turn: NDArray[np.float64]
    dark: NDArray[np.uint8]
    fine: NDArray[np.uint8]
    light: NDArray[np.uint8]

    def px(self, course: Points) -> NDArray[np.int32]:
        turned = (np.asarray(course) - self.centre) @ self.turn.T * self.px_per_unit
        return np.round((turned + SIDE_PX * _FINE / 2) * (1 << _BITS)).astype(np.int32)


def draw_close_up(seed: int) -> NDArray[np.uint8]:
    """Planes (SIDE_PX, SIDE_PX, 4) of the palm with this number: lines, texture, veins, mask. About 12 ms."""
    rng = np.random.default_rng([_DOMAIN, seed])
    grow = rng.uniform(0.85, 1.40)
    lean = rng.normal(0.0, 0.12)
    turn = np.array([[np.cos(lean), -np.sin(lean)], [np.sin(lean), np.cos(lean)]])
    size = SIDE_PX * _FINE
    sheet = _CloseUpSheet(
        np.array(_HOME) + rng.normal(0.0, 0.05, 2),
        CROP_SIDE_PX * _FINE / _HOME_SIDE * grow,
        turn,
        *(np.zeros((size, size), dtype=np.uint8) for _ in range(3)),
    )
    courses = sample_main_creases(rng.standard_normal(16))
    courses = courses + np.stack([smooth_curve(w, 9) for w in rng.normal(0.0, 0.018, (3, 4, 2))])
    _draw_main(rng, sheet, rare_courses(rng, courses))
    _draw_families(rng, sheet)
    _draw_scatter(rng, sheet)
    lines = _merge(rng, sheet)
    planes = [
        lines / np.float32(LINES_STEP) + np.float32(LINES_ZERO),
        _texture(rng) / np.float32(TEXTURE_STEP) + np.float32(TEXTURE_ZERO),
        _veins(rng) * np.float32(255.0),
        np.full((SIDE_PX, SIDE_PX), 255.0, dtype=np.float32),
    ]
    stack = np.clip(np.dstack(planes), 0.0, 255.0).astype(np.uint8)
    # Other programs cut palms with the fingers to any side; a mirrored palm is another palm.
    if rng.random() < 0.6:
        stack = np.rot90(stack, int(rng.integers(1, 4)))
    if rng.random() < 0.5:
        stack = stack[:, ::-1]
    return np.ascontiguousarray(stack)


def crop_to_close_up() -> NDArray[np.float64]:
    """The 2x3 matrix from crop pixels to pixels of the square."""
    k = CROP_SIDE_PX / CROP_SIZE
    offset = (SIDE_PX - CROP_SIDE_PX) / 2 + k / 2 - 0.5
    return np.array([[k, 0.0, offset], [0.0, k, offset]])


def _draw_main(rng: np.random.Generator, sheet: _CloseUpSheet, courses: list[Points]) -> None:
    weight = rng.uniform(0.6, 1.0)
    girth = rng.uniform(0.75, 1.4)
    for course in courses:
        line = smooth_curve(course, 44) + smooth_curve(rng.normal(0.0, 0.004, (12, 2)), 44)
        _tapered(
            sheet.dark, sheet.px(line), weight * rng.uniform(0.65, 1.0), girth * rng.uniform(3.0, 6.0), rng
        )
        if rng.random() < 0.3:
            beside = line + rng.normal(0.0, 0.02, 2)
            first = int(rng.integers(0, 30))
            part = beside[first : first + int(rng.integers(8, 24))]
            _tapered(sheet.dark, sheet.px(part), weight * rng.uniform(0.3, 0.8), girth * 2.0, rng)
        for _ in range(int(rng.integers(0, 7))):
            at = int(rng.integers(3, 41))
            along = line[at + 1] - line[at - 1]
            angle = np.arctan2(along[1], along[0]) + rng.choice([-1.0, 1.0]) * rng.uniform(0.2, 0.9)
            angle += np.pi if rng.random() < 0.4 else 0.0
            branch = _strokes(rng, line[at][None], np.array([angle]), rng.uniform(0.05, 0.28), 0.5)[0]
            _tapered(
                sheet.dark,
                sheet.px(branch),
                weight * rng.uniform(0.25, 0.8),
                girth * rng.uniform(1.2, 3.2),
                rng,
            )


def _tapered(
    layer: NDArray[np.uint8], px: NDArray[np.int32], depth: float, width: float, rng: np.random.Generator
) -> None:
    """A line that swells, fades and sometimes breaks off."""
    n = len(px) - 1
    if n < 2:
        return
    swell = 0.4 + 0.6 * np.sin(np.pi * (np.arange(n) + 0.5) / n) ** 0.5
    strength = np.interp(np.arange(n), np.linspace(0, n, 6), rng.uniform(0.45, 1.0, 6))
    if rng.random() < 0.25:
        gap = int(rng.integers(0, n))
        strength[gap : gap + int(rng.integers(1, max(2, n // 5)))] = 0.0
    values = np.round(255 * np.clip(depth * strength * swell, 0, 1)).astype(int)
    widths = np.maximum(1, np.round(width * swell * (0.7 + 0.3 * strength))).astype(int)
    for i in range(n):
        if values[i]:
            cv2.line(
                layer,
                px[i].tolist(),
                px[i + 1].tolist(),
                (int(values[i]),),
                int(widths[i]),
                cv2.LINE_AA,
                _BITS,
            )


def _strokes(
    rng: np.random.Generator, starts: Points, angles: NDArray[np.float64], length: float, bend: float
) -> Points:
    """Smoothly bent strokes (n, 7, 2) of about one length."""
    n = len(starts)
    turn = rng.normal(0.0, bend, (n, 1)) * np.linspace(-0.5, 0.5, 6) + rng.normal(0.0, 0.05, (n, 6))
    heading = angles[:, None] + turn
    step = length * rng.uniform(0.6, 1.4, (n, 1)) / 6
    moves = np.stack([np.cos(heading), np.sin(heading)], axis=2) * step[:, :, None]
    return np.concatenate([starts[:, None], starts[:, None] + np.cumsum(moves, axis=1)], axis=1)


def _anywhere(rng: np.random.Generator, n: int) -> Points:
    return np.array(_HOME) + rng.uniform(-0.9, 0.9, (n, 2))


def _draw_families(rng: np.random.Generator, sheet: _CloseUpSheet) -> None:
    """Groups of wrinkles that run side by side, as on the ball of the thumb and below the fingers."""
    for _ in range(int(rng.integers(2, 12))):
        count = int(rng.integers(3, 16))
        angle = rng.uniform(0.0, np.pi)
        spread = rng.uniform(0.0, 0.06)
        offsets = np.cumsum(rng.uniform(0.010, 0.055, count))
        offsets -= offsets.mean()
        normal = np.array([-np.sin(angle), np.cos(angle)])
        starts = _anywhere(rng, 1) + offsets[:, None] * normal + rng.normal(0.0, 0.02, (count, 2))
        angles = angle + spread * np.arange(count) + rng.normal(0.0, 0.05, count)
        bend = rng.normal(0.0, 0.5)
        strokes = _strokes(rng, starts, angles, rng.uniform(0.08, 0.5), 0.1)
        curve = np.linspace(-1, 1, 7) ** 2 * bend * 0.03
        strokes = strokes + curve[None, :, None] * normal
        layer = sheet.light if rng.random() < 0.12 else sheet.fine
        depth = rng.uniform(0.15, 0.8)
        wide = int(rng.integers(1, 4))
        px = sheet.px(strokes)
        for half in (px[::2], px[1::2]):
            value = (round(255 * min(1.0, depth * rng.uniform(0.6, 1.2))),)
            cv2.polylines(layer, list(half), False, value, wide, cv2.LINE_AA, _BITS)


def _draw_scatter(rng: np.random.Generator, sheet: _CloseUpSheet) -> None:
    """Single lines: long faint ones, short ones, the finest network; how many is the person's own."""
    favoured = rng.uniform(0.0, np.pi, 3)
    richness = float(np.exp(rng.normal(0.0, 0.6)))
    for many, length, bend, widths, depths in (
        (18, (0.25, 0.9), 0.30, (1, 5), (0.2, 0.9)),
        (50, (0.10, 0.35), 0.35, (1, 4), (0.15, 0.8)),
        (160, (0.03, 0.12), 0.3, (1, 3), (0.12, 0.65)),
    ):
        groups = 4
        for _ in range(groups):
            count = int(rng.poisson(many * richness / groups))
            if not count:
                continue
            angles = rng.choice(favoured, count) + rng.normal(0.0, 0.35, count)
            strokes = _strokes(rng, _anywhere(rng, count), angles, rng.uniform(*length), bend)
            layer = sheet.light if rng.random() < 0.12 else sheet.fine
            value = (round(255 * rng.uniform(*depths)),)
            wide = int(rng.integers(*widths))
            cv2.polylines(layer, list(sheet.px(strokes)), False, value, wide, cv2.LINE_AA, _BITS)


def _merge(rng: np.random.Generator, sheet: _CloseUpSheet) -> Plane:
    """One plane of depth: about 0 to 1 dark, below 0 light."""
    soft = float(rng.uniform(1.1, 2.6))
    dark = cv2.GaussianBlur(sheet.dark, (0, 0), soft)
    fine = cv2.GaussianBlur(sheet.fine, (0, 0), float(rng.uniform(0.7, 1.5)))
    light = cv2.GaussianBlur(sheet.light, (0, 0), float(rng.uniform(0.7, 1.5)))
    small = [
        np.asarray(cv2.resize(p, (SIDE_PX, SIDE_PX), interpolation=cv2.INTER_AREA), dtype=np.float32) / 255
        for p in (dark, fine, light)
    ]
    lines = np.maximum(small[0], np.float32(rng.uniform(0.5, 1.0)) * small[1])
    lines -= np.float32(rng.uniform(0.0, 0.45)) * cv2.GaussianBlur(
        lines, (0, 0), float(rng.uniform(2.0, 5.0))
    )
    return np.asarray(lines - np.float32(0.6) * small[2], dtype=np.float32)


def _texture(rng: np.random.Generator) -> Plane:
    """Blotches of several sizes and streaks whose direction changes slowly; about unit variance."""
    shape = (SIDE_PX, SIDE_PX)
    plane = np.zeros(shape, dtype=np.float32)
    for cell in (3.5, 5.5, 9.0, 18.0):
        plane += smooth_noise(rng, shape, cell * float(rng.uniform(0.8, 1.25))) * np.float32(
            rng.uniform(0.1, 1.0)
        )
    streaks = np.zeros(shape, dtype=np.float32)
    grain = smooth_noise(rng, shape, 2.2)
    bent = rng.uniform(0.0, np.pi)
    for angle in (bent, bent + rng.uniform(0.4, 1.4)):
        kernel = np.zeros((9, 9), dtype=np.float32)
        reach = np.array([np.cos(angle), np.sin(angle)]) * 3.5
        start, end = 4.0 - reach, 4.0 + reach
        cv2.line(kernel, np.round(start * 16).astype(int).tolist(), np.round(end * 16).astype(int).tolist(),
                 (1.0,), 1, cv2.LINE_8, 4)  # fmt: skip
        where = np.clip(smooth_noise(rng, shape, 60.0) + np.float32(0.5), 0.0, 1.5)
        streaks += cv2.filter2D(grain, cv2.CV_32F, kernel / kernel.sum()) * where * np.float32(2.5)
    plane += streaks * np.float32(rng.uniform(0.0, 1.6))
    return np.asarray(plane / (plane.std() + np.float32(1e-6)), dtype=np.float32)


def _veins(rng: np.random.Generator) -> Plane:
    layer = np.zeros((SIDE_PX, SIDE_PX), dtype=np.uint8)
    for _ in range(int(rng.integers(5, 16))):
        angle = rng.uniform(0, 2 * np.pi)
        heading = angle + np.cumsum(rng.normal(0.0, 0.35, 14))
        moves = np.stack([np.cos(heading), np.sin(heading)], axis=1) * rng.uniform(5.0, 14.0)
        course = rng.uniform(0, SIDE_PX, 2) + np.cumsum(moves, axis=0)
        smooth = smooth_curve(course, 40)
        value = (int(rng.integers(90, 255)),)
        cv2.polylines(
            layer,
            [np.round(smooth * 16).astype(np.int32)],
            False,
            value,
            int(rng.integers(2, 8)),
            cv2.LINE_AA,
            4,
        )
    soft = cv2.GaussianBlur(layer, (0, 0), float(rng.uniform(1.5, 3.0)))
    return np.asarray(soft, dtype=np.float32) / np.float32(255.0)
