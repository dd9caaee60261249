"""Figures for Prometheus: counted while requests are answered, read from the store when asked for.

Labels are methods, route templates, statuses and the contract's own words. No value out of a path, query,
body or key ever becomes one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from cloud_client.reference_server.contract.words import GALLERY_TTL_MS
from cloud_client.reference_server.domain.devices import fleet
from cloud_client.reference_server.domain.devices.config import gallery_ttl_ms
from cloud_client.reference_server.domain.devices.fleet import FleetFigures
from cloud_client.reference_server.domain.people import erasure, sessions
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.web.access_log import ServedRequest
from cloud_client.reference_server.web.admin.fleet_metrics import FleetCollector

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
_LAGS: Final = (1, 10, 100, 1000)

disable_created_metrics()  # type: ignore[no-untyped-call]  # the library types nearly all, not this


@dataclass(frozen=True, slots=True)
class ServiceFigures:
    """Figures of the service's data at one moment, over all tenants."""

    devices: dict[str, int]
    lags: list[int]
    """Deltas that each active access device is behind; -1 for one in another epoch."""
    stopped: int
    """Active access devices past the gallery's time to live: they recognize no one."""
    templates: int
    sessions: dict[str, int]
    erasures: int
    erasures_overdue: int
    fleet: FleetFigures = field(default_factory=FleetFigures)


def standing(tx: Tx, now_ms: int) -> ServiceFigures:
    """Read the figures that are not counted as they happen."""
    words = {"active": 0, "revoked": 0, "wiped": 0}
    devices = {
        row["status"]: row["n"] for row in tx.all("SELECT status, count(*) AS n FROM devices GROUP BY status")
    }
    access = tx.all(
        """SELECT CASE WHEN d.acked_epoch = s.epoch THEN s.seq - d.acked_seq ELSE -1 END AS lag, d.synced_ms,
                  d.tenant_id, d.livemode
           FROM devices d JOIN streams s ON s.tenant_id = d.tenant_id AND s.livemode = d.livemode
           WHERE d.status = 'active' AND d.kind = 'access'"""
    )
    where = [Environment(row["tenant_id"], bool(row["livemode"])) for row in access]
    ttl_ms = {environment: gallery_ttl_ms(tx, environment) for environment in set(where)}
    synced = zip(where, (row["synced_ms"] or 0 for row in access), strict=True)
    pending = erasure.under_way(tx)
    # Each count looks at every erasure: the second only where it can be another than 0.
    overdue = erasure.under_way(tx, erased_until_ms=now_ms - GALLERY_TTL_MS) if pending else 0
    return ServiceFigures(
        devices=words | devices,
        lags=[row["lag"] for row in access],
        stopped=sum(now_ms - synced_ms > ttl_ms[environment] for environment, synced_ms in synced),
        templates=int(tx.scalar("SELECT coalesce(sum(count), 0) FROM streams")),
        sessions=sessions.counts(tx, now_ms),
        erasures=pending,
        erasures_overdue=overdue,
        fleet=fleet.figures(tx, now_ms),
    )


class Metrics:
    """The figures of one server process. `each_device`: also three series for every device."""

    def __init__(self, *, each_device: bool = False) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        requests = Counter(
            "palm_http_requests", "Requests answered.", ("method", "route", "status"), registry=registry
        )
        seconds = Histogram(
            "palm_http_request_seconds",
            "From a request's first byte to its answer, long-polls with their waiting.",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=registry,
        )
        # Finding the child by its labels costs more than counting.
        self._requests, self._seconds = cache(requests.labels), cache(seconds.labels)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        self._queued = gauge("palm_store_queue", "Database work not yet done, that in hand included.", "crew")
        self._waiters = gauge("palm_long_poll_waiters", "Devices waiting for a change.")
        self._devices = gauge("palm_devices", "Registered devices.", "status")
        self._behind = gauge(
            "palm_devices_behind",
            "Active access devices that are at least so many gallery deltas behind, or in another epoch.",
            "deltas",
        )
        self._lag = gauge(
            "palm_device_gallery_lag_max_deltas", "The furthest that an access device is behind."
        )
        self._stopped = gauge(
            "palm_devices_gallery_expired", "Active access devices that have stopped recognizing."
        )
        self._templates = gauge("palm_gallery_templates", "Palms in all galleries.")
        self._sessions = gauge("palm_enrollment_sessions", "Sessions not ended.", "status")
        self._erasures = gauge("palm_erasures_pending", "Erasures that a device has yet to apply.")
        self._overdue = gauge(
            "palm_erasures_overdue", "Erasures that a device has yet to apply after six hours."
        )
        self._fleet = FleetCollector(each_device=each_device)
        registry.register(self._fleet)

    def note(self, served: ServedRequest) -> None:
        """A request has been answered."""
        self._requests(served.method, served.template, served.status).inc()
        self._seconds(served.method, served.template).observe(served.took_s)

    def page(self, standing: ServiceFigures, *, waiters: int, queued: Mapping[str, int]) -> bytes:
        """Everything in Prometheus' text format."""
        self._waiters.set(waiters)
        for crew, count in queued.items():
            self._queued.labels(crew).set(count)
        for status, count in standing.devices.items():
            self._devices.labels(status).set(count)
        for least in _LAGS:
            behind = sum(1 for lag in standing.lags if lag < 0 or lag >= least)
            self._behind.labels(str(least)).set(behind)
        self._lag.set(max((lag for lag in standing.lags if lag >= 0), default=0))
        self._stopped.set(standing.stopped)
        self._templates.set(standing.templates)
        for status, count in standing.sessions.items():
            self._sessions.labels(status).set(count)
        self._erasures.set(standing.erasures)
        self._overdue.set(standing.erasures_overdue)
        self._fleet.figures = standing.fleet
        return generate_latest(self._registry)
