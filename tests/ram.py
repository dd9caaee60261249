"""Folders in memory: for states that are laid out by the thousand, where nobody waits for a disk."""

from pathlib import Path
from tempfile import TemporaryDirectory

_RAM = Path("/dev/shm")


def in_memory(prefix: str) -> TemporaryDirectory[str]:
    """A folder that is removed with the context; on the disk where the machine has none in memory."""
    return TemporaryDirectory(prefix=prefix, dir=_RAM if _RAM.is_dir() else None)
