"""Batches for the two networks of the hand finder, generated for every step."""

from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.hand_network import COARSE_PX, FINE_PALM_WIDTHS, FINE_PX
from models.synthesis.hand_scenes import Homography, bend, compose, develop, place, squash, unbend
from models.synthesis.raster import Points
from models.synthesis.render import project
from models.synthesis.worn_hand import WornHand
from models.training.hand_pool import GROUND_PX, Pool

Floats = NDArray[np.float32]

CELLS: Final = 14
COVER: Final = 28
_EMPTY_SHARE: Final = 0.22
_ASTRAY_SHARE: Final = 0.07
_MIRRORED_SHARE: Final = 0.12
_PLAIN_SHARE: Final = 0.2


@dataclass(frozen=True, slots=True)
class CoarseBatch:
    """Pictures and what the coarse network should say of them."""

    pictures: NDArray[np.uint8]
    """(n, 112, 112)."""
    heat: Floats
    """(n, 14, 14): 1 where a hand's centre is, falling off around it."""
    told: Floats
    """(n, 7, 14, 14): the other channels, true near the centre."""
    cover: Floats
    """(n, 28, 28): share of hand."""


@dataclass(frozen=True, slots=True)
class FineBatch:
    """Crops and what the fine network should say of them."""

    crops: NDArray[np.uint8]
    """(n, 96, 96)."""
    points: Floats
    """(n, 5, 2) in crop pixels; NaN where there is nothing to find."""
    is_open: Floats
    """(n,)."""
    mirrored: Floats
    """(n,): 1, 0, or NaN where it is unknown."""


def coarse_batch(rng: np.random.Generator, pool: Pool, n: int) -> CoarseBatch:
    """Whole pictures, most with one hand."""
    batch = CoarseBatch(
        np.zeros((n, COARSE_PX, COARSE_PX), np.uint8),
        np.zeros((n, CELLS, CELLS), np.float32),
        np.zeros((n, 7, CELLS, CELLS), np.float32),
        np.zeros((n, COVER, COVER), np.float32),
    )
    for k in range(n):
        _coarse(rng, pool, batch, k)
    return batch


def _coarse(rng: np.random.Generator, pool: Pool, batch: CoarseBatch, k: int) -> None:
    # Most cameras give 4:3; the rest of the square is black.
    height, width = ((84, 112), (63, 112), (112, 112), (112, 84))[
        int(rng.choice(4, p=[0.7, 0.12, 0.12, 0.06]))
    ]
    top, left = (COARSE_PX - height) // 2, (COARSE_PX - width) // 2
    box = np.s_[top : top + height, left : left + width]
    picture = _ground(rng, pool, (height, width))
    if rng.random() < 0.3:
        picture = _passer_by(rng, pool, picture)
    if rng.random() < _EMPTY_SHARE:
        batch.pictures[k][box] = develop(rng, picture, lively=True)
        return
    short = min(height, width)
    palm_px = short * float(np.exp(rng.uniform(np.log(0.15), np.log(0.62))))
    reach = 0.42 if palm_px < 0.4 * short else 0.3
    middle = np.array([width, height]) * (0.5 + rng.uniform(-reach, reach, 2))
    angle = float(rng.uniform(-180.0, 180.0) if rng.random() < 0.7 else rng.normal(0.0, 20.0))
    right = bool(rng.random() < 0.5)
    worn = pool.worn(int(rng.integers(len(pool.hands))))
    tilt = rng.normal(0.0, 0.08, 2)
    matrix = place(worn, middle, palm_px, angle, (tilt, squash(rng, 0.15)))
    if right:
        matrix = _mirrored(matrix, middle[0])
        angle = -angle
    field = bend(rng, (height, width), palm_px * float(rng.uniform(0.0, 0.035)))
    picture, cover = compose(picture, _toned(rng, worn), matrix, field)
    points = unbend(project(matrix, worn.points), field)
    batch.pictures[k][box] = develop(rng, picture, lively=True)
    whole = np.zeros((COARSE_PX, COARSE_PX), np.float32)
    whole[box] = cover.astype(np.float32) / np.float32(255.0)
    batch.cover[k] = cv2.resize(whole, (COVER, COVER), interpolation=cv2.INTER_AREA)
    _tell(batch, k, points + np.array([left, top]), palm_px, opened=worn.is_open, right=right)


def _tell(batch: CoarseBatch, k: int, points: Points, palm_px: float, *, opened: bool, right: bool) -> None:
    cell = COARSE_PX / CELLS
    x, y = (points[5] + 0.5) / cell - 0.5
    across, down = np.meshgrid(np.arange(CELLS), np.arange(CELLS))
    batch.heat[k] = np.exp(-((across - x) ** 2 + (down - y) ** 2) / (2 * 0.75**2))
    at = int(np.clip(round(y), 0, CELLS - 1)), int(np.clip(round(x), 0, CELLS - 1))
    batch.heat[k][at] = 1.0
    up = points[1:4].mean(axis=0) - points[5]
    up /= np.hypot(*up)
    told = batch.told[k]
    told[0], told[1] = float(opened), float(right)
    told[2], told[3] = x - across, y - down
    told[4] = np.log2(palm_px / 28.0)
    told[5], told[6] = up


def fine_batch(rng: np.random.Generator, pool: Pool, n: int) -> FineBatch:
    """Straightened crops as a coarse network with its errors would cut them."""
    batch = FineBatch(
        np.zeros((n, FINE_PX, FINE_PX), np.uint8),
        np.full((n, 5, 2), np.nan, np.float32),
        np.zeros(n, np.float32),
        np.full(n, np.nan, np.float32),
    )
    for k in range(n):
        _fine(rng, pool, batch, k)
    return batch


def _fine(rng: np.random.Generator, pool: Pool, batch: FineBatch, k: int) -> None:
    size = (FINE_PX, FINE_PX)
    picture = _ground(rng, pool, size)
    if rng.random() < 0.25:
        picture = _passer_by(rng, pool, picture)
    if rng.random() < _EMPTY_SHARE:
        batch.crops[k] = _seen(rng, picture)
        return
    palm_px = FINE_PX / FINE_PALM_WIDTHS * float(np.exp(np.clip(rng.normal(0.0, 0.13), -0.3, 0.3)))
    middle = FINE_PX / 2 + np.clip(rng.normal(0.0, 0.09, 2), -0.25, 0.25) * palm_px
    angle = float(np.clip(rng.normal(0.0, 11.0), -35.0, 35.0))
    astray = rng.random() < _ASTRAY_SHARE
    if astray:
        angle = float(rng.uniform(70.0, 290.0))
    worn = pool.worn(int(rng.integers(len(pool.hands))))
    tilt = rng.normal(0.0, 0.08, 2)
    matrix = place(worn, middle, palm_px, angle, (tilt, squash(rng, 0.15)))
    mirrored = bool(rng.random() < _MIRRORED_SHARE)
    if mirrored:
        matrix = _mirrored(matrix, middle[0])
    field = bend(rng, size, palm_px * float(rng.uniform(0.0, 0.035)))
    picture, _ = compose(picture, _toned(rng, worn), matrix, field)
    batch.crops[k] = _seen(rng, picture)
    batch.is_open[k] = float(worn.is_open and not astray)
    if worn.is_open and not astray:
        batch.mirrored[k] = float(mirrored)
        if not mirrored:
            points = unbend(project(matrix, worn.points), field)[:5]
            inside = ((points > -2.0) & (points < FINE_PX + 1.0)).all(axis=1)
            batch.points[k][inside] = points[inside]


def _seen(rng: np.random.Generator, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Light and lens; a small hand has been enlarged for the crop."""
    if rng.random() < 0.35:
        less = int(FINE_PX * rng.uniform(0.35, 0.9))
        small = cv2.resize(picture, (less, less), interpolation=cv2.INTER_AREA)
        picture = np.asarray(cv2.resize(small, (FINE_PX, FINE_PX), interpolation=cv2.INTER_LINEAR), np.uint8)
    return develop(rng, picture, lively=True)


def _mirrored(matrix: Homography, x: float) -> Homography:
    return np.asarray(np.array([[-1.0, 0.0, 2 * x], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]) @ matrix)


def _toned(rng: np.random.Generator, worn: WornHand) -> NDArray[np.uint8]:
    """The hand in another exposure than drawn; alpha stays."""
    gain = max(0.2, float(np.exp(rng.normal(-0.15, 0.45))))
    pixels = worn.pixels.copy()
    pixels[:, :, 0] = cv2.convertScaleAbs(worn.pixels[:, :, 0], alpha=min(gain, 1.45))
    return pixels


def _ground(rng: np.random.Generator, pool: Pool, size: tuple[int, int]) -> NDArray[np.uint8]:
    """A piece of a ground, turned and resized, or a plain wall of any brightness."""
    if rng.random() < _PLAIN_SHARE:
        return _wall(rng, size)
    ground = pool.grounds[int(rng.integers(len(pool.grounds)))]
    height, width = size
    zoom = float(np.exp(rng.uniform(np.log(0.3), np.log(1.2))))
    angle = float(rng.choice([0.0, 90.0, 180.0, 270.0]) + rng.normal(0.0, 5.0))
    middle = (GROUND_PX / 2, GROUND_PX / 2)
    matrix = np.asarray(cv2.getRotationMatrix2D(middle, angle, zoom), dtype=np.float64)
    most = max(0.0, GROUND_PX * zoom - max(size)) / 2
    matrix[:, 2] += np.array([width, height]) / 2 - GROUND_PX / 2 + rng.uniform(-most, most, 2)
    if rng.random() < 0.5:
        ground = ground[:, ::-1]
    piece = cv2.warpAffine(
        np.ascontiguousarray(ground), matrix, (width, height), borderMode=cv2.BORDER_REFLECT_101
    )
    return np.asarray(cv2.convertScaleAbs(piece, alpha=float(np.exp(rng.normal(0.1, 0.4)))), dtype=np.uint8)


def _wall(rng: np.random.Generator, size: tuple[int, int]) -> NDArray[np.uint8]:
    height, width = size
    corners = rng.uniform(0.0, 270.0) * (1.0 + rng.normal(0.0, 0.12, (2, 2)))
    plane = cv2.resize(corners.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR)
    return np.clip(plane, 0.0, 255.0).astype(np.uint8)


def _passer_by(rng: np.random.Generator, pool: Pool, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Fingers or a wrist of a hand whose palm is out of sight."""
    height, width = picture.shape
    worn = pool.worn(int(rng.integers(len(pool.hands))))
    palm_px = min(height, width) * float(rng.uniform(0.2, 0.6))
    angle = float(rng.uniform(-180.0, 180.0))
    away = rng.uniform(0.0, 2 * np.pi)
    far = np.array([np.cos(away), np.sin(away)])
    edge = min(0.5 * width / max(abs(far[0]), 1e-6), 0.5 * height / max(abs(far[1]), 1e-6))
    middle = np.array([width, height]) / 2 + far * (edge + palm_px * rng.uniform(0.35, 0.9))
    matrix = place(worn, middle, palm_px, angle, (np.zeros(2), np.eye(2)))
    return compose(picture, _toned(rng, worn), matrix, None)[0]
