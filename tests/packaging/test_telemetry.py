"""onnxruntime's telemetry is off: nothing is written, and nobody is called.

The wheels carry telemetry that is on by default and keeps a database under ~/.cache. The first test shows
that this would be noticed.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.rig.packaging.deb import SOURCE

LEFT_ALONE = """
import onnxruntime
from models.manifest import load_manifest, shipped_model_dir
onnxruntime.InferenceSession(str(next(shipped_model_dir().glob("*.onnx"))))
"""
AS_THE_CORE = """
import device.core.palmd
import numpy as np
from models.manifest import load_manifest, open_embedder, shipped_model_dir
embedder = open_embedder(load_manifest(shipped_model_dir()))
embedder.embed(np.zeros((1, 112, 112), np.uint8))
"""
_CALL = re.compile(r"\b(?:connect|sendto|sendmsg)\(\d+.*AF_INET")


def told_home(home: Path, code: str, *before: str) -> list[str]:
    """Run `code` with an empty home of its own; the names of what lies there afterwards."""
    home.mkdir()
    # Nothing of our environment: it also keeps still where it sees that a CI runs it (CI, GITHUB_ACTIONS, …).
    subprocess.run(
        [*before, sys.executable, "-c", code],
        env={"HOME": str(home), "PATH": os.environ["PATH"]},
        cwd=SOURCE,
        check=True,
        capture_output=True,
        timeout=100,
    )
    return sorted(path.name for path in home.rglob("*"))


def test_left_alone_it_would_keep_a_database(tmp_path: Path) -> None:
    assert "onnxruntime.db" in told_home(tmp_path / "home", LEFT_ALONE)


def test_the_core_leaves_nothing_behind(tmp_path: Path) -> None:
    assert told_home(tmp_path / "home", AS_THE_CORE) == []


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace (apt install strace)")
def test_the_core_calls_nobody(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    told_home(tmp_path / "home", AS_THE_CORE, "strace", "-f", "-qq", "-e", "trace=network", "-o", str(trace))
    assert _CALL.findall(trace.read_text()) == []
