"""How long `palmd` takes from its start to ready, beside the bare imports of its libraries."""

import subprocess
import sys
import time
from statistics import median
from typing import Any

from tools.palmctl.bench.board import Board
from tools.palmctl.bench.daemon import running_palmd

_IMPORTS = "import numpy, cv2, faiss, onnxruntime"


def measure_start(board: Board, templates: int, repeats: int = 3) -> dict[str, Any]:
    """Median seconds over `repeats` starts, and of a bare interpreter that imports the same libraries."""
    ready, bare, memory = [], [], []
    for _ in range(repeats):
        with running_palmd(board.config_path) as palmd:
            ready.append(palmd.ready_s)
            memory.append(palmd.rss_bytes)
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", _IMPORTS], check=True)
        bare.append(time.perf_counter() - begun)
    return {
        "templates": templates,
        "ready_s": round(median(ready), 3),
        "imports_alone_s": round(median(bare), 3),
        "rss_bytes": int(median(memory)),
        "ratio": round(median(ready) / median(bare), 2),
    }
