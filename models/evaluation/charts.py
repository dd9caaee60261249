"""Charts as SVG: errors at every threshold (DET), curves, and the distribution of a verdict's time."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from models.evaluation.svg import document, path, rect, text

_RATES: Final = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
_RATE_WORDS: Final = {
    1e-6: "1 in a million", 1e-5: "1 in 100,000", 1e-4: "1 in 10,000", 1e-3: "1 in 1,000", 1e-2: "1 %",
    1e-1: "10 %", 1.0: "100 %",
}  # fmt: skip
_KINDS: Final = ("curve", "curve b", "curve c")
_BARS: Final = 42
_TICKS: Final = 10
_STEPS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


@dataclass(frozen=True)
class _Plot:
    """The area of a chart, and how values become places in it; pixels."""

    left: float
    top: float
    width: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def x(self, value: float) -> float:
        return self.left + self.width * _part(value, *self.x_range)

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - _part(value, *self.y_range))

    @property
    def bottom(self) -> float:
        return self.top + self.height


def _part(value: float, low: float, high: float) -> float:
    """How far along a range a value lies, 0 to 1; 0 where all values are the same."""
    return (min(max(value, low), high) - low) / (high - low) if high > low else 0.0


def det_plot(figures: dict[str, Any]) -> str:
    """False non-matches against false matches, both along logarithms, a curve for each method.

    `figures`: {"title", "about", "curves": [{"name", "comparisons": [mated, non-mated], "fmr", "fnmr"}],
    "operating_point": {"name", "fmr", "fnmr"} or absent, "ranges": both axes as decimal logarithms, or
    absent}. A rate of 0 is drawn at the lowest that its comparisons could have shown.
    """
    plot = _Plot(118, 84, 560, 380, *figures.get("ranges", ((-6.0, -1.0), (-4.0, -1.0))))
    mated, non_mated = figures["curves"][0]["comparisons"]
    fewest_x, fewest_y = plot.x(-math.log10(non_mated)), plot.y(-math.log10(mated))
    unseen_y = (fewest_y + plot.bottom) / 2 + 4
    parts = [
        text(28, 36, figures["title"], "ink", 17, bold=True),
        text(28, 58, figures["about"], "soft", 12.5),
        rect(plot.left, plot.top, plot.width, plot.height, "tint edge"),
        rect(fewest_x, plot.top, plot.left + plot.width - fewest_x, fewest_y - plot.top, "panel"),
        *_rate_axes(plot),
        text(
            plot.left + plot.width / 2,
            unseen_y,
            "rarer than so few comparisons can show",
            "soft",
            12,
            anchor="middle",
        ),
    ]
    for number, curve in enumerate(figures["curves"]):
        mated, non_mated = curve["comparisons"]
        points = [
            (plot.x(math.log10(max(fmr, 1 / non_mated))), plot.y(math.log10(max(fnmr, 1 / mated))))
            for fmr, fnmr in zip(curve["fmr"], curve["fnmr"], strict=True)
        ]
        parts.append(path(points, _KINDS[number]))
        x, y = plot.left + 330, plot.top + 26 + 22 * number
        parts.append(path([(x, y - 4), (x + 32, y - 4)], _KINDS[number]))
        parts.append(text(x + 42, y, curve["name"], "ink", 12.5))
    if point := figures.get("operating_point"):
        x = max(fewest_x, plot.x(math.log10(point["fmr"])) if point["fmr"] else plot.left)
        y = min(fewest_y, plot.y(math.log10(point["fnmr"])) if point["fnmr"] else plot.bottom)
        parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="5.5" class="third"/>')
        parts.append(text(x + 11, y + 4.5, point["name"], "third", 12.5, bold=True))
    middle = plot.left + plot.width / 2
    wrong, missed = "strangers taken for an enrolled person (false match rate)", "known palms not recognised"
    parts.append(text(middle, plot.bottom + 50, wrong, "soft", 12.5, anchor="middle"))
    parts.append(text(26, plot.top + plot.height / 2, missed, "soft", 12.5, anchor="middle", turned=True))
    return document(712, 540, figures["title"], parts)


def _rate_axes(plot: _Plot) -> Iterator[str]:
    for rate in _RATES:
        place = math.log10(rate)
        if plot.x_range[0] <= place <= plot.x_range[1]:
            x = plot.x(place)
            yield path([(x, plot.top), (x, plot.bottom)], "edge")
            yield text(x, plot.bottom + 21, _RATE_WORDS[rate], "soft", 11.5, anchor="middle")
        if plot.y_range[0] <= place <= plot.y_range[1]:
            y = plot.y(place)
            yield path([(plot.left, y), (plot.left + plot.width, y)], "edge")
            yield text(plot.left - 9, y + 4, _RATE_WORDS[rate], "soft", 11.5, anchor="end")


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve: its `values` at the places along the x axis; its name is at point `named_at`."""

    name: str
    values: Sequence[float]
    named_at: int = -1


def curves(
    title: str,
    about: str,
    places: Sequence[float],
    drawn: Sequence[Curve],
    *,
    across: str,
    up: str,
    number: str = ".0%",
) -> str:
    """Up to three curves over one linear x axis with numbers of format `number`; y is in percent, from 0."""
    top = math.ceil(max(max(curve.values) for curve in drawn) * 20.0) / 20.0
    low, high = min(places), max(places)
    plot = _Plot(72, 84, 606, 300, (low, high), (0.0, top))
    parts = [
        text(28, 36, title, "ink", 17, bold=True),
        text(28, 58, about, "soft", 12.5),
        rect(plot.left, plot.top, plot.width, plot.height, "panel edge"),
        text(plot.left + plot.width / 2, plot.bottom + 44, across, "soft", 12.5, anchor="middle"),
        text(24, plot.top + plot.height / 2, up, "soft", 12.5, anchor="middle", turned=True),
    ]
    for part in range(1, 6):
        y = plot.y(top * part / 5)
        parts.append(path([(plot.left, y), (plot.left + plot.width, y)], "edge"))
        parts.append(text(plot.left - 9, y + 4, f"{top * part / 5:.0%}", "soft", 11.5, anchor="end"))
    for part in range(10):
        x = low + (high - low) * part / 9
        parts.append(text(plot.x(x), plot.bottom + 20, f"{x:{number}}", "soft", 11.5, anchor="middle"))
    for curve, kind, ink in zip(drawn, _KINDS, ("accent", "second", "third"), strict=False):
        points = [(plot.x(x), plot.y(y)) for x, y in zip(places, curve.values, strict=True)]
        parts.append(path(points, kind))
        # Named at a point of its own: a key in a corner would lie across a curve sooner or later.
        x, y = points[curve.named_at]
        aside, anchor = (-16, "end") if x > plot.left + plot.width / 2 else (16, "start")
        parts.append(text(x + aside, max(y - 7, plot.top + 14), curve.name, ink, 12.5, anchor=anchor))
    return document(712, 454, title, parts)


def histogram(figures: dict[str, Any]) -> str:
    """How long verdicts took. `figures`: {"title", "about", "samples_ms"}; the last bar has the slowest."""
    samples: Sequence[float] = sorted(figures["samples_ms"])
    longest = samples[min(len(samples) - 1, len(samples) * 995 // 1000)] * 1.05
    size = _step(longest, _BARS)
    shown_to = _round_up(longest, 5 * size)
    counts = [0] * round(shown_to / size)
    for sample in samples:
        counts[min(len(counts) - 1, int(max(0.0, sample) / size))] += 1
    most = _round_up(max(counts), 20 if max(counts) > 20 else 4)
    plot = _Plot(72, 84, 606, 300, (0.0, shown_to), (0.0, most))
    parts = [
        text(28, 36, figures["title"], "ink", 17, bold=True),
        text(28, 58, figures["about"], "soft", 12.5),
        rect(plot.left, plot.top, plot.width, plot.height, "panel edge"),
    ]
    for part in range(1, 5):
        value = most * part / 4
        y = plot.y(value)
        parts.append(path([(plot.left, y), (plot.left + plot.width, y)], "edge"))
        parts.append(text(plot.left - 9, y + 4, f"{value:g}", "soft", 11.5, anchor="end"))
    for number, count in enumerate(counts):
        if count:
            x, width = plot.x(number * size), plot.width * size / shown_to
            y = plot.y(count)
            parts.append(rect(x + 0.6, y, max(1.0, width - 1.2), plot.bottom - y, "accent", radius=1.5))
    step = _step(shown_to, _TICKS)
    parts += [
        text(plot.x(tick), plot.bottom + 20, f"{tick}", "soft", 11.5, anchor="middle")
        for tick in range(0, round(shown_to) + 1, step)
    ]
    for row, (name, part) in enumerate((("p50", 50), ("p99", 99)), start=1):
        value = samples[min(len(samples) - 1, len(samples) * part // 100)]
        x = plot.x(value)
        parts.append(path([(x, plot.top), (x, plot.bottom)], "mark"))
        beside, anchor = (-6, "end") if x > plot.left + 0.8 * plot.width else (6, "start")
        words = f"{name} {value:.1f} ms"
        # A row each: the two may be nearer to each other than a word is long.
        parts.append(text(x + beside, plot.top + 18 * row, words, "third", 12.5, anchor=anchor, bold=True))
    middle = plot.left + plot.width / 2
    parts.append(text(middle, plot.bottom + 44, "milliseconds", "soft", 12.5, anchor="middle"))
    parts.append(text(24, plot.top + plot.height / 2, "verdicts", "soft", 12.5, anchor="middle", turned=True))
    return document(712, 454, figures["title"], parts)


def _round_up(value: float, step: float) -> float:
    return max(step, math.ceil(value / step) * step)


def _step(shown_to: float, parts: int) -> int:
    """A round width of which so many at most go into an axis."""
    return next(step for step in _STEPS if shown_to / step <= parts)
