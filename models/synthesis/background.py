"""What is behind the hand: plain, shaded, textured and cluttered grounds."""

from functools import lru_cache
from typing import Final, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from models.synthesis.raster import smooth_noise

Look = Literal["rgb", "nir"]
Pixels = NDArray[np.uint8]

_DOMAIN: Final = 0xBAC6


@lru_cache(maxsize=16)
def background(seed: int, look: Look, size: tuple[int, int]) -> Pixels:
    """The ground of one scene: BGR (H, W, 3) for ``rgb``, grey (H, W) for ``nir``; do not write into it."""
    rng = np.random.default_rng([_DOMAIN, seed])
    height, width = size
    tint = np.asarray(rng.uniform(0.75, 1.0, 3), dtype=np.float32)
    base = float(
        rng.choice([rng.uniform(18, 70), rng.uniform(60, 110), rng.uniform(185, 240)], p=[0.6, 0.2, 0.2])
    )
    if look == "nir":
        # The lamp is next to the lens: the ground behind the hand gets little of its light.
        base = float(rng.uniform(6, 34))
    plane = np.full(size, base, dtype=np.float32)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    slope = rng.normal(0.0, 0.12, 2)
    plane *= 1.0 + float(slope[0]) * (x / width - 0.5) + float(slope[1]) * (y / height - 0.5)
    plane += smooth_noise(rng, size, 90.0) * np.float32(base * rng.uniform(0.01, 0.06))
    plane += smooth_noise(rng, size, 3.0) * np.float32(base * rng.uniform(0.0, 0.025))
    for _ in range(int(rng.integers(0, 3))):
        _edge(rng, plane, base)
    if look == "nir":
        nir: Pixels = np.clip(plane, 0, 255).astype(np.uint8)
        nir.flags.writeable = False
        return nir
    colour: Pixels = np.clip(plane[:, :, None] * tint, 0, 255).astype(np.uint8)
    colour.flags.writeable = False
    return colour


def _edge(rng: np.random.Generator, plane: NDArray[np.float32], base: float) -> None:
    """A table edge, a door frame, a shelf: a soft-edged band a little darker or lighter than the ground."""
    height, width = plane.shape
    corner = rng.uniform((0.0, 0.0), (width, height))
    angle = float(rng.choice([0.0, np.pi / 2])) + rng.normal(0.0, 0.04)
    along = np.array([np.cos(angle), np.sin(angle)]) * 2 * (width + height)
    across = np.array([-np.sin(angle), np.cos(angle)]) * rng.uniform(20, 160)
    box = np.array([corner - along, corner + along, corner + along + across, corner - along + across])
    band = np.zeros(plane.shape, dtype=np.uint8)
    cv2.fillPoly(band, [np.round(box).astype(np.int32)], (255,), cv2.LINE_AA)
    plane += np.asarray(band, dtype=np.float32) / np.float32(255.0) * np.float32(base * rng.normal(0.0, 0.14))
