"""Pictures of hands shown to the camera, simulated: what a liveness check must not unlearn to notice.

These are not attacks that anybody carried out; what is measured with them is a regression, no error rate.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from models.synthesis.background import Look, background

Pixels = NDArray[np.uint8]


def shown_on(
    medium: Literal["screen", "print"], film: Sequence[Pixels], seed: int, look: Look, *, dots: bool = True
) -> Iterator[Pixels]:
    """The film replayed on a screen that stands there, or one of its frames as a print that is brought in.

    A screen has a dark rim and a pixel grid that beats with the camera's; a print has a white rim, less
    contrast and, with ``dots``, a halftone.
    """
    rng = np.random.default_rng([31, seed])
    height, width = film[0].shape[:2]
    ground = background(seed + 9, look, (height, width)).astype(np.float32)
    scale, turn = rng.uniform(0.62, 0.9), float(np.deg2rad(rng.normal(0, 4)))
    middle = np.array([width / 2, height / 2]) + rng.uniform(-18, 18, 2)
    texture = _texture(medium, (height, width), turn, rng, dots=dots)
    rim = int(rng.uniform(8, 20))
    for k, frame in enumerate(film):
        picture = frame.astype(np.float32)
        if medium == "print":
            picture = cv2.GaussianBlur(film[len(film) // 2].astype(np.float32), (0, 0), 0.8) * 0.72 + 35.0
        edge = 235.0 if medium == "print" else 12.0
        card = cv2.copyMakeBorder(picture, rim, rim, rim, rim, cv2.BORDER_CONSTANT, value=(edge,) * 3)
        middle = middle + rng.normal(0, 0.3, 2)
        below = 0.0 if medium == "screen" else (1 - min(1.0, k / 6)) ** 2 * 600
        h, w = card.shape[:2]
        c, s = np.cos(turn) * scale, np.sin(turn) * scale
        x, y = middle[0] - (c * w - s * h) / 2, middle[1] + below - (s * w + c * h) / 2
        place = np.array([[c, -s, x], [s, c, y]])
        shown = cv2.warpAffine(card, place, (width, height), flags=cv2.INTER_AREA)
        cover = cv2.warpAffine(np.ones((h, w), np.float32), place, (width, height))
        if shown.ndim == 3:
            out = ground * (1 - cover[:, :, None]) + shown * (texture * cover)[:, :, None]
        else:
            out = ground * (1 - cover) + shown * texture * cover
        out = cv2.GaussianBlur(out, (0, 0), 0.5) + rng.normal(0, 2.0, out.shape)
        yield np.clip(out, 0, 255).astype(np.uint8)


def _texture(
    medium: str, size: tuple[int, int], turn: float, rng: np.random.Generator, *, dots: bool
) -> NDArray[np.float32]:
    y, x = np.mgrid[0 : size[0], 0 : size[1]].astype(np.float32)
    if medium == "screen":
        rate = 2 * np.pi / rng.uniform(2.2, 4.0)
        u, v = (x * np.cos(turn) + y * np.sin(turn)) * rate, (y * np.cos(turn) - x * np.sin(turn)) * rate
        return np.asarray(1 + rng.uniform(0.04, 0.12) * (np.sin(u) + np.sin(v)), dtype=np.float32)
    if not dots:
        return np.ones(size, np.float32)
    rate = 2 * np.pi / (3.1 * np.sqrt(2))
    return np.asarray(1 + 0.03 * np.sin((x + y) * rate) * np.sin((x - y) * rate), dtype=np.float32)


def fill_the_view(film: Sequence[Pixels], seed: int, *, coloured: bool) -> Iterator[Pixels]:
    """A replay on a screen so near that no edge of it is in view.

    ``coloured``: its red, green and blue sub-pixels stand side by side, so that their beats with the camera's
    pixels are colours, and hardly any light and dark.
    """
    rng = np.random.default_rng([32, seed])
    height, width = film[0].shape[:2]
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    rate, turn = 2 * np.pi / rng.uniform(2.6, 5.0), rng.normal(0, 0.05)
    along = (x * np.cos(turn) + y * np.sin(turn)) * rate
    depth = 0.10 if coloured else rng.uniform(0.05, 0.12)
    # Blue, green, red: weighted with their lightness, the three waves of a coloured beat nearly cancel.
    waves = [
        1 + depth * weight * np.sin(along + shift)
        for weight, shift in (((1.6, 0.0), (0.5, np.pi), (0.55, 0.35)) if coloured else ((1.0, 0.0),) * 3)
    ]
    texture = np.stack(waves, axis=-1) if film[0].ndim == 3 else waves[0]
    for frame in film:
        out = cv2.GaussianBlur(frame.astype(np.float32) * texture.astype(np.float32), (0, 0), 0.5)
        yield np.clip(out + rng.normal(0, 2.0, out.shape), 0, 255).astype(np.uint8)


def shone_upon(film: Sequence[Pixels], middle_px: tuple[float, float], radius_px: float) -> Iterator[Pixels]:
    """Each frame with a lamp's reflection on something smooth before the hand."""
    height, width = film[0].shape[:2]
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    apart = np.hypot((x - middle_px[0]) / 1.4, y - middle_px[1]) / radius_px
    light = 260.0 * np.clip(1.6 - apart, 0.0, 1.0) ** 0.5
    light = light[:, :, None] if film[0].ndim == 3 else light
    for frame in film:
        yield np.clip(frame + light, 0, 255).astype(np.uint8)
