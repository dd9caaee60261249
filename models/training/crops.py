"""Training crops: what the palm cutter gives on a bad day, warped from a drawn palm in half a millisecond.

One warp takes in the cutter's error (shift, scale, rotation), the hand's tilt (perspective) and stretch of
the skin (elastic); then come light, exposure, folds, occlusion, ground in the corners, blur and sensor noise.
"""

from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import CROP_SIZE
from models.synthesis.raster import Plane, smooth_noise
from models.training.canvases import INFRARED, MASK, RELIEF, RELIEF_STEP, VISIBLE, PalmCanvases

Crops = NDArray[np.uint8]

AXIS: Final = np.arange(CROP_SIZE, dtype=np.float32)
HALF: Final = (CROP_SIZE - 1) / 2.0


@dataclass(frozen=True, slots=True)
class Variation:
    """How far crops of one hand differ; the defaults are those the shipped model was trained with."""

    shift: float = 0.15
    """Largest shift, as a part of the crop's side."""
    scale: float = 0.30
    """Largest change of scale, either way."""
    rotation_deg: float = 15.0
    perspective: float = 0.12
    """Largest change of scale across the crop."""
    elastic_px: float = 1.6
    wide: float = 0.35
    """Part of the samples that use the whole range; the others keep to a third of it."""


def sample_crop(
    canvases: PalmCanvases, index: int, rng: np.random.Generator, infrared: bool, variation: Variation
) -> Crops:
    """One crop (112, 112) uint8 of hand ``index``."""
    reach = 1.0 if rng.random() < variation.wide else 1.0 / 3.0
    across, down = _coordinates(canvases.to_canvas[index], rng, variation, reach)
    planes = cv2.remap(
        canvases.planes[index], across, down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
    )
    grey = np.asarray(planes[:, :, INFRARED if infrared else VISIBLE], dtype=np.float32)
    relief = np.asarray(planes[:, :, RELIEF], dtype=np.float32) * np.float32(RELIEF_STEP)
    grey *= _shade(relief, rng)
    grey *= _slow_light(rng)
    if rng.random() < 0.35:
        _fold(grey, rng)
    cover = np.asarray(planes[:, :, MASK], dtype=np.float32) / np.float32(255.0)
    if float(cover.min()) < 0.99:
        ground = np.float32(rng.choice([rng.uniform(5, 60), rng.uniform(60, 230)]))
        grey = grey * cover + ground * (1 - cover)
    if rng.random() < 0.06:
        _occlude(grey, rng)
    return _sensor(grey, rng)


def _coordinates(
    to_canvas: NDArray[np.float64], rng: np.random.Generator, variation: Variation, reach: float
) -> tuple[Plane, Plane]:
    angle = np.deg2rad(variation.rotation_deg) * reach * rng.uniform(-1.0, 1.0)
    scale = np.exp(np.log1p(variation.scale) * reach * rng.uniform(-1.0, 1.0))
    shift = rng.uniform(-1.0, 1.0, 2) * variation.shift * reach * CROP_SIZE
    tilt = rng.uniform(-1.0, 1.0, 2) * variation.perspective * reach / CROP_SIZE
    x, y = tilted(tilt)
    c, s = float(np.cos(angle) * scale), float(np.sin(angle) * scale)
    u = c * x - s * y + (HALF + shift[0])
    v = s * x + c * y + (HALF + shift[1])
    grid = rng.standard_normal((6, 6, 2), dtype=np.float32) * np.float32(variation.elastic_px)
    bend = cv2.resize(grid, (CROP_SIZE, CROP_SIZE), interpolation=cv2.INTER_CUBIC)
    u, v = u + bend[:, :, 0], v + bend[:, :, 1]
    m = to_canvas
    across = m[0, 0] * u + m[0, 1] * v + m[0, 2]
    down = m[1, 0] * u + m[1, 1] * v + m[1, 2]
    return np.asarray(across, dtype=np.float32), np.asarray(down, dtype=np.float32)


def tilted(tilt: NDArray[np.float64]) -> tuple[Plane, Plane]:
    """Where the crop's pixels are, about its middle, on a hand that leans by ``tilt`` along x and y."""
    x, y = np.meshgrid(AXIS - np.float32(HALF), AXIS - np.float32(HALF))
    depth = 1.0 + np.float32(tilt[0]) * x + np.float32(tilt[1]) * y
    return x / depth, y / depth


def _shade(relief: Plane, rng: np.random.Generator) -> Plane:
    across, along = rng.normal(0.0, 0.35, 2)
    gx = np.asarray(cv2.Sobel(relief, cv2.CV_32F, 1, 0, scale=0.125), dtype=np.float32)
    gy = np.asarray(cv2.Sobel(relief, cv2.CV_32F, 0, 1, scale=0.125), dtype=np.float32)
    lit = np.float32(1.0) - np.float32(across) * gx - np.float32(along) * gy
    lit /= np.sqrt(np.float32(1.0) + np.float32(0.6) * (gx * gx + gy * gy))
    return np.asarray(np.clip(lit, 0.2, 1.8), dtype=np.float32)


def _slow_light(rng: np.random.Generator) -> Plane:
    small = 1.0 + rng.standard_normal((3, 3), dtype=np.float32) * np.float32(rng.uniform(0.02, 0.18))
    return np.asarray(
        cv2.resize(small, (CROP_SIZE, CROP_SIZE), interpolation=cv2.INTER_CUBIC), dtype=np.float32
    )


def _fold(grey: Plane, rng: np.random.Generator) -> None:
    """A dark soft line or two that belong to the moment, not to the person."""
    grey *= np.float32(1.0) - folds(rng, most=3, softest=1.4) * np.float32(0.35 / 255.0)


def folds(rng: np.random.Generator, most: int, softest: float) -> Plane:
    """Up to ``most`` soft lines, as bright as 255 where they are deepest."""
    layer = np.zeros((CROP_SIZE, CROP_SIZE), dtype=np.uint8)
    for _ in range(int(rng.integers(1, most + 1))):
        start = rng.uniform(0, CROP_SIZE, 2)
        middle = start + rng.normal(0.0, 18.0, 2)
        end = middle + (middle - start) + rng.normal(0.0, 6.0, 2)
        course = np.round(np.array([start, middle, end]) * 16).astype(np.int32)
        wide = int(rng.integers(1, 3))
        cv2.polylines(layer, [course], False, (int(rng.integers(60, 255)),), wide, cv2.LINE_AA, 4)
    return np.asarray(cv2.GaussianBlur(layer, (0, 0), float(rng.uniform(0.6, softest))), dtype=np.float32)


def _occlude(grey: Plane, rng: np.random.Generator) -> None:
    """A ring, a plaster, a shadow or a glove's edge over part of the crop."""
    x, y = (int(v) for v in rng.integers(0, CROP_SIZE, 2))
    wide, high = (int(v) for v in rng.integers(10, 45, 2))
    grey[y : y + high, x : x + wide] = np.float32(rng.uniform(10, 240))


def _sensor(grey: Plane, rng: np.random.Generator) -> Crops:
    gain = rng.uniform(0.45, 1.15)
    grey = grey * np.float32(gain) + np.float32(rng.uniform(-8.0, 12.0))
    if rng.random() < 0.7:
        grey = np.asarray(cv2.GaussianBlur(grey, (0, 0), float(rng.uniform(0.3, 1.5))), dtype=np.float32)
    if rng.random() < 0.12:
        length = int(rng.integers(2, 6))
        grey = np.asarray(
            cv2.blur(grey, (1, length) if rng.random() < 0.6 else (length, 1)), dtype=np.float32
        )
    noise = rng.standard_normal(grey.shape, dtype=np.float32) * np.float32(rng.uniform(0.5, 5.0))
    if rng.random() < 0.3:
        noise += smooth_noise(rng, (CROP_SIZE, CROP_SIZE), 2.5) * np.float32(rng.uniform(0.0, 4.0))
    return np.clip(grey + noise, 0.0, 255.0).astype(np.uint8)
