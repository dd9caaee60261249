"""Palms drawn beforehand, from which training crops are warped: one small stack of planes for each hand.

Two sources: close-ups (``models.synthesis.close_up``), which vary widely, and the palms of whole generated
hands (``models.synthesis.palm``), which hold the cutter's geometry, finger roots and the edge of the hand.
"""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import CROP_SIZE, Handedness, similarity_from_valleys
from models.synthesis.anatomy import Posture, outline_of, valleys_of
from models.synthesis.close_up import (
    CROP_SIDE_PX,
    LINES_STEP,
    LINES_ZERO,
    SIDE_PX,
    TEXTURE_STEP,
    TEXTURE_ZERO,
    crop_to_close_up,
    draw_close_up,
)
from models.synthesis.palm import PALM_WINDOW, draw_skin
from models.synthesis.person import SyntheticPerson, make_person
from models.training.canvases import TRAINING_SEED_START

Planes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class PalmSquares:
    """Drawn palms of many hands, each its own identity; the crop lies in the middle of every square."""

    planes: Planes
    """(n, SIDE_PX, SIDE_PX, 4): lines, texture, veins, mask, coded as in ``models.synthesis.close_up``."""


def draw_palm(person: SyntheticPerson, handedness: Handedness) -> Planes:
    """Planes (SIDE_PX, SIDE_PX, 4) of one generated hand, placed as the palm cutter would place the crop."""
    identity = person.hand(handedness)
    posture = Posture()
    outline = outline_of(identity.shape, posture)
    skin = draw_skin(identity, posture, outline, PALM_WINDOW)
    planes = [
        skin.creases / np.float32(LINES_STEP) + np.float32(LINES_ZERO),
        (skin.mottle - skin.grain) * np.float32(0.7 / TEXTURE_STEP) + np.float32(TEXTURE_ZERO),
        skin.veins * np.float32(255.0),
        skin.mask * np.float32(255.0),
    ]
    stack = np.clip(np.dstack(planes), 0.0, 255.0).astype(np.uint8)
    valleys = PALM_WINDOW.to_px(valleys_of(outline))
    if handedness == "R":
        stack = np.ascontiguousarray(stack[:, ::-1])
        valleys[:, 0] = PALM_WINDOW.width - 1 - valleys[:, 0]
    to_crop = np.vstack([similarity_from_valleys(valleys, handedness, CROP_SIZE), (0.0, 0.0, 1.0)])
    to_square = np.vstack([crop_to_close_up(), (0.0, 0.0, 1.0)]) @ to_crop
    outside = (int(LINES_ZERO), int(TEXTURE_ZERO), 0, 0)
    square = cv2.warpAffine(
        stack, to_square[:2], (SIDE_PX, SIDE_PX), flags=cv2.INTER_AREA, borderMode=cv2.BORDER_REPLICATE,
        borderValue=outside,
    )  # fmt: skip
    return np.asarray(square, dtype=np.uint8)


def _draw(number: int, *, people: int) -> Planes:
    cv2.setNumThreads(1)
    if number < 2 * people:
        return draw_palm(make_person(TRAINING_SEED_START + number // 2), "L" if number % 2 == 0 else "R")
    return draw_close_up(TRAINING_SEED_START + number - 2 * people)


def draw_squares(people: int, close_ups: int, *, processes: int = 1) -> PalmSquares:
    """Both hands of ``people`` persons, left then right, then the close-ups; about 20 ms and 215 kB each."""
    total = 2 * people + close_ups
    planes = np.empty((total, SIDE_PX, SIDE_PX, 4), dtype=np.uint8)
    draw = partial(_draw, people=people)
    if processes == 1:
        for i in range(total):
            planes[i] = draw(i)
        return PalmSquares(planes)
    with ProcessPoolExecutor(processes) as pool:
        for i, drawn in enumerate(pool.map(draw, range(total), chunksize=32)):
            planes[i] = drawn
    return PalmSquares(planes)


def load_or_draw(people: int, close_ups: int, cache: Path, *, processes: int = 1) -> PalmSquares:
    """The canvases of a training run, kept in ``cache`` between runs and read from there as they are
    needed.
    """
    path = cache / f"planes-{people}-{close_ups}.npy"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part.npy")
        np.save(part, draw_squares(people, close_ups, processes=processes).planes)
        part.replace(path)
    return PalmSquares(np.load(path, mmap_mode="r"))


CROP_SCALE: Final = CROP_SIDE_PX / CROP_SIZE
"""Pixels of a square for one pixel of a crop."""
