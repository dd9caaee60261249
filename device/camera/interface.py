"""The one interface behind which every source of frames stands."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
"""One picture: (H, W, 3) BGR (RGB look) or (H, W) (NIR look), 0..255; palm towards the camera, unmirrored."""

READ_LIMIT_S = 1.0
"""`Camera.read` returns after about this long even when no picture came."""

LONGEST_SIDE_PX = 1280
"""Larger pictures are scaled down to this longer side: a palm needs no more, and every stage costs less."""


class Camera(Protocol):
    """An opened source of pictures. Used by one thread; `close` is called by the same thread."""

    @property
    def description(self) -> str:
        """What this is, for a person: the device or path and its picture format."""

    @property
    def skipped(self) -> int:
        """Pictures that came but were no use: corrupt frames, unreadable files. Never falls."""

    def read(self) -> Pixels | None:
        """The next picture, waiting for it; None when none came within about `READ_LIMIT_S` (a stall).

        Raises CameraLost when no picture can come any more and the camera must be opened anew.
        """

    def close(self) -> None:
        """Frees the device or file; harmless when repeated."""
