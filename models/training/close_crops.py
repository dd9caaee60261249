"""Training crops: what a palm cutter gives on a good and on a bad day, warped from a drawn palm in a
millisecond.

One warp takes in the cutter's error (shift, scale, rotation), the hand's tilt (perspective), flexion and
stretch of the skin; then come light, exposure, folds of the moment, ground, occlusion, shine, blur, noise
and JPEG.
"""

from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np

from models.crop_geometry import CROP_SIZE
from models.synthesis.close_up import (
    LINES,
    LINES_STEP,
    LINES_ZERO,
    MASK,
    SIDE_PX,
    TEXTURE,
    TEXTURE_STEP,
    TEXTURE_ZERO,
    VEINS,
)
from models.synthesis.raster import Plane, smooth_noise
from models.training.crops import AXIS, HALF, Crops, folds, tilted
from models.training.squares import CROP_SCALE, PalmSquares

_SHAPE: Final = (CROP_SIZE, CROP_SIZE)
INFRARED_SHARE: Final = 0.25
"""Part of the training crops that are seen under an infrared lamp."""


@dataclass(frozen=True, slots=True)
class CloseVariation:
    """How far crops of one hand differ; the defaults are those the shipped model was trained with."""

    shift: float = 0.13
    """Largest shift, as a part of the crop's side."""
    scale: float = 0.22
    """Largest change of scale, either way."""
    rotation_deg: float = 16.0
    perspective: float = 0.14
    """Largest change of scale across the crop."""
    flexion: float = 0.07
    """Largest local compression of the skin along one direction."""
    elastic_px: float = 1.5
    wide: float = 0.30
    """Part of the samples that use the whole range; the others keep to ``usual`` of it."""
    usual: float = 0.40


def sample_crop(
    squares: PalmSquares, index: int, rng: np.random.Generator, infrared: bool, variation: CloseVariation
) -> Crops:
    """One crop (112, 112) uint8 of hand ``index``."""
    reach = 1.0 if rng.random() < variation.wide else variation.usual
    across, down = _coordinates(rng, variation, reach)
    planes = cv2.remap(
        np.asarray(squares.planes[index]), across, down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101
    ).astype(np.float32)
    lines = (planes[:, :, LINES] - np.float32(LINES_ZERO)) * np.float32(LINES_STEP)
    texture = (planes[:, :, TEXTURE] - np.float32(TEXTURE_ZERO)) * np.float32(TEXTURE_STEP)
    grey = _skin(rng, lines, texture, planes[:, :, VEINS] * np.float32(1 / 255.0), infrared)
    grey *= _slow_light(rng)
    if rng.random() < 0.30:
        _fold(grey, rng)
    cover = planes[:, :, MASK] * np.float32(1 / 255.0)
    if float(cover[::8, ::8].min()) < 0.99:
        grey = _rounded(grey, cover, rng)
    if rng.random() < 0.14:
        _ground(grey, rng)
    if rng.random() < 0.05:
        _occlude(grey, rng)
    return _sensor(grey, rng)


def turn_palm(crop: Crops, palm: int, view: int) -> Crops:
    """The palm's other identity: one of seven turns and mirrorings, the same for every crop of it."""
    if view == 0:
        return crop
    how = 1 + palm % 7
    turned = np.rot90(crop, how % 4)
    return turned[:, ::-1] if how >= 4 else turned


def _coordinates(rng: np.random.Generator, variation: CloseVariation, reach: float) -> tuple[Plane, Plane]:
    angle = np.deg2rad(variation.rotation_deg) * reach * rng.uniform(-1.0, 1.0)
    scale = np.exp(np.log1p(variation.scale) * reach * rng.uniform(-1.0, 1.0)) * CROP_SCALE
    shift = rng.uniform(-1.0, 1.0, 2) * variation.shift * reach * CROP_SIZE * CROP_SCALE
    tilt = rng.uniform(-1.0, 1.0, 2) * variation.perspective * reach / CROP_SIZE
    x, y = tilted(tilt)
    # Flexion draws the skin together along one direction, most in one place.
    toward = rng.uniform(0.0, 2 * np.pi)
    ux, uy = np.float32(np.cos(toward)), np.float32(np.sin(toward))
    along = (x * ux + y * uy) / np.float32(HALF) + np.float32(rng.uniform(-0.7, 0.7))
    pull = np.float32(variation.flexion * rng.uniform(-1.0, 1.0) * HALF) * np.tanh(2 * along)
    x, y = x + pull * ux, y + pull * uy
    c, s = float(np.cos(angle) * scale), float(np.sin(angle) * scale)
    middle = (SIDE_PX - 1) / 2.0
    u = c * x - s * y + np.float32(middle + shift[0])
    v = s * x + c * y + np.float32(middle + shift[1])
    for cells, share in ((3, 1.0), (7, 0.6)):
        grid = rng.standard_normal((cells, cells, 2), dtype=np.float32)
        grid *= np.float32(variation.elastic_px * share * CROP_SCALE * rng.uniform(0.2, 1.0))
        bend = cv2.resize(grid, (CROP_SIZE, CROP_SIZE), interpolation=cv2.INTER_CUBIC)
        u, v = u + bend[:, :, 0], v + bend[:, :, 1]
    return np.asarray(u, dtype=np.float32), np.asarray(v, dtype=np.float32)


def _skin(rng: np.random.Generator, lines: Plane, texture: Plane, veins: Plane, infrared: bool) -> Plane:
    """Brightness about 1: folds that show more here and less there, blotches, veins, and light from one
    side.
    """
    shown = rng.uniform(0.3, 1.3, (4, 4)).astype(np.float32)
    lines = lines * cv2.resize(shown, _SHAPE, interpolation=cv2.INTER_LINEAR)
    contrast = float(np.exp(rng.uniform(np.log(0.10), np.log(0.50))))
    skin = np.float32(1.0) - np.float32(contrast * (0.7 if infrared else 1.0)) * lines
    blotches = float(np.exp(rng.uniform(np.log(0.008), np.log(0.045)))) * (0.5 if infrared else 1.0)
    skin -= np.float32(blotches) * texture
    skin -= np.float32(rng.uniform(0.08, 0.30) if infrared else rng.uniform(0.0, 0.06)) * veins
    side = contrast * rng.uniform(0.0, 1.6) * (1.0 if rng.random() < 0.6 else 0.2)
    angle = rng.uniform(0.0, 2 * np.pi)
    height = lines + texture * np.float32(0.04)
    skin += np.float32(side * np.cos(angle)) * cv2.Sobel(height, cv2.CV_32F, 1, 0, scale=0.25)
    skin += np.float32(side * np.sin(angle)) * cv2.Sobel(height, cv2.CV_32F, 0, 1, scale=0.25)
    return np.asarray(skin, dtype=np.float32)


def _slow_light(rng: np.random.Generator) -> Plane:
    cells = int(rng.integers(2, 5))
    small = 1.0 + rng.standard_normal((cells, cells), dtype=np.float32) * np.float32(rng.uniform(0.02, 0.18))
    light = cv2.resize(small, (CROP_SIZE, CROP_SIZE), interpolation=cv2.INTER_CUBIC)
    return np.asarray(np.maximum(light, 0.15), dtype=np.float32)


def _fold(grey: Plane, rng: np.random.Generator) -> None:
    """Dark or light soft lines that belong to the moment, not to the person."""
    soft = folds(rng, most=4, softest=1.6)
    grey *= np.float32(1.0) - soft * np.float32(rng.uniform(-0.05, 0.3) / 255.0)


def _rounded(grey: Plane, cover: Plane, rng: np.random.Generator) -> Plane:
    """The hand turns away from the light towards its edge; behind it the ground."""
    soft = cv2.GaussianBlur(cover, (0, 0), float(rng.uniform(3.0, 8.0)))
    ground = np.float32(rng.choice([rng.uniform(0.0, 0.4), rng.uniform(0.4, 1.6)]))
    rim = np.float32(rng.uniform(0.0, 0.7))
    return np.asarray(grey * (1 - rim + rim * soft) * cover + ground * (1 - cover), dtype=np.float32)


def _ground(grey: Plane, rng: np.random.Generator) -> None:
    """The crop reaches over the hand's edge: a side or a corner shows what is behind, or nothing."""
    angle = rng.uniform(0.0, 2 * np.pi)
    x, y = np.meshgrid(AXIS - np.float32(HALF), AXIS - np.float32(HALF))
    along = x * np.float32(np.cos(angle)) + y * np.float32(np.sin(angle))
    aside = (y * np.float32(np.cos(angle)) - x * np.float32(np.sin(angle))) / np.float32(HALF)
    edge = rng.uniform(0.45, 1.25) * HALF + np.float32(rng.normal(0.0, 6.0)) * aside * aside
    outside = np.clip((along - edge) / np.float32(rng.uniform(0.5, 4.0)), 0.0, 1.0)
    level = np.float32(rng.choice([0.0, rng.uniform(0.0, 0.5), rng.uniform(0.5, 1.7)]))
    shade = np.float32(1.0) - np.float32(rng.uniform(0.0, 0.5)) * np.clip(along / edge, 0, 1) ** 6
    grey *= shade * (1 - outside)
    grey += level * outside


def _occlude(grey: Plane, rng: np.random.Generator) -> None:
    """A ring, a plaster, a sleeve's edge, a spot of dirt or a shine over part of the crop."""
    x, y = (int(v) for v in rng.integers(0, CROP_SIZE, 2))
    if rng.random() < 0.5:
        spot = np.zeros(grey.shape, dtype=np.float32)
        cv2.circle(spot, (x, y), int(rng.integers(3, 16)), (1.0,), -1)
        soft = cv2.GaussianBlur(spot, (0, 0), float(rng.uniform(1.0, 5.0)))
        grey += np.asarray(soft, dtype=np.float32) * np.float32(rng.uniform(-0.6, 1.5))
        return
    wide, high = (int(v) for v in rng.integers(8, 40, 2))
    grey[y : y + high, x : x + wide] = np.float32(rng.uniform(0.05, 1.6))


def _sensor(grey: Plane, rng: np.random.Generator) -> Crops:
    level = float(np.exp(rng.uniform(np.log(45.0), np.log(215.0))))
    grey = grey * np.float32(level) + np.float32(rng.uniform(-6.0, 12.0))
    grey = _defocused(grey, rng)
    noise = rng.standard_normal(_SHAPE, dtype=np.float32) * np.float32(np.exp(rng.uniform(-1.6, 0.9)))
    if rng.random() < 0.5:
        # Blotches vary between captures, so that the net does not learn people by their blotches.
        coarse = smooth_noise(rng, _SHAPE, float(rng.uniform(2.5, 6.0)))
        noise += coarse * np.float32(level * rng.uniform(0.0, 0.03))
    crop = np.clip(grey + noise, 0.0, 255.0).astype(np.uint8)
    if rng.random() < 0.15:
        coded = cv2.imencode(".jpg", crop, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(65, 96))])[1]
        crop = np.asarray(cv2.imdecode(coded, cv2.IMREAD_GRAYSCALE), dtype=np.uint8)
    return crop


def _defocused(grey: Plane, rng: np.random.Generator) -> Plane:
    """Few pixels, or out of focus, or in motion; often none of them."""
    if rng.random() < 0.20:
        small = int(rng.integers(48, 100))
        few = cv2.resize(grey, (small, small), interpolation=cv2.INTER_AREA)
        grey = np.asarray(cv2.resize(few, _SHAPE, interpolation=cv2.INTER_LINEAR), dtype=np.float32)
    elif rng.random() < 0.6:
        grey = np.asarray(cv2.GaussianBlur(grey, (0, 0), float(rng.uniform(0.3, 1.3))), dtype=np.float32)
    if rng.random() < 0.10:
        length = int(rng.integers(2, 6))
        box = (1, length) if rng.random() < 0.5 else (length, 1)
        grey = np.asarray(cv2.blur(grey, box), dtype=np.float32)
    return grey
