"""The pictures of a video file."""

import logging
import os
from pathlib import Path

import cv2
import numpy as np

from device.camera.pixels import shrink
from device.camera.source import CameraUnavailable, Pixels
from models import MOST_PIXELS

FALLBACK_FPS = 25.0

_log = logging.getLogger(__name__)


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
