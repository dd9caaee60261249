"""Drawing in hand coordinates: windows, lines and smooth noise.

Hand coordinates are those of the crease statistics: the unit square of a LEFT palm seen from the front,
fingers up, thumb on the left, x to the right and y downwards. Fingers have negative y, the
wrist lies near y = 1.2.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
Plane = NDArray[np.float32]

_SUBPIXEL_BITS: Final = 4


@dataclass(frozen=True, slots=True)
class Window:
    """A rectangle of hand coordinates and the pixels it is drawn on."""

    left: float
    top: float
    width: int
    """In pixels."""
    height: int
    """In pixels."""
    px_per_unit: float

    @property
    def shape(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        return self.height, self.width

    def to_px(self, points: Points) -> Points:
        """Hand coordinates (n, 2) to pixel coordinates, pixel centres at integers."""
        return (np.asarray(points, dtype=np.float64) - (self.left, self.top)) * self.px_per_unit - 0.5

    def matrix(self) -> NDArray[np.float64]:
        """3x3 matrix from hand coordinates to pixel coordinates."""
        k = self.px_per_unit
        return np.array([[k, 0.0, -self.left * k - 0.5], [0.0, k, -self.top * k - 0.5], [0.0, 0.0, 1.0]])


@dataclass(frozen=True, slots=True)
class SkinLine:
    """A skin line: its course (n, 2) in hand coordinates, its width there, and its depth from 0 to 1."""

    points: Points
    width: float
    depth: float


def draw_lines(window: Window, lines: Iterable[SkinLine]) -> Plane:
    """Depth (0 to 1) of the lines over the window; where lines cross the later line wins."""
    canvas = np.zeros(window.shape, dtype=np.uint8)
    for line in lines:
        px = np.round(window.to_px(line.points) * (1 << _SUBPIXEL_BITS)).astype(np.int32)
        wide = max(1, round(line.width * window.px_per_unit))
        # A line thinner than a pixel is drawn one pixel wide and proportionally weaker.
        strength = line.depth * min(1.0, line.width * window.px_per_unit)
        cv2.polylines(canvas, [px], False, (round(255 * strength),), wide, cv2.LINE_AA, _SUBPIXEL_BITS)
    return np.asarray(canvas, dtype=np.float32) / np.float32(255.0)


def draw_tapered(window: Window, lines: Iterable[SkinLine]) -> Plane:
    """Like ``draw_lines``, each line swelling from and fading to its ends."""
    canvas = np.zeros(window.shape, dtype=np.uint8)
    for line in lines:
        px = np.round(window.to_px(line.points) * (1 << _SUBPIXEL_BITS)).astype(np.int32)
        n = len(px) - 1
        for i in range(n):
            swell = 0.45 + 0.55 * np.sin(np.pi * (i + 0.5) / n) ** 0.6
            wide = max(1, round(line.width * swell * window.px_per_unit))
            value = (round(255 * line.depth * swell),)
            start = (int(px[i, 0]), int(px[i, 1]))
            end = (int(px[i + 1, 0]), int(px[i + 1, 1]))
            cv2.line(canvas, start, end, value, wide, cv2.LINE_AA, _SUBPIXEL_BITS)
    return np.asarray(canvas, dtype=np.float32) / np.float32(255.0)


def blurred(plane: Plane, sigma_px: float) -> Plane:
    return np.asarray(cv2.GaussianBlur(plane, (0, 0), sigma_px), dtype=np.float32)


def smooth_noise(rng: np.random.Generator, shape: tuple[int, int], cell_px: float) -> Plane:
    """Unit-variance-like noise whose features are ``cell_px`` pixels wide."""
    height, width = shape
    small = rng.standard_normal(
        (max(2, int(height / cell_px) + 2), max(2, int(width / cell_px) + 2)), dtype=np.float32
    )
    return np.asarray(cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC), dtype=np.float32)


def smooth_curve(points: Points, samples: int) -> Points:
    """Catmull-Rom curve (samples, 2) through the points (n, 2)."""
    p = np.vstack([2 * points[0] - points[1], points, 2 * points[-1] - points[-2]])
    at = np.linspace(0.0, len(points) - 1, samples)
    i = np.minimum(at.astype(int), len(points) - 2)
    t = (at - i)[:, None]
    a, b, c, d = p[i], p[i + 1], p[i + 2], p[i + 3]
    curve: Points = 0.5 * (
        2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3
    )
    return curve
