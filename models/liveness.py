"""Is this a hand before the camera, or a picture of one? A first check with weak passive cues.

Three cues, gathered from the first sight of an open hand on, so that the first good frame can be judged:

- ``moire``: the pixels of a screen and the dots of a print beat with the camera's own pixels; in the spectrum
  of the palm that is a narrow peak where skin has none.
- ``frame``: a screen or a sheet has corners; a rectangle's corners around the hand belong to no hand.
- ``ground``: the surroundings of a hand stand still while it moves; those of a pictured hand move along.

What it is not: none of this has been measured on real attacks, and a flawless replay without an edge in view
passes. The figures in the tests are of simulated attacks, a regression test and no attack error rate of
ISO/IEC 30107-3.
"""

import math
from dataclasses import dataclass
from typing import Final, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from models.frames import Frame, as_grey
from models.hand import WORK_WIDTH_PX, Hand
from models.picture_edges import corners_around
from models.quality import sharpness

MECH: Final = "passive:moire+frame+ground:1"
"""Names the cues and their version in the verdict's ``pad.mech``."""

PASS_Q: Final = 5000
WINDOW_PX: Final = 128
SHARP_ENOUGH: Final = 20.0
"""Below this sharpness a screen's pixels would be blurred away too, so their absence says nothing."""

MOIRE_LIMIT: Final = 2.6
"""Log ratio up to which a spectral peak is chance: generated hands reach 2.0, simulated screens 3.8."""

LEAST_FRAMES: Final = 2
"""Sharp frames before a hand can pass: the ground cue needs two, and two come while a hand slows down."""

_START: Final = 3.2
"""Log odds for a hand before anything is seen: a score of 9600."""


@dataclass(frozen=True, slots=True)
class PadResult:
    """``res``: ``unknown`` until there is something to judge by. ``score_q``: 0 surely a picture .. 10000."""

    res: Literal["pass", "fail", "unknown"]
    mech: str
    score_q: int


@dataclass(frozen=True, slots=True, eq=False)
class _Past:
    """The frame before, made small: what its surroundings looked like."""

    small: NDArray[np.float32]
    mask: NDArray[np.uint8]
    valleys: NDArray[np.float64]


class LivenessCheck:
    """Gathers evidence over one presence of one hand; ``reset`` when another hand comes."""

    def __init__(self) -> None:
        self._window = np.outer(np.hanning(WINDOW_PX), np.hanning(WINDOW_PX)).astype(np.float32)
        self._counted = _counted_frequencies()
        self.reset()

    def reset(self) -> None:
        """Forget everything seen so far."""
        self._moire: list[float] = []
        self._corners: list[float] = []
        self._ground: list[float] = []
        self._past: _Past | None = None

    def check(self, frame: Frame, hand: Hand, crop: NDArray[np.uint8]) -> PadResult:
        """Add one frame's evidence and say what all of it comes to. Never raises."""
        grey = as_grey(frame)
        if sharpness(crop) >= SHARP_ENOUGH:
            self._moire.append(self.periodicity(grey, hand))
        small = _small(grey, hand)
        self._corners.append(corners_around(small, hand.mask))
        self._ground += self._moved_along(small, hand)
        odds = _START
        if self._moire:
            odds -= 4.0 * max(0.0, float(np.median(self._moire[-5:])) - MOIRE_LIMIT)
        odds -= 2.4 * float(np.mean(self._corners[-5:]))
        odds -= 1.5 * sum(self._ground[-8:])
        score_q = round(10_000 / (1.0 + math.exp(-max(-30.0, min(30.0, odds)))))
        if score_q < PASS_Q:
            return PadResult("fail", MECH, score_q)
        return PadResult("pass" if len(self._moire) >= LEAST_FRAMES else "unknown", MECH, score_q)

    def periodicity(self, grey: NDArray[np.uint8], hand: Hand) -> float:
        """How far the strongest spectral peak of the palm stands above its surroundings, as a log ratio."""
        x, y = _palm_middle(hand)
        half = WINDOW_PX // 2
        height, width = grey.shape
        if min(height, width) < WINDOW_PX:
            return 0.0
        left = int(np.clip(x - half, 0, width - WINDOW_PX))
        top = int(np.clip(y - half, 0, height - WINDOW_PX))
        patch = grey[top : top + WINDOW_PX, left : left + WINDOW_PX].astype(np.float32)
        patch -= cv2.GaussianBlur(patch, (0, 0), 6.0)
        spectrum = cv2.dft(patch * self._window, flags=cv2.DFT_COMPLEX_OUTPUT)
        power = cv2.magnitude(spectrum[:, :, 0], spectrum[:, :, 1])
        level = np.fft.fftshift(np.log(power + 1.0)).astype(np.float32)
        around = cv2.blur(level, (15, 15))
        return float((level - around)[self._counted].max())

    def _moved_along(self, small: NDArray[np.float32], hand: Hand) -> list[float]:
        """+1 where the surroundings moved with the hand, 0 where they stood still; nothing where unclear."""
        valleys = (hand.valleys[1:].astype(np.float64) + 0.5) * hand.mask_scale - 0.5
        past, self._past = self._past, _Past(small, hand.mask, valleys)
        if past is None or past.small.shape != small.shape:
            return []
        dx, dy = (round(float(d)) for d in (valleys - past.valleys).mean(axis=0))
        if not 3 <= max(abs(dx), abs(dy)) <= 60:
            return []
        ring = _ring(hand.mask)
        shift = np.array([[1.0, 0.0, dx], [0.0, 1.0, dy]])
        size = (small.shape[1], small.shape[0])
        carried = cv2.warpAffine(past.small, shift, size, borderMode=cv2.BORDER_REPLICATE)
        seen = cv2.warpAffine(np.full_like(past.mask, 255), shift, size) > 0
        free = ring & seen & (cv2.dilate(past.mask, np.ones((7, 7), np.uint8)) == 0)
        if int(free.sum()) < 200:
            return []
        still = float(np.abs(small - past.small)[free].mean())
        along = float(np.abs(small - carried)[free].mean())
        if max(still, along) < 2.5:
            return []  # too plain to tell
        ratio = math.log((still + 0.7) / (along + 0.7))
        return [float(np.clip(ratio, 0.0, 1.5))]


def _counted_frequencies() -> NDArray[np.bool_]:
    """Where in the shifted spectrum peaks count: finer than creases, which have peaks of their own.

    JPEG's 8x8 blocks need no exception: down to quality 40 they leave peaks no higher than noise does.
    """
    at = np.abs(np.arange(WINDOW_PX) - WINDOW_PX // 2)
    return np.asarray(np.hypot(*np.meshgrid(at, at)) > 0.10 * WINDOW_PX)


def _palm_middle(hand: Hand) -> tuple[float, float]:
    """The middle of the palm crop, in frame pixels."""
    middle = hand.valleys[1:].mean(axis=0)
    turn = math.radians(hand.angle_deg)
    down = 0.57 * hand.palm_width_px
    return float(middle[0] - math.sin(turn) * down), float(middle[1] + math.cos(turn) * down)


def _small(grey: NDArray[np.uint8], hand: Hand) -> NDArray[np.float32]:
    height, width = hand.mask.shape
    way = cv2.INTER_AREA if grey.shape[1] > WORK_WIDTH_PX else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(grey, (width, height), interpolation=way), dtype=np.float32)


def _ring(mask: NDArray[np.uint8]) -> NDArray[np.bool_]:
    near = cv2.dilate(mask, np.ones((11, 11), np.uint8))
    far = cv2.dilate(near, np.ones((31, 31), np.uint8))
    return np.asarray((far > 0) & (near == 0))
