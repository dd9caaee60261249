"""Corners of a screen or a sheet of paper around a hand."""

import math
from itertools import combinations
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

Segment = tuple[float, float, float, float]

_SQUARE_DEG: Final = 12.0
"""How far two edges may be from square to each other."""


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
    segments: list[Segment] = [
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


def _corner(one: Segment, other: Segment, hand: tuple[float, float]) -> tuple[bool, bool] | None:
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


def _far_end(segment: Segment, end: tuple[float, ...]) -> tuple[float, float]:
    first, second = segment[:2], segment[2:]
    return second if end == first else first


def _direction(segment: Segment) -> float:
    return math.atan2(segment[3] - segment[1], segment[2] - segment[0])
