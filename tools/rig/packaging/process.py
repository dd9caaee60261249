"""Run another program and say what it said when it fails."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tools.rig.packaging.errors import PackagingError


def run(command: Sequence[object], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Standard output of `command`. Raises PackagingError with everything it printed."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            # Hash order must not decide what a file in the package looks like.
            env=os.environ | {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"} | (env or {}),
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise PackagingError(
            f"{words[0]} is not on this machine; on Debian: apt install dpkg xz-utils"
        ) from None
    if done.returncode:
        raise PackagingError(f"{' '.join(words[:6])} … failed:\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout
