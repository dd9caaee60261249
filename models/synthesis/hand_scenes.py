"""A hand anywhere, at any angle, before anything: scenes for teaching and judging the finding of hands."""

from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import Handedness
from models.synthesis.background import Look, Pixels, background
from models.synthesis.clutter import clutter
from models.synthesis.person import make_person
from models.synthesis.raster import Points
from models.synthesis.render import FRAME_SIZE, Size, project
from models.synthesis.worn_hand import FIST, POINTING, PRESSED, WornHand, open_hand, shut_hand, wide_posture

Homography = NDArray[np.float64]

_DOMAIN: Final = 0x5CE7
_CLOSED: Final = {"shut": (FIST, POINTING, PRESSED), "together": (PRESSED,), "folded": (FIST, POINTING)}


@dataclass(frozen=True, slots=True, eq=False)
class HandScene:
    """One picture and where its hand is, if it shows one."""

    pixels: Pixels
    """BGR (H, W, 3) or grey (H, W)."""
    points: Points | None
    """(6, 2) in picture pixels, by ``worn_hand.POINT_NAMES``."""
    handedness: Handedness
    is_open: bool
    palm_width_px: float
    covered: Pixels
    """(H, W) of 0 to 255: the hand."""


def hand_scene(
    seed: int, kind: str, look: Look, *, person: int, handedness: Handedness, size: Size = FRAME_SIZE
) -> HandScene:
    """A whole scene with a hand of this person, the same for the same arguments.

    ``kind``: ``clean`` (an upright hand, plain ground), ``turned`` (any angle, plain ground), ``clutter``
    (any angle, cluttered ground), ``small`` (the same, the palm a seventh of the shorter side), ``together``
    (fingers pressed together, in clutter), ``folded`` (a fist or a pointing hand in clutter), ``shut`` (one
    of the two before) or ``empty`` (clutter alone).
    """
    rng = np.random.default_rng([_DOMAIN, seed])
    plain = kind in {"clean", "turned"}
    ground = (background if plain else clutter)(int(rng.integers(1 << 31)), look, size)
    if kind == "empty":
        pixels = develop(rng, ground, lively=True)
        return HandScene(pixels, None, handedness, False, 0.0, np.zeros(size, np.uint8))
    if kind in _CLOSED:
        worn = shut_hand(rng, person, handedness, look, _CLOSED[kind])
    else:
        worn = open_hand(rng, make_person(person), handedness, look, wide_posture(rng))
    short = min(size)
    palm_px = short * (0.14 if kind == "small" else float(rng.uniform(0.24, 0.48)))
    angle = float(rng.normal(0.0, 10.0) if kind == "clean" else rng.uniform(-180.0, 180.0))
    middle = np.array(size[::-1]) / 2 + rng.uniform(-0.08, 0.08, 2) * short
    # The frame's middle holds the whole hand, not the palm alone.
    middle += 0.2 * palm_px * np.array([-np.sin(np.deg2rad(angle)), np.cos(np.deg2rad(angle))])
    tilt = rng.normal(0.0, 0.03 if plain else 0.07, 2)
    matrix = place(worn, middle, palm_px, angle, (tilt, squash(rng, 0.03 if plain else 0.12)))
    field = bend(rng, size, palm_px * (0.0 if plain else 0.02))
    pixels, covered = compose(ground, worn.pixels, matrix, field)
    points = unbend(project(matrix, worn.points), field)
    return HandScene(
        develop(rng, pixels, lively=not plain),
        points,
        handedness,
        worn.is_open or kind == "together",
        palm_px,
        covered,
    )


def squash(rng: np.random.Generator, most: float) -> NDArray[np.float64]:
    """A random foreshortening (2, 2): a hand that is turned away from the camera is shorter one way."""
    turn, short = rng.uniform(0.0, np.pi), 1.0 - abs(rng.normal(0.0, most))
    c, s = np.cos(turn), np.sin(turn)
    axes = np.array([[c, -s], [s, c]])
    return np.asarray(axes @ np.diag([max(short, 0.6), 1.0]) @ axes.T)


def place(
    worn: WornHand,
    middle: NDArray[np.float64],
    palm_px: float,
    angle_deg: float,
    lean: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> Homography:
    """3x3 homography from canvas pixels: palm centre to ``middle``, turned clockwise by the angle.

    ``lean``: tilt (2,) as in ``Pose``, and a ``squash`` (2, 2).
    """
    tilt, shape = lean
    scale, angle = palm_px / worn.palm_width_px, np.deg2rad(angle_deg)
    turn = np.eye(3)
    turn[:2, :2] = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) @ shape
    away, home, there = np.eye(3), np.eye(3), np.eye(3)
    away[2, :2] = -tilt / palm_px
    home[:2, 2] = -worn.points[5]
    there[:2, 2] = middle
    return np.asarray(there @ away @ turn @ home)


def bend(rng: np.random.Generator, size: Size, amount_px: float) -> NDArray[np.float32] | None:
    """A smooth displacement (H, W, 2) in pixels, about ``amount_px`` large; None where it is nothing."""
    if amount_px < 0.05:
        return None
    coarse = rng.standard_normal((5, 5, 2)).astype(np.float32) * np.float32(amount_px)
    return np.asarray(cv2.resize(coarse, size[::-1], interpolation=cv2.INTER_CUBIC), dtype=np.float32)


def unbend(points: Points, field: NDArray[np.float32] | None) -> Points:
    """Where points (n, 2) of the picture before bending are after it."""
    if field is None:
        return points
    height, width = field.shape[:2]
    found = points.copy()
    for _ in range(4):
        at = np.clip(np.round(found), 0, (width - 1, height - 1)).astype(int)
        found = points - field[at[:, 1], at[:, 0]]
    return found


def compose(
    ground: Pixels, hand: Pixels, matrix: Homography, field: NDArray[np.float32] | None
) -> tuple[Pixels, Pixels]:
    """The hand (premultiplied, alpha last) before the ground, and the hand's cover (H, W)."""
    height, width = ground.shape[:2]
    warped = cv2.warpPerspective(hand, matrix, (width, height), flags=cv2.INTER_LINEAR)
    if field is not None:
        y, x = np.mgrid[0:height, 0:width].astype(np.float32)
        warped = cv2.remap(warped, x + field[:, :, 0], y + field[:, :, 1], cv2.INTER_LINEAR)
    alpha = np.ascontiguousarray(warped[:, :, -1])
    skin = warped[:, :, 0] if ground.ndim == 2 else warped[:, :, :3]
    cover = alpha if ground.ndim == 2 else cv2.cvtColor(alpha, cv2.COLOR_GRAY2BGR)
    behind = cv2.multiply(ground, cv2.bitwise_not(cover), scale=1.0 / 255.0)
    return np.asarray(cv2.add(np.ascontiguousarray(skin), behind), dtype=np.uint8), np.asarray(
        alpha, np.uint8
    )


def develop(rng: np.random.Generator, pixels: Pixels, *, lively: bool) -> Pixels:
    """Light across the scene, shadow, exposure, gamma, focus, noise, and now and then JPEG."""
    height, width = pixels.shape[:2]
    scale = width / 640.0
    image = pixels.astype(np.float32)
    if lively:
        light = _uneven_light(rng, (height, width))
        image *= light if pixels.ndim == 2 else light[:, :, None]
        gamma = float(np.exp(rng.normal(0.0, 0.2)))
        image = np.asarray(255.0 * cv2.pow(np.clip(image, 0.0, 255.0) / np.float32(255.0), gamma), np.float32)
    image *= np.float32(rng.uniform(0.45, 1.35) if lively else rng.uniform(0.8, 1.1))
    blur = scale * float(rng.uniform(0.4, 2.6) if lively else rng.uniform(0.4, 0.9))
    if blur > 0.25:
        image = np.asarray(cv2.GaussianBlur(image, (0, 0), blur), np.float32)
    noise = float(rng.uniform(1.0, 7.0) if lively else rng.uniform(1.5, 4.0)) * max(scale, 0.5)
    image += rng.standard_normal(image.shape, dtype=np.float32) * np.float32(noise)
    out = np.clip(image, 0.0, 255.0).astype(np.uint8)
    if lively and rng.random() < 0.15:
        coded = cv2.imencode(".jpg", out, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(35, 90))])[1]
        out = np.asarray(cv2.imdecode(coded, cv2.IMREAD_UNCHANGED), dtype=np.uint8)
    return out


def _uneven_light(rng: np.random.Generator, size: Size) -> NDArray[np.float32]:
    """Brightness (H, W) around 1: a slope, and with luck a shadow with a soft edge."""
    coarse = 1.0 + rng.normal(0.0, 0.18, (3, 3)).astype(np.float32)
    light = cv2.resize(np.clip(coarse, 0.4, 1.8), size[::-1], interpolation=cv2.INTER_CUBIC)
    if rng.random() < 0.3:
        shadow = np.full((24, 32), 1.0, dtype=np.float32)
        corners = rng.uniform((-8.0, -8.0), (40.0, 32.0), (int(rng.integers(3, 6)), 2))
        cv2.fillPoly(shadow, [np.round(corners).astype(np.int32)], (float(rng.uniform(0.45, 0.85)),))
        light = light * cv2.resize(shadow, size[::-1], interpolation=cv2.INTER_LINEAR)
    return np.asarray(light, dtype=np.float32)
