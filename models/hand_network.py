"""The learned way to find a hand: two small networks, one for the whole frame, one for the straightened palm.

The first says whether there is a hand, where, how large and which way up; a piece of the frame is then cut
so that the hand stands upright as a left hand, and the second finds the finger valleys in it. What they were
measured to do is in docs/lab/HAND.md.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import Handedness
from models.errors import ModelFileError
from models.hand_mask import FinderView
from models.manifest import known_numbers, read_pair
from models.onnx_session import open_session, running

COARSE_PX: Final = 112
"""Side of the square into which a whole frame is fitted, grey, centred, black around it."""

FINE_PX: Final = 96
"""Side of the straightened piece of the frame: fingers up, as a left hand."""

FINE_PALM_WIDTHS: Final = 1.9
"""That side in widths of the palm; its middle is the palm's centre."""

SELF_TEST_PX: Final = 0.05
"""How far a point of the self test may lie from the manifest's; runtimes round differently."""

SOMETHING: Final = 0.12
"""Chance of a hand above which a place is looked at closely."""
SECOND: Final = 0.4
"""The same for a place next to a likelier one: 19 of 20 hands in clutter score higher than this."""
_PLACES: Final = 2
_WIDTH_AT_ZERO: Final = 28.0
_VALLEY_SPAN: Final = 0.48
"""From the index–middle to the ring–little valley, in widths of the palm."""


@dataclass(frozen=True, slots=True, eq=False)
class FoundHand:
    """An open hand, in pixels of the ``FinderView`` in which it was found.

    ``valleys`` (4, 2) thumb–index to ring–little, ``centre`` (2,). ``confidence``: 0..1, that it is an open
    hand whose valleys are where it says. ``mask``: (h, w) of 0 and 255, roughly the hand.
    """

    valleys: NDArray[np.float64]
    centre: NDArray[np.float64]
    handedness: Handedness
    confidence: float
    mask: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Place:
    """A first guess: where to look closely."""

    x: float
    y: float
    width: float
    up: tuple[float, float]
    right: float
    chance: float


class HandNetwork:
    """The two networks, loaded and proved; may be asked by one thread at a time."""

    def __init__(self, coarse: Path, fine: Path) -> None:
        """Load two ONNX files without their self test; all but the training code use ``open_network``."""
        self._coarse, self._fine = open_session(coarse), open_session(fine)

    def look(self, view: FinderView, least: float) -> FoundHand | None:
        """The likeliest open hand in the view; None where none has a chance of ``least``. Never raises."""
        square, box = fitted(view.light)
        cells, cover = self._coarse.run(None, {"picture": square[None]})
        if not (np.isfinite(cells).all() and np.isfinite(cover).all()):
            return None
        best: tuple[_Place, _Seen] | None = None
        for i, place in enumerate(_places(cells[0], box)):
            if i > 0 and place.chance < SECOND:
                break
            seen = self._closely(view.light, place)
            if seen is None:
                continue
            if best is None or seen[1][1][0] > best[1][1][0]:
                best = seen
            if best[1][1][0] > 0.5:
                break
        if best is None or best[1][1][0] < least:
            return None
        place, (points, judged) = best
        middle = _centre_of(points)
        return FoundHand(
            valleys=points[:4],
            centre=middle,
            handedness="R" if place.right > 0.5 else "L",
            confidence=float(judged[0]),
            mask=_mask(cover[0], box, view.light.shape, middle),
        )

    def look_at(
        self, light: NDArray[np.uint8], valleys: NDArray[np.float64], handedness: Handedness
    ) -> tuple[NDArray[np.float64], float] | None:
        """A second opinion on a hand that was found by other means.

        ``valleys`` (4, 2) in pixels of ``light``. Returns the valleys (4, 2) as the second network sees
        them, and the chance 0..1 that an open hand of this side is there; None where the network has no
        opinion. Never raises.
        """
        right = handedness == "R"
        seen = self._points(light, _place_of(valleys, right=right), right=right)
        return None if seen is None else (seen[0][:4], float(seen[1][0] * (1.0 - seen[1][1])))

    def _closely(self, light: NDArray[np.uint8], place: _Place) -> "tuple[_Place, _Seen] | None":
        """One to three looks at a place; the place with the side that was seen there."""
        right = place.right > 0.5
        seen = self._points(light, place, right=right)
        if seen is None:
            return None
        if seen[1][1] > 0.5 and seen[1][0] > 0.2:
            turned = self._points(light, place, right=not right)
            if turned is not None and turned[1][1] < 0.5 and turned[1][0] > seen[1][0] - 0.3:
                right, seen = not right, turned
        again = _from_points(seen[0], replace(place, right=float(right)))
        if seen[1][0] > 0.2 and _far(again, place):
            seen = self._points(light, again, right=right) or seen
        return again, seen

    def _points(self, light: NDArray[np.uint8], place: _Place, *, right: bool) -> "_Seen | None":
        """A close look; None where the network gives no numbers."""
        matrix = straighten(place.x, place.y, place.width, place.up, right=right)
        piece = _piece(light, matrix)
        found, judged = (out[0].astype(np.float64) for out in self._fine.run(None, {"piece": piece[None]}))
        if not (np.isfinite(found).all() and np.isfinite(judged).all()):
            return None
        points = np.linalg.solve(matrix[:, :2], (found - matrix[:, 2]).T).T
        return points, 1.0 / (1.0 + np.exp(-np.clip(judged, -30.0, 30.0)))

    def answer(self) -> NDArray[np.float64]:
        """The known answer (14,): the five points of the fixed piece, its judgement, on the fixed picture."""
        picture, piece = _fixed_picture(COARSE_PX), _fixed_picture(FINE_PX)
        cells, _ = self._coarse.run(None, {"picture": picture[None]})
        points, judged = self._fine.run(None, {"piece": piece[None]})
        # A point's own coordinate is an average over the piece; a cell is one number of 1568: take its mean.
        return np.concatenate([points.ravel(), judged.ravel(), cells.mean((2, 3)).ravel()[:2]]).astype(float)


_Seen = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Points (5, 2) of the view: four valleys and the wrist; and the chances (open, mirrored)."""

Box = tuple[float, float, float]
"""Scale, left and top of a picture within the square."""


def open_network(folder: Path) -> HandNetwork:
    """Load the networks that ``folder``/manifest.json names, and prove them.

    Raises ``ManifestError`` for a wrong manifest, ``ModelFileError`` for a file that is not the one it names,
    that is no model, or that does not give its known answer.
    """
    coarse, fine, answer = read_pair(folder)
    points = answer.get("points") if isinstance(answer, dict) else None
    expected = known_numbers(folder, "self_test.points", points)
    network = HandNetwork(coarse, fine)
    with running(folder, "on known pictures"):
        found = network.answer()
    wrong = float(np.abs(expected - found).max()) if expected.shape == found.shape else math.inf
    if not wrong <= SELF_TEST_PX:
        raise ModelFileError(
            f"the hand networks in {folder} failed their self test: every number must be within "
            f"{SELF_TEST_PX} of the manifest's, found one {wrong:.3f} away; install the package again"
        )
    return network


@lru_cache(maxsize=1)
def shipped_network() -> HandNetwork:
    """The networks that come with this package."""
    return open_network(Path(__file__).parent / "shipped_hand")


def fitted(light: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], Box]:
    """A grey picture fitted into the square (112, 112) of the first network, and where in it."""
    height, width = light.shape
    scale = COARSE_PX / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    small = cv2.resize(light, size, interpolation=cv2.INTER_AREA)
    left, top = (COARSE_PX - size[0]) // 2, (COARSE_PX - size[1]) // 2
    square = np.zeros((COARSE_PX, COARSE_PX), np.uint8)
    square[top : top + size[1], left : left + size[0]] = small
    return square, (scale, float(left), float(top))


def straighten(
    x: float, y: float, width: float, up: tuple[float, float], *, right: bool
) -> NDArray[np.float64]:
    """The 2x3 matrix to the piece (96, 96): centre in the middle, ``up`` upwards, a right hand mirrored."""
    scale = FINE_PX / FINE_PALM_WIDTHS / width
    ux, uy = up
    # Rows of the turn are the picture's directions that become right and down.
    turn = scale * np.array([[-uy, ux], [-ux, -uy]])
    if right:
        turn[0] = -turn[0]
    middle = (FINE_PX - 1) / 2
    return np.hstack([turn, (middle - turn @ np.array([x, y]))[:, None]])


def _piece(light: NDArray[np.uint8], matrix: NDArray[np.float64]) -> NDArray[np.uint8]:
    shrink = 1.0 / math.hypot(matrix[0, 0], matrix[0, 1])
    if shrink > 1.5:
        # Averaged first, or fine texture would alias.
        light = np.asarray(cv2.GaussianBlur(light, (0, 0), 0.35 * shrink), dtype=np.uint8)
    piece = cv2.warpAffine(light, matrix, (FINE_PX, FINE_PX), borderMode=cv2.BORDER_CONSTANT)
    return np.asarray(piece, dtype=np.uint8)


def _places(cells: NDArray[np.float32], box: Box) -> list[_Place]:
    """The highest cells, best first, that are no neighbours of a higher one."""
    chances = 1.0 / (1.0 + np.exp(-np.clip(cells[:3].astype(np.float64), -30.0, 30.0)))
    heat = chances[0].copy()
    cell = COARSE_PX / heat.shape[0]
    scale, left, top = box
    found = []
    for _ in range(_PLACES):
        row, column = (int(i) for i in np.unravel_index(int(heat.argmax()), heat.shape))
        if heat[row, column] < SOMETHING:
            break
        told = cells[3:, row, column].astype(np.float64)
        across = (float(np.clip(told[0], -2.0, 2.0)) + column + 0.5) * cell - 0.5
        down = (float(np.clip(told[1], -2.0, 2.0)) + row + 0.5) * cell - 0.5
        length = max(math.hypot(told[3], told[4]), 1e-6)
        width = _WIDTH_AT_ZERO * 2.0 ** float(np.clip(told[2], -2.5, 2.0)) / scale
        found.append(
            _Place(
                (across - left + 0.5) / scale - 0.5,
                (down - top + 0.5) / scale - 0.5,
                width,
                (float(told[3]) / length, float(told[4]) / length),
                float(chances[2, row, column]),
                float(heat[row, column]),
            )
        )
        heat[max(0, row - 2) : row + 3, max(0, column - 2) : column + 3] = 0.0
    return found


def _place_of(valleys: NDArray[np.float64], *, right: bool) -> _Place:
    """Where a hand with these valleys is."""
    row = valleys[1] - valleys[3]
    span = max(float(np.hypot(*row)), 1.0)
    width = span / _VALLEY_SPAN
    up = np.array([row[1], -row[0]]) / span * (1.0 if right else -1.0)
    x, y = (float(v) for v in valleys[1:].mean(axis=0) - up * 0.5 * width)
    return _Place(x, y, width, (float(up[0]), float(up[1])), float(right), 1.0)


def _centre_of(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """The palm's centre from valleys and wrist, as the average hand has it."""
    return np.asarray(0.56 * points[1:4].mean(axis=0) + 0.44 * points[4])


def _from_points(points: NDArray[np.float64], place: _Place) -> _Place:
    """The place as the points show it."""
    middle = _centre_of(points)
    up = points[1:4].mean(axis=0) - points[4]
    length = max(float(np.hypot(*up)), 1e-6)
    across = math.dist(points[1], points[3]) / _VALLEY_SPAN
    width = min(max(across, 0.6 * place.width), 1.6 * place.width)
    return _Place(
        float(middle[0]),
        float(middle[1]),
        width,
        (float(up[0]) / length, float(up[1]) / length),
        place.right,
        place.chance,
    )


def _far(one: _Place, other: _Place) -> bool:
    """Whether a second look from ``one`` would see the hand notably better placed."""
    moved = math.hypot(one.x - other.x, one.y - other.y) / other.width
    along = one.up[0] * other.up[0] + one.up[1] * other.up[1]
    return moved > 0.08 or along < 0.985 or abs(math.log(one.width / other.width)) > 0.12


def _mask(
    cover: NDArray[np.float32], box: Box, shape: tuple[int, ...], middle: NDArray[np.float64]
) -> NDArray[np.uint8]:
    """The cover of the square, before the sigmoid, as the view's mask: what hangs together with the palm."""
    height, width = shape[:2]
    scale, left, top = box
    cell = COARSE_PX / cover.shape[0]
    # View pixel to cover cell, both with whole numbers in the middle of a pixel.
    k = scale / cell
    shift = [(0.5 * scale + edge) / cell - 0.5 for edge in (left, top)]
    matrix = np.array([[k, 0.0, shift[0]], [0.0, k, shift[1]]])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    grown = cv2.warpAffine(cover, matrix, (width, height), flags=flags, borderMode=cv2.BORDER_REPLICATE)
    mask = np.where(grown > 0.0, 255, 0).astype(np.uint8)
    count, labels = cv2.connectedComponents(mask, connectivity=4)
    x, y = int(np.clip(middle[0], 0, width - 1)), int(np.clip(middle[1], 0, height - 1))
    if count > 2 and labels[y, x] > 0:
        mask = np.asarray(cv2.inRange(labels, int(labels[y, x]), int(labels[y, x])), dtype=np.uint8)
    return mask


def _fixed_picture(side: int) -> NDArray[np.uint8]:
    """The self test's input: an outline of bars on a slope, from integers alone."""
    y, x = np.mgrid[0:side, 0:side]
    bars = ((x // 9) % 2 == 0) & (y > side // 8) & (y < side // 2)
    palm = (np.abs(x - side // 2) < side // 4) & (y >= side // 2)
    return np.asarray(40 + (x + 2 * y) // 8 + 90 * (bars | palm) + (x * 7 + y * 13) % 9, dtype=np.uint8)
