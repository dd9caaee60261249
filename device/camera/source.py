"""What every source of frames offers; `[camera] source` parsed, and the camera that it names opened."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
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


DEFAULT_FOLDER_FPS = 15.0
DEFAULT_V4L2_FPS = 30.0
FPS_RANGE = (0.1, 1000.0)

_EXPECTED = (
    "expected a device node such as /dev/video0, v4l2:by-id/NAME (a name of /dev/v4l/by-id), "
    "or file:PATH of a video or of a folder of images"
)


class SourceKind(Enum):
    """The kind of source that the configuration names; video or folder is decided when a file is opened."""

    V4L2 = "v4l2"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class CameraSource:
    """A parsed `[camera] source`. `path` is absolute for V4L2; for a file it may be relative."""

    kind: SourceKind
    path: Path


def parse_source(text: str) -> CameraSource:
    """Parse `[camera] source` without touching the disk. Raises CameraSourceError when it names no source."""
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "file":
        if not rest:
            raise CameraSourceError(f"[camera] source file: lacks its path; {_EXPECTED}")
        return CameraSource(SourceKind.FILE, Path(rest))
    if colon and scheme == "v4l2":
        folder, slash, name = rest.partition("/")
        if folder not in {"by-id", "by-path"} or not slash or not name or "/" in name or name in {".", ".."}:
            raise CameraSourceError(f"[camera] source {text!r} is not v4l2:by-id/NAME; {_EXPECTED}")
        return CameraSource(SourceKind.V4L2, Path("/dev/v4l") / folder / name)
    if text.startswith("/dev/"):
        return CameraSource(SourceKind.V4L2, Path(text))
    raise CameraSourceError(f"[camera] source {text!r} is of no known kind; {_EXPECTED}")


def open_camera(source: str, fps: float | None = None, loop: bool = False, *, pair: bool = False) -> Camera:
    """Open `source`.

    `fps`: for a folder, images a second (15 when None); at 2 or less each image is a separate scene with an
    empty view in between, as photographs of different hands need it. For a video, the file's rate when None.
    For a V4L2 device, the rate requested from the driver (30 when None), which may deliver another. `loop`: a
    video or folder restarts at its end; otherwise its last picture stays, and a folder continues with images
    added later. `pair`: a V4L2 device is asked for pictures of twice the width, two pictures side by side;
    the size of files does not change.

    Raises CameraSourceError (wrong words) or CameraUnavailable (cannot be opened now; a later attempt may
    succeed).
    """
    if fps is not None and not FPS_RANGE[0] <= fps <= FPS_RANGE[1]:
        raise CameraSourceError(f"[camera] fps is {fps}; expected {FPS_RANGE[0]:g} to {FPS_RANGE[1]:g}")
    parsed = parse_source(source)
    # Imported here: parsing and checking a source must not load OpenCV.
    if parsed.kind is SourceKind.V4L2:
        from device.camera.v4l2 import open_v4l2

        return open_v4l2(parsed.path, fps or DEFAULT_V4L2_FPS, pair=pair)
    from device.camera.recordings import SLIDES_UP_TO_FPS, ImageFolder, PacedCamera, VideoFile

    try:
        if parsed.path.is_dir():
            rate = fps or DEFAULT_FOLDER_FPS
            slides = rate <= SLIDES_UP_TO_FPS
            return PacedCamera(ImageFolder(parsed.path, loop=loop), rate, slides=slides)
        if parsed.path.exists():
            video = VideoFile(parsed.path, loop=loop)
            return PacedCamera(video, fps or video.own_fps)
    except PermissionError as error:
        raise CameraUnavailable(
            f"camera source file:{parsed.path} may not be read by this user; expected read permission on the "
            "path and search permission on the folders above it"
        ) from error
    except OSError as error:
        raise CameraUnavailable(
            f"camera source file:{parsed.path} cannot be opened ({error.strerror}); check its disk, or "
            "correct [camera] source"
        ) from error
    raise CameraUnavailable(
        f"camera source file:{parsed.path} is absent; expected a video or a folder of images there: "
        "correct [camera] source, or put the file in place"
    )
