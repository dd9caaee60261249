"""Frames a camera would see: a hand in a pose before a ground, under a light, through a sensor.

Pixels are BGR uint8 (H, W, 3) for the ``rgb`` look and uint8 (H, W) for ``nir``; the palm faces the
camera and nothing is mirrored: fingers up, a right palm has its thumb on the image's right.

>>> from models.synthesis.person import make_person
>>> frame = render_frame(make_person(7), "R", Pose(), "rgb", np.random.default_rng(0))
>>> frame.shape, frame.dtype
((480, 640, 3), dtype('uint8'))
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import Handedness
from models.synthesis.anatomy import Posture
from models.synthesis.background import Look, Pixels, background
from models.synthesis.hand_canvas import HandCanvas, Light, hand_canvas
from models.synthesis.person import SyntheticPerson
from models.synthesis.raster import Points

Size = tuple[int, int]
FRAME_SIZE: Final[Size] = (480, 640)
"""(height, width) in pixels."""


@dataclass(frozen=True, slots=True)
class Pose:
    """Where a hand is in the frame and how it is held."""

    centre_px: tuple[float, float] = (320.0, 285.0)
    """Palm centre (x, y)."""
    palm_width_px: float = 215.0
    angle_deg: float = 0.0
    """Positive: the fingers lean to the image's right (clockwise); 0 is fingers straight up."""
    tilt: tuple[float, float] = (0.0, 0.0)
    """Out-of-plane tilt: change of scale per palm width, to the right and downwards; |tilt| < 0.3."""
    posture: Posture = field(default_factory=Posture)


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything about a scene except the hand."""

    background_seed: int = 0
    light: Light = field(default_factory=Light)
    gain: float = 1.0
    """Exposure: 1 well exposed, 0.2 dark, 1.8 burnt out."""
    noise: float = 2.5
    """Standard deviation of sensor noise, in grey levels."""
    blur_px: float = 0.6
    """Gaussian defocus."""
    smear_px: float = 0.0
    """Length of motion blur along the vertical, the way a hand enters and leaves."""


@dataclass(frozen=True, slots=True, eq=False)
class HandTruth:
    """Where the generator put the hand."""

    handedness: Handedness
    valleys: Points
    """(4, 2) in frame pixels: thumb–index, index–middle, middle–ring, ring–little."""
    centre: Points
    """(2,) palm centre in frame pixels."""
    palm_width_px: float


def render_frame(
    person: SyntheticPerson | None,
    hand: Handedness | None,
    pose: Pose,
    look: Look,
    rng: np.random.Generator,
    *,
    setting: Setting | None = None,
) -> Pixels:
    """One frame; without a person or a hand only the ground. ``rng`` feeds the sensor noise alone."""
    return render_frame_with_truth(person, hand, pose, look, rng, setting=setting)[0]


def render_frame_with_truth(
    person: SyntheticPerson | None,
    hand: Handedness | None,
    pose: Pose,
    look: Look,
    rng: np.random.Generator,
    *,
    setting: Setting | None = None,
) -> tuple[Pixels, HandTruth | None]:
    """One frame and where its hand is; about 10 ms once the hand's canvas has been drawn."""
    setting = setting if setting is not None else Setting()
    ground = background(setting.background_seed, look, FRAME_SIZE)
    if person is None or hand is None:
        return expose(ground, setting, rng), None
    canvas = hand_canvas(person, hand, pose.posture, look, setting.light)
    matrix = placement(canvas, pose)
    frame = _compose(canvas.pixels, matrix, ground, canvas.palm_width_px / pose.palm_width_px)
    truth = HandTruth(
        hand,
        project(matrix, canvas.valleys),
        project(matrix, canvas.centre[None])[0],
        pose.palm_width_px,
    )
    return expose(frame, setting, rng), truth


def placement(canvas: HandCanvas, pose: Pose) -> NDArray[np.float64]:
    """3x3 homography from canvas pixels to frame pixels."""
    scale = pose.palm_width_px / canvas.palm_width_px
    angle = np.deg2rad(pose.angle_deg)
    c, s = float(np.cos(angle)) * scale, float(np.sin(angle)) * scale
    turn = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
    lean = np.eye(3)
    lean[2, :2] = -np.array(pose.tilt) / pose.palm_width_px
    home = np.eye(3)
    home[:2, 2] = -canvas.centre
    there = np.eye(3)
    there[:2, 2] = pose.centre_px
    return np.asarray(there @ lean @ turn @ home, dtype=np.float64)


def project(matrix: NDArray[np.float64], points: Points) -> Points:
    """Points (n, 2) through a homography."""
    out = np.hstack([points, np.ones((len(points), 1))]) @ matrix.T
    return np.asarray(out[:, :2] / out[:, 2:], dtype=np.float64)


def _compose(canvas: Pixels, matrix: NDArray[np.float64], ground: Pixels, shrink: float) -> Pixels:
    height, width = ground.shape[:2]
    if shrink > 1.5:
        # A camera's pixel gathers the light of its whole area, so a hand far away does not alias.
        sigma = 0.4 * math.sqrt(shrink * shrink - 1.0)
        canvas = np.asarray(cv2.GaussianBlur(canvas, (0, 0), sigma), dtype=np.uint8)
    warped = cv2.warpPerspective(canvas, matrix, (width, height), flags=cv2.INTER_LINEAR)
    if ground.ndim == 2:
        skin, alpha = warped[:, :, 0], warped[:, :, 1]
    else:
        skin, alpha = warped[:, :, :3], cv2.cvtColor(warped[:, :, 3], cv2.COLOR_GRAY2BGR)
    behind = cv2.multiply(ground, cv2.bitwise_not(alpha), scale=1.0 / 255.0)
    return np.asarray(cv2.add(np.ascontiguousarray(skin), behind), dtype=np.uint8)


def expose(scene: Pixels, setting: Setting, rng: np.random.Generator) -> Pixels:
    """Lens and sensor: motion, defocus, exposure, noise."""
    frame = scene
    if setting.smear_px >= 1.5:
        length = round(setting.smear_px)
        frame = np.asarray(cv2.blur(frame, (1, length)), dtype=np.uint8)
    if setting.blur_px > 0.2:
        frame = np.asarray(cv2.GaussianBlur(frame, (0, 0), setting.blur_px), dtype=np.uint8)
    if setting.gain != 1.0:
        frame = np.asarray(cv2.convertScaleAbs(frame, alpha=setting.gain), dtype=np.uint8)
    if setting.noise <= 0.0:
        return frame.copy()
    height, width = frame.shape[:2]
    tile = _noise_tile(frame.ndim)
    top, left = int(rng.integers(tile.shape[0] // 2)), int(rng.integers(tile.shape[1] // 2))
    reps = (-(-(top + height) // tile.shape[0]), -(-(left + width) // tile.shape[1]))
    grown = tile if reps == (1, 1) else np.tile(tile, reps + (1,) * (frame.ndim - 2))
    noise = np.ascontiguousarray(grown[top : top + height, left : left + width])
    weight = setting.noise / _TILE_SIGMA
    return np.asarray(cv2.addWeighted(frame, 1.0, noise, weight, 0.0, dtype=cv2.CV_8U), dtype=np.uint8)


_TILE_SIGMA: Final = 16.0


@lru_cache(maxsize=2)
def _noise_tile(dimensions: int) -> NDArray[np.int16]:
    rng = np.random.default_rng(0x5E2506)
    shape = (960, 1280) if dimensions == 2 else (960, 1280, 3)
    return (rng.standard_normal(shape, dtype=np.float32) * np.float32(_TILE_SIGMA)).astype(np.int16)
