"""Picture files, read by OpenCV at a cost that their own size bounds."""

from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

_PNG: Final = b"\x89PNG\r\n\x1a\n"


def ends_as_it_says(data: bytes) -> bool:
    """Whether a PNG's chunks lead to its last one, which is empty (PNG, third edition, 11.2.5).

    True of what is no PNG. OpenCV reserves what a chunk announces, up to 4 GiB, before it looks whether the
    file has as much.
    """
    if not data.startswith(_PNG):
        return True
    at = len(_PNG)
    while (kind := data[at + 4 : at + 8]) and kind != b"IEND":
        at += 12 + int.from_bytes(data[at : at + 4], "big")
    return data[at : at + 8] == bytes(4) + b"IEND"


def read_picture(path: Path, how: int) -> NDArray[Any] | None:
    """As ``cv2.imread`` with the flags ``how``: None of what cannot be read, also if it is too large."""
    try:
        data = path.read_bytes()
        return cv2.imdecode(np.frombuffer(data, np.uint8), how) if data and ends_as_it_says(data) else None
    except (OSError, cv2.error):
        return None
