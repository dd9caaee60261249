"""Everything that a program really did to the files of one folder, in order, as strace saw it.

`record` runs a command and answers with its changes: writes, cuts, names made, moved and removed, and syncs
of files and folders. Among them stand the marks that the program wrote into a file of their own: what it
promised to somebody outside, and when. Whatever the model of `crash_disk` could not replay (a shared mapping,
a write by a descriptor whose place is not known) ends the recording: it is never let go.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests import REPOSITORY
from tools.rig.simulation.crash_disk import (
    Change,
    Cut,
    Make,
    MakeLink,
    Mark,
    Remove,
    Rename,
    Sync,
    Write,
)

STRACE: Final = shutil.which("strace")
NEEDS_STRACE: Final = "strace is not installed (Debian package strace)"

_CALLS: Final = (
    "openat,open,creat,lseek,write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,fsync,fdatasync,"
    "sync_file_range,fallocate,rename,renameat,renameat2,unlink,unlinkat,link,linkat,symlink,symlinkat,mkdir,"
    "mkdirat,rmdir,mmap,copy_file_range,sendfile,dup,dup2,dup3"
)
_MAX_BYTES_A_CALL: Final = 16 * 1024 * 1024
_OPTIONS: Final = ("-f", "-y", "-xx", "-s", str(_MAX_BYTES_A_CALL), "-e", "signal=none", "-e")

_LINE = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+|0x[0-9a-f]+)(.*)", re.DOTALL)
_UNFINISHED = re.compile(r"(\d+) +(\w+)\((.*) <unfinished \.\.\.>")
_RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)", re.DOTALL)
_DESCRIPTOR = re.compile(r"(\d+|AT_FDCWD)<((?:\\x[0-9a-f]{2})*)>(\(deleted\))?")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')


class NotReplayable(Exception):
    """The program did something that the model of a disk does not have."""


def record(command: Sequence[str], *, state: Path, marks: Path, log: Path) -> list[Change]:
    """Run `command` to its end and return what it did below `state`. Raises NotReplayable, also when the
    program fails."""
    assert STRACE is not None, NEEDS_STRACE
    done = subprocess.run(
        [STRACE, *_OPTIONS, f"trace={_CALLS}", "-o", str(log), *command],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise NotReplayable(f"the recorded program failed: {done.stderr[-2000:]}")
    with log.open(encoding="ascii") as lines:
        return list(changes_of(lines, state=state, marks=marks))


def changes_of(lines: Iterator[str], *, state: Path, marks: Path) -> Iterator[Change]:
    """Read strace's lines. A call that was interrupted by another thread's counts where it ended."""
    reader = _Reader(str(state.resolve()), str(marks.resolve()))
    begun: dict[str, str] = {}
    for line in lines:
        if match := _UNFINISHED.match(line):
            begun[match[1]] = f"{match[1]} {match[2]}({match[3]}"
            continue
        resumed = _RESUMED.match(line)
        call = begun.pop(resumed[1]) + resumed[3] if resumed else line
        if (match := _LINE.match(call)) and not match[4].startswith("-"):
            yield from reader.read(match[2], match[3], match[4], match[5])


class _Reader:
    def __init__(self, state: str, marks: str) -> None:
        self._state = state
        self._marks = marks
        self._places: dict[tuple[int, str], int | None] = {}
        """Descriptor and path to the place in the file; None: always at the end. Several processes are
        recorded, which have descriptors of their own."""
        self._known: set[str] = set()

    def read(self, call: str, arguments: str, result: str, after: str) -> Iterator[Change]:
        handle = getattr(self, "_" + {"pwrite64": "pwrite", "fdatasync": "fsync"}.get(call, call), None)
        if handle is not None:
            yield from handle(arguments, int(result, 0), after)
        elif self._concerned(arguments):
            raise NotReplayable(f"{call}({arguments[:200]})")

    # Names

    def _openat(self, arguments: str, result: int, after: str) -> Iterator[Change]:
        opened = self._descriptor(f"{result}{after}")
        self._places.pop(opened, None)
        path = self._path_argument(arguments)
        if not self._is_ours(path) and path != self._marks:
            return
        if "O_WRONLY" in arguments or "O_RDWR" in arguments:
            if "O_APPEND" in arguments:
                self._places[opened] = None
            elif "O_WRONLY" in arguments:
                self._places[opened] = 0
        if path == self._marks:
            return
        if "O_CREAT" in arguments and path not in self._known:
            self._known.add(path)
            yield Make(path, is_folder=False)
        if "O_TRUNC" in arguments:
            yield Cut(path, 0)

    def _mkdir(self, arguments: str, _result: int, _after: str) -> Iterator[Change]:
        path = self._path_argument(arguments)
        if self._is_ours(path):
            yield Make(path, is_folder=True)

    _mkdirat = _mkdir

    def _symlink(self, arguments: str, _result: int, _after: str) -> Iterator[Change]:
        to, name = (_text(match[1]) for match in _STRING.finditer(arguments))
        folder = next((_text(match[2]) for match in _DESCRIPTOR.finditer(arguments)), "/")
        path = str(Path(folder) / name)
        if self._is_ours(path):
            yield MakeLink(path, to)

    _symlinkat = _symlink

    def _rename(self, arguments: str, _result: int, _after: str) -> Iterator[Change]:
        paths = self._path_arguments(arguments)
        if any(self._is_ours(path) for path in paths):
            source, target = paths
            moved = {path for path in self._known if path == source or path.startswith(source + "/")}
            self._known = (self._known - moved) | {target + path[len(source) :] for path in moved}
            yield Rename(source, target)

    _renameat = _renameat2 = _rename

    def _unlink(self, arguments: str, _result: int, _after: str) -> Iterator[Change]:
        path = self._path_argument(arguments)
        if self._is_ours(path):
            self._known.discard(path)
            yield Remove(path)

    _unlinkat = _rmdir = _unlink

    # Bytes

    def _write(self, arguments: str, result: int, _after: str) -> Iterator[Change]:
        descriptor, path = self._descriptor(arguments)
        if path == self._marks:
            yield Mark(json.loads(_bytes_of(arguments)[:result]))
        elif self._is_ours(path):
            at = descriptor, path
            if at not in self._places:
                raise NotReplayable(f"a write to {path} at a place that is not known")
            place = self._places[at]
            yield Write(path, place, _bytes_of(arguments)[:result])
            if place is not None:
                self._places[at] = place + result

    def _pwrite(self, arguments: str, result: int, _after: str) -> Iterator[Change]:
        _, path = self._descriptor(arguments)
        if self._is_ours(path):
            yield Write(path, int(arguments.rsplit(", ", 1)[1]), _bytes_of(arguments)[:result])

    def _lseek(self, arguments: str, result: int, _after: str) -> Iterator[Change]:
        at = self._descriptor(arguments)
        if self._is_ours(at[1]) and self._places.get(at) is not None:
            self._places[at] = result
        yield from ()

    def _ftruncate(self, arguments: str, _result: int, _after: str) -> Iterator[Change]:
        _, path = self._descriptor(arguments)
        if self._is_ours(path):
            yield Cut(path, int(arguments.rsplit(", ", 1)[1]))

    def _fallocate(self, arguments: str, _result: int, _after: str) -> Iterator[Change]:
        _, path = self._descriptor(arguments)
        if self._is_ours(path):
            _, mode, offset, length = arguments.rsplit(", ", 3)
            if mode != "0":
                raise NotReplayable(f"fallocate({arguments[-80:]})")
            yield Write(path, int(offset) + int(length) - 1, b"\x00")  # new files only: all of it is zeros

    def _fsync(self, arguments: str, _result: int, _after: str) -> Iterator[Change]:
        _, path = self._descriptor(arguments)
        if self._is_ours(path) or path == self._state:
            yield Sync(path)

    def _mmap(self, arguments: str, _result: int, _after: str) -> Iterator[Change]:
        if "PROT_WRITE" in arguments and "MAP_SHARED" in arguments and self._concerned(arguments):
            raise NotReplayable(f"a shared mapping: {arguments[:200]}")
        yield from ()

    # What stands in a line

    def _is_ours(self, path: str) -> bool:
        # SQLite makes -shm anew whenever it is the first to open a database: nothing in it outlives a cut.
        return path.startswith(self._state + "/") and not path.endswith("-shm")

    def _concerned(self, arguments: str) -> bool:
        return any(
            self._is_ours(_text(match[2])) or _text(match[2]) == self._state
            for match in _DESCRIPTOR.finditer(arguments)
        ) or any(self._is_ours(_text(match[1])) for match in _STRING.finditer(arguments[:4096]))

    @staticmethod
    def _descriptor(arguments: str) -> tuple[int, str]:
        match = _DESCRIPTOR.match(arguments)
        if match is None or match[1] == "AT_FDCWD" or match[3]:
            return -1, ""  # no file, or one whose name is gone: nothing of it outlives a power cut
        return int(match[1]), _text(match[2])

    def _path_argument(self, arguments: str) -> str:
        return self._path_arguments(arguments)[0]

    @staticmethod
    def _path_arguments(arguments: str) -> list[str]:
        """The paths that a call names, each with the folder it is relative to."""
        folders = [_text(match[2]) for match in _DESCRIPTOR.finditer(arguments)]
        paths = [_text(match[1]) for match in _STRING.finditer(arguments)]
        if len(folders) != len(paths):
            folders = ["/"] * len(paths)
        return [str(Path(folder) / path) for folder, path in zip(folders, paths, strict=True)]


def _text(escaped: str) -> str:
    return bytes.fromhex(escaped.replace("\\x", "")).decode()


def _bytes_of(arguments: str) -> bytes:
    match = _STRING.search(arguments)
    if match is None or match[2]:
        raise NotReplayable("the bytes of a write were not recorded whole")
    return bytes.fromhex(match[1].replace("\\x", ""))
