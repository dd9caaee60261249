"""Reading and replacing a whole file whose path a person, a configuration or a stick has named.

A path can name anything: a FIFO without a writer, a device that never ends, a folder, a film. Here it
is a plain file of a sensible size, or an OSError; its `strerror` says what was found instead. And the last
step of replacing one: a name survives a power cut once its folder is synced.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_GROWN_BYTES = 64 * 1024
"""How much is read at a time of a file that is longer than it said, as those of /proc are."""
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISLNK, "a link"),
)


def read_plain_file(path: Path, max_bytes: int) -> bytes:
    """The bytes of the plain file at `path`, links followed.

    Raises OSError, with `errno`, `strerror` and `filename`: what the system says, EISDIR or EINVAL for
    anything but a plain file, EFBIG for one of over `max_bytes`. Never waits for a writer.
    """
    with open_plain_file(path) as file:
        # Its size, not the limit: what is asked for is allocated first, and overwritten when freed.
        data = file.read(min(os.fstat(file.fileno()).st_size, max_bytes) + 1)
        while len(data) <= max_bytes and (more := file.read(min(_GROWN_BYTES, max_bytes + 1 - len(data)))):
            data += more
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"expected at most {max_bytes:,} bytes, found more", str(path))
    return data


def open_plain_file(path: Path) -> BinaryIO:
    """The plain file at `path`, for what is too large to be read at once. Raises OSError as above."""
    _check_kind(path, path.stat().st_mode)  # before it is opened: to open some devices is to use them
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    try:
        _check_kind(path, os.fstat(descriptor).st_mode)
    except OSError:
        file.close()
        raise
    return file


def check_replaceable(path: Path) -> None:
    """Whether a file may be put in the place of `path`: nothing is there, or a plain file. A rename takes the
    place of anything else too, as of /dev/null. Raises OSError as above, also for a link.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    _check_kind(path, mode)


def _check_kind(path: Path, mode: int) -> None:
    for is_kind, word in _KINDS:
        if is_kind(mode):
            code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
            raise OSError(code, f"expected a plain file, found {word}", str(path))


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
