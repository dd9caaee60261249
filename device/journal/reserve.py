"""Disk space reserved for the journal, so that passages go on when the disk is full.

A file of `RESERVE_BYTES` next to the journal holds the space. It is deleted when hardly any space is left,
and made again once there is enough. 16 MiB hold about 6,000 passages with their outcomes, more than a day of
a busy gate; STORAGE_LOW is reported long before.
"""

import logging
import os
from pathlib import Path
from typing import Final

from link1.plain_file import sync_folder

LOW_DISK_BYTES: Final = 64 * 1024 * 1024
"""Eleven days of a busy gate: 5,000 passages a day of about 1.2 KB each."""
RESERVE_BYTES: Final = 16 * 1024 * 1024
GIVEN_UP_BELOW_BYTES: Final = 4 * 1024 * 1024
"""More than any one transaction, or the write-ahead log on its way into the file, can need."""

_log = logging.getLogger(__name__)


def free_bytes(folder: Path) -> int:
    """How many bytes this process may still write in `folder`. Raises OSError."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


class Reserve:
    """The file at `path`. Used by the journal's thread alone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(path.name + ".partial")

    @property
    def held(self) -> bool:
        """Whether the space is reserved now; a wipe that needs it takes it."""
        return self._path.exists()

    def keep(self) -> bool:
        """Make the reserve if there is none and enough space; whether there is one now."""
        try:
            if not self.held:
                self._partial.unlink(missing_ok=True)  # left by a power cut, it takes the room itself
                if free_bytes(self._path.parent) >= RESERVE_BYTES + 2 * GIVEN_UP_BELOW_BYTES:
                    self._make()
        except OSError as error:
            _log.warning("no space can be reserved for the journal: %s", error.strerror)
        return self.held

    def ease(self) -> None:
        """Call before every write: releases the reserve when hardly any space is left."""
        try:
            if self.held and free_bytes(self._path.parent) < GIVEN_UP_BELOW_BYTES:
                self.give_up()
        except OSError as error:
            _log.warning("the free space on the disk cannot be read: %s", error.strerror)

    def give_up(self) -> None:
        """Release the space for the next writes."""
        if not self.held:
            return
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("the journal's reserve cannot be released: %s", error.strerror)
        else:
            _log.warning("the disk is full: the journal uses its reserve of %d MiB", RESERVE_BYTES // 2**20)

    def _make(self) -> None:
        descriptor = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
            os.fsync(descriptor)
        except OSError:
            self._partial.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        self._partial.rename(self._path)
        sync_folder(self._path.parent)
