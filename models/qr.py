"""Find a QR code that is held in front of the camera, and read it."""

import itertools
import math
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.frames import CameraFrame, as_grey
from models.qr_code import MAX_TEXT, MAX_VERSION, Modules, read_modules

WIDEST_PX: Final = 960
"""A larger frame is made smaller first."""

_CELL_PX: Final = 8
_MOST_RUNS: Final = 300
_MOST_FINDERS: Final = 12
_MOST_TRIES: Final = 6


@dataclass(frozen=True, slots=True)
class _Finder:
    """One of the three square rings that mark a code's corners."""

    x: float
    y: float
    module: float
    """Pixels a module."""
    seen: int
    """Scan lines that cross it."""


def read_qr(frame: CameraFrame) -> str | None:
    """The text of one QR code in the frame: 1 to 512 printable ASCII characters, or None. Never raises."""
    grey = as_grey(frame)
    if min(grey.shape) < 29:
        return None
    scale = WIDEST_PX / max(grey.shape)
    if scale < 1.0:
        size = (max(29, round(grey.shape[1] * scale)), max(29, round(grey.shape[0] * scale)))
        grey = np.asarray(cv2.resize(grey, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)
    dark = _binary(grey)
    for corners in _corner_triples(_finders(dark))[:_MOST_TRIES]:
        for modules in _samples(dark, *corners):
            text = read_modules(modules)
            if text and len(text) <= MAX_TEXT and text.isascii() and text.isprintable():
                return text
    return None


def _binary(grey: NDArray[np.uint8]) -> Modules:
    """Pixels darker than their surroundings; where there is no contrast nothing is dark."""
    block = max(15, min(grey.shape) // 6) | 1
    around = cv2.blur(grey, (block, block), borderType=cv2.BORDER_REPLICATE)
    return np.asarray(cv2.subtract(around, grey) > 6)


def _finders(dark: Modules) -> list[_Finder]:
    """Places that show dark and light in the ratio 1:1:3:1:1 both across and down, most crossed first."""
    across = _ratio_runs(dark)
    if len(across) < 3:
        return []
    columns = dark.T
    hits: list[_Finder] = []
    for x, y, module in across:
        for hit in hits:
            if abs(hit.x - x) < 2.5 * module and abs(hit.y - y) < 4.5 * module:
                break
        else:
            centre = _cross(columns[min(int(x), columns.shape[0] - 1)], y, module)
            if centre is None:
                continue
            level = _cross(dark[min(int(centre[0]), dark.shape[0] - 1)], x, module)
            if level is None:
                continue
            near = (np.abs(across[:, 0] - x) < 1.5 * module) & (np.abs(across[:, 1] - y) < 4 * module)
            seen = int(near.sum())
            if seen >= 2:
                size = (centre[1] + level[1]) / 2
                hits.append(_Finder(level[0], centre[0], size, seen))
            if len(hits) > 4 * _MOST_FINDERS:
                break
    hits.sort(key=lambda hit: -hit.seen / hit.module)
    return hits[:_MOST_FINDERS]


def _ratio_runs(dark: Modules) -> NDArray[np.float64]:
    """(N, 3) x, y, module of the row runs in the finders' ratio, those with most company."""
    height, width = dark.shape
    padded = np.zeros((height, width + 2), dtype=np.int8)
    padded[:, 1:-1] = dark
    rows, turns = np.nonzero(np.diff(padded, axis=1))
    if len(turns) < 6:
        return np.zeros((0, 3))
    windows = np.lib.stride_tricks.sliding_window_view(turns, 6)
    runs = np.diff(windows, axis=1)
    starts_dark = (padded[rows[:-5], windows[:, 0] + 1] == 1) & (rows[:-5] == rows[5:])
    module = (windows[:, 5] - windows[:, 0]) / 7.0
    expected = module[:, None] * np.array([1.0, 1.0, 3.0, 1.0, 1.0])
    slack = module[:, None] * np.array([0.6, 0.6, 1.0, 0.6, 0.6]) + 0.5
    good = starts_dark & (module >= 1.0) & (np.abs(runs - expected) <= slack).all(axis=1)
    found = np.flatnonzero(good)
    middle = (windows[found, 2] + windows[found, 3]) / 2.0 - 0.5
    at = rows[found]
    # A finder is crossed by several rows in one place; what is alone in its neighbourhood is chance.
    votes = np.zeros((height // _CELL_PX + 3, width // _CELL_PX + 3), dtype=np.float32)
    cells = at // _CELL_PX + 1, (middle // _CELL_PX).astype(np.intp) + 1
    np.add.at(votes, cells, 1.0)
    support = cv2.boxFilter(votes, -1, (3, 3), normalize=False)[cells]
    best = np.argsort(-support, kind="stable")[:_MOST_RUNS]
    best = np.sort(best[support[best] >= 2.0])
    return np.stack([middle[best], at[best].astype(np.float64), module[found][best]], axis=1)


def _cross(line: NDArray[np.bool_], at: float, module: float) -> tuple[float, float] | None:
    """Centre and module of the 1:1:3:1:1 pattern around ``at`` on one line of pixels."""
    reach = int(6 * module) + 2
    start = max(0, int(at) - reach)
    part = line[start : int(at) + reach + 1]
    middle = int(at) - start
    if not part[middle]:
        return None
    turns = np.flatnonzero(np.diff(part.astype(np.int8))) + 1
    before, after = turns[turns <= middle], turns[turns > middle]
    if len(before) < 3 or len(after) < 3:
        return None
    ends = np.concatenate([before[-3:], after[:3]])
    size = float(ends[5] - ends[0]) / 7.0
    off = np.abs(np.diff(ends) - size * np.array([1.0, 1.0, 3.0, 1.0, 1.0]))
    if (off > size * np.array([0.7, 0.7, 1.1, 0.7, 0.7]) + 0.5).any() or not 0.5 < size / module < 2.0:
        return None
    return start + float(ends[2] + ends[3]) / 2.0 - 0.5, size


def _corner_triples(finders: list[_Finder]) -> list[tuple[_Finder, _Finder, _Finder]]:
    """Triples that could be a code's top left, top right and bottom left corners, most square first."""
    triples = []
    for three in itertools.combinations(finders, 3):
        sizes = [f.module for f in three]
        if max(sizes) > 1.8 * min(sizes):
            continue
        # The two farthest apart are the ends of the diagonal; the third is the top left corner.
        pairs = [(_distance(three[i], three[j]), i, j) for i, j in ((0, 1), (0, 2), (1, 2))]
        diagonal, i, j = max(pairs)
        corner, one, other = three[3 - i - j], three[i], three[j]
        a, b = _distance(corner, one), _distance(corner, other)
        if min(a, b) < 10 * max(sizes) or max(a, b) > 1.4 * min(a, b):
            continue
        skew = abs(math.log(diagonal / math.hypot(a, b))) + abs(math.log(a / b))
        if skew > 0.5:
            continue
        turn = (one.x - corner.x) * (other.y - corner.y) - (one.y - corner.y) * (other.x - corner.x)
        right, below = (one, other) if turn > 0 else (other, one)
        triples.append((skew, (corner, right, below)))
    return [corners for _, corners in sorted(triples, key=lambda item: item[0])]


def _distance(a: _Finder, b: _Finder) -> float:
    return math.hypot(a.x - b.x, a.y - b.y)


def _samples(dark: Modules, corner: _Finder, right: _Finder, below: _Finder) -> list[Modules]:
    """The code's modules under the likeliest versions whose timing lines alternate as they must."""
    module = (corner.module + right.module + below.module) / 3.0
    steps = (_distance(corner, right) + _distance(corner, below)) / 2.0 / module
    guess = round((steps + 7.0 - 17.0) / 4.0)
    samples = []
    for version in sorted(range(guess - 3, guess + 4), key=lambda v: abs(v - guess)):
        if not 1 <= version <= MAX_VERSION:
            continue
        side = 4 * version + 17
        ends = side - 3.5
        source = [(3.5, 3.5), (ends, 3.5), (3.5, ends)]
        target = [(corner.x, corner.y), (right.x, right.y), (below.x, below.y)]
        affine = np.asarray(
            cv2.getAffineTransform(np.array(source, np.float32), np.array(target, np.float32)), np.float64
        )
        if _timing(_take(dark, np.vstack([affine, [0.0, 0.0, 1.0]]), side)) < 0.75:
            continue
        fourth = side - 6.5 if version > 1 else ends
        at = affine @ np.array([fourth, fourth, 1.0])
        if version > 1:
            at = _alignment(dark, affine, at)
        homography = cv2.getPerspectiveTransform(
            np.array([*source, (fourth, fourth)], np.float32), np.array([*target, tuple(at)], np.float32)
        )
        modules = _take(dark, np.asarray(homography, np.float64), side)
        score = _timing(modules)
        if score >= 0.85:
            samples.append((score, modules))
    return [modules for _, modules in sorted(samples, key=lambda item: -item[0])[:2]]


def _take(dark: Modules, homography: NDArray[np.float64], side: int) -> Modules:
    """The pixel at every module's centre; outside the image it is light."""
    middle = np.arange(side) + 0.5
    column, row = np.meshgrid(middle, middle)
    points = homography @ np.stack([column.ravel(), row.ravel(), np.ones(side * side)])
    depth = np.where(np.abs(points[2]) < 1e-9, 1e-9, points[2])
    return _look(dark, points[0] / depth, points[1] / depth).reshape(side, side)


def _look(dark: Modules, x: NDArray[np.float64], y: NDArray[np.float64]) -> Modules:
    height, width = dark.shape
    column = np.clip(np.nan_to_num(np.rint(x)), -1, width).astype(np.intp)
    row = np.clip(np.nan_to_num(np.rint(y)), -1, height).astype(np.intp)
    inside = (column >= 0) & (row >= 0) & (column < width) & (row < height)
    return np.asarray(dark[np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)] & inside)


def _timing(modules: Modules) -> float:
    """Share of the two timing lines that alternate dark and light."""
    side = modules.shape[0]
    expected = np.arange(8, side - 8) % 2 == 0
    return float(
        np.mean(np.concatenate([modules[6, 8 : side - 8] == expected, modules[8 : side - 8, 6] == expected]))
    )


def _alignment(dark: Modules, affine: NDArray[np.float64], at: NDArray[np.float64]) -> NDArray[np.float64]:
    """The centre of the last alignment pattern, searched up to four modules around where it should be."""
    right, down = affine[:, 0], affine[:, 1]
    ring = np.arange(-2, 3)
    i, j = (g.ravel() for g in np.meshgrid(ring, ring))
    pattern = np.maximum(np.abs(i), np.abs(j)) != 1
    offsets = np.arange(-4.0, 4.01, 0.5)
    du, dv = (g.ravel() for g in np.meshgrid(offsets, offsets))
    centres = at + du[:, None] * right + dv[:, None] * down
    x = centres[:, 0, None] + i * right[0] + j * down[0]
    y = centres[:, 1, None] + i * right[1] + j * down[1]
    agreement = (_look(dark, x, y) == pattern).mean(axis=1)
    best = agreement.max()
    if best < 0.85:
        return at
    # Among equally good places the middle one; a small pattern matches a few neighbours as well.
    return np.asarray(centres[agreement == best].mean(axis=0))
