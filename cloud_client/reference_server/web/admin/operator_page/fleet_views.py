"""What the operator's page shows of reports and rollouts, read from the store."""

from dataclasses import dataclass
from typing import Any, Final

from cloud_client.reference_server.domain.devices import fleet, reports, rollouts
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.store.base import Row, Tx
from link1.objects import VerdictDecision, VerdictResult

DAY_MS: Final = 24 * 3600 * 1000
_HOUR_MS: Final = 3600 * 1000
_BOUNDS: Final = ("50", "100", "200", "500", "1000", "inf")


@dataclass(frozen=True, slots=True)
class HourLine:
    """Verdicts of a device in one hour of the last 24, by decision."""

    from_ms: int
    accepted: int
    rejected: int
    abstained: int

    @property
    def total(self) -> int:
        return self.accepted + self.rejected + self.abstained


@dataclass(frozen=True, slots=True)
class LatencyLine:
    """How many verdicts took at most so long, and longer than the bar before; ``percent`` of all."""

    upto_ms: int | None
    """None: longer than every bound."""
    count: int
    percent: float


@dataclass(frozen=True, slots=True)
class DeviceDay:
    """One device: its newest report, 24 hours of verdicts, its totals."""

    device_id: str
    gate_id: str
    status: str
    state: str
    """serving, degraded or silent; empty while it has not reported."""
    report: dict[str, Any] | None
    received_ms: int | None
    hours: list[HourLine]
    busiest: int
    causes: list[tuple[str, int]]
    """Verdicts of the 24 hours that are not `MATCH`, by result, the most frequent first."""
    latencies: list[LatencyLine]
    counters: dict[str, int]


def fleet_counts(tx: Tx, environment: Environment, now_ms: int) -> dict[str, int]:
    """Devices that report by state, and all that report."""
    states = [device.state for device in fleet.reported(tx, now_ms, environment)]
    return {state: states.count(state) for state in ("serving", "degraded", "silent")} | {"all": len(states)}


def device_day(tx: Tx, environment: Environment, device_id: str, now_ms: int) -> DeviceDay | None:
    """One device of the environment; None where it has no such device."""
    row = tx.one(
        """SELECT * FROM devices
           WHERE tenant_id = :tenant_id AND livemode = :livemode AND device_id = :device_id""",
        device_id=device_id,
        **environment.params,
    )
    if row is None:
        return None
    shown = reports.shown_report(tx, row)
    decided = tx.all(
        """SELECT decided_ms, decision, result FROM verdicts
           WHERE tenant_id = :tenant_id AND livemode = :livemode AND device_id = :device_id
             AND decided_ms > :since_ms""",
        device_id=device_id,
        since_ms=now_ms - DAY_MS,
        **environment.params,
    )
    hours = _hours(decided, now_ms)
    states = fleet.reported(tx, now_ms, environment, device_id)
    others = [row["result"] for row in decided if row["result"] != VerdictResult.MATCH]
    causes = [(result, others.count(result)) for result in VerdictResult if result in others]
    return DeviceDay(
        device_id=device_id,
        gate_id=row["gate_id"],
        status=row["status"],
        state=next((one.state for one in states if one.device_id == device_id), ""),
        report=shown["report"],
        received_ms=shown["received_at_ms"],
        hours=hours,
        busiest=max(hour.total for hour in hours),
        causes=sorted(causes, key=lambda cause: -cause[1]),
        latencies=_latencies(shown["counters"]),
        counters=shown["counters"],
    )


def _hours(decided: list[Row], now_ms: int) -> list[HourLine]:
    """24 lines, the oldest first; a verdict from ahead of this clock counts in the last."""
    counts = [dict.fromkeys(VerdictDecision, 0) for _ in range(24)]
    for row in decided:
        age = min(max(now_ms - row["decided_ms"], 0), DAY_MS - 1)
        counts[23 - age // _HOUR_MS][VerdictDecision(row["decision"])] += 1
    return [
        HourLine(
            from_ms=now_ms - DAY_MS + number * _HOUR_MS,
            accepted=count[VerdictDecision.ACCEPT],
            rejected=count[VerdictDecision.REJECT],
            abstained=count[VerdictDecision.ABSTAIN],
        )
        for number, count in enumerate(counts)
    ]


def _latencies(counters: dict[str, int]) -> list[LatencyLine]:
    """The reported cumulative counts as bars."""
    total, below, lines = counters.get("latency_ms.le_inf", 0), 0, []
    for bound in _BOUNDS:
        upto = counters.get(f"latency_ms.le_{bound}", 0)
        upto_ms = None if bound == "inf" else int(bound)
        lines.append(LatencyLine(upto_ms, upto - below, 100 * (upto - below) / total if total else 0.0))
        below = upto
    return lines if total else []


def rollout_list(tx: Tx, environment: Environment, now_ms: int) -> list[dict[str, Any]]:
    """Every rollout as `release status` prints it, the newest release first, at most 20."""
    rows = tx.all(
        """SELECT release_seq, started_ms FROM rollouts
           WHERE tenant_id = :tenant_id AND livemode = :livemode ORDER BY release_seq DESC LIMIT 20""",
        **environment.params,
    )
    return [
        rollouts.status(tx, environment, row["release_seq"], now_ms) | {"started_ms": row["started_ms"]}
        for row in rows
    ]
