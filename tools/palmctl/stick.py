"""Files on a stick: written whole, on file systems that know neither modes nor owners."""

import contextlib
import os
from pathlib import Path

from device.platform.files import sync_folder


def write_on_stick(path: Path, data: bytes) -> None:
    """Replace `path`; pulled out in the middle, it holds the old bytes or the new. Raises OSError."""
    aside = path.with_name(path.name + ".partial")
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    with contextlib.suppress(OSError):  # not every file system lets a folder be synced
        sync_folder(path.parent)
