"""Silhouettes that could be a hand: several ways to tell it from its background, none right everywhere.

A palm in front of the camera is redder than nearly everything and of another colour than the image's border;
without colours it is lighter than a dark background or darker than a lit wall. Each of these is one image
channel and one threshold (Otsu 1979); the caller reads the shape in each until one looks like a hand. A rough
mask is refined by colours that are learnt from it, by which every pixel is classified again (as GrabCut does,
once, with histograms instead of mixtures).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

BORDER_PX: Final = 5
_COLOURS: Final = 16 * 32 * 32
_OPENING: Final = np.ones((3, 3), np.uint8)

_Region = tuple[NDArray[np.uint8], NDArray[np.int32], float]
"""Mask (h, w) of 0 and 255 without holes, its contour (N, 1, 2), its share of the image."""


@dataclass(frozen=True, slots=True, eq=False)
class FinderView:
    """A frame made small for finding: ``light`` (h, w) uint8, and for colour ``ycrcb`` (h, w, 3) uint8."""

    light: NDArray[np.uint8]
    ycrcb: NDArray[np.uint8] | None
    scale: float
    """Small pixels per frame pixel."""

    def to_frame(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Points of the small view in frame pixels (pixel centres are integers on both sides)."""
        return np.asarray((points + 0.5) / self.scale - 0.5)

    def from_frame(self, points: NDArray[np.floating]) -> NDArray[np.float64]:
        """Points of the frame in pixels of the small view."""
        return np.asarray((points + 0.5) * self.scale - 0.5, dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Silhouette:
    """One connected region without holes: ``mask`` (h, w) of 0 and 255, its contour (N, 1, 2) int32."""

    mask: NDArray[np.uint8]
    contour: NDArray[np.int32]
    separation: float
    """0..1: share of the channel's variance that the threshold explains; under 0.6 is no clear figure."""
    contrast: float
    """Distance between the means of the two sides, in levels of the channel."""
    edge: float
    """Median slope of the channel along the contour, in levels a pixel; a mere change of shade has little."""
    area: float
    """Share of the image."""


def make_view(pixels: NDArray[np.uint8], width_px: int) -> FinderView:
    """The frame at about ``width_px`` pixels on its longer side, lightly smoothed."""
    height, width = pixels.shape[:2]
    scale = width_px / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    if scale < 1.0 and pixels.size > 4 * 640 * 480 * 3:
        # INTER_AREA reads every pixel; a large photograph has more of them than the silhouette needs.
        step = max(1, int(1.0 / scale) // 2)
        pixels = np.ascontiguousarray(pixels[::step, ::step])
    small = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA if scale < 1.0 else cv2.INTER_LINEAR)
    small = cv2.GaussianBlur(small, (3, 3), 0)
    if small.ndim == 2:
        return FinderView(np.asarray(small, dtype=np.uint8), None, scale)
    ycrcb = np.asarray(cv2.cvtColor(small, cv2.COLOR_BGR2YCrCb), dtype=np.uint8)
    light = np.ascontiguousarray(ycrcb[:, :, 0])
    _, spread = cv2.meanStdDev(ycrcb)
    colourless = float(spread[1:].max()) < 1.5
    return FinderView(light, None if colourless else ycrcb, scale)


def channels(view: FinderView) -> dict[str, Callable[[], NDArray[np.uint8]]]:
    """Ways to see a hand, most telling first; each yields an (h, w) uint8 image in which hands are bright."""
    colours = view.ycrcb
    if colours is None:
        return {
            "light": lambda: view.light,
            "dark": lambda: np.asarray(cv2.bitwise_not(view.light), dtype=np.uint8),
        }
    return {
        "red": lambda: _plane(colours, 1),
        "chroma": lambda: _from_border(_plane(colours, 1), _plane(colours, 2)),
    }


def silhouette(channel: NDArray[np.uint8]) -> Silhouette | None:
    """The largest bright region of a channel that does not merely surround the image."""
    threshold, binary = cv2.threshold(channel, 0, 255, cv2.THRESH_BINARY | cv2.THRESH_OTSU)
    histogram = cv2.calcHist([channel], [0], None, [256], [0.0, 256.0]).ravel().astype(np.float64)
    separation, contrast = _split_quality(histogram, int(threshold))
    found = _largest(np.asarray(binary, dtype=np.uint8))
    if found is None:
        return None
    mask, contour, area = found
    return Silhouette(mask, contour, separation, contrast, _edge_slope(channel, contour), area)


def learnt_region(view: FinderView, seed: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """The mask of the region whose colours are more often inside than outside ``seed``; both (h, w) of 0 and
    255."""
    bins = _colour_bins(view)
    inside = cv2.erode(seed, _OPENING, iterations=2)
    outside = cv2.bitwise_not(cv2.dilate(seed, _OPENING, iterations=3))
    odds = []
    for region in (inside, outside):
        counts = cv2.calcHist([bins], [0], region, [_COLOURS], [0.0, float(_COLOURS)]).ravel()
        total = float(counts.sum())
        if total < 50.0:
            return None
        odds.append(np.minimum(counts * np.float32(2e4 / total), np.float32(255.0)))
    lead = cv2.blur(np.take(odds[0] - odds[1], bins), (3, 3))
    found = _largest(np.where(lead > 1e-3, 255, 0).astype(np.uint8))
    return None if found is None else found[0]


def _colour_bins(view: FinderView) -> NDArray[np.uint16]:
    """Which of ``_COLOURS`` each pixel (h, w) has: 16 shades by 32 by 32 tints, or 32 shades of grey."""
    levels = np.arange(256, dtype=np.uint16)
    if view.ycrcb is None:
        return np.asarray(cv2.LUT(view.light, levels >> 3), dtype=np.uint16)
    bins = np.zeros(view.light.shape, np.uint16)
    for k, part in enumerate((levels >> 4 << 10, levels >> 3 << 5, levels >> 3)):
        bins += np.asarray(cv2.LUT(_plane(view.ycrcb, k), part), dtype=np.uint16)
    return bins


def _plane(colours: NDArray[np.uint8], k: int) -> NDArray[np.uint8]:
    return np.asarray(cv2.extractChannel(colours, k), dtype=np.uint8)


def _from_border(*planes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Distance of every pixel from the median colour along the upper three borders, as 0..255."""
    b, levels = BORDER_PX, np.arange(256, dtype=np.float32)
    distance = np.zeros(planes[0].shape, np.float32)
    for plane in planes:
        edge = np.concatenate([side.ravel() for side in (plane[:b], plane[:, :b], plane[:, -b:])])
        distance += cv2.LUT(plane, (levels - np.float32(np.median(edge))) ** 2)
    return np.asarray(cv2.convertScaleAbs(cv2.sqrt(distance), alpha=2.0), dtype=np.uint8)


def _split_quality(histogram: NDArray[np.float64], threshold: int) -> tuple[float, float]:
    """Otsu's separability (between-class over total variance) and the distance of the class means."""
    levels = np.arange(256, dtype=np.float64)
    total = histogram.sum()
    mean = float(histogram @ levels) / total
    variance = float(histogram @ (levels - mean) ** 2) / total
    low, high = histogram[: threshold + 1], histogram[threshold + 1 :]
    below, above = float(low.sum()), float(high.sum())
    if variance < 1e-9 or below == 0.0 or above == 0.0:
        return 0.0, 0.0
    contrast = float(high @ levels[threshold + 1 :]) / above - float(low @ levels[: threshold + 1]) / below
    return below * above / total**2 * contrast**2 / variance, contrast


def _largest(binary: NDArray[np.uint8]) -> _Region | None:
    """The largest region that does not merely surround the image."""
    height, width = binary.shape
    if min(height, width) < 8:
        return None
    opened = cv2.morphologyEx(binary, cv2.MORPH_OPEN, _OPENING)
    contours, _ = cv2.findContours(opened, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    best, best_area = None, 0.0
    for contour in (np.asarray(found, dtype=np.int32) for found in contours):
        if len(contour) < 40:
            continue
        area = float(cv2.contourArea(contour))
        if area > best_area and not _surrounds(contour, height, width):
            best, best_area = contour, area
    share = best_area / (height * width)
    if best is None or not 0.02 <= share <= 0.9:
        return None
    mask = np.zeros((height, width), np.uint8)
    cv2.drawContours(mask, [best], -1, 255, cv2.FILLED)
    return mask, best, share


def _edge_slope(channel: NDArray[np.uint8], contour: NDArray[np.int32]) -> float:
    height, width = channel.shape
    x, y = contour[:, 0, 0], contour[:, 0, 1]
    free = (x > 2) & (y > 2) & (x < width - 3) & (y < height - 3)
    if int(free.sum()) < 30:
        return 0.0
    left, top, right, bottom = (int(v) for v in (x.min(), y.min(), x.max(), y.max()))
    part = channel[max(0, top - 3) : bottom + 4, max(0, left - 3) : right + 4]
    smooth = cv2.GaussianBlur(part, (5, 5), 0)
    at = y[free] - max(0, top - 3), x[free] - max(0, left - 3)
    across, down = (cv2.Sobel(smooth, cv2.CV_16S, *step)[at] for step in ((1, 0), (0, 1)))
    return float(np.median(np.hypot(across, down))) / 8.0


def _surrounds(contour: NDArray[np.int32], height: int, width: int) -> bool:
    """Whether a region lies along more than half of the image's border: a background, not a hand."""
    x, y = contour[:, 0, 0], contour[:, 0, 1]
    along = int(((x < 1) | (y < 1) | (x > width - 2) | (y > height - 2)).sum())
    return along > 0.5 * 2 * (height + width)
