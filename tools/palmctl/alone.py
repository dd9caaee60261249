"""Commands that change a device do it one at a time: what one has written, another does not undo."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.palmctl.errors import ChangeUnderWay


@contextmanager
def alone_at(config_path: Path) -> Iterator[None]:
    """Hold the folder of the configuration while it is changed. Raises ChangeUnderWay while another palmctl
    holds it. A folder that is not there yet, or cannot be opened, is left to the command."""
    folder = Path(os.path.realpath(config_path)).parent
    try:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        _lock(held, folder)
        yield
    finally:
        os.close(held)


def _lock(held: int, folder: Path) -> None:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ChangeUnderWay(
            f"another palmctl is at work on {folder}; wait until it has ended, then run this again"
        ) from error
