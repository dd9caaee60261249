"""Curves as a small SVG, readable on a light and on a dark page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np
from numpy.typing import NDArray

_WIDTH: Final = 640
_HEIGHT: Final = 400
_LEFT, _TOP, _RIGHT, _BOTTOM = 70, 20, 20, 60
_GREY: Final = "#808080"


@dataclass(frozen=True, slots=True, eq=False)
class CurveLine:
    """One curve: its name, its values at the places along the x axis, its colour."""

    name: str
    values: NDArray[np.float64]
    colour: str
    dashed: bool = False


def curve_svg(places: NDArray[np.float64], lines: Sequence[CurveLine], *, across: str, up: str) -> str:
    """The text of an SVG with both axes in percent; the upper end is the highest value, rounded up."""
    top = math.ceil(max(float(line.values.max()) for line in lines) * 20.0) / 20.0
    end = float(places.max())

    def x(place: float) -> float:
        return _LEFT + place / end * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)

    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    parts = [f'{head} font-family="sans-serif" font-size="13" fill="{_GREY}">']
    below = _HEIGHT - _BOTTOM + 20
    parts += [_text(x(share), below, f"{share:.0%}", "middle") for share in np.linspace(0.0, end, 10)]
    for value in np.linspace(0.0, top, 6):
        parts.append(
            f'<path d="M{_LEFT} {y(value):.1f}H{_WIDTH - _RIGHT}" stroke="{_GREY}" stroke-opacity=".3"/>'
        )
        parts.append(_text(_LEFT - 8, y(value) + 4, f"{value:.0%}", "end"))
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 14, across, "middle"))
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(f'<g transform="rotate(-90 18 {middle:.0f})">{_text(18, middle, up, "middle")}</g>')
    for line in lines:
        points = " ".join(f"{x(p):.1f},{y(v):.1f}" for p, v in zip(places, line.values, strict=True))
        look = f'fill="none" stroke="{line.colour}" stroke-width="2.5"' + (
            ' stroke-dasharray="6 5"' if line.dashed else ""
        )
        parts.append(f'<polyline points="{points}" {look}/>')
        # Named at its end: a key in a corner would lie across a curve sooner or later.
        above = y(float(line.values[-1])) - 7
        parts.append(_text(_WIDTH - _RIGHT, above, line.name, "end", line.colour))
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, text: str, anchor: str, colour: str = _GREY) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}"'
    return f'<text {place} text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
