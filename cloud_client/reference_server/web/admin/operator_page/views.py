"""What the operator's page shows, read from the store: ids and states, never who a person is."""

import json
from dataclasses import dataclass
from typing import Any, Final

from cloud_client.reference_server.contract.words import GALLERY_TTL_MS, DeviceStatusWord, SessionStatus
from cloud_client.reference_server.domain.devices.config import gallery_ttl_ms
from cloud_client.reference_server.domain.devices.records import health_of, offline_after_ms
from cloud_client.reference_server.domain.people import erasure, sessions
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.store.base import Row, Tx

PAGE_ROWS: Final = 50
OUT_OF_TOUCH_MS: Final = 3 * 60 * 1000
"""A device that is well asks at least once a minute."""
CONFLICTS_SHOWN: Final = 10
CONFLICTS_MS: Final = 30 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class TablePage:
    """Some rows of a list, and whether there are more."""

    rows: list[Any]
    number: int
    more: bool


@dataclass(frozen=True, slots=True)
class DeviceLine:
    """One device. ``tone`` is good, warn, bad or quiet; ``lag`` counts deltas, None in another epoch."""

    device_id: str
    kind: str
    gate_id: str
    dbd_id: str
    app_version: str
    tone: str
    state: str
    about: str
    lag: int | None
    gallery: str
    health: list[str]
    last_seen_ms: int
    synced_ms: int | None


@dataclass(frozen=True, slots=True)
class VerdictLine:
    """One verdict; ``why`` says what a conflict is about."""

    verdict_id: str
    device_id: str
    gate_id: str
    verdict_seq: int
    decision: str
    result: str
    outcome: str
    passage: str
    reconciliation: str
    tone: str
    why: str
    decided_ms: int
    received_ms: int


@dataclass(frozen=True, slots=True)
class SessionLine:
    session_id: str
    subject_id: str
    status: str
    tone: str
    hands: list[str]
    device_id: str | None
    failure_code: str | None
    created_ms: int
    expires_ms: int


@dataclass(frozen=True, slots=True)
class ErasureLine:
    """One erasure and how far it has got."""

    receipt_id: str
    seq: int
    erased_ms: int
    fail_closed_ms: int
    devices_total: int
    devices_done: int
    waiting_for: list[str]

    @property
    def tone(self) -> str:
        return "warn" if self.waiting_for else "good"


def tenant_name(tx: Tx, environment: Environment) -> str:
    name: str = tx.scalar("SELECT name FROM tenants WHERE tenant_id = :id", id=environment.tenant_id)
    return name


_DEVICES = """FROM devices d JOIN streams s ON s.tenant_id = d.tenant_id AND s.livemode = d.livemode
              LEFT JOIN device_reports h ON h.tenant_id = d.tenant_id AND h.device_id = d.device_id
              WHERE d.tenant_id = :tenant_id AND d.livemode = :livemode"""
_UNWELL = """ AND d.status = 'active' AND (d.last_seen_ms < :out_of_touch_ms OR h.stopped_ms IS NOT NULL
               OR d.kind = 'access' AND (d.acked_epoch <> s.epoch OR d.acked_seq < s.seq
                                         OR d.synced_ms < :stopped_ms))"""


def devices(
    tx: Tx, environment: Environment, now_ms: int, number: int = 1, *, unwell: bool = False
) -> TablePage:
    """Devices: active ones first, of them those that report that they serve no one, then the furthest behind;
    ``unwell``: only devices that need a look."""
    rows = tx.all(
        f"""SELECT d.*, s.epoch AS stream_epoch, s.seq AS stream_seq, h.stopped_ms
            {_DEVICES}{_UNWELL if unwell else ""}
            ORDER BY CASE d.status WHEN 'active' THEN 0 WHEN 'revoked' THEN 1 ELSE 2 END,
                     CASE WHEN h.stopped_ms IS NULL THEN 1 ELSE 0 END,
                     CASE WHEN d.kind <> 'access' THEN 0 WHEN d.acked_epoch = s.epoch THEN s.seq - d.acked_seq
                          ELSE s.seq + 1 END DESC,
                     d.last_seen_ms, d.device_id
            LIMIT :rows OFFSET :skip""",
        **_slice(number),
        **(_unwell_since(tx, environment, now_ms) if unwell else environment.params),
    )
    offline_ms, ttl_ms = offline_after_ms(tx, environment.tenant_id), gallery_ttl_ms(tx, environment)
    return _page(rows, number, lambda row: _device_line(row, now_ms, offline_ms, ttl_ms))


def device_counts(tx: Tx, environment: Environment, now_ms: int) -> dict[str, int]:
    """``{active, unwell}``."""
    active = tx.scalar(
        """SELECT count(*) FROM devices
           WHERE tenant_id = :tenant_id AND livemode = :livemode AND status = 'active'""",
        **environment.params,
    )
    unwell = tx.scalar(f"SELECT count(*) {_DEVICES}{_UNWELL}", **_unwell_since(tx, environment, now_ms))
    return {"active": active, "unwell": unwell}


def _unwell_since(tx: Tx, environment: Environment, now_ms: int) -> dict[str, Any]:
    stopped_ms = now_ms - gallery_ttl_ms(tx, environment)
    return {**environment.params, "out_of_touch_ms": now_ms - OUT_OF_TOUCH_MS, "stopped_ms": stopped_ms}


def _device_line(row: Row, now_ms: int, offline_ms: int, ttl_ms: int) -> DeviceLine:
    access = row["kind"] == "access"
    same_epoch = row["acked_epoch"] == row["stream_epoch"]
    lag = max(0, row["stream_seq"] - row["acked_seq"]) if same_epoch else None
    tone, state, about = _device_state(row, lag if access else 0, now_ms, ttl_ms)
    return DeviceLine(
        device_id=row["device_id"],
        kind=row["kind"],
        gate_id=row["gate_id"],
        dbd_id=row["dbd_id"],
        app_version=row["app_version"],
        tone=tone,
        state=state,
        about=about,
        lag=lag,
        gallery=_gallery_words(lag, row) if access else "holds none",
        health=health_of(row, now_ms, offline_ms),
        last_seen_ms=row["last_seen_ms"],
        synced_ms=row["synced_ms"],
    )


def _device_state(row: Row, lag: int | None, now_ms: int, ttl_ms: int) -> tuple[str, str, str]:
    """(tone, state, what it means where that is not plain)."""
    if row["status"] != DeviceStatusWord.ACTIVE:
        wiped = row["status"] == DeviceStatusWord.WIPED
        return ("quiet", "wiped", "") if wiped else ("warn", "revoked", "wipe not yet acknowledged")
    if row["kind"] == "access" and row["synced_ms"] is None:
        return "warn", "new", "has no gallery yet"
    if row["kind"] == "access" and now_ms - row["synced_ms"] > ttl_ms:
        return "bad", "stopped", "recognizes no one"
    if now_ms - row["last_seen_ms"] > OUT_OF_TOUCH_MS:
        return "warn", "out of touch", ""
    if row["stopped_ms"] is not None:
        return "bad", "degraded", "recognizes no one"
    return ("good", "in touch", "") if lag == 0 else ("warn", "catching up", "")


def _gallery_words(lag: int | None, row: Row) -> str:
    if row["synced_ms"] is None:
        return "none yet"
    if lag is None:
        return "in an earlier epoch"
    return "in step" if lag == 0 else "behind"


def verdicts(
    tx: Tx, environment: Environment, number: int = 1, *, reconciliation: str | None = None
) -> TablePage:
    """Verdicts, newest first."""
    condition = "" if reconciliation is None else " AND reconciliation = :reconciliation"
    given = {} if reconciliation is None else {"reconciliation": reconciliation}
    rows = tx.all(
        f"""SELECT * FROM verdicts WHERE tenant_id = :tenant_id AND livemode = :livemode{condition}
            ORDER BY decided_ms DESC, verdict_id DESC LIMIT :rows OFFSET :skip""",  # noqa: S608 - fixed parts
        **_slice(number),
        **given,
        **environment.params,
    )
    return _page(rows, number, _verdict_line)


def conflicts(tx: Tx, environment: Environment, now_ms: int) -> TablePage:
    """The newest conflicts of the last 30 days."""
    rows = tx.all(
        """SELECT * FROM verdicts
           WHERE tenant_id = :tenant_id AND livemode = :livemode AND decided_ms > :since_ms
             AND reconciliation = 'conflict'
           ORDER BY decided_ms DESC, verdict_id DESC LIMIT :rows""",
        since_ms=now_ms - CONFLICTS_MS,
        rows=CONFLICTS_SHOWN + 1,
        **environment.params,
    )
    shown = [_verdict_line(row) for row in rows[:CONFLICTS_SHOWN]]
    return TablePage(shown, 1, len(rows) > CONFLICTS_SHOWN)


_RECONCILIATION_TONES = {"complete": "good", "conflict": "bad", "outcome_unknown": "warn"}


def _verdict_line(row: Row) -> VerdictLine:
    outcome = passage = ""
    if row["signed_decision"] is not None:
        outcome = json.loads(row["signed_decision"])["decision_obj"]["outcome"]
    if row["signed_passage"] is not None:
        passage = "passed" if json.loads(row["signed_passage"])["passage"]["passed"] else "did not pass"
    return VerdictLine(
        verdict_id=row["verdict_id"],
        device_id=row["device_id"],
        gate_id=row["gate_id"],
        verdict_seq=row["verdict_seq"],
        decision=row["decision"],
        result=row["result"],
        outcome=outcome,
        passage=passage,
        reconciliation=row["reconciliation"],
        tone=_RECONCILIATION_TONES.get(row["reconciliation"], "quiet"),
        why=_why(row) if row["reconciliation"] == "conflict" else "",
        decided_ms=row["decided_ms"],
        received_ms=row["received_ms"],
    )


def _why(row: Row) -> str:
    if row["chain_broken"]:
        return "a verdict before this one is missing"
    if row["disputed"]:
        return "another signed object contradicts it"
    if row["signed_decision"] is not None and not row["decision_verified"]:
        return "decision by a validator key that is not known"
    if row["signed_passage"] is not None and not row["passage_verified"]:
        return "passage by a validator key that is not known"
    return "verdict, decision and passage do not agree"


_SESSION_TONES = {
    SessionStatus.OPEN: "warn",
    SessionStatus.COMPLETED: "good",
    SessionStatus.REVIEW: "review",
    SessionStatus.FAILED: "bad",
}


def enrollment_sessions(tx: Tx, environment: Environment, now_ms: int, number: int = 1) -> TablePage:
    """Enrollment sessions: open ones and reviews first, then the newest."""
    rows = tx.all(
        """SELECT * FROM sessions WHERE tenant_id = :tenant_id AND livemode = :livemode
           ORDER BY CASE WHEN status = 'review' THEN 0
                         WHEN status = 'open' AND expires_ms > :now_ms THEN 1 ELSE 2 END,
                    created_ms DESC, session_id LIMIT :rows OFFSET :skip""",
        now_ms=now_ms,
        **_slice(number),
        **environment.params,
    )
    return _page(rows, number, lambda row: _session_line(row, now_ms))


def _session_line(row: Row, now_ms: int) -> SessionLine:
    status = sessions.status_of(row, now_ms)
    return SessionLine(
        session_id=row["session_id"],
        subject_id=row["subject_id"],
        status=status.value,
        tone=_SESSION_TONES.get(status, "quiet"),
        hands=[{"L": "left", "R": "right"}[hand] for hand in json.loads(row["hands_required"])],
        device_id=row["completed_by_device_id"] or row["device_id"],
        failure_code=row["failure_code"],
        created_ms=row["created_ms"],
        expires_ms=row["expires_ms"],
    )


def erasures(tx: Tx, environment: Environment, number: int = 1) -> TablePage:
    """Erasures, newest first, each with the devices that have not applied it yet."""
    rows = tx.all(
        """SELECT receipt_id, seq, erased_ms FROM erasures
           WHERE tenant_id = :tenant_id AND livemode = :livemode
           ORDER BY erased_ms DESC, receipt_id LIMIT :rows OFFSET :skip""",
        **_slice(number),
        **environment.params,
    )
    return _page(rows, number, lambda row: _erasure_line(tx, row))


def _erasure_line(tx: Tx, row: Row) -> ErasureLine:
    reached = erasure.reach(tx, row["receipt_id"])
    return ErasureLine(
        receipt_id=row["receipt_id"],
        seq=row["seq"],
        erased_ms=row["erased_ms"],
        fail_closed_ms=row["erased_ms"] + GALLERY_TTL_MS,
        devices_total=reached.devices_total,
        devices_done=reached.devices_done,
        waiting_for=reached.waiting_for,
    )


def _slice(number: int) -> dict[str, int]:
    return {"rows": PAGE_ROWS + 1, "skip": (number - 1) * PAGE_ROWS}


def _page(rows: list[Row], number: int, line: Any) -> TablePage:
    return TablePage([line(row) for row in rows[:PAGE_ROWS]], number, len(rows) > PAGE_ROWS)
