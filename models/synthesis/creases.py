"""The lines of one palm: main creases sampled from real statistics, everything finer invented around them."""

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.synthesis.raster import Points, SkinLine, smooth_curve

LIFE: Final = 0
HEAD: Final = 1
HEART: Final = 2


@dataclass(frozen=True, slots=True)
class CreaseStatistics:
    """Mean and principal components of the three main creases of real palms."""

    mean: NDArray[np.float64]
    """(54,): three lines of nine (x, y) points."""
    deviations: NDArray[np.float64]
    """(16,): standard deviation along each component."""
    components: NDArray[np.float64]
    """(16, 54)."""


@lru_cache(maxsize=1)
def crease_statistics() -> CreaseStatistics:
    """The statistics in this file's folder."""
    raw = json.loads(files("models.synthesis").joinpath("crease_stats.json").read_text("utf-8"))
    return CreaseStatistics(
        np.array(raw["mean"], dtype=np.float64),
        np.array(raw["pca_sd"], dtype=np.float64),
        np.array(raw["pca_vectors"], dtype=np.float64),
    )


def sample_main_creases(coefficients: NDArray[np.float64]) -> Points:
    """Life, head and heart lines (3, 9, 2) for 16 coefficients in standard deviations (clipped at 2.3)."""
    stats = crease_statistics()
    flat = stats.mean + (np.clip(coefficients, -2.3, 2.3) * stats.deviations) @ stats.components
    return np.asarray(flat.reshape(3, 9, 2), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class PalmLines:
    """All persistent lines of one hand, in left-hand coordinates."""

    main: tuple[SkinLine, ...]
    secondary: tuple[SkinLine, ...]
    fine: tuple[SkinLine, ...]
    veins: tuple[SkinLine, ...]


def rare_courses(rng: np.random.Generator, courses: Points) -> list[Points]:
    """Courses (n, 2) to draw for life, head and heart line (3, 9, 2): those, or a rarer palm's.

    A simian crease or a Sydney line in 7 % each, oftener than in life, so that a model meets them.
    """
    kind = rng.random()
    # From 0 at the thumb's side, where all three lines of the statistics begin, to 1.
    along = np.linspace(0.0, 1.0, 9)[:, None]
    if kind < 0.07:
        # Simian crease: one line across the palm, which begins as the head line and ends as the heart line.
        return [courses[LIFE], courses[HEAD] * (1.0 - along) + courses[HEART] * along]
    if kind < 0.14:
        # Sydney line: the head line goes on to the edge of the palm.
        head = courses[HEAD]
        reach = (rng.uniform(1.00, 1.10), head[-1, 1] - rng.uniform(-0.02, 0.08))
        return [courses[LIFE], head + (reach - head[-1]) * along**1.5, courses[HEART]]
    return list(courses)


def draw_palm_lines(rng: np.random.Generator, coefficients: NDArray[np.float64]) -> PalmLines:
    """Invent the lines of one hand; the same generator state gives the same hand."""
    courses = _relocate(rng, sample_main_creases(coefficients))
    # A separate random stream: changing the rate of a rare feature leaves all other hands as they are.
    rare = rng.spawn(1)[0]
    main: list[SkinLine] = []
    secondary: list[SkinLine] = []
    for sampled in rare_courses(rare, courses):
        course = _roughen(rng, smooth_curve(sampled, 40), 0.004)
        line = SkinLine(course, rng.uniform(0.014, 0.026), rng.uniform(0.65, 1.0))
        main.extend(_doubled_or_broken(rare, line))
        secondary.extend(_branches(rng, course))
    secondary.extend(_named_minor_lines(rng))
    secondary.extend(_scattered(rng, int(rng.integers(14, 34)), (0.10, 0.42), (0.25, 0.60), 0.0065))
    fine = _scattered(rng, int(rng.integers(70, 150)), (0.04, 0.20), (0.15, 0.50), 0.006)
    fine.extend(_thenar_wrinkles(rng, courses[LIFE]))
    return PalmLines(tuple(main), tuple(secondary), tuple(fine), tuple(_vein_tree(rng)))


def _relocate(rng: np.random.Generator, courses: Points) -> Points:
    """Identity-level change of scale, place and local shape that the statistics do not hold."""
    centre = np.array([0.5, 0.5])
    scale = rng.uniform(0.92, 1.12)
    moved = (courses - centre) * scale + centre + rng.normal(0.0, 0.018, 2)
    waves = rng.normal(0.0, 0.010, (3, 4, 2))
    relocated: Points = moved + np.stack([smooth_curve(w, 9) for w in waves])
    return relocated


def _doubled_or_broken(rng: np.random.Generator, line: SkinLine) -> list[SkinLine]:
    """The line, one in twelve with a part repeated next to it, one in twelve in two pieces."""
    kind = rng.random()
    n = len(line.points)
    along = line.points[-1] - line.points[0]
    aside = np.array([-along[1], along[0]]) / np.linalg.norm(along) * float(rng.choice([-1.0, 1.0]))
    if kind < 1 / 12:
        first = int(rng.integers(0, n // 2))
        part = line.points[first : first + int(rng.integers(n // 4, n // 2 + 1))]
        beside = part + aside * rng.uniform(0.025, 0.055)
        return [
            line,
            SkinLine(beside, line.width * rng.uniform(0.5, 0.9), line.depth * rng.uniform(0.5, 1.0)),
        ]
    if kind < 2 / 12:
        at = int(rng.integers(n // 4, 3 * n // 4))
        onward = line.points[at + int(rng.integers(-4, 4)) :] + aside * rng.uniform(0.01, 0.04)
        return [SkinLine(line.points[:at], line.width, line.depth), SkinLine(onward, line.width, line.depth)]
    return [line]


def _roughen(rng: np.random.Generator, course: Points, amplitude: float) -> Points:
    wobble = rng.normal(0.0, amplitude, (max(4, len(course) // 3), 2))
    return course + smooth_curve(wobble, len(course)) + rng.normal(0.0, amplitude * 0.25, course.shape)


def _stroke(
    rng: np.random.Generator, start: Points, angle_rad: float, length: float, bend_rad: float
) -> Points:
    steps = max(5, int(length / 0.025))
    turn = np.linspace(-bend_rad / 2, bend_rad / 2, steps) + rng.normal(0.0, 0.10, steps).cumsum() * 0.35
    heading = angle_rad + turn
    step = length / steps
    course = np.cumsum(np.stack([np.cos(heading), np.sin(heading)], axis=1) * step, axis=0)
    return course + start


def _branches(rng: np.random.Generator, course: Points) -> list[SkinLine]:
    """Forks and side branches that leave a main crease."""
    lines = []
    for _ in range(int(rng.integers(2, 7))):
        at = int(rng.integers(4, len(course) - 2))
        along = course[at + 1] - course[at - 1]
        angle = float(np.arctan2(along[1], along[0])) + float(rng.choice([-1.0, 1.0])) * rng.uniform(
            0.25, 0.9
        )
        if rng.random() < 0.3:
            angle += np.pi
        stroke = _stroke(rng, course[at], angle, rng.uniform(0.06, 0.24), rng.normal(0.0, 0.5))
        lines.append(SkinLine(stroke, rng.uniform(0.005, 0.010), rng.uniform(0.3, 0.75)))
    return lines


def _named_minor_lines(rng: np.random.Generator) -> list[SkinLine]:
    """Lines many but not all palms have: fate, sun and mercury lines, a girdle, a doubled life line."""
    lines = []
    # (chance, start, end)
    courses = (
        (0.65, (0.52, 1.02), (0.45, 0.22)),
        (0.50, (0.66, 0.85), (0.68, 0.16)),
        (0.45, (0.55, 0.95), (0.88, 0.25)),
        (0.30, (0.34, 0.06), (0.76, 0.05)),
        (0.40, (0.12, 0.44), (0.46, 0.92)),
        (0.35, (1.02, 0.18), (0.86, 0.20)),
        (0.30, (0.20, 0.30), (0.42, 0.05)),
    )
    for chance, start, end in courses:
        if rng.random() > chance:
            continue
        anchor = np.linspace(start, end, 5) + rng.normal(0.0, 0.035, (5, 2))
        first, last = sorted(rng.uniform(0.0, 1.0, 2)) if rng.random() < 0.5 else (0.0, 1.0)
        course = smooth_curve(anchor, 36)[int(first * 20) : 16 + int(last * 20)]
        lines.append(SkinLine(_roughen(rng, course, 0.005), rng.uniform(0.006, 0.012), rng.uniform(0.3, 0.8)))
    return lines


def _scattered(
    rng: np.random.Generator,
    count: int,
    lengths: tuple[float, float],
    depths: tuple[float, float],
    width: float,
) -> list[SkinLine]:
    """Wrinkles whose direction follows the palm: across it mostly, upright below the fingers."""
    lines = []
    for _ in range(count):
        start = rng.uniform((-0.05, -0.02), (1.05, 1.15))
        upright = 1.0 - min(1.0, max(0.0, float(start[1]) * 2.2))
        angle = rng.normal(0.45, 0.75) if rng.random() > 0.25 + 0.6 * upright else rng.normal(1.55, 0.35)
        stroke = _stroke(rng, start, angle, rng.uniform(*lengths), rng.normal(0.0, 0.5))
        lines.append(SkinLine(stroke, width * rng.uniform(0.6, 1.3), rng.uniform(*depths)))
    return lines


def _thenar_wrinkles(rng: np.random.Generator, life: Points) -> list[SkinLine]:
    """Fine lines that run across the ball of the thumb towards the life line."""
    lines = []
    for at in rng.uniform(0.15, 0.95, int(rng.integers(6, 16))):
        foot = smooth_curve(life, 50)[int(at * 49)]
        angle = np.pi + rng.normal(-0.35, 0.25)
        stroke = _stroke(rng, foot - (0.02, 0.0), angle, rng.uniform(0.08, 0.26), rng.normal(0.0, 0.3))
        lines.append(SkinLine(stroke, rng.uniform(0.004, 0.008), rng.uniform(0.2, 0.5)))
    return lines


def _vein_tree(rng: np.random.Generator) -> list[SkinLine]:
    """Superficial veins of the palm: trunks from the wrist that fork towards the fingers, and cross links."""
    lines: list[SkinLine] = []
    for foot in np.linspace(0.2, 0.85, int(rng.integers(3, 6))) + rng.normal(0.0, 0.06):
        start = np.array([foot + rng.normal(0.0, 0.04), 1.35])
        angle = -np.pi / 2 + rng.normal(0.0, 0.25)
        trunk = _stroke(rng, start, angle, rng.uniform(0.8, 1.35), rng.normal(0.0, 0.6))
        lines.append(SkinLine(trunk, rng.uniform(0.022, 0.038), rng.uniform(0.6, 1.0)))
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(len(trunk) // 5, len(trunk)))
            side = angle + float(rng.choice([-1.0, 1.0])) * rng.uniform(0.4, 1.1)
            branch = _stroke(rng, trunk[at], side, rng.uniform(0.25, 0.7), rng.normal(0.0, 0.9))
            lines.append(SkinLine(branch, rng.uniform(0.014, 0.026), rng.uniform(0.4, 0.9)))
    return lines
