"""The latency of the latest verdicts, by stage."""

from collections import deque
from collections.abc import Mapping
from math import inf
from statistics import fmean, median_grouped

from device.values.status import LatencyStatus

KEPT = 512
"""A quarter of an hour of a busy gate: enough for a p99, in a few hundred kilobytes at most."""
LIMITS_MS = (50, 100, 200, 500, 1000)


class Latencies:
    """Milliseconds from the deciding frame to the verdict's last byte in the port."""

    def __init__(self) -> None:
        self._totals: deque[float] = deque(maxlen=KEPT)
        self._stages: deque[Mapping[str, float]] = deque(maxlen=KEPT)
        self._within = dict.fromkeys((*LIMITS_MS, inf), 0)

    @property
    def counters(self) -> dict[str, int]:
        """`latency_ms.le_50` … `latency_ms.le_inf`: since the start, cumulative."""
        return {f"latency_ms.le_{limit}": count for limit, count in self._within.items()}

    def add(self, total_ms: float, stage_ms: Mapping[str, float]) -> None:
        """Add one verdict. Time outside the stages is recorded as `waiting`."""
        for limit in self._within:
            self._within[limit] += total_ms <= limit
        rest = max(0.0, total_ms - sum(stage_ms.values()))
        self._totals.append(total_ms)
        self._stages.append({**stage_ms, "waiting": rest})

    def summary(self) -> LatencyStatus:
        """In whole microseconds."""
        totals = sorted(self._totals)
        if not totals:
            return LatencyStatus(0)
        names = dict.fromkeys(name for stages in self._stages for name in stages)
        return LatencyStatus(
            len(totals),
            # The total is a difference of whole milliseconds; its median is known more exactly than that.
            p50_us=round(median_grouped(totals, 1.0) * 1000),
            p99_us=round(totals[min(len(totals) - 1, len(totals) * 99 // 100)] * 1000),
            stages_us={
                name: round(fmean(stages.get(name, 0.0) for stages in self._stages) * 1000) for name in names
            },
        )
