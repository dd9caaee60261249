"""Is this capture good enough to be recognised, and if not, what should the person do?

Six components, 0..100 each, say what is wrong (in the spirit of ISO/IEC 29794-1); ``quality_q`` says what it
comes to: how likely this capture is to be rejected although the right person is enrolled. The mapping from
one to the other was fitted on generated captures (``models.training.calibrate_quality``) and lies in
``quality_calibration.json``: docs/lab/QUALITY.md shows how well it predicts.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal, get_args

import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import CROP_SIZE
from models.errors import ManifestError
from models.frames import CameraFrame
from models.hand import Hand, Hint

Component = Literal["sharpness", "exposure", "coverage", "pose", "occlusion", "motion"]
COMPONENTS: Final[tuple[Component, ...]] = get_args(Component)

CALIBRATION_PATH: Final = Path(__file__).with_name("quality_calibration.json")
WORST_LIMIT: Final = 30
"""``quality_q`` is at most this much above the weakest component. One flaw cannot be offset by five virtues:
below 15 in any component no passage (45), below 35 no enrolment (65), at any fitted value."""

HINT_BELOW: Final = 60
"""A component under this gives the person a hint."""

SAME_MOVE_MS: Final = 200
"""Hands farther apart in time than this say nothing about motion blur."""

CLEAR: Final = (0.16, 1.0)
"""What :func:`sharpness` measures, at 0 and 100, so that the cap above means what the scale does: of palms
spoilt by nothing else 25 % are rejected at 15, 10 % at 35 (``models.training.spoilt_crops``)."""
FINE_OF_COARSE: Final = (0.345, 0.62)
FINE_OF_LIGHT: Final = (0.0, 0.00566)
"""What :func:`fine_detail` measures, at 0 and 100; 60 is what liveness needs."""
BLURRED_LIMIT: Final = 64
"""``quality_q`` is at most this without fine detail: the right hand is recognised all the same, but a blurred
palm that is enrolled (from 65 on) comes nearer to blurred strangers."""
FAINT: Final = 2.0
"""Standard deviation of the noise, in grey levels, that is taken for granted in any picture."""

_NOISE_KERNEL: Final = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], dtype=np.float32)
_NOISE_IN_FINE: Final = 0.23
"""Standard deviation that white noise of 1 keeps in the fine band of :func:`fine_detail`."""

CELLS: Final = 16
"""The crop is looked at as 16x16 cells of 7 pixels, wider than any crease."""
LIGHT_LIMIT: Final = 0.35
"""In log lightness, from a plane: what creases and shading of most palms stay below in most cells."""
COLOUR_LIMIT: Final = 0.12
"""Difference of Cr or Cb from the palm's own, as part of the lightness."""
_DARK: Final = 60.0
"""Below this lightness noise dominates the colour: the colour is divided by this instead."""
_ROUNDS: Final = 5
_OUTLIER: Final = 0.2
"""In log lightness: cells this far from the plane count a quarter in placing it."""


@dataclass(frozen=True, slots=True)
class Quality:
    """How good a capture is, 0..100 each: what it comes to, and of what it is made."""

    quality_q: int
    sharpness: float
    exposure: float
    coverage: float
    pose: float
    occlusion: float
    """100: nothing but palm in the crop."""
    motion: float
    detail: float
    """Of :func:`fine_detail`."""
    hint: Hint | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """From components to ``quality_q``: a logistic regression, and what its log odds are on the scale.

    Every component adds ``linear * f + square * f²`` to the log odds of a false non-match, where ``f`` is
    what it lacks (1 at component 0, 0 at 100). No weight is negative and ``knots`` only fall, so that a
    better component never lowers the quality.
    """

    faultless: float
    """Log odds with every component at 100."""
    weights: Mapping[Component, tuple[float, float]]
    knots: tuple[tuple[float, float], ...]
    """Log odds, rising, and the quality at each; straight between, level beyond."""

    def log_odds(self, parts: Mapping[Component, float]) -> float:
        """Of a false non-match in one comparison at the operating threshold."""
        sum_ = self.faultless
        for name, (linear, square) in self.weights.items():
            lacks = 1.0 - parts[name] / 100.0
            sum_ += linear * lacks + square * lacks * lacks
        return sum_

    def fitted(self, parts: Mapping[Component, float]) -> float:
        """0..100, as the captures of the fit would have it."""
        odds, points = zip(*self.knots, strict=True)
        return float(np.interp(self.log_odds(parts), odds, points))

    def quality(self, parts: Mapping[Component, float], detail: float) -> int:
        """0..100: the fitted one, but at most ``WORST_LIMIT`` above the weakest component, and at most
        ``BLURRED_LIMIT`` where :func:`fine_detail` says that there is too little of it."""
        most = WORST_LIMIT + min(parts.values())
        return round(min(self.fitted(parts), most, 100 if detail >= HINT_BELOW else BLURRED_LIMIT))


def assess(frame: CameraFrame, hand: Hand, crop: NDArray[np.uint8], previous: Hand | None) -> Quality:
    """Judge one capture: ``crop`` (112, 112) uint8 of ``hand`` in ``frame``; ``previous`` is the hand before.

    Never raises.
    """
    parts, detail = components(frame, hand, crop, previous), fine_detail(crop)
    quality_q = shipped_calibration().quality(parts, detail)
    return Quality(quality_q, **parts, detail=detail, hint=_hint(hand, parts, detail))


def components(
    frame: CameraFrame, hand: Hand, crop: NDArray[np.uint8], previous: Hand | None
) -> dict[Component, float]:
    """What :func:`assess` judges by, 0..100 each."""
    return {
        "sharpness": sharpness(crop, hand.palm_width_px),
        "exposure": _exposure(crop),
        "coverage": _coverage(frame, hand),
        "pose": _pose(frame, hand),
        "occlusion": _ramp(foreign_share(frame, hand, crop), 0.35, 0.08),
        "motion": _motion(hand, previous),
    }


@cache
def shipped_calibration() -> Calibration:
    """The mapping that comes with this package."""
    return read_calibration(CALIBRATION_PATH)


def read_calibration(path: Path) -> Calibration:
    """The mapping in a file that ``models.training.calibrate_quality`` wrote. Raises ``ManifestError``."""
    try:
        raw = json.loads(path.read_bytes())
        found = Calibration(
            float(raw["faultless"]),
            {name: (float(raw["weights"][name][0]), float(raw["weights"][name][1])) for name in COMPONENTS},
            tuple((float(odds), float(quality)) for odds, quality in raw["knots"]),
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError) as e:
        raise ManifestError(
            f"{path} must hold faultless, knots, and two weights for each of {', '.join(COMPONENTS)} "
            f"({type(e).__name__}); install the package again"
        ) from e
    weights = [weight for pair in found.weights.values() for weight in pair]
    steps = np.diff(np.array(found.knots), axis=0) if len(found.knots) > 1 else np.zeros((1, 2))
    if not (math.isfinite(found.faultless + sum(weights)) and min(weights) >= 0.0):
        raise ManifestError(f"{path}: every weight must be 0 or more; install the package again")
    if not ((steps[:, 0] > 0.0).all() and (steps[:, 1] < 0.0).all()):
        raise ManifestError(f"{path}: along knots log odds must rise and quality fall; install it again")
    return found


def sharpness(crop: NDArray[np.uint8], palm_width_px: float) -> float:
    """0..100: whether the lines of a palm, ``crop`` (112, 112), can be told from blur and noise.

    The vector reads lines of some four pixels of the crop; finer detail neither helps nor hurts it. So two
    things count: how much there is at that width as a part of the next coarser band, which falls with blur
    and not with the contrast of skin and light; and how much it is above the noise, to which a palm of few
    pixels (``palm_width_px`` in the picture) adds. Bands are differences of Gaussians at 3, 6 and 12 pixels.
    """
    image = crop.astype(np.float32)
    half = cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    one, two, four = (cv2.GaussianBlur(half, (0, 0), sigma) for sigma in (1.5, 3.0, 6.0))
    fine, coarse = (float((near - far)[4:-4, 4:-4].std()) for near, far in ((one, two), (two, four)))
    above_noise = fine / (_noise(image) + FAINT) * min(1.0, palm_width_px / CROP_SIZE)
    return _ramp(above_noise * fine / max(coarse, 0.05), *CLEAR)


def fine_detail(crop: NDArray[np.uint8]) -> float:
    """0..100: whether ``crop`` (112, 112) is so sharp that a screen's pixels or a print's dots would show.

    A blurred palm can be recognised, but not told from a blurred picture of it, so liveness needs this. The
    share of detail of 1 to 2 pixels, without noise, in that of 2 to 4, and how much there is at all.
    """
    image = crop.astype(np.float32)
    one, two, four = (cv2.GaussianBlur(image, (0, 0), sigma) for sigma in (1.0, 2.0, 4.0))
    fine, coarse = (float((near - far)[8:-8, 8:-8].std()) for near, far in ((one, two), (two, four)))
    fine = math.sqrt(max(0.0, fine * fine - (_NOISE_IN_FINE * _noise(image)) ** 2))
    share, relative = fine / max(coarse, 0.05), fine / max(float(image.mean()), 1.0)
    return min(_ramp(share, *FINE_OF_COARSE), _ramp(relative, *FINE_OF_LIGHT))


def _noise(image: NDArray[np.float32]) -> float:
    """Standard deviation of the noise, in grey levels (Immerkær 1996), from every fourth pixel."""
    rough = cv2.filter2D(image, -1, _NOISE_KERNEL)[8:-8:2, 8:-8:2]
    return float(np.median(np.abs(rough))) / (0.6745 * 6.0)


def _exposure(crop: NDArray[np.uint8]) -> float:
    """0..100: neither too dark to see nor burnt out; a dark skin in good light is well exposed."""
    mean = float(crop.mean())
    burnt = float((crop >= 252).mean())
    return min(_ramp(mean, 12.0, 45.0), _ramp(mean, 248.0, 215.0), _ramp(burnt, 0.30, 0.02))


def _coverage(frame: CameraFrame, hand: Hand) -> float:
    """0..100: how much of the crop is inside the frame and on the hand."""
    matrix = hand.to_crop()
    steps = np.linspace(4.0, CROP_SIZE - 5.0, 14)
    grid = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
    x, y = np.linalg.solve(matrix[:, :2], (grid - matrix[:, 2]).T)
    inside = (x >= 0) & (y >= 0) & (x < frame.width) & (y < frame.height)
    rows = np.clip((y * hand.mask_scale).astype(int), 0, hand.mask.shape[0] - 1)
    columns = np.clip((x * hand.mask_scale).astype(int), 0, hand.mask.shape[1] - 1)
    return _ramp(float((inside & (hand.mask[rows, columns] > 0)).mean()), 0.55, 0.90)


def _pose(frame: CameraFrame, hand: Hand) -> float:
    """0..100: not too large, no speck, proportions of an open hand. However a hand is turned, its crop is
    upright; what few pixels cost is in its sharpness."""
    return min(
        _ramp(hand.palm_width_px, 30.0, 60.0),
        _ramp(hand.palm_width_px / min(frame.width, frame.height), 1.1, 0.8),
        _ramp(hand.confidence, 0.10, 0.45),
    )


def foreign_share(frame: CameraFrame, hand: Hand, crop: NDArray[np.uint8]) -> float:
    """0..1: share of the cells of ``crop`` (112, 112) uint8 that show something else than the palm: a
    plaster, a sleeve, a strap, dirt.

    Skin under one light is nearly a plane of lightness with lines on it. What differs from that plane over a
    whole cell, in lightness or in colour, is something else. A frame without colours is judged by lightness
    alone. Never raises. About 0.3 ms.
    """
    cells = cv2.resize(crop, (CELLS, CELLS), interpolation=cv2.INTER_AREA)
    foreign = np.abs(_off_plane(np.log(cells.reshape(-1).astype(np.float64) + 8.0))) > LIGHT_LIMIT
    if frame.is_colour:
        foreign |= _off_colour(frame, hand) > COLOUR_LIMIT
    return float(foreign.mean())


def _off_plane(light: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distances of the cells from a plane through most of them, by weights that fall to nothing for outliers
    (Geman and McClure 1987). A curved surface would follow a large plaster."""
    terms = _terms()
    weight = np.ones(len(light))
    residual = light
    for _ in range(_ROUNDS):
        weighted = terms * weight[:, None]
        # The small ridge keeps the system regular where nearly every cell was left out.
        plane = np.linalg.solve(weighted.T @ terms + 1e-6 * np.eye(3), weighted.T @ light)
        residual = light - terms @ plane
        weight = (1.0 + (residual / _OUTLIER) ** 2) ** -2
    return residual


def _off_colour(frame: CameraFrame, hand: Hand) -> NDArray[np.float64]:
    """Each cell's distance from the palm's median colour."""
    twice = 2 * CELLS
    matrix = hand.to_crop() * (twice / CROP_SIZE)
    small = cv2.warpAffine(
        frame.pixels, matrix, (twice, twice), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
    )
    small = cv2.resize(small, (CELLS, CELLS), interpolation=cv2.INTER_AREA)
    cells = cv2.cvtColor(small, cv2.COLOR_BGR2YCrCb).reshape(-1, 3).astype(np.float64)
    colours = (cells[:, 1:] - 128.0) / np.maximum(cells[:, :1], _DARK)
    return np.asarray(np.abs(colours - np.median(colours, axis=0)).max(axis=1))


@cache
def _terms() -> NDArray[np.float64]:
    """(cells, 3): 1, x, y."""
    y, x = np.mgrid[0:CELLS, 0:CELLS].reshape(2, -1) / (CELLS - 1) * 2.0 - 1.0
    return np.stack([np.ones_like(x), x, y], axis=1)


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


def _hint(hand: Hand, parts: Mapping[Component, float], detail: float) -> Hint | None:
    if hand.hint is not None:
        return hand.hint
    fault = min(parts, key=lambda name: parts[name])
    if parts[fault] >= HINT_BELOW:
        if detail >= HINT_BELOW:
            return None
        fault = "sharpness"
    if fault == "coverage":
        return "center"
    if fault in ("sharpness", "pose") and hand.palm_width_px < CROP_SIZE:
        return "closer"
    return "open_hand" if fault in ("occlusion", "pose") else "hold_still"


def _ramp(value: float, at_zero: float, at_hundred: float) -> float:
    """0 at and beyond ``at_zero``, 100 at and beyond ``at_hundred``, straight between; NaN counts as 0."""
    share = (value - at_zero) / (at_hundred - at_zero)
    return 0.0 if math.isnan(share) else 100.0 * min(1.0, max(0.0, share))
