"""Files that root creates in the state directory are given to its owner, the daemons' user.

The package makes the directory for the user `palm-access`. A technician provisions with sudo; without this
the daemon could not read the keys made for it.
"""

import os
from pathlib import Path


def hand_over(state_dir: Path) -> None:
    """Give everything below `state_dir` to its owner. Does nothing unless this process runs as root and the
    owner is another user. Raises OSError.

    The owner may rename entries meanwhile, so only names within open folders are used, never whole paths.
    """
    if os.geteuid() != 0 or not state_dir.is_dir():
        return
    owner = state_dir.stat()
    if owner.st_uid == 0:
        return
    for _path, folders, files, opened in os.fwalk(state_dir, follow_symlinks=False):
        for name in (*folders, *files):
            os.chown(name, owner.st_uid, owner.st_gid, dir_fd=opened, follow_symlinks=False)
