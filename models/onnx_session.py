"""Opening ONNX files with ONNX Runtime, on one thread and without its telemetry."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from models.errors import ModelFileError


def open_session(path: Path, *, keeps_memory: bool = False) -> Any:
    """An ``InferenceSession`` on the processor. Raises ``ModelFileError`` for a file that is no model.

    With ``keeps_memory`` what it computes stays in its memory until the next run.
    """
    # From 1.29 on the wheels carry telemetry, on by default; it is read when the module is imported.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    # A spinning thread pool would eat the core that the next frame needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # An arena keeps what is freed; the C library overwrites it.
    options.enable_cpu_mem_arena = keeps_memory
    options.log_severity_level = 3
    # ONNX Runtime's own exceptions share no public base class.
    try:
        return onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    except Exception as e:
        raise ModelFileError(f"{path} cannot be loaded as an ONNX model ({type(e).__name__})") from e


@contextmanager
def running(path: Path, what: str) -> Iterator[None]:
    """Runs of the network in that file: whatever ONNX Runtime raises becomes ``ModelFileError``."""
    try:
        yield
    except Exception as e:
        raise ModelFileError(f"{path} cannot be run {what} ({type(e).__name__}); export it again") from e
