"""Short films at the gate: a hand comes in, is held and leaves; a code is shown; the scene is empty.

Every film is an iterator of frames at an assumed 30 frames a second and is the same for the same seed.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import cv2
import numpy as np

from models.crop_geometry import Handedness
from models.synthesis.anatomy import random_posture
from models.synthesis.background import Look, Pixels, background
from models.synthesis.hand_canvas import Light
from models.synthesis.person import SyntheticPerson
from models.synthesis.raster import Points
from models.synthesis.render import FRAME_SIZE, Pose, Setting, Size, expose, render_frame

_DOMAIN: Final = 0xF117


def random_pose(rng: np.random.Generator) -> Pose:
    """Where a cooperative person holds an open hand: palm 185 to 245 px wide in 640x480."""
    height, width = FRAME_SIZE
    palm_width = rng.uniform(185.0, 245.0)
    return Pose(
        (
            float(width * 0.5 + rng.uniform(-45.0, 45.0)),
            float(height * 0.5 + (palm_width - 180.0) * 0.25 + rng.uniform(25.0, 60.0)),
        ),
        float(palm_width),
        float(np.clip(rng.normal(0.0, 8.0), -20.0, 20.0)),
        (float(rng.normal(0.0, 0.03)), float(rng.normal(0.0, 0.03))),
        random_posture(rng),
    )


def random_setting(rng: np.random.Generator, scene_seed: int) -> Setting:
    """Light, exposure and focus within what a working camera gives."""
    return Setting(
        scene_seed,
        Light(
            float(np.clip(rng.normal(0.0, 0.3), -0.6, 0.6)),
            float(np.clip(rng.normal(-0.25, 0.25), -0.7, 0.4)),
        ),
        float(rng.uniform(0.80, 1.10)),
        float(rng.uniform(1.5, 4.0)),
        float(rng.uniform(0.4, 0.9)),
    )


def passage(
    person: SyntheticPerson,
    hand: Handedness,
    seed: int,
    *,
    look: Look = "rgb",
    frames_in: int = 6,
    frames_held: int = 12,
    frames_out: int = 6,
    scene_seed: int = 0,
) -> Iterator[Pixels]:
    """A hand enters from below, is held steadily and leaves; ``seed`` is the occasion, not the person.

    ``scene_seed`` is the place: keep it for all films of one gate, so that the ground does not change.
    """
    rng = np.random.default_rng([_DOMAIN, seed])
    held = random_pose(rng)
    setting = random_setting(rng, scene_seed)
    frames = (frames_in, frames_held, frames_out)
    yield from _film(rng, person, hand, held, setting=setting, look=look, frames=frames)


def poor_capture(
    person: SyntheticPerson,
    hand: Handedness,
    seed: int,
    *,
    look: Look = "rgb",
    frames_in: int = 6,
    frames_held: int = 24,
    frames_out: int = 6,
    scene_seed: int = 0,
) -> Iterator[Pixels]:
    """A hand is there all the while but out of focus and dark: no frame is good enough to be recognised."""
    rng = np.random.default_rng([_DOMAIN, seed, 1])
    held = random_pose(rng)
    good = random_setting(rng, scene_seed)
    poor = Setting(scene_seed, good.light, 0.6, 3.0, 9.0)
    frames = (frames_in, frames_held, frames_out)
    yield from _film(rng, person, hand, held, setting=poor, look=look, frames=frames)


def empty_scene(seed: int, n: int, *, look: Look = "rgb", scene_seed: int = 0) -> Iterator[Pixels]:
    """An empty scene: ``n`` frames of the ground."""
    rng = np.random.default_rng([_DOMAIN, seed, 2])
    setting = random_setting(rng, scene_seed)
    for _ in range(n):
        yield render_frame(None, None, Pose(), look, rng, setting=setting)


def show_qr(
    payload: str, seed: int, n: int, *, look: Look = "rgb", scene_seed: int = 0, size: Size = FRAME_SIZE
) -> Iterator[Pixels]:
    """A QR code with this text on a white card held before the camera, ``n`` frames."""
    rng = np.random.default_rng([_DOMAIN, seed, 3])
    setting = random_setting(rng, scene_seed)
    height, width = size
    side = height * rng.uniform(0.58, 0.72)
    centre = np.array([width / 2, height / 2]) + rng.uniform(-0.05, 0.05, 2) * width
    angle = float(np.deg2rad(rng.normal(0.0, 5.0)))
    card = _qr_card(payload)
    for _ in range(n):
        centre = centre + rng.normal(0.0, 0.4, 2)
        angle += float(rng.normal(0.0, 0.002))
        yield expose(_hold_card(card, background(scene_seed, look, size), centre, side, angle), setting, rng)


def _qr_card(payload: str) -> Pixels:
    encoder = cv2.QRCodeEncoder.create()
    code = np.asarray(encoder.encode(payload), dtype=np.uint8)
    enlarged = cv2.resize(code, None, fx=8, fy=8, interpolation=cv2.INTER_NEAREST)
    margin = 8 * 3
    card = cv2.copyMakeBorder(enlarged, margin, margin, margin, margin, cv2.BORDER_CONSTANT, value=(255.0,))
    # Paper and ink are neither pure white nor pure black.
    return np.asarray(cv2.convertScaleAbs(card, alpha=0.78, beta=28), dtype=np.uint8)


def _hold_card(card: Pixels, ground: Pixels, centre: Points, side: float, angle: float) -> Pixels:
    height, width = ground.shape[:2]
    k = side / card.shape[0]
    c, s = float(np.cos(angle)) * k, float(np.sin(angle)) * k
    half = card.shape[0] / 2
    matrix = np.array(
        [[c, -s, centre[0] - half * (c - s)], [s, c, centre[1] - half * (s + c)]], dtype=np.float64
    )
    warped = cv2.warpAffine(card, matrix, (width, height), flags=cv2.INTER_AREA)
    covered = cv2.warpAffine(np.full_like(card, 255), matrix, (width, height))
    if ground.ndim == 3:
        warped, covered = cv2.cvtColor(warped, cv2.COLOR_GRAY2BGR), cv2.cvtColor(covered, cv2.COLOR_GRAY2BGR)
    behind = cv2.multiply(ground, cv2.bitwise_not(covered), scale=1.0 / 255.0)
    return np.asarray(cv2.add(cv2.multiply(warped, covered, scale=1.0 / 255.0), behind), dtype=np.uint8)


def _film(
    rng: np.random.Generator,
    person: SyntheticPerson,
    hand: Handedness,
    held: Pose,
    *,
    setting: Setting,
    look: Look,
    frames: tuple[int, int, int],
) -> Iterator[Pixels]:
    frames_in, frames_held, frames_out = frames
    below = FRAME_SIZE[0] * 1.25

    def shot(dx: float, dy: float, speed: float) -> Pixels:
        pose = replace(held, centre_px=(held.centre_px[0] + dx, held.centre_px[1] + dy))
        blurred = replace(setting, smear_px=10.0 * float(np.sqrt(speed)))
        return render_frame(person, hand, pose, look, rng, setting=blurred)

    for i in range(frames_in):
        left = (1.0 - i / max(1, frames_in)) ** 2
        yield shot(0.0, below * left, left)
    drift = np.zeros(2)
    for _ in range(frames_held):
        drift = drift * 0.8 + rng.normal(0.0, 0.35, 2)
        yield shot(float(drift[0]), float(drift[1]), 0.0)
    for i in range(frames_out):
        gone = ((i + 1) / max(1, frames_out)) ** 2
        yield shot(0.0, below * gone, gone)
