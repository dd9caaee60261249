"""The payload of a release: a tar.xz of plain files, unpacked so that nothing leaves the target folder.

Only regular files and folders are accepted, under relative names without `..`; never a link, a device, a
duplicate name, or a name inside a file. Every file is synced before `unpack` returns.
"""

import errno
import lzma
import os
import re
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final

from device.errors import UpdateRefused
from link1.plain_file import sync_folder

_PIECE_BYTES: Final = 256 * 1024
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+@(), -]{0,199}|\.(?!\.)[A-Za-z0-9_][A-Za-z0-9._+@(), -]{0,199}")
_EXECUTABLE: Final = 0o100
_LONGEST_NAME: Final = 1_000
"""Characters of a whole name: together with the target folder it stays within every system's limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest size of an unpacked archive."""

    files: int
    total_bytes: int


MODEL_LIMITS: Final = Limits(files=16, total_bytes=256 * 1024 * 1024)
APP_LIMITS: Final = Limits(files=20_000, total_bytes=1536 * 1024 * 1024)
"""A device's environment has about 6,000 files and 450 MiB."""


def unpack(payload: Path, folder: Path, limits: Limits, *, keep_free_bytes: int = 0) -> None:
    """Unpack `payload` into the empty `folder`. Raises UpdateRefused `bad_archive`, OSError: ENOSPC also
    where less would stay free, root's reserve not counted."""
    seen: set[PurePosixPath] = set()
    inner: set[PurePosixPath] = set()
    files: set[PurePosixPath] = set()
    folders: set[Path] = {folder}
    total_bytes = 0
    try:
        with payload.open("rb") as file, tarfile.open(fileobj=file, mode="r|xz") as archive:
            for member in archive:
                name = _checked_name(member, seen)
                total_bytes += member.size
                if member.isreg():
                    files.add(name)
                inner.update(name.parents)
                if (name in files and name in inner) or not files.isdisjoint(name.parents):
                    raise _bad(f"{name} is a file and a folder, or is inside a file")
                if len(seen) > limits.files or total_bytes > limits.total_bytes:
                    raise _bad("it has more files or bytes than a release may have")
                target = folder / name
                if member.isdir():
                    target.mkdir(mode=0o755, parents=True, exist_ok=True)
                    folders.add(target)
                    continue
                target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                folders.update(target.parents[: len(name.parts)])
                content = archive.extractfile(member)
                if content is None:
                    raise _bad(f"{name} has no content")
                if keep_free_bytes and shutil.disk_usage(folder).free < member.size + keep_free_bytes:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
                _write(target, content, member)
    # A malformed header: a number of 5,000 digits, text that is not UTF-8, nested headers.
    except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise _bad(f"it is not a complete tar.xz ({error})") from error
    for made in sorted(folders, reverse=True):
        sync_folder(made)


def _checked_name(member: tarfile.TarInfo, seen: set[PurePosixPath]) -> PurePosixPath:
    name = PurePosixPath(member.name)
    if not (member.isreg() or member.isdir()):
        raise _bad(f"{name} is neither a file nor a folder")
    if member.size < 0 or len(member.name) > _LONGEST_NAME:
        raise _bad("a name in it is too long, or a size is negative")
    if name.is_absolute() or not name.parts or any(_PART.fullmatch(part) is None for part in name.parts):
        raise _bad("a name in it leaves the folder, or has characters that no release uses")
    if name in seen:
        raise _bad(f"it holds {name} twice")
    seen.add(name)
    return name


def _write(target: Path, content: IO[bytes], member: tarfile.TarInfo) -> None:
    mode = 0o755 if member.mode & _EXECUTABLE else 0o644
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(target, flags, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)  # regardless of the umask
        written = 0
        while piece := content.read(_PIECE_BYTES):
            file.write(piece)
            written += len(piece)
        if written != member.size:
            raise _bad(f"{member.name} ends early")
        file.flush()
        os.fsync(descriptor)


def _bad(why: str) -> UpdateRefused:
    return UpdateRefused("bad_archive", f"the payload is not a release's archive: {why}; pack it again")
