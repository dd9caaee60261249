"""A folder of images to play: photographs of hands, or frames that another program keeps adding."""

import logging
import os
from pathlib import Path

from device.camera.pixels import Unreadable, decode_image
from device.camera.source import LONGEST_SIDE_PX, CameraUnavailable, Pixels
from link1.plain_file import read_plain_file

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".pgm", ".ppm", ".pnm"})
MOST_BYTES = 64 * 1024 * 1024
"""Larger files are not read: no photograph is so large, and a small board has little memory."""

_log = logging.getLogger(__name__)


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
