"""What devices report, for Prometheus. Totals of reports never fall, so they are counters."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from cloud_client.reference_server.domain.devices.fleet import FleetFigures, ReportedDevice
from link1.objects import VerdictDecision, VerdictResult

_STATES: Final = ("serving", "degraded", "silent")
# A device may report any word; a fixed list keeps the number of series fixed.
_WORDS: Final = (
    *("CAMERA_FAULT", "CLOCK_UNTRUSTED", "GALLERY_STALE", "LINK_DOWN", "MODEL_FAULT", "MODEL_MISMATCH"),
    *("ROLLED_BACK", "SENSOR_MISMATCH", "STORAGE_LOW", "STORE_FAULT", "TEMPERATURE", "UPDATE_FAILED"),
)
_UPDATES: Final = tuple(
    (kind, state)
    for kind in ("app", "model")
    for state in ("receiving", "verified", "trial", "running", "failed", "withdrawn")
)
_BOUNDS: Final = {"0.05": "50", "0.1": "100", "0.2": "200", "0.5": "500", "1.0": "1000", "+Inf": "inf"}
"""Bucket bounds in seconds, and in the names of the reported counters."""
_COUNTERS: Final = (
    ("palm_fleet_frames", "frames", "Frames that devices have examined."),
    ("palm_fleet_pad_failures", "pad.fail", "Captures that liveness refused."),
    ("palm_fleet_cable_resets", "cable.resets", "Sessions with a validator that were reset."),
    ("palm_fleet_uploads_failed", "uploads.failed", "Uploads of verdicts that failed."),
    ("palm_fleet_bad_evidence", "evidence.bad_signature", "Messages of validators with a bad signature."),
)


class FleetCollector(Collector):
    """The figures of the last page. `each_device`: also three series for every device."""

    def __init__(self, *, each_device: bool) -> None:
        self.figures = FleetFigures()
        self._each_device = each_device

    def collect(self) -> Iterator[Metric]:
        found = self.figures
        yield _gauge(
            "palm_fleet_devices",
            "Active devices that report: serving, degraded or silent.",
            ("state",),
            {(state,): found.states[state] for state in _STATES},
        )
        yield _gauge(
            "palm_fleet_health",
            "Active devices that report the health word.",
            ("word",),
            {(word,): found.health[word] for word in _WORDS},
        )
        yield _gauge(
            "palm_fleet_updates",
            "Releases that active devices report.",
            ("kind", "state"),
            {update: found.updates[update] for update in _UPDATES},
        )
        yield _counter(
            "palm_fleet_verdicts",
            "Verdicts that devices have decided.",
            ("decision", "result"),
            {
                (result.decision, result): found.counters[f"verdicts.{result.decision}.{result}"]
                for result in VerdictResult
            },
        )
        buckets = [(bound, found.counters[f"latency_ms.le_{ms}"]) for bound, ms in _BOUNDS.items()]
        text = "From a palm in view to its verdict."
        yield HistogramMetricFamily("palm_fleet_verdict_seconds", text, buckets=buckets, sum_value=None)
        for name, reported, text in _COUNTERS:
            yield CounterMetricFamily(name, text, value=found.counters[reported])
        yield _gauge(
            "palm_fleet_queue_max",
            "The longest queue of any device.",
            ("queue",),
            {(queue,): length for queue, length in found.queued.items()},
        )
        for name, text, value in (
            (
                "palm_fleet_storage_free_min_mebibytes",
                "The least free storage of any device.",
                found.storage_free_mib,
            ),
            (
                "palm_fleet_temperature_max_celsius",
                "The highest temperature of any board.",
                found.temperature_c,
            ),
        ):
            if value is not None:
                yield GaugeMetricFamily(name, text, value)
        if self._each_device:
            yield from _by_device(found.devices)


def _by_device(devices: tuple[ReportedDevice, ...]) -> Iterator[Metric]:
    labels = ("tenant_id", "device_id")
    named = {(device.tenant_id, device.device_id): device for device in devices}
    yield _gauge(
        "palm_device_serving",
        "1 while the device serves.",
        labels,
        {name: float(device.state == "serving") for name, device in named.items()},
    )
    yield _gauge(
        "palm_device_report_age_seconds",
        "Since the device's newest report.",
        labels,
        {name: device.age_ms / 1000 for name, device in named.items()},
    )
    yield _counter(
        "palm_device_verdicts",
        "Verdicts that the device has decided.",
        (*labels, "decision"),
        {
            (*name, decision): sum(
                count
                for counter, count in device.counters.items()
                if counter.startswith(f"verdicts.{decision}.")
            )
            for name, device in named.items()
            for decision in VerdictDecision
        },
    )


def _labelled(
    family: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    labels: tuple[str, ...],
    values: Mapping[tuple[str, ...], float],
) -> Metric:
    found = family(name, text, labels=labels)
    for of, value in values.items():
        found.add_metric(of, value)
    return found


_gauge, _counter = partial(_labelled, GaugeMetricFamily), partial(_labelled, CounterMetricFamily)
