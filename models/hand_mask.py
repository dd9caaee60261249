"""Silhouettes that could be a hand: several ways to tell it from its background, none right everywhere.

A palm in front of the camera is lighter than a dark background, darker than a lit wall, redder than nearly
everything, and different from what stands along the image's border. Each of these is one image channel and
one threshold (Otsu 1979); the caller reads the shape in each and keeps the one that looks most like a hand.
When none convinces, colours are learnt from the best guess and every pixel is asked anew (as GrabCut does,
once, with histograms instead of mixtures).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

BORDER_PX: Final = 5
_COLOURS: Final = 16 * 32 * 32
_OPENING: Final = np.ones((3, 3), np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class View:
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


def make_view(pixels: NDArray[np.uint8], width_px: int) -> View:
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
        return View(np.asarray(small, dtype=np.uint8), None, scale)
    ycrcb = np.asarray(cv2.cvtColor(small, cv2.COLOR_BGR2YCrCb), dtype=np.uint8)
    light = np.ascontiguousarray(ycrcb[:, :, 0])
    _, spread = cv2.meanStdDev(ycrcb)
    colourless = float(spread[1:].max()) < 1.5
    return View(light, None if colourless else ycrcb, scale)


def channels(view: View) -> dict[str, Callable[[], NDArray[np.uint8]]]:
    """Ways to see a hand, most telling first; each yields an (h, w) uint8 image in which hands are bright."""
    ways: dict[str, Callable[[], NDArray[np.uint8]]] = {}
    colours = view.ycrcb
    if colours is not None:
        ways["red"] = lambda: np.ascontiguousarray(colours[:, :, 1])
        ways["chroma"] = lambda: _from_border(np.ascontiguousarray(colours[:, :, 1:]))
    ways["light"] = lambda: view.light
    ways["dark"] = lambda: np.asarray(cv2.bitwise_not(view.light), dtype=np.uint8)
    ways["border"] = lambda: _from_border(view.light[:, :, None])
    return ways


def silhouette(channel: NDArray[np.uint8]) -> Silhouette | None:
    """The largest bright region of a channel that does not merely surround the image."""
    threshold, binary = cv2.threshold(channel, 0, 255, cv2.THRESH_BINARY | cv2.THRESH_OTSU)
    histogram = np.bincount(channel.ravel(), minlength=256).astype(np.float64)
    separation, contrast = _split_quality(histogram, int(threshold))
    found = _largest(np.asarray(binary, dtype=np.uint8))
    if found is None:
        return None
    mask, contour, area = found
    return Silhouette(mask, contour, separation, contrast, _edge_slope(channel, contour), area)


def learnt_silhouette(view: View, seed: Silhouette) -> Silhouette | None:
    """The region whose colours are more often those of the seed's inside than of its outside."""
    bins = _colour_bins(view)
    inside = cv2.erode(seed.mask, _OPENING, iterations=2) > 0
    outside = cv2.dilate(seed.mask, _OPENING, iterations=3) == 0
    odds = []
    for region in (inside, outside):
        counts = np.bincount(bins[region], minlength=_COLOURS).astype(np.float32)
        total = float(counts.sum())
        if total < 50.0:
            return None
        odds.append((counts * np.float32(2e4 / total))[bins])
    hand, ground = (cv2.blur(np.minimum(o, np.float32(255.0)), (3, 3)) + 0.5 for o in odds)
    found = _largest(np.where(hand > ground, 255, 0).astype(np.uint8))
    return None if found is None else replace(seed, mask=found[0], contour=found[1], area=found[2])


def _colour_bins(view: View) -> NDArray[np.int32]:
    """Which of ``_COLOURS`` each pixel (h, w) has: 16 shades by 32 by 32 tints, or 32 shades of grey."""
    if view.ycrcb is None:
        return (view.light >> 3).astype(np.int32)
    light, red, blue = (view.ycrcb[:, :, k].astype(np.int32) for k in range(3))
    return np.asarray((light >> 4 << 10) | (red >> 3 << 5) | (blue >> 3), dtype=np.int32)


def _from_border(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Distance of every pixel from the median colour along the upper three borders, as 0..255."""
    b = BORDER_PX
    planes = image.shape[2]
    edge = np.concatenate([side.reshape(-1, planes) for side in (image[:b], image[:, :b], image[:, -b:])])
    middle = np.median(edge, axis=0)
    distance = np.zeros(image.shape[:2], np.float32)
    for plane in range(planes):
        difference = image[:, :, plane].astype(np.float32) - np.float32(middle[plane])
        cv2.accumulateSquare(difference, distance)
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


def _largest(binary: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int32], float] | None:
    """Mask, contour and share of the image of the largest region."""
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
    smooth = cv2.GaussianBlur(channel, (5, 5), 0)
    across = cv2.Sobel(smooth, cv2.CV_16S, 1, 0)[y[free], x[free]]
    down = cv2.Sobel(smooth, cv2.CV_16S, 0, 1)[y[free], x[free]]
    return float(np.median(np.hypot(across, down))) / 8.0


def _surrounds(contour: NDArray[np.int32], height: int, width: int) -> bool:
    """Whether a region lies along more than half of the image's border: a background, not a hand."""
    x, y = contour[:, 0, 0], contour[:, 0, 1]
    along = int(((x < 1) | (y < 1) | (x > width - 2) | (y > height - 2)).sum())
    return along > 0.5 * 2 * (height + width)
