"""Reading the kernel's small files about the machine."""

import os
from pathlib import Path


def text_of(path: Path) -> str | None:
    """The stripped text of a file of /proc or /sys; None when it is absent or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def number_of(path: Path, base: int = 10) -> int | None:
    """The content of such a file as an integer; None when it is not one."""
    text = text_of(path)
    try:
        return None if text is None else int(text, base)
    except ValueError:
        return None


def is_there(path: Path) -> bool:
    """Whether `path` exists. Raises PermissionError when this user may not know."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def is_closed(folder: Path) -> bool:
    """Whether `folder` exists and this user may not read it. Raises as `is_there` does."""
    return is_there(folder) and not os.access(folder, os.R_OK | os.X_OK)
