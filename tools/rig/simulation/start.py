"""Starts this program again as a simulation needs it: the disk's follower loaded, one hash seed, one
thread."""

import os
import sys
from pathlib import Path
from typing import Final

from tools.rig.simulation.disk import shared_library

_ENVIRONMENT: Final = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
BUILD: Final = Path(__file__).parents[3] / "build" / "simulation"


def environment() -> dict[str, str]:
    """The environment in which a simulation runs; compiles the follower."""
    BUILD.mkdir(parents=True, exist_ok=True)
    return {**os.environ, **_ENVIRONMENT, "LD_PRELOAD": str(shared_library(BUILD))}


def become_simulation(module: str) -> None:
    """Replace this process by `python -m module` with the same arguments, unless it is one already."""
    if "simulated_disk" in os.environ.get("LD_PRELOAD", "") and os.environ.get("PYTHONHASHSEED") == "0":
        return
    command = [sys.executable, "-m", module, *sys.argv[1:]]
    os.execve(sys.executable, command, environment())  # noqa: S606
