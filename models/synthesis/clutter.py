"""Grounds that are hard on a hand finder: textures, things, faces, bare arms and rows of finger-like bars.

``background`` draws what a well-placed camera sees behind a hand; this module draws what other cameras see.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.synthesis.background import Look, Pixels
from models.synthesis.raster import smooth_noise

_DOMAIN: Final = 0xC1E7
_SKIN: Final = np.array([[165.0, 190.0, 236.0], [98.0, 124.0, 178.0], [60.0, 80.0, 120.0]])
"""Colours (B, G, R) of light to dark skin."""
_SHIFT: Final = 4

Canvas = NDArray[np.float32]


@lru_cache(maxsize=16)
def clutter(seed: int, look: Look, size: tuple[int, int]) -> Pixels:
    """One cluttered ground: BGR (H, W, 3) for ``rgb``, grey (H, W) for ``nir``; do not write into it."""
    rng = np.random.default_rng([_DOMAIN, seed])
    canvas = _base(rng, size)
    things: tuple[Callable[[np.random.Generator, Canvas], None], ...] = (
        _polygon, _ellipse, _stripes, _lines, _checks, _texture, _letters, _face, _limb, _bars,
    )  # fmt: skip
    often = np.array([3.0, 2.0, 1.5, 2.0, 0.7, 2.0, 0.8, 1.2, 2.0, 1.5])
    for i in rng.choice(len(things), int(rng.integers(0, 18)), p=often / often.sum()):
        things[int(i)](rng, canvas)
    if rng.random() < 0.6:
        canvas = np.asarray(cv2.GaussianBlur(canvas, (0, 0), float(rng.uniform(0.5, 6.0))), dtype=np.float32)
    canvas *= np.float32(rng.uniform(0.35, 1.1))
    if look == "nir":
        # The lamp reaches far things weakly and near ones well.
        grey = canvas.mean(axis=2) * np.float32(rng.uniform(0.25, 1.0))
        pixels: Pixels = np.clip(grey, 0, 255).astype(np.uint8)
    else:
        pixels = np.clip(canvas, 0, 255).astype(np.uint8)
    pixels.flags.writeable = False
    return pixels


def _base(rng: np.random.Generator, size: tuple[int, int]) -> Canvas:
    height, width = size
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    slope = rng.normal(0.0, 0.35, 2)
    plane = 1.0 + float(slope[0]) * (x / width - 0.5) + float(slope[1]) * (y / height - 0.5)
    for cell in (width / 2.5, width / 9.0, width / 40.0, 2.0):
        plane += smooth_noise(rng, size, max(1.5, cell)) * np.float32(rng.uniform(0.0, 0.16))
    colour = rng.uniform(15.0, 240.0) * rng.uniform(0.7, 1.15, 3)
    return np.asarray(np.maximum(plane, 0.0)[:, :, None] * colour.astype(np.float32), dtype=np.float32)


def _colour(rng: np.random.Generator) -> tuple[float, float, float]:
    if rng.random() < 0.25:
        return skin_colour(rng)
    b, g, r = rng.uniform(5.0, 245.0) * rng.uniform(0.5, 1.3, 3)
    return float(b), float(g), float(r)


def skin_colour(rng: np.random.Generator) -> tuple[float, float, float]:
    """Any skin in any light (B, G, R)."""
    at = rng.uniform(0.0, 2.0)
    i = min(int(at), 1)
    b, g, r = (_SKIN[i] * (1 - (at - i)) + _SKIN[i + 1] * (at - i)) * rng.uniform(0.6, 1.1)
    return float(b), float(g), float(r)


def _somewhere(rng: np.random.Generator, canvas: Canvas) -> NDArray[np.float64]:
    height, width = canvas.shape[:2]
    return np.asarray(rng.uniform((-0.1 * width, -0.1 * height), (1.1 * width, 1.1 * height)))


def _reach(rng: np.random.Generator, canvas: Canvas, low: float, high: float) -> float:
    return float(min(canvas.shape[:2]) * np.exp(rng.uniform(np.log(low), np.log(high))))


def _fixed(points: NDArray[np.float64]) -> NDArray[np.int32]:
    return np.round(points * (1 << _SHIFT)).astype(np.int32)


def _fill(canvas: Canvas, points: NDArray[np.float64], colour: tuple[float, float, float]) -> None:
    cv2.fillPoly(canvas, [_fixed(points)], colour, cv2.LINE_8, _SHIFT)


def _polygon(rng: np.random.Generator, canvas: Canvas) -> None:
    n = int(rng.integers(3, 8))
    angles = np.sort(rng.uniform(0.0, 2 * np.pi, n))
    radii = _reach(rng, canvas, 0.05, 0.6) * rng.uniform(0.4, 1.0, n)
    corners = _somewhere(rng, canvas) + np.stack([np.cos(angles), np.sin(angles)], axis=1) * radii[:, None]
    _fill(canvas, corners, _colour(rng))


def _oval(
    middle: NDArray[np.float64], across: float, along: float, turn: float, points: int = 40
) -> NDArray[np.float64]:
    angles = np.linspace(0.0, 2 * np.pi, points, endpoint=False)
    x, y = across * np.cos(angles), along * np.sin(angles)
    c, s = np.cos(turn), np.sin(turn)
    return np.stack([middle[0] + c * x - s * y, middle[1] + s * x + c * y], axis=1)


def _ellipse(rng: np.random.Generator, canvas: Canvas) -> None:
    reach = _reach(rng, canvas, 0.03, 0.4)
    oval = _oval(_somewhere(rng, canvas), reach, reach * rng.uniform(0.3, 1.0), rng.uniform(0.0, np.pi))
    _fill(canvas, oval, _colour(rng))


def _stripes(rng: np.random.Generator, canvas: Canvas) -> None:
    """A blind, a radiator, a shelf of books."""
    at, turn = _somewhere(rng, canvas), rng.uniform(0.0, np.pi)
    along = np.array([np.cos(turn), np.sin(turn)])
    across = np.array([-along[1], along[0]])
    step, length = _reach(rng, canvas, 0.03, 0.15), _reach(rng, canvas, 0.2, 1.5)
    colours = [_colour(rng) for _ in range(int(rng.integers(1, 4)))]
    for i in range(int(rng.integers(3, 16))):
        a = at + across * step * i
        wide = across * step * rng.uniform(0.4, 0.8)
        _fill(
            canvas,
            np.array([a, a + along * length, a + along * length + wide, a + wide]),
            colours[i % len(colours)],
        )


def _lines(rng: np.random.Generator, canvas: Canvas) -> None:
    """Cables, branches, cracks."""
    for _ in range(int(rng.integers(1, 6))):
        turns = np.cumsum(rng.normal(0.0, 0.5, 12)) + rng.uniform(0.0, 2 * np.pi)
        steps = np.stack([np.cos(turns), np.sin(turns)], axis=1) * _reach(rng, canvas, 0.02, 0.1)
        course = _somewhere(rng, canvas) + np.cumsum(steps, axis=0)
        cv2.polylines(
            canvas, [_fixed(course)], False, _colour(rng), int(rng.integers(1, 12)), cv2.LINE_8, _SHIFT
        )


def _checks(rng: np.random.Generator, canvas: Canvas) -> None:
    n, side = int(rng.integers(3, 10)), _reach(rng, canvas, 0.02, 0.1)
    at, colours = _somewhere(rng, canvas), (_colour(rng), _colour(rng))
    for i in range(n * n):
        x, y = at[0] + (i % n) * side, at[1] + (i // n) * side
        box = np.array([[x, y], [x + side, y], [x + side, y + side], [x, y + side]])
        _fill(canvas, box, colours[(i + i // n) % 2])


def _texture(rng: np.random.Generator, canvas: Canvas) -> None:
    """Cloth, leaves, gravel: noise within an outline."""
    mask: Pixels = np.zeros(canvas.shape[:2], dtype=np.uint8)
    reach = _reach(rng, canvas, 0.1, 0.7)
    oval = _oval(_somewhere(rng, canvas), reach, reach * rng.uniform(0.3, 1.0), rng.uniform(0.0, np.pi))
    cv2.fillPoly(mask, [_fixed(oval)], (1,), cv2.LINE_8, _SHIFT)
    noise = smooth_noise(rng, (canvas.shape[0], canvas.shape[1]), _reach(rng, canvas, 0.005, 0.08))
    grain = 1.0 + np.float32(rng.uniform(0.1, 0.7)) * noise
    colour = np.asarray(_colour(rng), dtype=np.float32)
    canvas[mask > 0] = grain[mask > 0][:, None] * colour


def _letters(rng: np.random.Generator, canvas: Canvas) -> None:
    x, y = _somewhere(rng, canvas)
    text = "".join(chr(int(c)) for c in rng.integers(33, 123, int(rng.integers(2, 12))))
    size = 1.2 * _reach(rng, canvas, 0.001, 0.006)
    mask = np.zeros(canvas.shape[:2], dtype=np.uint8)
    cv2.putText(mask, text, (int(x), int(y)), int(rng.integers(0, 8)), size, (1,), int(rng.integers(1, 6)))
    canvas[mask > 0] = _colour(rng)


def _face(rng: np.random.Generator, canvas: Canvas) -> None:
    """Not a likeness: an oval of skin with hair, eyes, nose and mouth where a face has them."""
    at, size, turn = _somewhere(rng, canvas), _reach(rng, canvas, 0.08, 0.45), rng.normal(0.0, 0.25)
    skin = np.array(skin_colour(rng))
    side = np.array([np.cos(turn), np.sin(turn)])
    down = np.array([-side[1], side[0]])
    hair = rng.uniform(0.05, 0.6) * skin
    _fill(canvas, _oval(at - down * size * 0.2, size * 0.86, size * 1.1, turn), _bgr(hair))
    _fill(
        canvas,
        np.array(
            [at + down * size * 0.6 + side * size * k for k in (-0.35, 0.35)]
            + [at + down * size * 1.8 + side * size * k for k in (0.5, -0.5)]
        ),
        _bgr(skin * 0.8),
    )
    _fill(canvas, _oval(at, size * 0.72, size, turn), _bgr(skin))
    for k in (-0.3, 0.3):
        eye = at + side * size * k - down * size * 0.15
        _fill(canvas, _oval(eye, size * 0.14, size * 0.07, turn, 12), _bgr(skin * 0.3))
        _fill(canvas, _oval(eye - down * size * 0.18, size * 0.18, size * 0.03, turn, 12), _bgr(skin * 0.45))
    _fill(canvas, _oval(at + down * size * 0.2, size * 0.1, size * 0.2, turn, 12), _bgr(skin * 0.88))
    _fill(
        canvas,
        _oval(at + down * size * 0.55, size * 0.28, size * 0.08, turn, 16),
        _bgr(skin * (0.6, 0.55, 0.8)),
    )


def _bgr(colour: NDArray[np.float64]) -> tuple[float, float, float]:
    return float(colour[0]), float(colour[1]), float(colour[2])


def _rounded_limb(
    canvas: Canvas,
    ends: tuple[NDArray[np.float64], NDArray[np.float64]],
    radii: tuple[float, float],
    colour: NDArray[np.float64],
) -> None:
    """A tapered, rounded bar, shaded as a cylinder is."""
    a, b = ends
    axis = b - a
    heading = float(np.arctan2(axis[1], axis[0]))
    far = heading + np.linspace(-np.pi / 2, np.pi / 2, 13)
    near = heading + np.linspace(np.pi / 2, 3 * np.pi / 2, 13)
    for share in (1.0, 0.8, 0.55, 0.25):
        shape = np.vstack(
            [
                b + np.stack([np.cos(far), np.sin(far)], axis=1) * radii[1] * share,
                a + np.stack([np.cos(near), np.sin(near)], axis=1) * radii[0] * share,
            ]
        )
        _fill(canvas, shape, _bgr(colour * (1.0 - 0.45 * share**2)))


def _limb(rng: np.random.Generator, canvas: Canvas) -> None:
    """A bare or sleeved arm."""
    a = _somewhere(rng, canvas)
    turn, thick = rng.uniform(0.0, 2 * np.pi), _reach(rng, canvas, 0.03, 0.16)
    b = a + np.array([np.cos(turn), np.sin(turn)]) * thick * rng.uniform(2.0, 12.0)
    colour = np.array(skin_colour(rng) if rng.random() < 0.7 else _colour(rng)) * 1.3
    _rounded_limb(canvas, (a, b), (thick, thick * rng.uniform(0.5, 1.0)), colour)


def _bars(rng: np.random.Generator, canvas: Canvas) -> None:
    """A row of rounded bars: fingers that belong to no palm, a fence, sausages, pens."""
    at, turn, thick = _somewhere(rng, canvas), rng.uniform(0.0, 2 * np.pi), _reach(rng, canvas, 0.012, 0.07)
    colour = np.array(_colour(rng) if rng.random() < 0.5 else skin_colour(rng)) * 1.3
    gap = thick * rng.uniform(2.0, 3.5)
    for i in range(int(rng.integers(2, 7))):
        heading = turn + rng.normal(0.0, 0.12)
        foot = at + np.array([-np.sin(turn), np.cos(turn)]) * gap * i
        tip = foot + np.array([np.cos(heading), np.sin(heading)]) * thick * rng.uniform(4.0, 9.0)
        _rounded_limb(canvas, (foot, tip), (thick, thick * 0.85), colour * rng.uniform(0.85, 1.1))
