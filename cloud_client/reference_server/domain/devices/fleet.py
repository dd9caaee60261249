"""How all devices are, by what they report: states, health words, totals, worst values.

An active device that has reported is serving, degraded (it judges no palm) or silent (no report for
`SILENT_MS`: three are missing). Devices that never reported, of older software or without a network and with
older mail, are in none of these.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.store.base import Row, Tx

SILENT_MS: Final = 90_000
SILENT_BY_MAIL_MS: Final = 15 * 60 * 1000
"""Mail comes when the validator has it carried: silence begins later for a device that reports by mail."""


@dataclass(frozen=True, slots=True)
class ReportedDevice:
    """An active device that has reported. `state`: serving, degraded or silent. `counters`: its totals."""

    tenant_id: str
    device_id: str
    state: str
    age_ms: int
    report: dict[str, Any]
    counters: dict[str, int]


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """Sums over the devices of every tenant."""

    states: Counter[str] = field(default_factory=Counter)
    health: Counter[str] = field(default_factory=Counter)
    """Devices by health word of their newest report."""
    updates: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Reported releases by kind and state."""
    counters: Counter[str] = field(default_factory=Counter)
    """Totals over all devices, revoked and wiped ones too: they never fall."""
    queued: dict[str, int] = field(default_factory=dict)
    """The longest queue of any device: verdicts, mail."""
    storage_free_mib: int | None = None
    """The least of any device."""
    temperature_c: int | None = None
    """The highest of any device."""
    devices: tuple[ReportedDevice, ...] = ()


def reported(
    tx: Tx, now_ms: int, environment: Environment | None = None, device_id: str | None = None
) -> list[ReportedDevice]:
    """The active devices that have reported: of all environments, of one, or one device of it."""
    where = "" if environment is None else "AND d.tenant_id = :tenant_id AND d.livemode = :livemode"
    if device_id is not None:
        where += " AND d.device_id = :device_id"
    rows = tx.all(
        f"""SELECT r.*, d.network_ms, d.mail_ms FROM device_reports r
            JOIN devices d ON d.tenant_id = r.tenant_id AND d.device_id = r.device_id
            WHERE d.status = 'active' AND r.report IS NOT NULL {where}
            ORDER BY r.tenant_id, r.device_id""",  # noqa: S608 - fixed parts
        **({} if environment is None else environment.params),
        **({} if device_id is None else {"device_id": device_id}),
    )
    return [_reported(row, now_ms) for row in rows]


def figures(tx: Tx, now_ms: int) -> FleetFigures:
    """Read and add up every report and every total: some 5 µs a device."""
    devices = reported(tx, now_ms)
    found = FleetFigures(
        states=Counter(device.state for device in devices),
        health=Counter(word for device in devices for word in set(device.report["health"])),
        updates=Counter(
            (update["kind"], update["state"]) for device in devices for update in device.report["updates"]
        ),
        queued={
            name: max((device.report["queues"][name] for device in devices), default=0)
            for name in ("verdicts", "mail")
        },
        storage_free_mib=min(_board(devices, "storage_free_mib"), default=None),
        temperature_c=max(_board(devices, "temperature_c"), default=None),
        devices=tuple(devices),
    )
    for row in tx.all("SELECT counters FROM device_reports"):
        found.counters.update(json.loads(row["counters"]))
    return found


def _board(devices: list[ReportedDevice], name: str) -> list[int]:
    return [value for device in devices if (value := device.report["board"][name]) is not None]


def _reported(row: Row, now_ms: int) -> ReportedDevice:
    report = json.loads(row["report"])
    age_ms = max(0, now_ms - row["received_ms"])
    silent = age_ms > (SILENT_BY_MAIL_MS if row["mail_ms"] > row["network_ms"] else SILENT_MS)
    return ReportedDevice(
        tenant_id=row["tenant_id"],
        device_id=row["device_id"],
        state="silent" if silent else "serving" if report["serving"] else "degraded",
        age_ms=age_ms,
        report=report,
        counters=json.loads(row["counters"]),
    )
