"""Memory, descriptors and threads of the daemons over time: flat, or growing?

A program that is killed and started again begins a new life, so each life has its own level and all lives of
a program share one slope (least squares with a fixed effect a life). The first part of a life, in which
caches fill, does not count. Of every WINDOW_S the least value counts: what is taken and given back, such
as a connection, is no growth.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

WARM_UP_S: Final = 60.0
WINDOW_S: Final = 20.0
Floats = NDArray[np.float64]
MEASURES: Final = ("rss_kib", "descriptors", "threads")


@dataclass
class Growth:
    """Samples: `lives` by program name, then process id."""

    lives: dict[str, dict[int, list[tuple[float, tuple[int, int, int]]]]] = field(
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
        self.lives[name][pid].append((at_s, (rss_kib, descriptors, threads)))

    def slopes(self, name: str) -> dict[str, float] | None:
        """Growth an hour of each measure and its standard error, how far it rose in one life at most, and the
        newest values.

        None when no life was long enough.
        """
        times: list[Floats] = []
        values: list[Floats] = []
        rises: list[Floats] = []
        for samples in self.lives[name].values():
            at, rows = _least(samples)
            if len(at) < 3:
                continue
            times.append(at - at.mean())
            values.append(rows - rows.mean(axis=0))
            rises.append(rows[-1] - rows[0])
        if not times:
            return None
        at, rows = np.concatenate(times), np.concatenate(values)
        per_s = (at @ rows) / (at @ at)
        left = ((rows - np.outer(at, per_s)) ** 2).sum(axis=0) / max(1, len(at) - len(times) - 1)
        error_per_s = np.sqrt(left / (at @ at))
        last = next(reversed(self.lives[name].values()))[-1][1]
        figures = {f"{measure}_per_h": round(float(per_s[i]) * 3600, 1) for i, measure in enumerate(MEASURES)}
        figures |= {
            f"{measure}_per_h_error": round(float(error_per_s[i]) * 3600, 1)
            for i, measure in enumerate(MEASURES)
        }
        rise = np.max(rises, axis=0)
        figures |= {f"{measure}_rise": float(rise[i]) for i, measure in enumerate(MEASURES)}
        return figures | {measure: float(last[i]) for i, measure in enumerate(MEASURES)}

    @property
    def names(self) -> list[str]:
        return list(self.lives)


def _least(samples: list[tuple[float, tuple[int, int, int]]]) -> tuple[Floats, Floats]:
    """Times (n,) and least values (n, 3) of the windows of one life after its first part."""
    windows: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for at_s, row in samples:
        lived_s = at_s - samples[0][0]
        if lived_s >= WARM_UP_S:
            windows[int(lived_s // WINDOW_S)].append(row)
    at = np.array([window * WINDOW_S for window in windows], dtype=np.float64)
    return at, np.array([np.min(rows, axis=0) for rows in windows.values()], dtype=np.float64)
