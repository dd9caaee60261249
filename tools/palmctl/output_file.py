"""A file that a command writes at its end, looked at before the work begins."""

import os
from pathlib import Path


def require_writable(path: Path) -> None:
    """Find out that `path` cannot be written before anyone waits for what goes there. Raises OSError.

    A file that is there keeps its bytes; one that is not is not there afterwards. A pipe is not
    opened: to close it again ends it for its reader.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        return
    is_new = not os.path.lexists(path)
    path.open("ab").close()
    if is_new:
        path.unlink()
