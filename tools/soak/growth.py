"""Memory, descriptors and threads of the daemons over time: flat, or growing?

A program that is killed and started again begins a new life, so each life has its own level and all lives of
a program share one slope (least squares with a fixed effect a life). The first part of a life, in which
caches fill, does not count.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

WARM_UP_S: Final = 30.0
MEASURES: Final = ("rss_kib", "descriptors", "threads")


@dataclass
class Growth:
    """Samples by program and life."""

    _lives: dict[str, dict[int, list[tuple[float, tuple[int, int, int]]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def sample(self, name: str, pid: int, at_s: float) -> None:
        """Look at a process; nothing when it has just gone."""
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
            descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        except OSError:
            return
        members = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if "VmRSS" not in members:
            return  # a zombie has none
        rss_kib, threads = int(members["VmRSS"].split()[0]), int(members["Threads"])
        self._lives[name][pid].append((at_s, (rss_kib, descriptors, threads)))

    def slopes(self, name: str) -> dict[str, float] | None:
        """Growth an hour of each measure, and the newest values; None when no life was long enough."""
        times: list[float] = []
        values: list[tuple[float, ...]] = []
        for samples in self._lives[name].values():
            counted = [(at_s, row) for at_s, row in samples if at_s - samples[0][0] >= WARM_UP_S]
            if len(counted) < 3:
                continue
            at = np.array([one for one, _ in counted])
            rows = np.array([row for _, row in counted], dtype=np.float64)
            times.extend(at - at.mean())
            values.extend(map(tuple, rows - rows.mean(axis=0)))
        if not times:
            return None
        at, rows = np.array(times), np.array(values)
        per_s = (at @ rows) / (at @ at)
        last = next(reversed(self._lives[name].values()))[-1][1]
        figures = {f"{measure}_per_h": round(float(per_s[i]) * 3600, 1) for i, measure in enumerate(MEASURES)}
        return figures | {measure: float(last[i]) for i, measure in enumerate(MEASURES)}

    @property
    def names(self) -> list[str]:
        return list(self._lives)
