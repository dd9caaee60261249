"""Is this capture good enough to be recognised, and if not, what should the person do?

Every component is 0..100 and the weakest one is the quality: a sharp picture of half a palm is half a palm.
"""

import math
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import CROP_SIZE, similarity_from_valleys
from models.frames import Frame
from models.hand import Hand, Hint

HINT_BELOW: Final = 60
"""A component under this gives the person a hint."""

SAME_MOVE_MS: Final = 200
"""Hands farther apart in time than this say nothing about motion blur."""

_NOISE_KERNEL: Final = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], dtype=np.float32)
_NOISE_IN_FINE: Final = 0.23
"""Standard deviation that white noise of 1 keeps in the fine band below."""


@dataclass(frozen=True, slots=True)
class Quality:
    """How good a capture is, 0..100 each; ``quality_q`` is the least of the others."""

    quality_q: int
    sharpness: float
    exposure: float
    coverage: float
    pose: float
    motion: float
    hint: Hint | None


def assess(frame: Frame, hand: Hand, crop: NDArray[np.uint8], previous: Hand | None) -> Quality:
    """Judge one capture: ``crop`` (112, 112) uint8 of ``hand`` in ``frame``; ``previous`` is the hand before.

    Never raises. ``quality_q`` measured on generated captures (40 people, least / 5 % / median / 95 %):

    ====================================  =====================  =====================
    capture                               colour                 near infrared
    ====================================  =====================  =====================
    held before a working camera          100 / 100 / 100 / 100  68 / 75 / 95 / 100
    defocus of 2.5 pixels                 46 / 48 / 64 / 83      18 / 23 / 40 / 57
    defocus of 4 pixels                   0 / 0 / 16 / 29        0 / 0 / 5 / 19
    defocus of 7.5 pixels, dark, noisy    0 / 0 / 0 / 25         0 / 0 / 13 / 34
    exposure 0.3 of normal                72 / 82 / 100 / 100    69 / 76 / 95 / 100
    exposure 0.15 of normal               18 / 23 / 38 / 49      28 / 31 / 38 / 40
    ====================================  =====================  =====================

    Photographs of real hands, in focus on plain grounds: 58 to 100 where the palm is 280 pixels wide or more.
    """
    parts = {
        "sharpness": sharpness(crop),
        "exposure": _exposure(crop),
        "coverage": _coverage(frame, hand),
        "pose": _pose(frame, hand),
        "motion": _motion(hand, previous),
    }
    return Quality(quality_q=round(min(parts.values())), **parts, hint=_hint(hand, parts))


def sharpness(crop: NDArray[np.uint8]) -> float:
    """0..100 from the share of fine among coarse detail, and from how much detail there is at all.

    Bands are differences of Gaussians at 1–2 and 2–4 crop pixels: blur takes the fine one first, whatever the
    contrast of skin and light. Sensor noise is estimated (Immerkær 1996) and taken out of the fine band, so
    that a dark, noisy frame does not pass for a sharp one.
    """
    image = crop.astype(np.float32)
    inner = slice(8, -8)
    noise = float(np.median(np.abs(cv2.filter2D(image, -1, _NOISE_KERNEL)[inner, inner]))) / (0.6745 * 6.0)
    one = cv2.GaussianBlur(image, (0, 0), 1.0)
    two = cv2.GaussianBlur(image, (0, 0), 2.0)
    four = cv2.GaussianBlur(image, (0, 0), 4.0)
    fine = float((one - two)[inner, inner].std())
    coarse = float((two - four)[inner, inner].std())
    fine = math.sqrt(max(0.0, fine * fine - (_NOISE_IN_FINE * noise) ** 2))
    relative = fine / max(float(image.mean()), 1.0)
    return min(_ramp(fine / max(coarse, 0.05), 0.45, 0.75), _ramp(relative, 0.002, 0.009))


def _exposure(crop: NDArray[np.uint8]) -> float:
    """0..100: neither too dark to see nor burnt out; a dark skin in good light is well exposed."""
    mean = float(crop.mean())
    burnt = float((crop >= 252).mean())
    return min(_ramp(mean, 12.0, 45.0), _ramp(mean, 248.0, 215.0), _ramp(burnt, 0.30, 0.02))


def _coverage(frame: Frame, hand: Hand) -> float:
    """0..100: how much of the crop is inside the frame and on the hand."""
    matrix = similarity_from_valleys(hand.valleys, hand.handedness)
    steps = np.linspace(4.0, CROP_SIZE - 5.0, 14)
    grid = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
    x, y = np.linalg.solve(matrix[:, :2], (grid - matrix[:, 2]).T)
    inside = (x >= 0) & (y >= 0) & (x < frame.width) & (y < frame.height)
    rows = np.clip((y * hand.mask_scale).astype(int), 0, hand.mask.shape[0] - 1)
    columns = np.clip((x * hand.mask_scale).astype(int), 0, hand.mask.shape[1] - 1)
    return _ramp(float((inside & (hand.mask[rows, columns] > 0)).mean()), 0.55, 0.90)


def _pose(frame: Frame, hand: Hand) -> float:
    """0..100: large enough, not turned far, proportions of an open hand seen from the front."""
    return min(
        _ramp(hand.palm_width_px, 60.0, 110.0),
        _ramp(hand.palm_width_px / min(frame.width, frame.height), 1.1, 0.8),
        _ramp(abs(hand.angle_deg), 120.0, 45.0),
        _ramp(hand.confidence, 0.10, 0.45),
    )


def _motion(hand: Hand, previous: Hand | None) -> float:
    """0..100 from the speed since the hand before, in palm widths a second; 100 where none is known."""
    if previous is None or previous.handedness != hand.handedness:
        return 100.0
    elapsed_ms = hand.at_ms - previous.at_ms
    if not 0 < elapsed_ms <= SAME_MOVE_MS:
        return 100.0
    # Blur itself is seen in the sharpness; this is for hands that pass by. The noise of the valleys would
    # look fast to a fast camera, so the time counts as a thirtieth of a second at least.
    moved = float(np.hypot(*(hand.valleys[1:] - previous.valleys[1:]).mean(axis=0)))
    speed = moved / max(hand.palm_width_px, 1.0) / (max(elapsed_ms, 33) / 1000.0)
    return _ramp(speed, 6.0, 1.5)


def _hint(hand: Hand, parts: dict[str, float]) -> Hint | None:
    if hand.hint is not None:
        return hand.hint
    weakest = min(parts, key=lambda name: parts[name])
    if parts[weakest] >= HINT_BELOW:
        return None
    if weakest == "coverage":
        return "center"
    if weakest == "pose":
        return "closer" if hand.palm_width_px < 110.0 else "open_hand"
    return "hold_still"


def _ramp(value: float, at_zero: float, at_hundred: float) -> float:
    """0 at and beyond ``at_zero``, 100 at and beyond ``at_hundred``, straight between; NaN counts as 0."""
    share = (value - at_zero) / (at_hundred - at_zero)
    return 0.0 if math.isnan(share) else 100.0 * min(1.0, max(0.0, share))
