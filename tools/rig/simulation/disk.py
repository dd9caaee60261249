"""The disk of a simulated machine: what its programs really wrote, followed call by call, and what a power
cut leaves of it.

`disk.c` is compiled when it is first needed and loaded with LD_PRELOAD, so that it sees what SQLite and
Python ask of the kernel. The files lie on tmpfs. `Disk.power_cut` lays out a crash state of `crash_disk` in a
new folder, from which the next start of the machine goes on.
"""

import contextlib
import ctypes
import errno
import os
import random
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from device.journal import reserve
from tools.rig.simulation.crash_disk import (
    CrashDisk,
    Cut,
    Make,
    Remove,
    Rename,
    Sync,
    Tree,
    Write,
    lay_out,
)

SOURCE: Final = Path(__file__).with_name("disk.c")
TMPFS: Final = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it
RESERVE: Final = "journal.db.reserve"
"""The file that holds room for the journal."""
_ROOMY_BYTES: Final = 8 << 30
_HEAD: Final = struct.Struct("=BIIIq")
_MAKE_FILE, _MAKE_FOLDER, _WRITE, _CUT, _RENAME, _REMOVE, _SYNC = range(1, 8)


def shared_library(folder: Path) -> Path:
    """Compile the follower into `folder`. Raises CalledProcessError."""
    library = folder / "simulated_disk.so"
    if not library.exists() or library.stat().st_mtime < SOURCE.stat().st_mtime:
        with tempfile.TemporaryDirectory(dir=folder) as aside:
            fresh = Path(aside) / library.name
            subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", fresh, SOURCE, "-ldl"], check=True)
            fresh.replace(library)
    return library


def free_bytes(_folder: Path) -> int:
    """What programs measure as free (`device.journal.reserve.free_bytes`)."""
    left = _follower().left()
    return _ROOMY_BYTES if left is None else left


class Follower:
    """What `disk.c` offers. Raises OSError when it is not loaded into this program."""

    def __init__(self) -> None:
        whole = ctypes.CDLL(None)
        try:
            self._watch, self._fail, self._take = whole.sim_watch, whole.sim_fail, whole.sim_take
        except AttributeError:
            raise OSError("disk.c is not loaded: start with `python -m tools.rig.simulation`") from None
        self._fail_once = whole.sim_fail_once
        self._watch.argtypes = (ctypes.c_int, ctypes.c_char_p)
        self._fail_once.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_long)
        self._fail.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_int)
        self._room, self._left, self._reserve = whole.sim_room, whole.sim_left, whole.sim_reserve
        self._room.argtypes = (ctypes.c_char_p, ctypes.c_int64)
        self._left.restype = ctypes.c_int64
        self._reserve.argtypes = (ctypes.c_char_p, ctypes.c_int64)
        self._take.argtypes = (ctypes.POINTER(ctypes.c_void_p),)
        self._take.restype = ctypes.c_size_t

    def watch(self, slot: int, folder: Path | None) -> None:
        """Follow what happens below `folder`; None: nothing."""
        self._watch(slot, None if folder is None else os.fsencode(folder))

    def fail(self, folder: Path | None, *, write_errno: int = 0, sync_errno: int = 0) -> None:
        """Refuse writes or syncs below `folder` from now on; None: none."""
        self._fail(None if folder is None else os.fsencode(folder), write_errno, sync_errno)

    def fail_once(self, path: Path | None, write_errno: int = 0, below: int = 0) -> None:
        """Refuse the next write into the file `path` before the place `below`; None: none."""
        self._fail_once(None if path is None else os.fsencode(path), write_errno, below)

    def room(self, folder: Path | None, left: int = 0) -> None:
        """Let the files below `folder` grow by so many bytes more; None: as they like."""
        self._room(None if folder is None else os.fsencode(folder), left)

    def left(self) -> int | None:
        """How many bytes of that room are left; None while files grow as they like."""
        left: int = self._left()
        return None if left < 0 else left

    def reserve(self, path: Path, size: int) -> None:
        """The file `path` holds room for so many bytes."""
        self._reserve(os.fsencode(path), size)

    def take(self) -> bytes:
        """What has happened since the last call."""
        place = ctypes.c_void_p()
        size = self._take(ctypes.byref(place))
        return ctypes.string_at(place, size) if size else b""


_follower = cache(Follower)


def changes_of(record: bytes) -> Iterator[Make | Write | Cut | Rename | Remove | Sync]:
    """Read what `disk.c` wrote."""
    at, paths = 0, dict[bytes, str]()

    def decoded(path: bytes) -> str:
        known = paths.get(path)
        if known is None:
            known = paths[path] = os.fsdecode(path)
        return known

    while at < len(record):
        kind, path_size, to_size, data_size, place = _HEAD.unpack_from(record, at)
        to_at = at + _HEAD.size + path_size
        data_at = to_at + to_size
        path, to = decoded(record[at + _HEAD.size : to_at]), decoded(record[to_at:data_at])
        at = data_at + data_size
        data = record[data_at:at]
        match kind:
            case 1 | 2:
                yield Make(path, kind == _MAKE_FOLDER)
            case 3:
                yield Write(path, place, data)
            case 4:
                yield Cut(path, place)
            case 5:
                yield Rename(path, to)
            case 6:
                yield Remove(path)
            case 7:
                yield Sync(path)
            case _:
                raise ValueError(f"disk.c wrote a change of kind {kind}")


@dataclass(frozen=True, slots=True)
class WriteFault:
    """The next write into the file `name` fails, if it is `below` that place."""

    name: str
    errno: int
    below: int = 1 << 30


@dataclass
class Disks:
    """The disks of all simulated machines: one follower, whose changes go to the disk they are of."""

    folder: Path
    chance: random.Random
    follower: Follower = field(default_factory=Follower)
    disks: "list[Disk]" = field(default_factory=list)

    def disk(self, name: str, start: Tree) -> "Disk":
        """A disk with these files on it, all synced."""
        made = Disk(self, name, len(self.disks), start)
        self.disks.append(made)
        return made

    def follow(self) -> None:
        """Take over what has happened."""
        for change in changes_of(self.follower.take()):
            for disk in self.disks:
                if disk.holds(change.path):
                    disk.model.follow(change)
                    break


class Disk:
    """One machine's disk. `state` is the folder that its programs use now; another after each power cut."""

    def __init__(self, disks: Disks, name: str, slot: int, start: Tree) -> None:
        self._disks, self._name, self._slot = disks, name, slot
        self._turn = 0
        self._room: int | None = None
        """How many bytes the files may have, the reserved ones included, while it is filled."""
        self._begin_on(start)

    def holds(self, path: str) -> bool:
        return path.startswith(self._inside) or path == self._inside[:-1]

    def killed(self) -> None:
        """Its programs died, the kernel lives: everything written is there. In a new folder all the same, so
        that no lock of theirs is."""
        self._begin_with(self._model_now().whole())

    def power_cut(self, chance: random.Random) -> None:
        """The power went: a crash state by chance."""
        self._begin_with(self._model_now().crash(chance))

    def what_if(self, chance: random.Random | None, folder: Path, *, only: str) -> None:
        """Lay out what a power cut at this moment would leave of the files whose names begin with `only`;
        without `chance` no more than was synced."""
        left = self._model_now().crash(chance)
        lay_out({path: data for path, data in left.items() if path.startswith(only)}, folder)

    def leave(self, closing: Sequence[Callable[[], None]]) -> None:
        """Let dead programs' files be closed in the folder that is left, where nothing is written any more:
        SQLite would tidy up."""
        self._disks.follow()
        self._disks.follower.watch(self._slot, None)
        self._disks.follower.fail(self.state, write_errno=errno.EIO)
        for close in closing:
            with contextlib.suppress(Exception):
                close()
        self._disks.follower.fail(None)

    def break_writes(self, *, sync_only: bool = False) -> None:
        """Refuse what programs write (no space), or only syncs (input/output error)."""
        if sync_only:
            self._disks.follower.fail(self.state, sync_errno=errno.EIO)
        else:
            self._disks.follower.fail(self.state, write_errno=errno.ENOSPC)

    def break_one_write(self, fault: "WriteFault | None") -> None:
        """Refuse one write, if it comes before the machine's next start; None: none."""
        if fault is None:
            self._disks.follower.fail_once(None)
        else:
            self._disks.follower.fail_once(self.state / fault.name, fault.errno, fault.below)

    def fill(self, left: int) -> None:
        """Leave so many bytes for files to grow by. A start of the machine does not change that."""
        self._room = left + self._used()
        self._disks.follower.room(self.state, left)

    def mend(self) -> None:
        """Writes work again."""
        self._room = None
        self._disks.follower.fail(None)
        self._disks.follower.room(None)

    def _used(self) -> int:
        held = reserve.RESERVE_BYTES if (self.state / RESERVE).exists() else 0
        return held + sum(path.stat().st_size for path in self.state.rglob("*") if path.is_file())

    def _model_now(self) -> CrashDisk:
        self._disks.follow()
        return self.model

    def _begin_with(self, tree: Tree) -> None:
        self._disks.follower.fail(None)
        self._begin_on(tree)

    def _begin_on(self, tree: Tree) -> None:
        self._turn += 1
        self.state = self._disks.folder / f"{self._name}-{self._turn}"
        self._inside = f"{self.state}/"
        self.state.mkdir(mode=0o700)
        lay_out(tree, self.state)
        follower = self._disks.follower
        follower.watch(self._slot, self.state)
        if RESERVE in tree:
            follower.reserve(self.state / RESERVE, reserve.RESERVE_BYTES)
        if self._room is not None:
            follower.room(self.state, max(0, self._room - self._used()))
        self.model = CrashDisk(self.state, tree)
