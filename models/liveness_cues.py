"""Single cues of the liveness check: each a number that a picture of a hand raises and a hand does not."""

import math
from itertools import combinations
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.frames import CameraFrame
from models.hand import WORK_WIDTH_PX, Hand

WINDOW_PX: Final = 128
BURNT: Final = 248
GLARE_SHARE: Final = (0.0008, 0.06)
"""Least and most of the frame that a lamp's reflection takes; less is noise, more is too much light."""
GLARE_SIDES: Final = 0.15
"""Least part of a reflection on the palm, and least part next to the hand, if it crosses the outline."""
PALM_SPAN: Final = (0.08, 0.92)
BESIDE_SPAN: Final = (-0.12, 1.12)
"""Across the palm crop: what surely is palm, and beyond what there surely is none."""
BURNT_HAND: Final = 205.0
"""A hand with at least this mean lightness is lit too strongly for a reflection to be evidence."""


PLAIN_EDGE: Final = 8.0
"""Slope of a hand's outline, in levels a pixel, below which its ground is too like it to compare."""
NIR_EDGE: Final = (2.0, 5.0)
"""Slope of the outline in near infrared up to which no hand is there, and from which on one is."""
NIR_REACH: Final = 0.25
"""How far apart two lenses may see a hand, in palm widths."""
_OUTLINE_POINTS: Final = 120
_STEP_PX: Final = 4
_SQUARE_DEG: Final = 12.0
"""How far two edges may be from square to each other."""

_Segment = tuple[float, float, float, float]


class Spectrum:
    """Narrow peaks in the spectrum of the palm: something regular that skin has not."""

    def __init__(self) -> None:
        self._window = np.outer(np.hanning(WINDOW_PX), np.hanning(WINDOW_PX)).astype(np.float32)
        at = np.abs(np.arange(WINDOW_PX) - WINDOW_PX // 2)
        # Finer than creases, which have peaks of their own, and without the outermost bins: there lies what
        # a camera's own mosaic of colours leaves, a pattern two pixels long. JPEG's 8x8 blocks need no
        # exception: down to quality 40 they leave peaks no higher than noise does.
        across, down = np.meshgrid(at, at)
        finest = np.maximum(across, down) >= 0.48 * WINDOW_PX
        self._counted = np.asarray((np.hypot(across, down) > 0.10 * WINDOW_PX) & ~finest)

    def peak(self, plane: NDArray[np.uint8] | NDArray[np.float32], hand: Hand) -> float:
        """How far the strongest peak stands above its surroundings, as a log ratio; 0 for a frame too small.

        ``plane`` (H, W): the frame's lightness, or a difference of its colours.
        """
        left, top = _palm_corner(hand, plane.shape)
        if min(plane.shape) < WINDOW_PX:
            return 0.0
        patch = plane[top : top + WINDOW_PX, left : left + WINDOW_PX].astype(np.float32)
        patch -= cv2.GaussianBlur(patch, (0, 0), 6.0)
        spectrum = cv2.dft(patch * self._window, flags=cv2.DFT_COMPLEX_OUTPUT)
        power = cv2.magnitude(spectrum[:, :, 0], spectrum[:, :, 1])
        level = np.fft.fftshift(np.log(power + 1.0)).astype(np.float32)
        return float((level - cv2.blur(level, (15, 15)))[self._counted].max())


def red_against_blue(frame: CameraFrame) -> NDArray[np.float32]:
    """Red minus blue (H, W): in it a screen's sub-pixels and a print's inks stand apart, skin is smooth."""
    pixels = frame.pixels
    return np.asarray(cv2.subtract(pixels[:, :, 2], pixels[:, :, 0], dtype=cv2.CV_32F), dtype=np.float32)


def small_grey(grey: NDArray[np.uint8], hand: Hand) -> NDArray[np.float32]:
    """The frame at the size of the hand's mask."""
    height, width = hand.mask.shape
    way = cv2.INTER_AREA if grey.shape[1] > WORK_WIDTH_PX else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(grey, (width, height), interpolation=way), dtype=np.float32)


def glare_across(small: NDArray[np.float32], hand: Hand) -> bool:
    """Whether a lamp's reflection lies across the palm's outline, as on glass or glossy paper.

    What shines on skin ends where the skin ends, and what shines behind the hand is covered by it; only
    something smooth before both shines over the outline. ``small``: the frame at the size of the hand's mask.
    Judged by the valleys and not by the mask, for a mask goes around a reflection.
    """
    burnt = np.asarray(small >= BURNT, dtype=np.uint8)
    inside = hand.mask > 0
    if not burnt.any() or float(small[inside].mean() if inside.any() else 255.0) > BURNT_HAND:
        return False
    matrix = hand.to_crop(1)
    count, labels, stats, _ = cv2.connectedComponentsWithStats(burnt)
    for label in range(1, count):
        area = int(stats[label, cv2.CC_STAT_AREA])
        if not GLARE_SHARE[0] <= area / small.size <= GLARE_SHARE[1]:
            continue
        y, x = np.nonzero(labels == label)
        in_frame = np.stack([x + 0.5, y + 0.5]) / hand.mask_scale - 0.5
        across, down = matrix[:, :2] @ in_frame + matrix[:, 2:] + 0.5
        on_palm = (across > PALM_SPAN[0]) & (across < PALM_SPAN[1]) & (down > 0.0) & (down < 1.0)
        beside = (across < BESIDE_SPAN[0]) | (across > BESIDE_SPAN[1])
        if min(float(on_palm.mean()), float(beside.mean())) >= GLARE_SIDES:
            return True
    return False


def missing_in_nir(colour: NDArray[np.float32], infrared: NDArray[np.float32], hand: Hand) -> float | None:
    """0 where the hand's outline stands out in near infrared too, to 1 where there is none.

    ``colour`` (its lightness) and ``infrared`` (h, w): one moment, at the size of the hand's mask. The
    outline may be shifted by what lies between two lenses. None where it hardly stands out in colour, or
    where near infrared is burnt out.
    """
    contours, _ = cv2.findContours(hand.mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    height, width = hand.mask.shape
    x, y = max(contours, key=len)[:, 0, :].T if contours else np.zeros((2, 0), np.int32)
    free = (x > 2) & (y > 2) & (x < width - 3) & (y < height - 3)
    step = max(1, int(free.sum()) // _OUTLINE_POINTS)
    x, y = x[free][::step], y[free][::step]
    if len(x) < _OUTLINE_POINTS // 4 or float(infrared[hand.mask > 0].mean()) > BURNT_HAND:
        return None
    if float(np.median(_slope(colour)[y, x])) < PLAIN_EDGE:
        return None
    reach = int(NIR_REACH * hand.palm_width_px * hand.mask_scale)
    across, down = np.arange(-reach, reach + 1, _STEP_PX), np.arange(-reach // 3, reach // 3 + 1, _STEP_PX)
    right, below = (shift.reshape(-1, 1) for shift in np.meshgrid(across, down))
    seen = _slope(infrared)[np.clip(y + below, 0, height - 1), np.clip(x + right, 0, width - 1)]
    least, most = NIR_EDGE
    return float(np.clip((most - float(np.median(seen, axis=1).max())) / (most - least), 0.0, 1.0))


def _slope(small: NDArray[np.float32]) -> NDArray[np.float32]:
    """Steepest slope within two pixels, in levels a pixel."""
    smooth = cv2.GaussianBlur(small, (5, 5), 0)
    across, down = (cv2.Sobel(smooth, cv2.CV_32F, *way) for way in ((1, 0), (0, 1)))
    steep = cv2.dilate(cv2.magnitude(across, down), np.ones((5, 5), np.uint8))
    return np.asarray(steep / 8.0, dtype=np.float32)


def corners_around(small: NDArray[np.float32], mask: NDArray[np.uint8]) -> float:
    """How many of a rectangle's four corners, 0..4, stand around the hand of ``mask`` in the grey ``small``.

    A corner is where two straight edges, square to each other, both end; it counts for the quarter of the
    image, seen from the hand, that its edges open towards. Edges on the hand itself do not count.
    """
    height, width = mask.shape
    edges = cv2.Canny(np.asarray(small, dtype=np.uint8), 30, 80)
    edges[cv2.dilate(mask, np.ones((9, 9), np.uint8)) > 0] = 0
    least = 0.22 * min(height, width)
    found = cv2.HoughLinesP(edges, 1, math.pi / 180, 28, minLineLength=least, maxLineGap=6)
    if found is None:
        return 0.0
    lines = found.reshape(-1, 4).astype(np.float64)
    lengths = np.hypot(lines[:, 2] - lines[:, 0], lines[:, 3] - lines[:, 1])
    segments: list[_Segment] = [
        (float(a), float(b), float(c), float(d)) for a, b, c, d in lines[np.argsort(-lengths)[:24]]
    ]
    moments = cv2.moments(mask, binaryImage=True)
    if moments["m00"] <= 0:
        return 0.0
    hand = moments["m10"] / moments["m00"], moments["m01"] / moments["m00"]
    quarters = set()
    for one, other in combinations(segments, 2):
        quarter = _corner(one, other, hand)
        if quarter is not None:
            quarters.add(quarter)
    return float(len(quarters))


def _corner(one: _Segment, other: _Segment, hand: tuple[float, float]) -> tuple[bool, bool] | None:
    """The quarter of the image where two segments form a corner that opens towards the hand."""
    turn = abs(math.degrees(_direction(one) - _direction(other))) % 180.0
    if abs(turn - 90.0) > _SQUARE_DEG:
        return None
    near, p, q = min(
        ((math.dist(p, q), p, q) for p in (one[:2], one[2:]) for q in (other[:2], other[2:])),
        key=lambda pair: pair[0],
    )
    if near > 9.0:
        return None
    corner = (p[0] + q[0]) / 2, (p[1] + q[1]) / 2
    ends = [_far_end(one, p), _far_end(other, q)]
    toward = hand[0] - corner[0], hand[1] - corner[1]
    if any((end[0] - corner[0]) * toward[0] + (end[1] - corner[1]) * toward[1] <= 0 for end in ends):
        return None
    return corner[0] > hand[0], corner[1] > hand[1]


def _far_end(segment: _Segment, end: tuple[float, ...]) -> tuple[float, float]:
    first, second = segment[:2], segment[2:]
    return second if end == first else first


def _direction(segment: _Segment) -> float:
    return math.atan2(segment[3] - segment[1], segment[2] - segment[0])


def valleys_in_mask(hand: Hand) -> NDArray[np.float64]:
    """(3, 2): the finger valleys in the pixels of the mask."""
    return np.asarray((hand.valleys[1:].astype(np.float64) + 0.5) * hand.mask_scale - 0.5)


def moved_along(
    before: NDArray[np.float32],
    now: NDArray[np.float32],
    masks: tuple[NDArray[np.uint8], NDArray[np.uint8]],
    moved: NDArray[np.float64],
) -> float | None:
    """Parallax: 0 where the surroundings kept still while the hand moved, to 1.5 where they moved with it.

    ``before``, ``now`` (h, w) and the hand's ``masks`` in them; ``moved`` (2,) in their pixels. None where
    the hand hardly moved or the surroundings have too little texture.
    """
    dx, dy = (round(float(d)) for d in moved)
    if not 3 <= max(abs(dx), abs(dy)) <= 60:
        return None
    shift = np.array([[1.0, 0.0, dx], [0.0, 1.0, dy]])
    size = (now.shape[1], now.shape[0])
    carried = cv2.warpAffine(before, shift, size, borderMode=cv2.BORDER_REPLICATE)
    seen = cv2.warpAffine(np.full_like(masks[0], 255), shift, size) > 0
    free = _ring(masks[1]) & seen & (cv2.dilate(masks[0], np.ones((7, 7), np.uint8)) == 0)
    if int(free.sum()) < 200:
        return None
    still = float(np.abs(now - before)[free].mean())
    along = float(np.abs(now - carried)[free].mean())
    if max(still, along) < 2.5:
        return None
    return float(np.clip(math.log((still + 0.7) / (along + 0.7)), 0.0, 1.5))


def _palm_corner(hand: Hand, shape: tuple[int, ...]) -> tuple[int, int]:
    """Left and top of the window on the middle of the palm crop, in frame pixels."""
    matrix = hand.to_crop(1)
    x, y = np.linalg.solve(matrix[:, :2], -matrix[:, 2])
    half = WINDOW_PX // 2
    height, width = shape[0], shape[1]
    left = int(np.clip(x - half, 0, max(0, width - WINDOW_PX)))
    return left, int(np.clip(y - half, 0, max(0, height - WINDOW_PX)))


def _ring(mask: NDArray[np.uint8]) -> NDArray[np.bool_]:
    near = cv2.dilate(mask, np.ones((11, 11), np.uint8))
    far = cv2.dilate(near, np.ones((31, 31), np.uint8))
    return np.asarray((far > 0) & (near == 0))
