"""Starting `palmd`: knowing when it is ready, and how long it takes next to importing its libraries."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

READY_WITHIN_S = 120.0
_IMPORTS = "import numpy, cv2, faiss, onnxruntime"


class BenchFailed(Exception):
    """A program of the bench did not do what the bench measures; the message says which and why."""


@dataclass(frozen=True)
class Running:
    """A daemon that has said that it is ready."""

    ready_s: float
    pid: int


def rss_bytes(pid: int) -> int:
    """Memory that a process has in RAM now."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise BenchFailed(f"process {pid} has ended")


@contextmanager
def running_palmd(config_path: Path) -> Iterator[Running]:
    """`palmd` on a configuration, ready; ends it afterwards."""
    with tempfile.TemporaryDirectory(prefix="palm-notify-") as folder:
        address = str(Path(folder) / "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.bind(address)
            begun = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-m", "device.core.main", "--config", str(config_path)],
                env=os.environ | {"NOTIFY_SOCKET": address},
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                _await_ready(channel, process)
                yield Running(time.perf_counter() - begun, process.pid)
            finally:
                process.terminate()
                process.communicate(timeout=20)


def _await_ready(channel: socket.socket, process: subprocess.Popen[str]) -> None:
    channel.settimeout(0.5)
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        try:
            if b"READY=1" in channel.recv(4096):
                return
        except TimeoutError:
            if process.poll() is not None:
                said = process.communicate()[1]
                raise BenchFailed(f"palmd ended before it was ready: {said.strip()[-500:]}") from None
    raise BenchFailed(f"palmd was not ready within {READY_WITHIN_S:.0f} s")


def measure_start(config_path: Path, templates: int) -> dict[str, Any]:
    """Median seconds over three starts, and of a bare interpreter that imports the same libraries."""
    ready, bare, memory = [], [], []
    for _ in range(3):
        with running_palmd(config_path) as palmd:
            ready.append(palmd.ready_s)
            memory.append(rss_bytes(palmd.pid))
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
