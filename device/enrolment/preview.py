"""The camera's picture for a technician: made on request, in memory, and not kept.

The inference thread offers each examined frame, at the cost of two comparisons. When a picture is requested
and the last one is at least an eighth of a second old, a reference to the frame is kept, and another thread
encodes it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from device.vision.recognition import Look
from link1.canonical import JsonObject
from models.errors import PixelsError
from models.frames import CameraFrame
from models.hand import Hand, PartialHand
from models.quality import COMPONENTS

EVERY_MS: Final = 125
"""At most eight pictures a second."""
WATCHED_MS: Final = 3_000
"""After so long without a request the preview is over."""
MOST_PIXELS: Final = 640
"""Width of a picture, where the camera's is not smaller."""

_JPEG_QUALITY: Final = 80
_OUTLINE_POINTS: Final = 160

Offered = tuple[CameraFrame, Look | None]


@dataclass(eq=False)
class Preview:
    """`offer` runs on the inference thread; everything else on the loop. `on_change`: it began or ended."""

    loop: asyncio.AbstractEventLoop
    now_ms: Callable[[], int]
    on_change: Callable[[], None]

    def __post_init__(self) -> None:
        self._wanted_until_ms = 0
        self._last_ms = 0
        self._waiting: asyncio.Future[Offered] | None = None
        self._ends: asyncio.TimerHandle | None = None
        self._encoding = asyncio.Lock()

    @property
    def watched(self) -> bool:
        return self.now_ms() < self._wanted_until_ms

    def offer(self, frame: CameraFrame, look: Look | None) -> None:
        """A frame was examined; on the inference thread."""
        waiting = self._waiting
        if waiting is None or frame.at_ms - self._last_ms < EVERY_MS:
            return
        self._last_ms, self._waiting = frame.at_ms, None
        try:
            self.loop.call_soon_threadsafe(_hand_over, waiting, (frame, look))
        except RuntimeError:
            return  # the loop is closed: the program is ending

    async def picture(self, wait_s: float) -> tuple[JsonObject, bytes] | None:
        """The next picture as JPEG, with what was seen in it; None when no frame arrived in time, or while
        another request is being answered."""
        self._look_on()
        if self._encoding.locked():
            return None
        async with self._encoding:
            waiting: asyncio.Future[Offered] = self.loop.create_future()
            self._waiting = waiting
            try:
                async with asyncio.timeout(wait_s):
                    frame, look = await waiting
            except TimeoutError:
                return None
            finally:
                self._waiting = None
            return await asyncio.to_thread(draw, frame, look)

    def _look_on(self) -> None:
        begins = not self.watched
        self._wanted_until_ms = self.now_ms() + WATCHED_MS
        if self._ends is not None:
            self._ends.cancel()
        self._ends = self.loop.call_later(WATCHED_MS / 1000 + 0.05, self.on_change)
        if begins:
            self.on_change()


def _hand_over(waiting: "asyncio.Future[Offered]", offered: Offered) -> None:
    if not waiting.done():
        waiting.set_result(offered)


def draw(frame: CameraFrame, look: Look | None) -> tuple[JsonObject, bytes]:
    """A frame as JPEG, at most `MOST_PIXELS` wide, and what was seen in it, in pixels of that picture."""
    scale = min(1.0, MOST_PIXELS / frame.width)
    size = (max(1, round(frame.width * scale)), max(1, round(frame.height * scale)))
    pixels = frame.pixels
    if scale < 1.0:
        pixels = np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)
    _, data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
    seen, sighting = (None, None) if look is None else (look.seen, look.sighting)
    stage_ms = {} if sighting is None else sighting.stage_ms
    findings: JsonObject = {
        "number": frame.number,
        "width": size[0],
        "height": size[1],
        "hand": _hand_obj(seen, scale),
        "quality": _quality_obj(look),
        "pad": sighting.pad.to_obj() if sighting is not None and sighting.pad is not None else None,
        "hint": str(sighting.hint) if sighting is not None and sighting.hint is not None else None,
        "stages_us": [[name, round(ms * 1000)] for name, ms in stage_ms.items()],
    }
    return findings, data.tobytes()


def _hand_obj(seen: Hand | PartialHand | None, scale: float) -> JsonObject | None:
    if seen is None:
        return None
    if isinstance(seen, PartialHand):
        return {"side": None, "centre": _points(seen.centre[np.newaxis], scale)[0]}
    return {
        "side": seen.handedness,
        "centre": _points(seen.centre[np.newaxis], scale)[0],
        "palm_px": round(seen.palm_width_px),
        "valleys": _points(seen.valleys, scale),
        "outline": _outline(seen, scale),
        "crop": _crop_corners(seen, scale),
    }


def _quality_obj(look: Look | None) -> JsonObject | None:
    """0..100 each; the lowest counts. Sharp is what is so for recognition and for liveness, as in doctor."""
    quality = look.quality if look is not None else None
    if quality is None:
        return None
    parts: JsonObject = {name: round(getattr(quality, name)) for name in COMPONENTS}
    parts["sharpness"] = round(min(quality.sharpness, quality.detail))
    return {"quality_q": quality.quality_q, **parts}


def _outline(hand: Hand, scale: float) -> list[list[int]]:
    contours, _ = cv2.findContours(hand.mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    if not contours:
        return []
    longest = max(contours, key=cv2.contourArea)
    simpler = cv2.approxPolyDP(longest, 0.8, closed=True).reshape(-1, 2)
    every = max(1, -(-len(simpler) // _OUTLINE_POINTS))
    return _points(simpler[::every] / hand.mask_scale, scale)


def _crop_corners(hand: Hand, scale: float) -> list[list[int]]:
    """The four corners of the square that the model gets."""
    try:
        matrix = hand.to_crop(1)
    except PixelsError:
        return []
    square = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], dtype=np.float64) - 0.5
    corners = np.linalg.solve(matrix[:, :2], (square - matrix[:, 2]).T).T
    return _points(corners, scale)


def _points(points: npt.NDArray[Any], scale: float) -> list[list[int]]:
    return [[round(float(x) * scale), round(float(y) * scale)] for x, y in points]
