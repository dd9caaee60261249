"""A wall clock of the device's own, which can be moved while its daemons run."""

import shutil
import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("wall_clock.c")
_OFFSET = struct.Struct("=q")


class WallClock:
    """Compiles the shim into `folder`; daemons started with `environment` show the moved time."""

    def __init__(self, folder: Path, compiler: str) -> None:
        self._file = folder / "wall-clock"
        self.move(0)
        library = folder / "wall_clock.so"
        subprocess.run(
            [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"], check=True
        )
        self.environment = {"LD_PRELOAD": str(library), "PALM_WALL_CLOCK": str(self._file)}

    def move(self, offset_s: int) -> None:
        """From now on the device's wall clock is `offset_s` seconds off the true one."""
        if self._file.exists():
            with self._file.open("r+b") as file:
                file.write(_OFFSET.pack(offset_s))
        else:
            self._file.write_bytes(_OFFSET.pack(offset_s))


def make_wall_clock(folder: Path) -> WallClock | None:
    """None where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    return None if compiler is None else WallClock(folder, compiler)
