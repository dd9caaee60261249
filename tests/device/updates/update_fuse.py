"""A power cut at the nth operation on files below one folder, whoever performs it.

Opening for writing, renaming, removing, linking and making folders are seen by an audit hook; syncs, which
raise no audit event, by standing in for `os.fsync` and `os.fdatasync`. At the cut the operation does not
happen, and nothing happens after it. `torn`: what a sync was to bring to the disk is lost in part.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class PowerCut(BaseException):
    """The program ends here, whatever it was doing."""


class Fuse:
    """Counts operations; blows at the nth, if one is given."""

    def __init__(self, folder: Path, blow_at: int | None = None, *, torn: bool = False) -> None:
        self._folder = str(folder)
        self._blow_at = blow_at
        self._torn = torn
        self.count = 0
        self.blown = False

    def step(self, tear: Callable[[], None] = lambda: None) -> None:
        if not self.blown:
            self.count += 1
            if self.count == self._blow_at:
                self.blown = True
                if self._torn:
                    tear()
        if self.blown:
            raise PowerCut

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if not writes or not isinstance(path, str | os.PathLike):
                return
        elif event not in _CHANGES:
            return
        if str(args[event == "os.symlink"]).startswith(self._folder) or not str(args[0]).startswith("/"):
            self.step()

    def sync(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def stand_in(descriptor: int) -> None:
            name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
            if name.startswith(self._folder):
                self.step(lambda: _tear(descriptor, name))
            real(descriptor)

        return stand_in


_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink")
_active: list[Fuse] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _active and (event == "open" or event in _CHANGES):
        _active[-1].audit(event, args)


sys.addaudithook(_hook)


@contextmanager
def power(fuse: Fuse) -> Iterator[None]:
    """While inside, the fuse is in the line."""
    real = os.fsync, os.fdatasync
    os.fsync, os.fdatasync = fuse.sync(real[0]), fuse.sync(real[1])  # type: ignore[assignment]
    _active.append(fuse)
    try:
        yield
    finally:
        _active.pop()
        os.fsync, os.fdatasync = real


def _tear(descriptor: int, name: str) -> None:
    """Half of what was written last is not there."""
    if Path(name).is_dir():
        return
    size = os.fstat(descriptor).st_size
    if name.endswith("payload"):
        return  # its place was reserved; which bytes are old is not told by its size
    with open(name, "r+b") as file:  # noqa: PTH123 - by the name, whatever mode the descriptor has
        file.truncate(size - size // 2 if size % 8 else max(0, size - 3))
