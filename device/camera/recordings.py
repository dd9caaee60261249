"""Recordings: a folder of images or a video file, played as a live camera would give them: at a rate, on the
monotonic clock."""

import logging
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np

from device.camera.pixels import Unreadable, decode_image, shrink
from device.camera.source import LONGEST_SIDE_PX, READ_LIMIT_S, CameraUnavailable, Pixels
from link1.plain_file import read_plain_file
from models import MOST_PIXELS
from models.picture_files import MOST_BYTES

LIVE_RATE_HZ = 10.0
"""Each picture of a slower film is repeated at this rate or more, as a camera filming it would do."""
SLIDES_RATE_HZ = 20.0
STILL_RATE_HZ = 20.0
"""A picture that nothing follows is repeated at about this rate, however often the next one is looked for:
a camera gives each picture once."""

SLIDES_UP_TO_FPS = 2.0
"""A folder played at this rate or less is a series of photographs, not a film."""
BLANK_S = 0.4
"""Between two photographs the view is empty long enough for the previous hand to count as gone."""

CATCH_UP_S = 0.5
"""A reader that is later than this skips the missed time instead of catching up."""

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".pgm", ".ppm", ".pnm"})
FALLBACK_FPS = 25.0

_log = logging.getLogger(__name__)


class Pictures(Protocol):
    """The pictures to play."""

    @property
    def description(self) -> str:
        """Shown to people."""

    @property
    def skipped(self) -> int:
        """Number of pictures that could not be read."""

    def next(self) -> Pixels | None:
        """The next picture; None when there is none at present (the previous one stays in view)."""

    def close(self) -> None:
        """Free the resources."""


class PacedCamera:
    """A `Camera` that plays `pictures` at `fps`; the last one stays in view while nothing follows it.

    With `slides`, each picture is a separate scene: the first `BLANK_S` of its time show an empty grey.
    """

    def __init__(
        self,
        pictures: Pictures,
        fps: float,
        *,
        slides: bool = False,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._pictures = pictures
        self._shows = max(1, math.ceil((SLIDES_RATE_HZ if slides else LIVE_RATE_HZ) / fps))
        self._period_s = 1.0 / (fps * self._shows)
        self._repeat_ticks = max(1, int(fps * self._shows // STILL_RATE_HZ))
        self._ticks = 0  # since a picture was given
        self._blanks = math.ceil(BLANK_S / self._period_s) if slides else 0
        self._now_s = now_s
        self._sleep = sleep
        self._due_s = now_s()
        self._shown = 0
        self._current: Pixels | None = None
        self.description = f"{pictures.description} at {fps:g} pictures a second"

    @property
    def skipped(self) -> int:
        """See Camera."""
        return self._pictures.skipped

    def read(self) -> Pixels | None:
        """See Camera. Raises CameraUnavailable when the folder, or a video that is to restart, is gone."""
        give_up_s = self._now_s() + READ_LIMIT_S
        while True:
            self._wait_for_tick()
            self._ticks += 1
            if self._current is None or self._shown >= self._shows:
                following = self._pictures.next()
                if following is not None:
                    self._current, self._shown = following, 0
            due = self._shown < self._shows or self._ticks >= self._repeat_ticks
            if self._current is not None and due:
                self._shown, self._ticks = self._shown + 1, 0
                return self._current if self._shown > self._blanks else np.full_like(self._current, 128)
            if self._now_s() >= give_up_s:
                return None

    def close(self) -> None:
        """See Camera."""
        self._pictures.close()

    def _wait_for_tick(self) -> None:
        now_s = self._now_s()
        if now_s < self._due_s:
            self._sleep(self._due_s - now_s)
        elif now_s - self._due_s > CATCH_UP_S:
            self._due_s = now_s
        self._due_s += self._period_s


class ImageFolder:
    """The images of `folder` in the order of their names.

    With `loop` it restarts at the end. Without, `next` returns None there until files are added whose names
    sort after the last one read (create them under a name that begins with a dot, then rename them). The
    folder is listed only when every known name has been read. Files that cannot be decoded, or are gone when
    they are due, are skipped, counted and logged by name.
    """

    def __init__(self, folder: Path, *, loop: bool) -> None:
        self._folder = folder
        self._loop = loop
        self._waiting: list[str] = []  # reversed: the next name is the last
        self._last_name = ""
        self._depth_bits = 8
        self._said_scaled = False
        self.skipped = 0
        self.description = f"folder of images {folder}"
        self._list_after("")
        if not self._waiting:
            expected = " ".join(sorted(SUFFIXES))
            _log.warning(
                "camera: folder %s holds no image yet; expected names ending in %s", folder, expected
            )

    def next(self) -> Pixels | None:
        """See Pictures."""
        if not self._waiting:
            self._list_after(self._last_name)
            if not self._waiting and self._loop:
                self._list_after("")
        while self._waiting:
            name = self._waiting.pop()
            self._last_name = name
            pixels = self._read(self._folder / name)
            if pixels is not None:
                return pixels
        return None

    def close(self) -> None:
        """Nothing is held open."""

    def _list_after(self, last: str) -> None:
        names = self._names_after(last)
        if names:
            # A listing may miss a file that was added while it ran and still show a later one. Files are
            # added in order, so everything before the latest name exists, and a second listing up to it is
            # complete.
            latest = max(names)
            names |= {name for name in self._names_after(last) if name <= latest}
        self._waiting = sorted(names, reverse=True)

    def _names_after(self, last: str) -> set[str]:
        try:
            with os.scandir(self._folder) as entries:
                return {entry.name for entry in entries if _is_image(entry.name) and entry.name > last}
        except OSError as error:
            raise CameraUnavailable(
                f"camera source file:{self._folder} cannot be listed ({error.strerror}); expected a folder "
                "of images that this user may read"
            ) from error

    def _read(self, path: Path) -> Pixels | None:
        try:
            pixels, self._depth_bits, scaled = decode_image(
                read_plain_file(path, MOST_BYTES), depth_bits=self._depth_bits
            )
        except (OSError, Unreadable) as reason:
            self.skipped += 1
            _log.warning("camera: image %s skipped: %s", path.name, reason)
            return None
        if scaled and not self._said_scaled:
            self._said_scaled = True
            _log.info("camera: large images are scaled down to %d pixels (longer side)", LONGEST_SIDE_PX)
        return pixels


def _is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122 -- folders may hold 100,000 names; no Path for each


class VideoFile:
    """The frames of one video; with `loop` it restarts at its end, otherwise `next` returns None from there.

    `own_fps` is the rate stated in the file. Raises CameraUnavailable when OpenCV cannot read it as a video.
    """

    def __init__(self, path: Path, *, loop: bool) -> None:
        if not os.access(path, os.R_OK):
            raise PermissionError(path)
        if not path.is_file():  # FFmpeg would wait for data at a pipe
            raise CameraUnavailable(
                f"camera source file:{path} is no plain file; expected a video or a folder"
            )
        self._path = path
        self._loop = loop
        self._ended = False
        self.skipped = 0
        self._video = self._open()
        stated = self._video.get(cv2.CAP_PROP_FPS)
        self.own_fps = float(stated) if 0.5 <= stated <= 240.0 else FALLBACK_FPS
        self.description = f"video file {path}"

    def next(self) -> Pixels | None:
        """See Pictures."""
        if self._ended:
            return None
        pixels = self._read()
        if pixels is None and self._loop:
            # Reopened instead of rewound: seeking fails silently in files without an index.
            self._video.release()
            self._video = self._open()
            pixels = self._read()
        if pixels is None:
            self._ended = True
            _log.info("camera: the video has ended; its last picture stays in view")
        return pixels

    def close(self) -> None:
        """See Pictures."""
        self._video.release()

    def _open(self) -> cv2.VideoCapture:
        video = cv2.VideoCapture(str(self._path), cv2.CAP_FFMPEG)
        if not video.isOpened():
            raise CameraUnavailable(
                f"camera source file:{self._path} is not a video that FFmpeg can read; expected for example "
                "an MP4, AVI, MKV or WebM file, or a folder of images"
            )
        wide, high = (int(video.get(side)) for side in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT))
        if wide * high > MOST_PIXELS:
            video.release()
            raise CameraUnavailable(
                f"camera source file:{self._path} has pictures of {wide} × {high} pixels; expected at most "
                f"{MOST_PIXELS // 10**6} megapixels: scale the video down"
            )
        return video

    def _read(self) -> Pixels | None:
        got, picture = self._video.read()
        if not got:
            return None
        return shrink(np.asarray(picture, np.uint8))
