"""Files that survive a power cut: written under another name, synced, renamed, and the folder synced.

Leaving out either sync loses data: a rename can reach the disk before the bytes it names, and a file
whose folder was never synced may be missing altogether.

An object that is kept as JSON carries a checksum, because a flipped bit in a number yields another number.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from link1 import members
from link1.canonical import JsonObject, canonical_bytes, read_strict
from link1.errors import FormatError
from link1.plain_file import check_replaceable, open_plain_file, sync_folder

_SUM: Final = "sha256"
_LARGEST_SECRET_BYTES: Final = 64 * 1024
"""Far above any key or credential; the size of a file on a damaged card may be anything."""


def write_synced(
    path: Path | str,
    data: bytes,
    *,
    mode: int,
    within: int | None = None,
    owner: tuple[int, int] | None = None,
) -> None:
    """Create `path` with these bytes on the disk, or not at all. Raises FileExistsError when it is already
    there. `within`: an open folder that `path` is in. `owner`: user and group of the file, from the first."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, mode, dir_fd=within)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)  # regardless of the umask
            if owner is not None:
                os.fchown(descriptor, *owner)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path, dir_fd=within)
        raise


def replace_synced(path: Path, data: bytes, *, mode: int) -> None:
    """Replace `path`: now and after any power cut it holds either all of the old bytes or all of the new."""
    aside = path.with_name(path.name + ".partial")
    with naming(path):
        aside.unlink(missing_ok=True)  # left by a write that was cut off
        write_synced(aside, data, mode=mode)
        aside.rename(path)
        sync_folder(path.parent)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError names the file that was to be made; the system names none when a disk is full."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def replace_named(path: Path, data: bytes, *, mode: int) -> None:
    """As `replace_synced`, where a person has named `path`: raises OSError for what is no plain file."""
    check_replaceable(path)
    replace_synced(path, data, mode=mode)


def replace_within(opened: int, name: str, data: bytes, *, mode: int, user: int, group: int) -> None:
    """As `replace_synced`, for root where another user may exchange the folder: within the folder that is
    open as `opened`, where the file belongs to `user` and `group`."""
    aside = name + ".partial"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(aside, dir_fd=opened)
    write_synced(aside, data, mode=mode, within=opened, owner=(user, group))
    os.rename(aside, name, src_dir_fd=opened, dst_dir_fd=opened)
    os.fsync(opened)


def write_on_stick(path: Path, data: bytes) -> None:
    """As `replace_named`, on a stick, whose file system may know neither modes nor owners. Pulled out in the
    middle, it holds the old bytes or the new. Raises OSError."""
    check_replaceable(path)
    aside = path.with_name(path.name + ".partial")
    with naming(path):
        aside.unlink(missing_ok=True)  # a stick may bring a link by this name, or a FIFO
        try:
            with aside.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            aside.rename(path)
        except BaseException:
            with contextlib.suppress(OSError):
                aside.unlink()
            raise
    with contextlib.suppress(OSError):  # not every file system lets a folder be synced
        sync_folder(path.parent)


def with_checksum(obj: JsonObject) -> JsonObject:
    """`obj` with the SHA-256 of its RFC 8785 bytes as an additional member."""
    return obj | {_SUM: hashlib.sha256(canonical_bytes(obj)).hexdigest()}


def without_checksum(obj: JsonObject) -> JsonObject:
    """The object without its checksum. Raises FormatError when the checksum does not match.

    An object without a checksum comes from a version that wrote none, and is returned as it is.
    """
    bare = {name: value for name, value in obj.items() if name != _SUM}
    if bare != obj and with_checksum(bare) != obj:
        raise FormatError("its checksum does not match: its content has changed")
    return bare


def read_kept(path: Path, max_bytes: int) -> JsonObject:
    """The object of version 1 in a file, without its checksum. Raises OSError, FormatError."""
    with open_plain_file(path) as file:
        obj = without_checksum(read_strict(file.read(max_bytes + 1), max_bytes=max_bytes))
    members.version_1(obj)
    return obj


def shred(path: Path) -> None:
    """Overwrite, sync, unlink, sync the folder: no power cut brings back a destroyed key."""
    status = path.lstat()
    if stat.S_ISREG(status.st_mode):
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.write(descriptor, bytes(min(status.st_size, _LARGEST_SECRET_BYTES)))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    path.unlink()
    sync_folder(path.parent)


def hand_over(state_dir: Path) -> None:
    """Give everything below `state_dir` to its owner, the daemons' user; a technician provisions with sudo.
    Does nothing unless this process runs as root and the owner is another user. Raises OSError.

    The owner may rename entries meanwhile, so only names within open folders are used, never whole paths; and
    may remove them, as palmd does with what it writes aside.
    """
    if os.geteuid() != 0 or not state_dir.is_dir():
        return
    owner = state_dir.stat()
    if owner.st_uid == 0:
        return
    for _path, folders, files, opened in os.fwalk(state_dir, follow_symlinks=False):
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):
                os.chown(name, owner.st_uid, owner.st_gid, dir_fd=opened, follow_symlinks=False)
