"""Palms drawn beforehand, from which training crops are warped: one small stack of planes for each hand."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import CROP_SIZE, Handedness, similarity_from_valleys
from models.synthesis.anatomy import Posture, outline_of, valleys_of
from models.synthesis.hand_canvas import infrared, visible_grey
from models.synthesis.palm import PALM_WINDOW, draw_skin
from models.synthesis.person import SyntheticPerson, make_person

TRAINING_SEED_START: Final = 10_000_000
"""People from this number on are trained on; evaluation and demonstrations use other numbers."""

REDUCED: Final = 0.75
"""Canvases are kept at this part of their drawn resolution, a little finer than a crop."""
RELIEF_ZERO: Final = 128.0
RELIEF_STEP: Final = 0.35
"""Relief is stored in a byte: height in canvas pixels = (value - RELIEF_ZERO) * RELIEF_STEP."""

VISIBLE: Final = 0
INFRARED: Final = 1
RELIEF: Final = 2
MASK: Final = 3


@dataclass(frozen=True, slots=True, eq=False)
class PalmCanvases:
    """Drawn palms of many hands, each its own identity."""

    planes: NDArray[np.uint8]
    """(n, H, W, 4): visible grey, infrared, relief, mask."""
    to_canvas: NDArray[np.float64]
    """(n, 2, 3): from crop pixels to canvas pixels, as the palm cutter would place the crop."""


def draw_palm(
    person: SyntheticPerson, handedness: Handedness
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Planes (H, W, 4) of one hand and the (2, 3) matrix from crop to canvas pixels."""
    identity = person.hand(handedness)
    posture = Posture()
    outline = outline_of(identity.shape, posture)
    skin = draw_skin(identity, posture, outline, PALM_WINDOW)
    relief = skin.relief - cv2.GaussianBlur(skin.relief, (0, 0), 30.0)
    planes = [
        visible_grey(skin) * np.float32(255.0),
        infrared(skin),
        relief / np.float32(RELIEF_STEP) + np.float32(RELIEF_ZERO),
        skin.mask * np.float32(255.0),
    ]
    stack = np.clip(np.dstack(planes), 0.0, 255.0).astype(np.uint8)
    small = cv2.resize(stack, None, fx=REDUCED, fy=REDUCED, interpolation=cv2.INTER_AREA)
    valleys = PALM_WINDOW.to_px(valleys_of(outline))
    if handedness == "R":
        small = np.ascontiguousarray(small[:, ::-1])
        valleys[:, 0] = PALM_WINDOW.width - 1 - valleys[:, 0]
    # Half-pixel centres: resizing maps x to (x + 0.5) * k - 0.5.
    valleys = (valleys + 0.5) * REDUCED - 0.5
    to_crop = similarity_from_valleys(valleys, handedness, CROP_SIZE)
    return np.asarray(small, dtype=np.uint8), np.asarray(cv2.invertAffineTransform(to_crop), dtype=np.float64)


def draw_canvases(people: int) -> PalmCanvases:
    """Both hands of ``people`` persons, left then right; about 25 ms and 230 kB a hand."""
    shape = (round(PALM_WINDOW.height * REDUCED), round(PALM_WINDOW.width * REDUCED), 4)
    planes = np.empty((2 * people, *shape), dtype=np.uint8)
    to_canvas = np.empty((2 * people, 2, 3), dtype=np.float64)
    for i in range(people):
        person = make_person(TRAINING_SEED_START + i)
        planes[2 * i], to_canvas[2 * i] = draw_palm(person, "L")
        planes[2 * i + 1], to_canvas[2 * i + 1] = draw_palm(person, "R")
    return PalmCanvases(planes, to_canvas)


def load_or_draw(people: int, cache: Path) -> PalmCanvases:
    """The canvases of a training run, kept in ``cache`` between runs."""
    planes_path = cache / f"planes-{people}.npy"
    matrices_path = cache / f"matrices-{people}.npy"
    if planes_path.exists() and matrices_path.exists():
        return PalmCanvases(np.load(planes_path), np.load(matrices_path))
    drawn = draw_canvases(people)
    cache.mkdir(parents=True, exist_ok=True)
    np.save(planes_path, drawn.planes)
    np.save(matrices_path, drawn.to_canvas)
    return drawn
