"""A V4L2 camera, with detection of the failures that OpenCV does not report."""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np
import numpy.typing as npt

from device.camera.pixels import Unreadable, decode_image, shrink
from device.camera.source import CameraLost, CameraUnavailable, Pixels

WIDTH_PX, HEIGHT_PX = 640, 480
SELECT_TIMEOUT_S = 1

_AT_ONCE_S = 0.002
_BUFFERS = 4
"""Frames that OpenCV may have waiting: so many empty ones may come at once."""
_UNIFORM_S = 0.8
"""A picture without detail that lasts so long is what the camera sees. Less than a read may take, so that it
is no stall."""
_COLOUR_FROM = 64
"""Channels as far apart as this are no picture: YUYV of zeros is green."""

# <linux/videodev2.h>: struct v4l2_capability is 104 bytes, device_caps at 88, capabilities at 84.
_VIDIOC_QUERYCAP = 0x80685600
_CAP_VIDEO_CAPTURE = 0x00000001
_CAP_STREAMING = 0x04000000
_CAP_DEVICE_CAPS = 0x80000000


class OpenedCapture(Protocol):
    """The used part of cv2.VideoCapture."""

    def read(self) -> tuple[bool, npt.NDArray[np.generic] | None]:
        """The next frame."""

    def release(self) -> None:
        """Free the device."""


class V4L2Camera:
    """A `Camera` over an opened capture with one picture size.

    OpenCV's `read` returns False when a frame is late, when it is empty, and when the device is gone, and
    `isOpened` stays true after a disconnect. The duration distinguishes them: a stalled camera blocks `read`
    for the select timeout, an empty frame comes when a frame is due, a lost camera answers at once each time.

    `encoded`: `read` gives each frame's JPEG, which is decoded here. OpenCV's own decoding gives the picture
    before for a frame that it cannot decode, and a cut one with a black rest, as if nothing were wrong.
    """

    def __init__(
        self,
        capture: OpenedCapture,
        description: str,
        *,
        encoded: bool = False,
        node_is_there: Callable[[], bool],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._capture = capture
        self._encoded = encoded
        self._node_is_there = node_is_there
        self._now_s = now_s
        self._shape: tuple[int, ...] | None = None
        self._last_shape: tuple[int, ...] | None = None
        self._refused_at_once = 0
        self._uniform_since_s: float | None = None
        self.skipped = 0
        self.description = description

    def read(self) -> Pixels | None:
        """See Camera."""
        asked_s = self._now_s()
        while True:
            began_s = self._now_s()
            picture = self._next()
            now_s = self._now_s()
            pixels = None if picture is None else self._pixels(picture)
            if pixels is not None:
                self._refused_at_once = 0
                return pixels
            if picture is None and self._is_lost(now_s - began_s):
                raise CameraLost(
                    f"{self.description} stopped answering (unplugged, or its driver failed); it is "
                    "opened again as soon as it is back: check its cable and power"
                )
            if picture is None and now_s - asked_s >= SELECT_TIMEOUT_S * 0.8:
                return None
            self.skipped += 1
            if now_s - asked_s > SELECT_TIMEOUT_S:
                return None

    def close(self) -> None:
        """See Camera."""
        self._capture.release()

    def _next(self) -> npt.NDArray[np.generic] | None:
        try:
            got, picture = self._capture.read()
        except cv2.error:
            return None  # an empty frame, which OpenCV was to decode
        return picture if got else None

    def _is_lost(self, took_s: float) -> bool:
        self._refused_at_once = self._refused_at_once + 1 if took_s < _AT_ONCE_S else 0
        return self._refused_at_once > _BUFFERS or not self._node_is_there()

    def _pixels(self, picture: npt.NDArray[np.generic]) -> Pixels | None:
        if self._encoded:
            try:
                # Some cameras fill a frame up with zeros.
                picture, _, _ = decode_image(picture.tobytes().rstrip(b"\0"))
            except Unreadable:
                return None
            if picture.ndim == 2:
                picture = cv2.cvtColor(picture, cv2.COLOR_GRAY2BGR)  # as of a camera without MJPEG
        return shrink(np.asarray(picture, np.uint8)) if self._is_whole(picture) else None

    def _is_whole(self, picture: npt.NDArray[np.generic]) -> bool:
        """Whether a frame that `read` reports as good holds a picture.

        OpenCV passes on frames that the driver marked corrupt: of another size, or with one value throughout
        (a transfer of zeros). A camera that the sun blinds, or one without noise in full darkness, gives
        nothing else for as long as that lasts.
        """
        if picture.size == 0 or picture.dtype != np.uint8:
            return False
        before, self._last_shape = self._last_shape, picture.shape
        if picture.shape not in (self._shape or picture.shape, before):
            return False
        self._shape = picture.shape  # of two in a row it is the camera's own, whatever came first
        if bool((picture[::8, ::8] != picture[0, 0]).any()):
            self._uniform_since_s = None
            return True
        now_s = self._now_s()
        self._uniform_since_s = now_s if self._uniform_since_s is None else self._uniform_since_s
        return bool(np.ptp(picture[0, 0]) < _COLOUR_FROM) and now_s - self._uniform_since_s >= _UNIFORM_S


def open_v4l2(node: Path, fps: float, *, pair: bool = False) -> V4L2Camera:
    """Open `node` with 640 × 480 MJPEG, else YUYV, at `fps`; the driver may choose something near it.

    `pair`: 1280 × 480, two pictures side by side.

    Raises CameraUnavailable.
    """
    name = _check_node(node)
    # OpenCV reads this once, when it first waits for a frame. The default blocks `read` of a stalled camera
    # 10 s.
    os.environ["OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT"] = str(SELECT_TIMEOUT_S)
    # A by-id link is resolved; otherwise OpenCV takes the path for a file name.
    capture = cv2.VideoCapture(str(node.resolve()), cv2.CAP_V4L2)
    if capture.isOpened():
        # Set one by one and unchecked: a driver that rejects the rate or the size still delivers pictures.
        for fourcc in ("MJPG", "YUYV"):
            wanted = cv2.VideoWriter.fourcc(*fourcc)
            # For a format that the camera lacks, OpenCV sets another one and reports success.
            if capture.set(cv2.CAP_PROP_FOURCC, wanted) and int(capture.get(cv2.CAP_PROP_FOURCC)) == wanted:
                break
        capture.set(cv2.CAP_PROP_FRAME_WIDTH, 2 * WIDTH_PX if pair else WIDTH_PX)
        capture.set(cv2.CAP_PROP_FRAME_HEIGHT, HEIGHT_PX)
        capture.set(cv2.CAP_PROP_FPS, fps)
    if not capture.isOpened():
        capture.release()
        raise CameraUnavailable(
            f"camera {node} ({name}) does not start: another program is using it, or it offers no picture "
            f"format known here; see who uses it with: fuser -v {node}, and its formats with: "
            f"v4l2-ctl --list-formats-ext -d {node}"
        )
    # The last setting: the others start the device again.
    given = int(capture.get(cv2.CAP_PROP_FOURCC)).to_bytes(4, "little").decode("ascii", "replace")
    encoded = given == "MJPG" and capture.set(cv2.CAP_PROP_CONVERT_RGB, 0)
    width = int(capture.get(cv2.CAP_PROP_FRAME_WIDTH))
    height = int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
    description = f"camera {node} ({name}, {width} × {height} {given})"
    return V4L2Camera(capture, description, encoded=encoded, node_is_there=node.exists)


def _check_node(node: Path) -> str:
    """The camera's name. Raises CameraUnavailable when `node` is not a usable capture device."""
    try:
        if not stat.S_ISCHR(node.stat().st_mode):
            raise CameraUnavailable(
                f"camera {node} is not a device node; expected a V4L2 device such as /dev/video0 "
                "(for a recording write file:PATH)"
            )
        handle = os.open(node, os.O_RDWR | os.O_NONBLOCK)
    except OSError as error:
        raise CameraUnavailable(_why_not_opened(node, error)) from error
    try:
        capability = fcntl.ioctl(handle, _VIDIOC_QUERYCAP, bytes(104))
    except OSError as error:
        raise CameraUnavailable(
            f"{node} is a device but not a V4L2 camera; expected one of: {_nodes_there(node)}"
        ) from error
    finally:
        os.close(handle)
    flags = int.from_bytes(capability[84:88], "little")
    if flags & _CAP_DEVICE_CAPS:
        flags = int.from_bytes(capability[88:92], "little")
    if not flags & _CAP_VIDEO_CAPTURE or not flags & _CAP_STREAMING:
        raise CameraUnavailable(
            f"{node} is a V4L2 device that takes no pictures (many cameras have a second node for metadata); "
            f"expected one of: {_nodes_there(node)}"
        )
    return capability[16:48].split(b"\x00")[0].decode("utf-8", "replace")


def _why_not_opened(node: Path, error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO):
        return (
            f"camera {node} is absent; found: {_nodes_there(node)}. Plug the camera in, or correct "
            "[camera] source"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"camera {node} may not be opened by this user; expected membership in the group that owns it "
            "(video): usermod -aG video USER, and in the unit DeviceAllow=char-video4linux rw"
        )
    if error.errno == errno.EBUSY:
        return f"camera {node} is in use by another program; end it (see who: fuser -v {node})"
    return f"camera {node} cannot be opened: {error.strerror}"


def _nodes_there(node: Path) -> str:
    """The cameras that are present, for a message."""
    pattern = "*" if node.parent.name in {"by-id", "by-path"} else "video*"
    try:
        names = sorted(str(found) for found in node.parent.glob(pattern))
    except OSError:
        names = []
    return ", ".join(names[:8]) or "no camera at all"
