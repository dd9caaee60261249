"""From a hand's silhouette to its finger valleys: contour, radial distance from the palm's centre, fingers.

The distance of the contour from the palm's centre, walked once around, rises at every fingertip and falls at
every valley; the wrist or forearm is the one wide rise. Five narrow rises in a row are an open hand, and the
valley that lies far below the line of the three others is the one between thumb and index finger. Distances
are in units of the palm's radius, the largest circle inside the silhouette, so nothing here depends on scale,
place or rotation.
"""

import math
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import Handedness

POINTS: Final = 400
"""The contour is walked in this many equal steps."""

PROMINENCE: Final = 0.22
"""A rise or fall of the radial distance smaller than this (in palm radii) is outline noise."""

FINGER_WIDTH: Final = (0.10, 0.95)
"""How wide a finger may be, in palm radii; a forearm is wider."""

GAP_LEVELS: Final = (0.05, 0.20)
"""Heights above the foot of a gap, in palm radii, between which its middle line is followed."""

FINGER_REACH: Final = 1.4
"""A fingertip is at least this far from the palm's centre, in palm radii."""


_STEPS: Final = np.linspace(-0.5, 0.5, 7)

MIDDLE_OUT: Final = 0.13
"""How far the middle valley lies beyond the line through its neighbours, in parts of their distance."""

TOUCHING_OUT: Final = 0.45
"""Beyond this it is no valley but the place where two touching fingers part."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenHand:
    """Five fingers: ``valleys`` (4, 2) from thumb to little finger, in mask pixels."""

    valleys: NDArray[np.float64]
    centre: NDArray[np.float64]
    radius: float
    handedness: Handedness
    likeness: float
    """0..1: how well the proportions fit an open hand seen from the front."""


@dataclass(frozen=True, slots=True, eq=False)
class Blob:
    """A silhouette with a palm but without five fingers: a fist, closed fingers, or something else."""

    centre: NDArray[np.float64]
    radius: float


@dataclass(frozen=True, slots=True)
class _Rise:
    """One rise of the radial distance: its peak and the falls on both sides, as indices into the walk."""

    before: int
    peak: int
    after: int
    width: float
    reach: float

    @property
    def is_finger(self) -> bool:
        return FINGER_WIDTH[0] <= self.width <= FINGER_WIDTH[1] and self.reach >= FINGER_REACH


def read_shape(silhouette: NDArray[np.uint8], contour: NDArray[np.int32]) -> OpenHand | Blob | None:
    """What a filled silhouette (H, W) of 0 and 255, with its outer ``contour`` (N, 1, 2), shows.

    ``None`` when it has no body at all (a thread, a few pixels).
    """
    height, width = silhouette.shape
    left, top, across, down = cv2.boundingRect(contour)
    body = silhouette[top : top + down, left : left + across]
    framed = cv2.copyMakeBorder(body, 1, 1, 1, 1, cv2.BORDER_CONSTANT, value=0)
    inside = cv2.distanceTransform(framed, cv2.DIST_L2, 3)
    _, radius, _, (x, y) = cv2.minMaxLoc(inside)
    if radius < 6.0 or len(contour) < 40:
        return None
    centre = np.array([left + x - 1, top + y - 1], dtype=np.float64)
    walk = _walk(contour)
    reach = np.hypot(*(walk - centre).T) / radius
    at_edge = (
        (walk[:, 0] < 1.5) | (walk[:, 1] < 1.5) | (walk[:, 0] > width - 2.5) | (walk[:, 1] > height - 2.5)
    )
    reach = _flatten_forearm(walk, reach, at_edge, radius)
    return _best_hand(walk, _rises(walk, reach, radius), centre, radius) or Blob(centre, radius)


def _walk(contour: NDArray[np.int32]) -> NDArray[np.float64]:
    """The contour as ``POINTS`` points (POINTS, 2) at equal steps, lightly smoothed."""
    points = contour[:, 0, :].astype(np.float64)
    closed = np.vstack([points, points[:1]])
    length = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(closed, axis=0).T))])
    at = np.linspace(0.0, length[-1], POINTS, endpoint=False)
    walk = np.stack([np.interp(at, length, closed[:, 0]), np.interp(at, length, closed[:, 1])], axis=1)
    return np.asarray((np.roll(walk, 1, axis=0) + 2 * walk + np.roll(walk, -1, axis=0)) / 4)


def _flatten_forearm(
    walk: NDArray[np.float64], reach: NDArray[np.float64], at_edge: NDArray[np.bool_], radius: float
) -> NDArray[np.float64]:
    """Where the silhouette leaves the image over more than a finger's width, its two corners are one rise."""
    if not at_edge.any() or at_edge.all():
        return reach
    start = int(np.argmin(at_edge))
    edge = np.roll(at_edge, -start)
    flat = np.roll(reach, -start)
    steps = np.flatnonzero(np.diff(np.concatenate([[0], edge.astype(np.int8), [0]])))
    for first, end in zip(steps[::2], steps[1::2], strict=True):
        a, b = walk[(first + start) % POINTS], walk[(end - 1 + start) % POINTS]
        if math.dist(a, b) > FINGER_WIDTH[1] * radius:
            flat[first:end] = flat[first:end].min()
    return np.roll(flat, start)


def _rises(walk: NDArray[np.float64], reach: NDArray[np.float64], radius: float) -> list[_Rise]:
    """The rises of the radial distance, in walking order."""
    start = int(np.argmin(reach))
    level = np.roll(reach, -start).tolist()
    turns: list[int] = [0]  # falls and peaks in turn, beginning and ending with the lowest point of all
    rising, best = True, 0
    for i, value in enumerate(level):
        if (value > level[best]) == rising:
            best = i
        elif abs(value - level[best]) >= PROMINENCE:
            turns.append(best)
            rising, best = not rising, i
    if not rising:
        turns.append(POINTS)
    elif level[best] - level[turns[-1]] >= PROMINENCE:
        turns += [best, POINTS]
    level.append(level[0])
    if turns[1:2] == [0]:
        return []
    rises = []
    for before, peak, after in zip(turns[:-2:2], turns[1:-1:2], turns[2::2], strict=True):
        base = max(level[before], level[after])
        cut = base + 0.3 * (level[peak] - base)
        left = next(i for i in range(peak, before - 1, -1) if level[i] <= cut or i == before)
        right = next(i for i in range(peak, after + 1) if level[i] <= cut or i == after)
        chord = math.dist(walk[(left + start) % POINTS], walk[(right + start) % POINTS])
        at = [(i + start) % POINTS for i in (before, peak, after)]
        rises.append(_Rise(at[0], at[1], at[2], chord / radius, level[peak]))
    return rises


def _best_hand(
    walk: NDArray[np.float64], rises: list[_Rise], centre: NDArray[np.float64], radius: float
) -> OpenHand | None:
    """The most hand-like run of five neighbouring fingers."""
    best: OpenHand | None = None
    count = len(rises)
    if not 5 <= count <= 9:
        return None
    feet: dict[int, NDArray[np.float64]] = {}  # neighbouring runs share three of their four valleys
    for first in range(count):
        run = [(first + k) % count for k in range(5)]
        if not all(rises[i].is_finger for i in run):
            continue
        tips = walk[[rises[i].peak for i in run]]
        for i in run[:4]:
            if i not in feet:
                feet[i] = _valley(walk, rises[i], rises[(i + 1) % count], radius)
        valleys = np.array([feet[i] for i in run[:4]])
        up = tips[1:4].mean(axis=0) - centre
        up /= max(float(np.hypot(*up)), 1e-6)
        # The thumb ends lower than the little finger, and so does the valley next to it.
        lead = float((tips[4] - tips[0] + 2 * (valleys[3] - valleys[0])) @ up) / radius
        if lead < 0:
            tips, valleys = tips[::-1], valleys[::-1]
        hand = _as_hand(tips, valleys, centre, radius, abs(lead))
        if hand is not None and (best is None or hand.likeness > best.likeness):
            best = hand
    return best


def _valley(walk: NDArray[np.float64], one: _Rise, other: _Rise, radius: float) -> NDArray[np.float64]:
    """The foot of the gap between two fingers.

    The deepest outline point alone jumps along the gap's round end, so the gap's middle line is followed down
    from both sides and meets the end there. First with the line over the tips as horizon, then square to the
    gap itself, since neighbouring fingers differ in length.
    """
    a, b = walk[one.peak], walk[other.peak]
    span = (other.peak - one.peak) % POINTS
    between = walk[(one.peak + np.arange(span + 1)) % POINTS]
    along = (b - a) / max(math.dist(a, b), 1e-6)
    down = np.array([-along[1], along[0]])
    if np.abs((between - a) @ down).max() > ((between - a) @ down).max():
        down = -down
    foot, line = _gap(between, along, down, (0.1 * radius, 0.5 * radius))
    tilt = min(max(line, -0.7), 0.7)
    down = (down + tilt * along) / math.hypot(1.0, tilt)
    along = (along - tilt * down) - down * float((along - tilt * down) @ down)
    along /= math.hypot(*along)
    foot, _ = _gap(between, along, down, (GAP_LEVELS[0] * radius, GAP_LEVELS[1] * radius))
    return foot


def _gap(
    between: NDArray[np.float64],
    along: NDArray[np.float64],
    down: NDArray[np.float64],
    heights: tuple[float, float],
) -> tuple[NDArray[np.float64], float]:
    """The foot of a gap seen along ``down``, and by how much its middle line leans per pixel of depth."""
    across, depth = between @ along, between @ down
    deepest = int(np.argmax(depth))
    off = (heights[0] - heights[1]) * _STEPS
    level = float(depth[deepest]) - sum(heights) / 2
    levels = level + off
    # The sides need not fall evenly; np.interp needs a rising line, so the running maximum replaces them.
    left = np.interp(levels, np.maximum.accumulate(depth[: deepest + 1]), across[: deepest + 1])
    right = np.interp(levels, np.maximum.accumulate(depth[deepest:][::-1]), across[deepest:][::-1])
    middle = (left + right) / 2
    # The slope of the straight line of least squares; np.polyfit takes ten times as long for it.
    lean = float(off @ middle) / float(off @ off)
    near = depth[max(0, deepest - 3) : deepest + 4]
    weight = np.maximum(0.0, near - depth[deepest] + 0.25 * heights[1]) + 1e-9
    low = float(near @ weight) / float(weight.sum())
    at = float(middle.sum()) / len(middle) + min(max(lean, -0.5), 0.5) * (low - level)
    return at * along + low * down, lean


def _as_hand(
    tips: NDArray[np.float64],
    valleys: NDArray[np.float64],
    centre: NDArray[np.float64],
    radius: float,
    thumb_lead: float,
) -> OpenHand | None:
    """An open hand with its thumb first, unless the proportions rule it out.

    Expected values and spreads are those of relaxed open hands; each cue's squared deviation is summed.
    """
    web, index_middle, middle_ring, ring_little = valleys
    span = math.dist(index_middle, ring_little)
    if span < 0.5 * radius or span > 2.6 * radius:
        return None
    knuckles = valleys[1:].mean(axis=0)
    up = knuckles - centre
    rise = float(np.hypot(*up))
    if rise < 0.3 * radius:
        return None
    up /= rise
    row = (index_middle - ring_little) / span
    thumb_side = row - up * float(row @ up)
    thumb_side /= max(float(np.hypot(*thumb_side)), 1e-6)
    first, second = math.dist(index_middle, middle_ring), math.dist(middle_ring, ring_little)
    if min(first, second) < 0.15 * radius:
        return None
    web_down = float((index_middle - web) @ up) / span
    thumb = tips[0] - centre
    thumb_angle = math.degrees(math.atan2(float(thumb @ thumb_side), float(thumb @ up)))
    lengths = [
        math.dist(tip, (a + b) / 2) / span
        for tip, a, b in ((tips[2], index_middle, middle_ring), (tips[3], middle_ring, ring_little))
    ]
    middle_out = float((middle_ring - (index_middle + ring_little) / 2) @ up) / span
    touching = middle_out > TOUCHING_OUT
    if touching:
        # Middle and ring finger touch above their feet: the outline shows where they part, not the foot.
        valleys = valleys.copy()
        valleys[2] = (index_middle + ring_little) / 2 + MIDDLE_OUT * span * up
        middle_out = MIDDLE_OUT
        first = second = span / 2
    deviations = (
        0.9 if touching else 0.0,
        max(0.0, 1.5 - thumb_lead) / 0.6,
        math.log(first / second) / 0.45,
        (middle_out - MIDDLE_OUT) / 0.18,
        float(row @ up) / 0.35,
        (web_down - 0.6) / 0.35,
        max(0.0, 35.0 - thumb_angle, thumb_angle - 110.0) / 20.0,
        max(0.0, 0.6 - min(lengths), max(lengths) - 2.2) / 0.3,
        max(0.0, 0.8 - rise / radius, rise / radius - 1.6) / 0.3,
        max(0.0, 0.9 - span / radius, span / radius - 1.7) / 0.3,
    )
    misfit = sum(d * d for d in deviations)
    right = float(thumb_side[0] * -up[1] + thumb_side[1] * up[0]) > 0
    return OpenHand(
        valleys=np.array(valleys),
        centre=centre,
        radius=radius,
        handedness="R" if right else "L",
        likeness=math.exp(-misfit / 8.0),
    )
