"""Releases that are offered to devices in waves (device surface §6, Rollouts).

A rollout moves when it is looked at: with a report that changes something (in a fleet of hundreds not more
often than its size allows: a look reads every device), with any report when the last look is five seconds
ago, and by the clock of a server process. Mail goes by that clock alone, a few records
in a transaction: what is due is put into inboxes, and of what was halted the rest is taken back.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cloud_client.reference_server.contract.bodies import ReportBody
from cloud_client.reference_server.contract.times import DAY_MS
from cloud_client.reference_server.domain.devices import config as device_config
from cloud_client.reference_server.domain.devices.rollout_rules import (
    Halt,
    Next,
    OfferedDevice,
    Share,
    Standing,
    first_of,
    judge,
    standing,
)
from cloud_client.reference_server.domain.mailbox import inbox as mail_inbox
from cloud_client.reference_server.domain.mailbox.kinds import InboxMail, MailKind
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.domain.tenancy.rows import device_params
from cloud_client.reference_server.errors import OperatorError
from cloud_client.reference_server.store.base import Row, Tx
from cloud_client.reference_server.store.vault import Vault
from link1.canonical import JsonObject, b64_encode
from link1.signed import Kind

LOOK_EVERY_MS: Final = 5000
MAIL_STEP: Final = 8
"""Records in a transaction: some 0.1 s of sealing."""
_BY_MAIL_MS: Final = 7 * DAY_MS
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """How a release is to be rolled out."""

    waves: tuple[int, ...] = (1, 10, 50, 100)
    soak_s: int = 3600
    silence_s: int = 900
    mail_after_s: int = 3600

    def check(self) -> None:
        """OperatorError unless the waves are rising whole percentages that end at 100."""
        rising = all(low < high for low, high in zip((0, *self.waves), self.waves, strict=False))
        if not rising or self.waves[-1:] != (100,):
            raise OperatorError("--waves are rising whole percentages that end at 100, like 1,10,50,100")
        if min(self.soak_s, self.silence_s, self.mail_after_s) < 0:
            raise OperatorError("--soak-s, --silence-s and --mail-after-s are not negative")


def start(tx: Tx, environment: Environment, release_seq: int, plan: RolloutPlan, now_ms: int) -> None:
    """Open the first wave of a release. OperatorError when that must not be."""
    plan.check()
    release = tx.one(
        """SELECT kind FROM releases
           WHERE tenant_id = :tenant_id AND livemode = :livemode AND release_seq = :release_seq""",
        release_seq=release_seq,
        **environment.params,
    )
    if release is None:
        raise OperatorError(
            "no such release in this environment: `release create` prints the release_seq to give here"
        )
    if _find(tx, environment, release_seq) is not None:
        raise OperatorError("a release is rolled out once: make another one of the same contents")
    _check_alone(tx, environment, release["kind"], release_seq)
    _check_newest(tx, environment, release["kind"], release_seq)
    tx.run(
        """INSERT INTO rollouts (tenant_id, livemode, release_seq, state, waves, wave, started_ms, opened_ms,
                                 looked_ms, soak_s, silence_s, mail_after_s)
           VALUES (:tenant_id, :livemode, :release_seq, 'running', :waves, 1, :now_ms, :now_ms, :now_ms,
                   :soak_s, :silence_s, :mail_after_s)""",
        release_seq=release_seq,
        waves=json.dumps(plan.waves),
        now_ms=now_ms,
        soak_s=plan.soak_s,
        silence_s=plan.silence_s,
        mail_after_s=plan.mail_after_s,
        **environment.params,
    )
    _fill_wave(tx, environment, _rollout(tx, environment, release_seq))


def pause(tx: Tx, environment: Environment, release_seq: int) -> None:
    """Offer it to nobody new. OperatorError unless it runs."""
    rollout = _rollout(tx, environment, release_seq)
    _check_state(rollout, "running")
    _set_state(tx, rollout, "paused")


def resume(tx: Tx, environment: Environment, release_seq: int, now_ms: int) -> None:
    """Go on; a device that is bad now is left out of all counts. OperatorError unless paused or halted, and
    where a newer release was rolled out since.

    The verdicts are counted that are decided from here on: else those that halted it would halt it again.
    """
    rollout = _rollout(tx, environment, release_seq)
    _check_state(rollout, "paused", "halted")
    _check_alone(tx, environment, rollout["kind"], release_seq)
    _check_newest(tx, environment, rollout["kind"], release_seq)
    for row in _members(tx, rollout):
        if standing(_member(row, rollout), now_ms, rollout["silence_s"] * 1000) in _BAD:
            _change_device(tx, environment, release_seq, row["device_id"], "left_out = 1")
    tx.run(f"DELETE FROM rollout_verdicts WHERE {_OF_ROLLOUT}", **_key(rollout))  # noqa: S608
    if rollout["state"] == "halted":
        # What reached a device before the halt, it may have dropped twice without a report in between.
        tx.run(
            f"UPDATE rollout_devices SET mailed = 0 WHERE {_OF_ROLLOUT} AND state = 'withdrawn'",  # noqa: S608
            **_key(rollout),
        )
    # A device that was away hands in older ones later.
    _change(tx, rollout, "resumed_ms = :now_ms", now_ms=now_ms)
    _set_state(tx, rollout, "running")
    if rollout["wave"] == len(json.loads(rollout["waves"])):
        _fill_wave(tx, environment, rollout)


def halt(tx: Tx, environment: Environment, release_seq: int) -> None:
    """Stop offering it. OperatorError unless running or paused.

    What is not delivered is taken back by ``take_back`` or, where its caller ends too early, by a server.
    """
    rollout = _rollout(tx, environment, release_seq)
    _check_state(rollout, "running", "paused")
    _set_state(tx, rollout, "halted", "halted by an operator")


def take_back(tx: Tx, vault: Vault, environment: Environment, now_ms: int) -> bool:
    """Put receipts in the place of some undelivered mail of halted releases; whether there is more."""
    waiting = _to_take_back(tx, environment)
    for row in waiting[:MAIL_STEP]:
        body = {"device_id": row["device_id"], "acked_upto_seq": row["outbox_seq"]}
        mail = InboxMail(MailKind.POST_RECEIPT, body)
        mail_inbox.replace(tx, vault, row, row["inbox_seq"], mail, now_ms=now_ms)
        _change_device(tx, environment, row["release_seq"], row["device_id"], "mailed = 0")
    return len(waiting) > MAIL_STEP


def status(
    tx: Tx, environment: Environment, release_seq: int, now_ms: int, *, with_devices: bool = False
) -> dict[str, Any]:
    """How far a rollout is, wave by wave."""
    rollout = _rollout(tx, environment, release_seq)
    manifest = json.loads(rollout["manifest"])
    rows = _members(tx, rollout)
    counted = [(row, _member(row, rollout)) for row in rows if not row["left_out"]]
    silence_ms = rollout["silence_s"] * 1000
    judged = [(member, standing(member, now_ms, silence_ms)) for _, member in counted]

    def wave(number: int, percent: int) -> dict[str, Any]:
        held = [(member, how) for member, how in judged if member.wave <= number <= rollout["wave"]]
        return {
            "percent": percent,
            "devices": len(held),
            "running": sum(1 for member, how in held if member.holds and how not in _BAD),
            "failed": sum(1 for _, how in held if how is Standing.FAILED),
            "silent": sum(1 for _, how in held if how is Standing.SILENT),
        }

    shown = {
        "release_seq": release_seq,
        **{name: manifest[name] for name in ("kind", "name", "version")},
        "state": rollout["state"],
        "reason": rollout["reason"],
        "wave": rollout["wave"],
        "waves": [wave(number, percent) for number, percent in enumerate(json.loads(rollout["waves"]), 1)],
    }
    if with_devices:
        shown["devices"] = [{name: row[name] for name in ("device_id", "wave", "state")} for row in rows]
    return shown


def offered(tx: Tx, device: Row) -> list[Row]:
    """The releases that a device may take now, by rising release_seq: at most one of a kind."""
    newest: dict[str, Row] = {}
    for row in tx.all(
        """SELECT r.release_seq, r.kind, r.manifest, o.state AS rollout, o.mail_after_s, d.state, d.mailed
           FROM rollout_devices d
           JOIN rollouts o ON o.tenant_id = d.tenant_id AND o.livemode = d.livemode
                          AND o.release_seq = d.release_seq AND o.state <> 'halted'
           JOIN releases r ON r.tenant_id = d.tenant_id AND r.livemode = d.livemode
                          AND r.release_seq = d.release_seq
           LEFT JOIN device_reports h ON h.tenant_id = d.tenant_id AND h.device_id = d.device_id
           WHERE d.tenant_id = :tenant_id AND d.device_id = :device_id
             AND r.release_seq > coalesce(CASE r.kind WHEN 'app' THEN h.app_seq ELSE h.model_seq END, 0)
           ORDER BY r.release_seq""",
        **device_params(device),
    ):
        newest[row["kind"]] = row
    return sorted(newest.values(), key=lambda row: int(row["release_seq"]))


def chunk(tx: Tx, device: Row, release_seq: int, index: int) -> bytes | None:
    """A chunk of a release that a device was offered; None where it must not have it, or there is none."""
    data: bytes | None = tx.scalar(
        """SELECT c.data FROM release_chunks c
           JOIN rollout_devices d ON d.tenant_id = c.tenant_id AND d.livemode = c.livemode
                                 AND d.release_seq = c.release_seq
           JOIN rollouts o ON o.tenant_id = c.tenant_id AND o.livemode = c.livemode
                          AND o.release_seq = c.release_seq AND o.state <> 'halted'
           WHERE c.tenant_id = :tenant_id AND d.device_id = :device_id AND c.release_seq = :release_seq
             AND c.chunk_index = :chunk_index""",
        **device_params(device),
        release_seq=release_seq,
        chunk_index=index,
    )
    return data


def admit(tx: Tx, environment: Environment, device_id: str) -> None:
    """A device was registered: what all devices are offered, it is offered too."""
    for rollout in _rollouts(tx, environment, "running", "done"):
        if rollout["wave"] == len(json.loads(rollout["waves"])):
            _offer(tx, rollout, device_id)


def forget(tx: Tx, device: Row) -> None:
    """A registration with new keys: what it held of a release, and what was mailed, is gone."""
    tx.run(
        """UPDATE rollout_devices SET state = NULL, took_ms = NULL, served_before = 0, mailed = 0
           WHERE tenant_id = :tenant_id AND device_id = :device_id""",
        **device_params(device),
    )


def note_report(
    tx: Tx, environment: Environment, device: Row, report: ReportBody, *, served: bool, now_ms: int
) -> None:
    """What a new report says of releases; ``served``: the report before it said that the device serves."""
    changed = served != report.serving
    for update in report.updates:
        row = tx.one(
            """SELECT d.* FROM rollout_devices d
               JOIN releases r ON r.tenant_id = d.tenant_id AND r.livemode = d.livemode
                              AND r.release_seq = d.release_seq
               WHERE d.tenant_id = :tenant_id AND d.livemode = :livemode AND d.release_seq = :release_seq
                 AND d.device_id = :device_id AND r.kind = :kind""",
            release_seq=update.release_seq,
            device_id=device["device_id"],
            kind=update.kind,
            **environment.params,
        )
        if row is None:
            continue
        # Before it took effect: at the report before it is named, and until the device switches to it.
        before = served if row["took_ms"] is None else bool(row["served_before"])
        if update.state in ("receiving", "verified"):
            before = before or report.serving
        new_state = row["state"] != update.state
        changed = changed or new_state
        # Dropped now, what was mailed of it is gone. It says so until the manifest reaches it again.
        gone = new_state and update.state == "withdrawn"
        _change_device(
            tx,
            environment,
            update.release_seq,
            device["device_id"],
            """state = :state, took_ms = coalesce(took_ms, :now_ms), served_before = :before,
               mailed = CASE WHEN :gone = 1 THEN 0 ELSE mailed END""",
            state=update.state,
            now_ms=now_ms,
            before=int(before),
            gone=int(gone),
        )
    for rollout in _rollouts(tx, environment, "running", "paused"):
        pause_ms = min(LOOK_EVERY_MS, _size(tx, rollout) // 100 * 100) if changed else LOOK_EVERY_MS
        if _is_due(rollout, now_ms, pause_ms):
            _look(tx, environment, rollout, now_ms)


def count_verdict(
    tx: Tx, environment: Environment, device_id: str, *, decided_ms: int, accepted: bool, now_ms: int
) -> None:
    """Count a new verdict for the rollouts that are under way."""
    tx.run(
        """INSERT INTO rollout_verdicts (tenant_id, livemode, release_seq, hour, took, decided, accepted)
           SELECT o.tenant_id, o.livemode, o.release_seq, :hour,
                  CASE WHEN d.took_ms <= :decided_ms THEN 1 ELSE 0 END, 1, :accepted
           FROM rollouts o
           LEFT JOIN rollout_devices d ON d.tenant_id = o.tenant_id AND d.livemode = o.livemode
                                      AND d.release_seq = o.release_seq AND d.device_id = :device_id
           WHERE o.tenant_id = :tenant_id AND o.livemode = :livemode AND o.state IN ('running', 'paused')
             AND coalesce(o.resumed_ms, o.started_ms) <= :decided_ms AND :decided_ms <= :latest_ms
             AND coalesce(d.left_out, 0) = 0
           ON CONFLICT (tenant_id, livemode, release_seq, hour, took) DO UPDATE SET
               decided = rollout_verdicts.decided + 1,
               accepted = rollout_verdicts.accepted + excluded.accepted""",
        hour=decided_ms // _HOUR_MS,
        accepted=int(accepted),
        device_id=device_id,
        decided_ms=decided_ms,
        latest_ms=now_ms + _HOUR_MS,
        **environment.params,
    )


def environments(tx: Tx) -> list[Environment]:
    """Where anything was ever rolled out."""
    rows = tx.all("SELECT DISTINCT tenant_id, livemode FROM rollouts ORDER BY tenant_id, livemode")
    return [Environment(row["tenant_id"], bool(row["livemode"])) for row in rows]


def tick(tx: Tx, vault: Vault, environment: Environment, now_ms: int) -> bool:
    """Look at what is under way, and do some of the mail that is due; whether there is more of it."""
    for rollout in _rollouts(tx, environment, "running", "paused"):
        if _is_due(rollout, now_ms, LOOK_EVERY_MS):
            _look(tx, environment, rollout, now_ms)
    more = take_back(tx, vault, environment, now_ms)
    return _mail(tx, vault, environment, now_ms) or more


_BAD: Final = (Standing.FAILED, Standing.SILENT)
_OF_ROLLOUT: Final = "tenant_id = :tenant_id AND livemode = :livemode AND release_seq = :release_seq"


def _is_due(rollout: Row, now_ms: int, pause_ms: int) -> bool:
    """Whether it is time for a look. A last look in the future was noted before the clock was set back."""
    return not 0 <= now_ms - rollout["looked_ms"] < pause_ms


def _look(tx: Tx, environment: Environment, rollout: Row, now_ms: int) -> None:
    members = [_member(row, rollout) for row in _members(tx, rollout) if not row["left_out"]]
    if not members and rollout["state"] == "running":
        # No device is left in it, or none was there: it opens again, with those that are next.
        _change(tx, rollout, "looked_ms = :now_ms, opened_ms = :now_ms", now_ms=now_ms)
        _fill_wave(tx, environment, rollout)
        return
    took, others = _shares(tx, rollout)
    follows = judge(
        [standing(member, now_ms, rollout["silence_s"] * 1000) for member in members],
        soaked=now_ms - rollout["opened_ms"] >= rollout["soak_s"] * 1000,
        took=took,
        others=others,
    )
    _change(tx, rollout, "looked_ms = :now_ms", now_ms=now_ms)
    if isinstance(follows, Halt):
        _set_state(tx, rollout, "halted", follows.reason)
    elif follows is Next.OPEN and rollout["state"] == "running":
        if rollout["wave"] == len(json.loads(rollout["waves"])):
            _set_state(tx, rollout, "done")
            return
        _change(tx, rollout, "wave = wave + 1, opened_ms = :now_ms", now_ms=now_ms)
        _fill_wave(tx, environment, _rollout(tx, environment, rollout["release_seq"]))


def _fill_wave(tx: Tx, environment: Environment, rollout: Row) -> None:
    """Offer a release to every device of its present wave that was not offered it."""
    active = [
        row["device_id"]
        for row in tx.all(
            """SELECT device_id FROM devices d
               WHERE tenant_id = :tenant_id AND livemode = :livemode AND status = 'active' AND NOT EXISTS
                   (SELECT 1 FROM rollout_devices o
                    WHERE o.tenant_id = d.tenant_id AND o.livemode = d.livemode
                      AND o.release_seq = :release_seq AND o.device_id = d.device_id AND o.left_out = 1)""",
            release_seq=rollout["release_seq"],
            **environment.params,
        )
    ]
    percent = json.loads(rollout["waves"])[rollout["wave"] - 1]
    for device_id in first_of(rollout["release_seq"], active, percent):
        _offer(tx, rollout, device_id)


def _offer(tx: Tx, rollout: Row, device_id: str) -> None:
    tx.run(
        """INSERT INTO rollout_devices (tenant_id, livemode, release_seq, device_id, wave)
           VALUES (:tenant_id, :livemode, :release_seq, :device_id, :wave) ON CONFLICT DO NOTHING""",
        device_id=device_id,
        wave=rollout["wave"],
        **_key(rollout),
    )


def _size(tx: Tx, rollout: Row) -> int:
    return int(
        tx.scalar(f"SELECT count(*) FROM rollout_devices WHERE {_OF_ROLLOUT}", **_key(rollout))  # noqa: S608
    )


def _members(tx: Tx, rollout: Row) -> list[Row]:
    """The active devices that were offered a release."""
    return tx.all(
        """SELECT o.device_id, o.wave, o.state, o.served_before, o.left_out, d.model_id, d.network_ms,
                  d.mail_ms, h.stopped_ms
           FROM rollout_devices o
           JOIN devices d ON d.tenant_id = o.tenant_id AND d.device_id = o.device_id AND d.status = 'active'
           LEFT JOIN device_reports h ON h.tenant_id = o.tenant_id AND h.device_id = o.device_id
           WHERE o.tenant_id = :tenant_id AND o.livemode = :livemode AND o.release_seq = :release_seq
           ORDER BY o.device_id""",
        **_key(rollout),
    )


def _member(row: Row, rollout: Row) -> OfferedDevice:
    waits = rollout["kind"] == "model" and rollout["model_id"] != row["model_id"]
    return OfferedDevice(
        wave=row["wave"],
        state=row["state"],
        holds=row["state"] == "running" or (waits and row["state"] == "verified"),
        served_before=bool(row["served_before"]),
        stopped_ms=row["stopped_ms"],
        heard_ms=max(row["network_ms"], row["mail_ms"]),
    )


def _shares(tx: Tx, rollout: Row) -> tuple[Share, Share]:
    """The verdicts of devices since they took a release, and of the others in the same hours."""
    found = {0: Share(0, 0), 1: Share(0, 0)}
    for row in tx.all(
        f"""SELECT took, sum(decided) AS decided, sum(accepted) AS accepted FROM rollout_verdicts
            WHERE {_OF_ROLLOUT} AND hour IN (
                SELECT hour FROM rollout_verdicts WHERE {_OF_ROLLOUT} AND took = 1)
            GROUP BY took""",  # noqa: S608 - fixed words only
        **_key(rollout),
    ):
        found[row["took"]] = Share(int(row["decided"]), int(row["accepted"]))
    return found[1], found[0]


def _mail(tx: Tx, vault: Vault, environment: Environment, now_ms: int) -> bool:
    """Put the next records into the inboxes of devices that only mail reaches; whether there are more."""
    room = MAIL_STEP
    for device, release in _mailed_to(tx, environment, now_ms):
        if room == 0:
            return True
        manifest = json.loads(release["manifest"])
        last = min(release["mailed"] + room, manifest["chunk_count"] + 1)
        for number in range(release["mailed"], last):
            mail = _letter(tx, vault, device, (manifest, number), now_ms)
            mail_inbox.post(tx, vault, device, mail, now_ms=now_ms)
        seq, device_id = release["release_seq"], device["device_id"]
        _change_device(tx, environment, seq, device_id, "mailed = :last", last=last)
        room -= last - release["mailed"]
        if last <= manifest["chunk_count"]:
            return True
    return False


def _mailed_to(tx: Tx, environment: Environment, now_ms: int) -> Iterator[tuple[Row, Row]]:
    """Devices that mail reaches, each with a release that is to be mailed to it."""
    for device in tx.all(
        """SELECT * FROM devices
           WHERE tenant_id = :tenant_id AND livemode = :livemode AND status = 'active' AND mail_ms > :since_ms
           ORDER BY device_id""",
        since_ms=now_ms - _BY_MAIL_MS,
        **environment.params,
    ):
        for release in offered(tx, device):
            away = now_ms - device["network_ms"] >= release["mail_after_s"] * 1000
            begun = release["mailed"] > 0 or release["rollout"] != "paused"
            whole = release["mailed"] > json.loads(release["manifest"])["chunk_count"]
            if away and begun and not whole and release["state"] not in ("verified", "trial"):
                yield device, release


def _letter(tx: Tx, vault: Vault, device: Row, part: tuple[JsonObject, int], now_ms: int) -> InboxMail:
    """Of a release the manifest (part 0), or a chunk."""
    manifest, number = part
    if number == 0:
        signed = device_config.sign_bundle(tx, vault, Kind.UPDATE_MANIFEST, manifest, now_ms)
        return InboxMail(MailKind.UPDATE_MANIFEST, signed)
    data = chunk(tx, device, manifest["release_seq"], number - 1)
    if data is None:
        raise LookupError(f"release {manifest['release_seq']} has no chunk {number - 1}")
    return InboxMail(MailKind.UPDATE_CHUNK, chunk_body(manifest["release_seq"], number - 1, data))


def chunk_body(release_seq: int, index: int, data: bytes) -> JsonObject:
    """The body of ``svc.update.chunk``."""
    return {"release_seq": release_seq, "index": index, "data_b64": b64_encode(data)}


def _to_take_back(tx: Tx, environment: Environment) -> list[Row]:
    """Undelivered mail of halted releases: one record more than are taken back at once, where there is."""
    waiting: list[Row] = []
    for rollout in _rollouts(tx, environment, "halted"):
        # In the order of the index: nothing is sorted, whatever the number of records that are left.
        waiting += tx.all(
            """SELECT d.*, i.seq AS inbox_seq, i.release_seq, b.outbox_seq
               FROM inbox i
               JOIN devices d ON d.tenant_id = i.tenant_id AND d.device_id = i.device_id
                             AND d.livemode = :livemode
               JOIN mail_boxes b ON b.tenant_id = i.tenant_id AND b.device_id = i.device_id
               WHERE i.tenant_id = :tenant_id AND i.release_seq = :release_seq AND i.acked_ms IS NULL
               ORDER BY i.device_id, i.seq LIMIT :room""",
            release_seq=rollout["release_seq"],
            room=MAIL_STEP + 1 - len(waiting),
            **environment.params,
        )
    return waiting


_ROLLOUTS: Final = """SELECT o.*, r.kind, r.model_id, r.manifest FROM rollouts o
    JOIN releases r ON r.tenant_id = o.tenant_id AND r.livemode = o.livemode AND r.release_seq = o.release_seq
    WHERE o.tenant_id = :tenant_id AND o.livemode = :livemode"""


def _rollouts(tx: Tx, environment: Environment, *states: str) -> Sequence[Row]:
    words = ", ".join(f"'{state}'" for state in states)
    return tx.all(
        f"{_ROLLOUTS} AND o.state IN ({words}) ORDER BY o.release_seq",
        **environment.params,
    )


def _find(tx: Tx, environment: Environment, release_seq: int) -> Row | None:
    return tx.one(f"{_ROLLOUTS} AND o.release_seq = :seq", seq=release_seq, **environment.params)


def _rollout(tx: Tx, environment: Environment, release_seq: int) -> Row:
    rollout = _find(tx, environment, release_seq)
    if rollout is None:
        raise OperatorError("no such rollout in this environment: `release rollout` begins one")
    return rollout


def _check_state(rollout: Row, *states: str) -> None:
    if rollout["state"] not in states:
        raise OperatorError(
            f"the rollout is {rollout['state']}, and has to be {' or '.join(states)} for this"
        )


def _check_alone(tx: Tx, environment: Environment, kind: str, release_seq: int) -> None:
    for other in _rollouts(tx, environment, "running", "paused"):
        if other["kind"] == kind and other["release_seq"] != release_seq:
            raise OperatorError(
                f"release {other['release_seq']} is being rolled out ({other['state']}): "
                f"one {kind} at a time; halt that one, or wait until it is done"
            )


def _check_newest(tx: Tx, environment: Environment, kind: str, release_seq: int) -> None:
    for other in _rollouts(tx, environment, "halted", "done"):
        if other["kind"] == kind and other["release_seq"] > release_seq:
            raise OperatorError(
                f"release {other['release_seq']} was rolled out already, and a device that took it takes "
                f"none below it: make another release of the contents of {release_seq}"
            )


def _set_state(tx: Tx, rollout: Row, state: str, reason: str | None = None) -> None:
    _change(tx, rollout, "state = :state, reason = :reason", state=state, reason=reason)


def _change(tx: Tx, rollout: Row, columns: str, **values: object) -> None:
    tx.run(f"UPDATE rollouts SET {columns} WHERE {_OF_ROLLOUT}", **values, **_key(rollout))  # noqa: S608


def _change_device(
    tx: Tx, environment: Environment, release_seq: int, device_id: str, columns: str, **values: object
) -> None:
    """Of what is known of a release on a device."""
    tx.run(
        f"UPDATE rollout_devices SET {columns} WHERE {_OF_ROLLOUT} AND device_id = :device_id",  # noqa: S608
        release_seq=release_seq,
        device_id=device_id,
        **values,
        **environment.params,
    )


def _key(rollout: Row) -> dict[str, Any]:
    return {name: rollout[name] for name in ("tenant_id", "livemode", "release_seq")}
