"""How devices are, in their own words: ``POST /v1/devices/self/report`` (device surface §3, Reports).

Kept are the newest report of a device and what its counters have risen by since it was registered first.
A report by mail that is complete goes the same way.
"""

import json
from typing import Any, Final

from cloud_client.reference_server.contract.bodies import (
    MAX_SAFE_INTEGER,
    AppOfReport,
    GalleryOfReport,
    ReportBody,
)
from cloud_client.reference_server.contract.mail import ReportedGallery
from cloud_client.reference_server.domain.call import ApiAnswer, Call
from cloud_client.reference_server.domain.devices import rollouts
from cloud_client.reference_server.domain.devices.records import row_by_id
from cloud_client.reference_server.domain.gallery import log as gallery_log
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.domain.tenancy.rows import device_params
from cloud_client.reference_server.store.base import Row, Tx

EARLIER_BOOTS: Final = 16
"""How many boot_ids before the present one are remembered."""


def report_device(call: Call, tx: Tx) -> ApiAnswer:
    """``POST /v1/devices/self/report``."""
    device = row_by_id(tx, call.environment, call.caller.device_id)
    take(tx, call.environment, device, call.body, call.now_ms)
    return ApiAnswer(204)


def take(tx: Tx, environment: Environment, device: Row, report: ReportBody, now_ms: int) -> None:
    """Take a complete report; of an older one than the newest held, only the acknowledgement."""
    acknowledge(tx, environment, device, report.gallery, now_ms)
    held = held_of(tx, device)
    if held is not None and not _is_newer(held, report):
        return
    show(tx, device, report.health, report.app, report.model_id)
    _store(tx, device, held, report, now_ms)
    served = held is not None and held["report"] is not None and held["stopped_ms"] is None
    rollouts.note_report(tx, environment, device, report, served=served, now_ms=now_ms)


def show(
    tx: Tx, device: Row, health: list[str], app: AppOfReport | None = None, model_id: str | None = None
) -> None:
    """Put what a device says of itself into its Device; what it leaves out stays."""
    tx.run(
        """UPDATE devices SET health = :health, app_pkg = coalesce(:pkg, app_pkg),
                  app_version = coalesce(:version, app_version), model_id = coalesce(:model_id, model_id)
           WHERE tenant_id = :tenant_id AND device_id = :device_id""",
        health=json.dumps(sorted(set(health))),
        pkg=None if app is None else app.pkg,
        version=None if app is None else app.version,
        model_id=model_id,
        **device_params(device),
    )


def acknowledge(
    tx: Tx,
    environment: Environment,
    device: Row,
    gallery: GalleryOfReport | ReportedGallery | None,
    now_ms: int,
) -> None:
    """What the device has applied of the gallery; nothing where that cannot be."""
    if gallery is None or device["kind"] != "access" or gallery.stream != environment.stream:
        return
    state = gallery_log.state_of_stream(tx, environment)
    # A device cannot have applied what does not exist yet, and only a snapshot repairs another epoch.
    if gallery.epoch == state.epoch and gallery.seq <= state.seq:
        position = (gallery.epoch, gallery.seq)
        gallery_log.acknowledge(tx, device["tenant_id"], device["device_id"], position, now_ms)


def held_of(tx: Tx, device: Row) -> Row | None:
    """The row of ``device_reports``; its ``report`` is None while a new registration has sent none."""
    return tx.one(
        "SELECT * FROM device_reports WHERE tenant_id = :tenant_id AND device_id = :device_id",
        **device_params(device),
    )


def forget(tx: Tx, device: Row) -> None:
    """A registration with new keys: what it reports is yet to come. The totals stay."""
    tx.run(
        """UPDATE device_reports SET report = NULL, received_ms = NULL, stopped_ms = NULL,
                  boot_counters = '{}', app_seq = 0, model_seq = 0
           WHERE tenant_id = :tenant_id AND device_id = :device_id""",
        **device_params(device),
    )


def shown_report(tx: Tx, device: Row) -> dict[str, Any]:
    """``{report, received_at_ms, counters}``."""
    held = held_of(tx, device)
    return {
        "report": None if held is None or held["report"] is None else json.loads(held["report"]),
        "received_at_ms": None if held is None else held["received_ms"],
        "counters": {} if held is None else json.loads(held["counters"]),
    }


def _is_newer(held: Row, report: ReportBody) -> bool:
    if report.boot_id in json.loads(held["earlier_boots"]):
        return False
    if held["report"] is None:
        return True
    newest = json.loads(held["report"])
    return bool(newest["boot_id"] != report.boot_id or newest["uptime_s"] <= report.uptime_s)


def _store(tx: Tx, device: Row, held: Row | None, report: ReportBody, now_ms: int) -> None:
    before = None if held is None or held["report"] is None else json.loads(held["report"])
    earlier = [] if held is None else json.loads(held["earlier_boots"])
    counted = {} if held is None else json.loads(held["boot_counters"])
    totals = {} if held is None else json.loads(held["counters"])
    if before is not None and before["boot_id"] != report.boot_id:
        earlier = [before["boot_id"], *earlier][:EARLIER_BOOTS]
        counted = {}
    for name, value in report.counters.items():
        last = counted.get(name, 0)
        rose = value - last if value >= last else value
        totals[name] = min(totals.get(name, 0) + rose, MAX_SAFE_INTEGER)
    stopped_ms = None if report.serving else now_ms
    if not report.serving and held is not None and held["stopped_ms"] is not None:
        stopped_ms = held["stopped_ms"]
    highest = {
        f"{kind}_seq": max(
            [0 if held is None else held[f"{kind}_seq"]]
            + [
                update.release_seq
                for update in report.updates
                if update.kind == kind and update.state in ("running", "failed")
            ]
        )
        for kind in ("app", "model")
    }
    tx.run(
        """INSERT INTO device_reports (tenant_id, device_id, report, received_ms, stopped_ms, earlier_boots,
                                       boot_counters, counters, app_seq, model_seq)
           VALUES (:tenant_id, :device_id, :report, :now_ms, :stopped_ms, :earlier, :counted, :totals,
                   :app_seq, :model_seq)
           ON CONFLICT (tenant_id, device_id) DO UPDATE SET
               report = excluded.report, received_ms = excluded.received_ms,
               stopped_ms = excluded.stopped_ms, earlier_boots = excluded.earlier_boots,
               boot_counters = excluded.boot_counters, counters = excluded.counters,
               app_seq = excluded.app_seq, model_seq = excluded.model_seq""",
        report=json.dumps(report.model_dump(exclude_unset=True)),
        now_ms=now_ms,
        stopped_ms=stopped_ms,
        earlier=json.dumps(earlier),
        counted=json.dumps(counted | report.counters),
        totals=json.dumps(totals),
        **highest,
        **device_params(device),
    )
