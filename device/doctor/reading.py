"""Reading the small files in which the kernel tells about the machine."""

import os
from pathlib import Path


def text_of(path: Path) -> str | None:
    """The stripped text of a file of /proc or /sys; None where there is none or it may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def number_of(path: Path, base: int = 10) -> int | None:
    """The same as a whole number."""
    text = text_of(path)
    try:
        return None if text is None else int(text, base)
    except ValueError:
        return None


def is_closed(folder: Path) -> bool:
    """Whether `folder` is there, and this user may not look into it.

    Raises PermissionError where this user may not even know whether it is there.
    """
    try:
        folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return not os.access(folder, os.R_OK | os.X_OK)
