"""A small file of slots that are overwritten in place: what must not be lost when a larger file is damaged.

A slot is written with one write and one sync, in room that is there from the beginning, so a full disk does
not refuse it. A write that is cut short destroys its own slot and no other. What a slot holds must carry its
own proof of being whole (a seal): this file vouches for nothing.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from link1.plain_file import sync_folder

_LENGTH_BYTES: Final = 4
_PIECE_BYTES: Final = 4_096
"""The kernel may keep what is written in one go as one page; each later write then counts as all of it."""


class Slots:
    """The file at `path`: `count` slots, each for up to `slot_bytes - 4` bytes. For one thread at a time."""

    def __init__(self, path: Path, *, slot_bytes: int, count: int) -> None:
        """Open the file; make it, with every slot empty, where none of this size is there. Raises OSError."""
        self._slot_bytes = slot_bytes
        self._count = count
        size = slot_bytes * count
        if not path.is_file() or path.stat().st_size != size:
            _make(path, size)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)

    def read(self) -> list[bytes]:
        """What each slot holds, whole or not; nothing where it is empty. Raises OSError."""
        data = os.pread(self._descriptor, self._slot_bytes * self._count, 0)
        slots = [data[start : start + self._slot_bytes] for start in range(0, len(data), self._slot_bytes)]
        return [
            slot[_LENGTH_BYTES : _LENGTH_BYTES + int.from_bytes(slot[:_LENGTH_BYTES], "big")]
            for slot in slots
        ]

    def write(self, index: int, data: bytes) -> None:
        """Replace a slot; it is on the disk when this returns. Raises OSError, ValueError for too much."""
        if len(data) > self._slot_bytes - _LENGTH_BYTES:
            raise ValueError(f"a slot takes {self._slot_bytes - _LENGTH_BYTES} bytes, found {len(data)}")
        whole = len(data).to_bytes(_LENGTH_BYTES, "big") + data
        if os.pwrite(self._descriptor, whole, index * self._slot_bytes) != len(whole):
            raise OSError(f"slot {index} was not written whole")
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """May be repeated, when another file may have the number of the descriptor."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _make(path: Path, size: int) -> None:
    """Zeros that are really written: a first write into room that is merely reserved costs a second sync."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            for start in range(0, size, _PIECE_BYTES):
                file.write(bytes(min(_PIECE_BYTES, size - start)))
            os.fsync(descriptor)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    partial.rename(path)
    sync_folder(path.parent)
