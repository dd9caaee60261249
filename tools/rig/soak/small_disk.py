"""A state directory on a separate file system, which can be filled without harm to the host."""

import errno
import subprocess
from pathlib import Path

from tools.rig.demo.errors import DemoFailed

SIZE_MIB = 128
_STEP = b"\0" * 65_536


class SmallDisk:
    """A tmpfs of SIZE_MIB mounted at `place`; needs root."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._ballast = place / "ballast"
        place.mkdir(parents=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m,mode=0700", "palm-soak", str(place)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise DemoFailed(f"no file system could be mounted at {place}: {done.stderr.strip()}")

    def fill(self) -> None:
        """Leave not one byte."""
        with self._ballast.open("ab", buffering=0) as file:
            for step in (_STEP, b"\0"):
                try:
                    while True:
                        file.write(step)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self._place)], check=False)
