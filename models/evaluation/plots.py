"""Two pictures of an evaluation, drawn with OpenCV: the DET curves and where the scores lie."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.evaluation.measures import VerificationScores

Image = NDArray[np.uint8]
Colour = tuple[int, int, int]

_WIDE: Final = 880
_HIGH: Final = 560
_FINE: Final = 2
"""Drawn at this multiple and reduced, so that letters and curves are smooth."""
_LEFT: Final = 92
_RIGHT: Final = 24
_TOP: Final = 56
_BOTTOM: Final = 72
_INK: Final = (60, 50, 40)
_FAINT: Final = (232, 228, 222)
_COLOURS: Final[tuple[Colour, ...]] = ((165, 100, 25), (60, 140, 20), (30, 85, 205))
_LOWEST_FNMR: Final = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class _Sheet:
    """A plotting area: data to pixels, both axes from 0 to 1 already."""

    image: Image

    def at(self, x: float, y: float) -> tuple[int, int]:
        left, right = _LEFT * _FINE, (_WIDE - _RIGHT) * _FINE
        top, bottom = _TOP * _FINE, (_HIGH - _BOTTOM) * _FINE
        return round(left + x * (right - left)), round(bottom - y * (bottom - top))

    def line(self, points: Sequence[tuple[float, float]], colour: Colour, width: int = 2) -> None:
        px = np.array([self.at(x, y) for x, y in points], dtype=np.int32)
        cv2.polylines(self.image, [px], False, colour, width * _FINE // 2, cv2.LINE_AA)

    def text(
        self,
        words: str,
        place: tuple[int, int],
        *,
        size: float = 0.5,
        centred: bool = False,
        colour: Colour = _INK,
    ) -> None:
        scale = size * _FINE
        (width, _), _ = cv2.getTextSize(words, cv2.FONT_HERSHEY_SIMPLEX, scale, _FINE // 2)
        x = place[0] - (width // 2 if centred else 0)
        cv2.putText(
            self.image, words, (x, place[1]), cv2.FONT_HERSHEY_SIMPLEX, scale, colour, _FINE // 2, cv2.LINE_AA
        )

    def small(self) -> Image:
        return np.asarray(
            cv2.resize(self.image, (_WIDE, _HIGH), interpolation=cv2.INTER_AREA), dtype=np.uint8
        )


def _sheet(title: str, x_name: str, y_name: str) -> _Sheet:
    sheet = _Sheet(np.full((_HIGH * _FINE, _WIDE * _FINE, 3), 255, dtype=np.uint8))
    sheet.text(title, (_LEFT * _FINE, 30 * _FINE), size=0.62)
    sheet.text(x_name, ((_LEFT + _WIDE - _RIGHT) // 2 * _FINE, (_HIGH - 22) * _FINE), centred=True)
    upright = np.full((180 * 2, _HIGH * _FINE, 3), 255, dtype=np.uint8)
    words = _Sheet(upright)
    words.text(y_name, (_HIGH * _FINE // 2, 24 * _FINE), centred=True)
    turned = cv2.rotate(upright, cv2.ROTATE_90_COUNTERCLOCKWISE)
    band = 30 * _FINE
    sheet.image[:, :band] = turned[:, 8 * _FINE : 8 * _FINE + band]
    return sheet


def _ticks(sheet: _Sheet, xs: Sequence[tuple[float, str]], ys: Sequence[tuple[float, str]]) -> None:
    for x, name in xs:
        sheet.line([(x, 0.0), (x, 1.0)], _FAINT)
        px, py = sheet.at(x, 0.0)
        sheet.text(name, (px, py + 22 * _FINE), size=0.42, centred=True)
    for y, name in ys:
        sheet.line([(0.0, y), (1.0, y)], _FAINT)
        px, py = sheet.at(0.0, y)
        sheet.text(name, (px - 52 * _FINE, py + 5 * _FINE), size=0.42)
    sheet.line([(0.0, 0.0), (1.0, 0.0)], _INK)
    sheet.line([(0.0, 0.0), (0.0, 1.0)], _INK)


def _legend(sheet: _Sheet, names: Sequence[str]) -> None:
    for i, name in enumerate(names):
        y = 0.94 - 0.06 * i
        sheet.line([(0.64, y), (0.69, y)], _COLOURS[i % len(_COLOURS)], 4)
        px, py = sheet.at(0.705, y)
        sheet.text(name, (px, py + 5 * _FINE), size=0.46)


def _percent(rate: float) -> str:
    return f"{rate * 100:g}%"


def _along_logarithm(lowest: float) -> Callable[[float], float]:
    span = -np.log10(lowest)
    return lambda rate: float(1.0 + np.log10(max(rate, lowest)) / span)


def det_plot(named: Sequence[tuple[str, VerificationScores]]) -> Image:
    """The detection error trade-off of every method, (560, 880, 3) BGR; both axes logarithmic."""
    lowest = min(float(v.det[0][0]) for _, v in named)
    across, up = _along_logarithm(lowest), _along_logarithm(_LOWEST_FNMR)
    sheet = _sheet("Detection error trade-off", "false match rate", "false non-match rate")
    decades = [10.0**e for e in range(-7, 1)]
    _ticks(
        sheet,
        [(across(r), _percent(r)) for r in decades if r >= lowest],
        [(up(r), _percent(r)) for r in decades if r >= _LOWEST_FNMR],
    )
    sheet.line(
        [(across(r), up(r)) for r in np.geomspace(max(lowest, _LOWEST_FNMR), 1.0, 20)], (205, 200, 195)
    )
    for i, (_, measured) in enumerate(named):
        fmr, fnmr = measured.det
        sheet.line(
            [(across(float(x)), up(float(y))) for x, y in zip(fmr, fnmr, strict=True)], _COLOURS[i % 3], 4
        )
    _legend(sheet, [name for name, _ in named])
    return sheet.small()


def score_plot(title: str, mated: NDArray[np.float32], non_mated: NDArray[np.float32]) -> Image:
    """How often which similarity came out, for one palm and for two people; each scaled to its own peak."""
    low = float(min(mated.min(), np.quantile(non_mated, 1e-4)))
    high = float(max(mated.max(), non_mated.max()))
    edges = np.linspace(low, high, 90)
    sheet = _sheet(f"Scores: {title}", "similarity", "frequency")
    _ticks(sheet, [((v - low) / (high - low), f"{v:.2f}") for v in np.linspace(low, high, 7)], [])
    for scores, colour in ((non_mated, _COLOURS[2]), (mated, _COLOURS[0])):
        counts = np.histogram(scores, edges)[0].astype(float)
        heights = counts / max(counts.max(), 1.0) * 0.86
        places = (edges[:-1] + edges[1:]) / 2
        sheet.line([((x - low) / (high - low), y) for x, y in zip(places, heights, strict=True)], colour, 4)
    for i, (name, colour) in enumerate((("one palm", _COLOURS[0]), ("two people", _COLOURS[2]))):
        y = 0.94 - 0.06 * i
        sheet.line([(0.78, y), (0.83, y)], colour, 4)
        px, py = sheet.at(0.845, y)
        sheet.text(name, (px, py + 5 * _FINE), size=0.46)
    return sheet.small()


def png_bytes(image: Image) -> bytes:
    """The picture as a PNG file's content."""
    return bytes(cv2.imencode(".png", image, [cv2.IMWRITE_PNG_COMPRESSION, 9])[1])


def save_png(image: Image, path: Path) -> None:
    """Write the picture."""
    path.write_bytes(png_bytes(image))
