"""What can go wrong with a camera. Every message says what was expected, what was found and what to do."""

from device.errors import CameraError


class CameraSourceError(CameraError):
    """The words of `[camera] source`, `fps` or `loop` name no source of frames."""


class CameraUnavailable(CameraError):
    """The source is named correctly but cannot be opened now: absent, forbidden, busy, or not a camera."""


class CameraLost(CameraError):
    """An opened camera is gone (unplugged, or its driver gave up): close it and open it again."""
