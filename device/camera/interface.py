"""The interface that every source of frames implements, and its errors."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from device.errors import CameraError

Pixels = npt.NDArray[np.uint8]
"""One picture: (H, W, 3) BGR (RGB look) or (H, W) (NIR look), 0..255; palm towards the camera, unmirrored."""

READ_LIMIT_S = 1.0
"""`Camera.read` returns after about this time even when no picture came."""

LONGEST_SIDE_PX = 1280
"""Larger pictures are scaled down to this longer side: a palm needs no more, and every stage costs less."""


class CameraSourceError(CameraError):
    """The words of `[camera] source`, `fps` or `loop` name no source of frames."""


class CameraUnavailable(CameraError):
    """The source is named correctly but cannot be opened now: absent, forbidden, busy, or not a camera."""


class CameraLost(CameraError):
    """An opened camera is gone (unplugged, or its driver gave up): close it and open it again."""


class Camera(Protocol):
    """An opened source of pictures. Used by one thread; `close` is called by the same thread."""

    @property
    def description(self) -> str:
        """Shown to people: the device or path, and the picture format."""

    @property
    def skipped(self) -> int:
        """Number of unusable pictures: corrupt frames, unreadable files. Never decreases."""

    def read(self) -> Pixels | None:
        """The next picture, waiting for it; None when none came within about `READ_LIMIT_S` (a stall).

        Raises CameraLost when no more pictures can come and the camera must be opened again.
        """

    def close(self) -> None:
        """Free the device or file; may be repeated."""
