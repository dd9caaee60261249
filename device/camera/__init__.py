"""Where frames come from: a V4L2 camera, a video file or a folder of images, behind one interface.

`open_camera(source, fps, loop)` returns a `Camera`, which `interface.py` describes. Importing this package
limits what OpenCV decodes (`models.MOST_PIXELS`), before OpenCV is loaded.
"""

from device.camera.interface import (
    Camera,
    CameraLost,
    CameraSourceError,
    CameraUnavailable,
    Pixels,
)
from device.camera.source import SourceKind, open_camera, parse_source
from device.errors import CameraError
from models import MOST_PIXELS

__all__ = [
    "MOST_PIXELS",
    "Camera",
    "CameraError",
    "CameraLost",
    "CameraSourceError",
    "CameraUnavailable",
    "Pixels",
    "SourceKind",
    "open_camera",
    "parse_source",
]
