"""The space that a release takes on the disk, before it is put there."""

import shutil
from pathlib import Path
from typing import Final

from device.errors import UpdateRefused
from device.updates.manifest import Manifest, ReleaseKind

KEEP_FREE_BYTES: Final = 96 * 1024 * 1024
"""An update leaves this space to the journal, whose warning begins at 64 MiB."""


def unpacking_bytes(manifest: Manifest) -> int:
    """For what is made of a staged payload: of a model twice as much; of software root's copy, and four times
    as much (450 MiB of 130)."""
    return {ReleaseKind.APP: 5, ReleaseKind.MODEL: 2}[manifest.kind] * manifest.size


def check_room(folder: Path, wanted_bytes: int, keep_free_bytes: int) -> None:
    """Raises UpdateRefused `no_space` where `folder` has less room, root's reserve not counted."""
    room, wanted = shutil.disk_usage(folder).free, wanted_bytes + keep_free_bytes
    if room < wanted:
        raise UpdateRefused(
            "no_space",
            f"the release needs {wanted // 2**20} MiB free, there are {room // 2**20}; make room and "
            "release it again",
        )
