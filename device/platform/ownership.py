"""What root makes in the state directory belongs to the daemons' user, who is the directory's owner.

The package makes the directory for the user `palm-access`. A technician provisions with sudo; without this
the daemon could not read the keys made for it.
"""

import os
from pathlib import Path


def hand_over(state_dir: Path) -> None:
    """Give everything below `state_dir` to its owner. Does nothing unless this is root's process and the
    owner is somebody else. Raises OSError.

    The owner may rename things meanwhile, so no path is followed: only names within open folders.
    """
    if os.geteuid() != 0 or not state_dir.is_dir():
        return
    owner = state_dir.stat()
    if owner.st_uid == 0:
        return
    for _path, folders, files, opened in os.fwalk(state_dir, follow_symlinks=False):
        for name in (*folders, *files):
            os.chown(name, owner.st_uid, owner.st_gid, dir_fd=opened, follow_symlinks=False)
