"""Erasing a person: everything in one transaction, and a signed receipt that says exactly what went.

What stays, without biometrics: the receipt itself, the signed verdicts already recorded (rewriting them
would break their signatures), and in the gallery log, for its seven days, a tombstone with the pseudonym
subject_ref, without which no device could drop the palm.
"""

import json
import uuid
from dataclasses import dataclass
from typing import Final

from cloud_client.reference_server.contract import answers as shown
from cloud_client.reference_server.contract.problems import ProblemCode
from cloud_client.reference_server.contract.times import LATEST_MS, rfc3339
from cloud_client.reference_server.contract.words import GALLERY_TTL_MS
from cloud_client.reference_server.domain.call import ApiAnswer, Call
from cloud_client.reference_server.domain.gallery import log as gallery_log
from cloud_client.reference_server.domain.mail import gallery as mail_gallery
from cloud_client.reference_server.domain.tenancy import persons, signers
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.domain.tenancy.rows import own_row
from cloud_client.reference_server.domain.verdicts import uploads
from cloud_client.reference_server.store.base import Row, Tx
from link1.canonical import JsonObject
from link1.signed import Kind


def erase_subject(call: Call, tx: Tx) -> ApiAnswer:
    """eraseSubject: the receipt. A recorded copy of this answer survives the erasure it is about."""
    environment, vault = call.environment, call.vault
    row = persons.row_by_id(tx, environment, call.path["subject_id"])
    subject_id = row["subject_id"]
    erased, retained = _erased(tx, row), _retained(tx, row)
    tombstone_seq = gallery_log.remove_templates(
        tx, environment, persons.load(vault, row), call.now_ms, destroy=True
    )
    mail_gallery.withdraw(tx, vault, environment, call.now_ms)
    state = gallery_log.state_of_stream(tx, environment)
    receipt: JsonObject = {
        "v": 1,
        "receipt_id": str(uuid.uuid4()),
        "tenant_id": environment.tenant_id,
        "subject_id": subject_id,
        "requested_at_ms": call.now_ms,
        "erased_at_ms": call.now_ms,
        "erased": erased,
        "gallery": {
            "stream": state.stream,
            "epoch": state.epoch,
            "seq": state.seq if tombstone_seq is None else tombstone_seq,
        },
    }
    if retained:
        receipt["retained"] = retained
    _delete(tx, environment, subject_id, call.now_ms)
    signed = signers.sign(tx, vault, "erasure_receipt", Kind.ERASURE_RECEIPT, receipt, now_ms=call.now_ms)
    stored = tx.row(
        """INSERT INTO erasures (receipt_id, tenant_id, livemode, subject_id, epoch, seq, erased_ms,
                                 signed_receipt)
           VALUES (:receipt_id, :tenant_id, :livemode, :subject_id, :epoch, :seq, :now_ms, :signed)
           RETURNING *""",
        receipt_id=receipt["receipt_id"],
        subject_id=subject_id,
        epoch=receipt["gallery"]["epoch"],
        seq=receipt["gallery"]["seq"],
        now_ms=call.now_ms,
        signed=json.dumps(signed),
        **environment.params,
    )
    tx.run(
        """INSERT INTO erasure_devices (receipt_id, device_id, registration_no)
           SELECT :receipt_id, device_id, registration_no FROM devices
           WHERE tenant_id = :tenant_id AND livemode = :livemode AND kind = 'access' AND status = 'active'""",
        receipt_id=receipt["receipt_id"],
        **environment.params,
    )
    tx.purge_after_commit = True
    return ApiAnswer(200, receipt_object(tx, stored), forgets=subject_id)


def get_erasure_receipt(call: Call, tx: Tx) -> ApiAnswer:
    """``GET /v1/erasure-receipts/{receipt_id}``: the receipt with its propagation as of now."""
    missing = ProblemCode.ERASURE_RECEIPT_NOT_FOUND
    row = own_row(tx, call.environment, "erasures", missing, receipt_id=call.path["receipt_id"])
    return ApiAnswer(200, receipt_object(tx, row))


def receipt_object(tx: Tx, row: Row) -> shown.ErasureReceipt:
    return shown.ErasureReceipt.of(
        row, signed_receipt=json.loads(row["signed_receipt"]), propagation=_propagation(tx, row)
    )


@dataclass(frozen=True, slots=True)
class ErasureReach:
    """How many devices were to apply an erasure, how many have, and which of the others are waited for."""

    devices_total: int
    devices_done: int
    waiting_for: list[str]


# Of a registration that is over no palm is left: its device was revoked, and began again without any.
_APPLIED: Final = (
    "(e.registration_no <> d.registration_no OR (d.acked_epoch, d.acked_seq) >= (r.epoch, r.seq))"
)


def reach(tx: Tx, receipt_id: str) -> ErasureReach:
    """How far an erasure has come among the access devices that were active then."""
    settled = tx.one(
        """SELECT devices_total, devices_done FROM erasures
           WHERE receipt_id = :receipt_id AND devices_total IS NOT NULL""",
        receipt_id=receipt_id,
    )
    if settled is not None:
        return ErasureReach(settled["devices_total"], settled["devices_done"], [])
    devices = tx.all(
        f"""SELECT d.device_id, d.status, {_APPLIED} AS applied
            FROM erasures r
            JOIN erasure_devices e ON e.receipt_id = r.receipt_id
            JOIN devices d ON d.tenant_id = r.tenant_id AND d.device_id = e.device_id
            WHERE r.receipt_id = :receipt_id ORDER BY d.device_id""",  # noqa: S608 - fixed words only
        receipt_id=receipt_id,
    )
    behind = [device for device in devices if not device["applied"]]
    return ErasureReach(
        devices_total=len(devices),
        devices_done=len(devices) - len(behind),
        # A device that was revoked since recognises no palm; there is nothing to wait for.
        waiting_for=[device["device_id"] for device in behind if device["status"] == "active"],
    )


def _propagation(tx: Tx, row: Row) -> shown.Propagation:
    reached = reach(tx, row["receipt_id"])
    return shown.Propagation(
        status="pending" if reached.waiting_for else "complete",
        devices_total=reached.devices_total,
        devices_acknowledged=reached.devices_done,
        fail_closed_at=rfc3339(row["erased_ms"] + GALLERY_TTL_MS),
    )


def under_way(tx: Tx, environment: Environment | None = None, *, erased_until_ms: int = LATEST_MS) -> int:
    """How many erasures some active device has not applied yet; of all tenants where none is given."""
    count: int = tx.scalar(
        f"""SELECT count(*) FROM erasures r WHERE r.devices_total IS NULL AND EXISTS
             (SELECT 1 FROM erasure_devices e
              JOIN devices d ON d.tenant_id = r.tenant_id AND d.device_id = e.device_id
              WHERE e.receipt_id = r.receipt_id AND d.status = 'active' AND NOT {_APPLIED})
            AND r.erased_ms <= :erased_until_ms
            {"" if environment is None else "AND tenant_id = :tenant_id AND livemode = :livemode"}""",  # noqa: S608 - fixed parts
        erased_until_ms=erased_until_ms,
        **({} if environment is None else environment.params),
    )
    return count


def settle(tx: Tx, after: str) -> str | None:
    """Count the devices of the next erasure, if it is complete, instead of listing them.

    A complete one stays so, receipts are kept without end, and each lists every device there was: thousands,
    which take some hundredths of a second. Begin with ``""``; the receipt to go on after, None at the end.
    """
    receipt_id: str | None = tx.scalar(
        """SELECT receipt_id FROM erasures WHERE devices_total IS NULL AND receipt_id > :after
           ORDER BY receipt_id LIMIT 1""",
        after=after,
    )
    if receipt_id is None:
        return None
    reached = reach(tx, receipt_id)
    if not reached.waiting_for:
        # Another server may have done it meanwhile.
        tx.run(
            """UPDATE erasures SET devices_total = :total, devices_done = :done
               WHERE receipt_id = :receipt_id AND devices_total IS NULL""",
            total=reached.devices_total,
            done=reached.devices_done,
            receipt_id=receipt_id,
        )
        tx.run("DELETE FROM erasure_devices WHERE receipt_id = :receipt_id", receipt_id=receipt_id)
    return receipt_id


def _erased(tx: Tx, row: Row) -> list[str]:
    """The categories that there were something of."""
    # Those of a former model too, which the sweep has not reached yet.
    templates = tx.exists(
        """SELECT 1 FROM templates WHERE subject_id = :subject_id UNION ALL
           SELECT 1 FROM sessions WHERE subject_id = :subject_id AND review_ct IS NOT NULL""",
        subject_id=row["subject_id"],
    )
    return [
        word
        for word, was_there in (
            ("templates", templates),
            ("cpf_hmac", row["cpf_mac"] is not None),
            ("cpf_ciphertext", row["cpf_ct"] is not None),
            ("external_ref", True),
            ("onboard_ref", bool(row["has_onboard_ref"])),
        )
        if was_there
    ]


def _retained(tx: Tx, row: Row) -> list[str]:
    facts = {name: row[name] for name in ("tenant_id", "livemode", "subject_id")}
    proofs = tx.exists(
        """SELECT 1 FROM verdicts
           WHERE tenant_id = :tenant_id AND livemode = :livemode AND subject_id = :subject_id""",
        **facts,
    ) or tx.exists(
        # The second of two verdicts with one number has no record of its own, and is kept all the same.
        # CROSS JOIN: there is little evidence, and SQLite would begin with all verdicts.
        """SELECT 1 FROM verdict_evidence e CROSS JOIN verdicts v
           WHERE v.verdict_id = e.verdict_id AND v.tenant_id = :tenant_id AND v.livemode = :livemode
             AND e.code = 'seq_conflict' AND e.wrapper LIKE :says""",
        says=f'%"subject_ref":"{row["subject_ref"]}"%',
        **facts,
    )
    return ["verdict_proofs"] if proofs else []


def _delete(tx: Tx, environment: Environment, subject_id: str, now_ms: int) -> None:
    """Delete everything about the person and every link to them. Their key is part of the row."""
    # The records are delivered again, so that a back office's copy does not keep the link.
    tx.run(
        """UPDATE verdicts SET subject_id = NULL, change_no = :change_no
           WHERE tenant_id = :tenant_id AND livemode = :livemode AND subject_id = :subject_id""",
        subject_id=subject_id,
        change_no=uploads.next_change_no(tx, environment, now_ms),
        **environment.params,
    )
    for statement in (
        "UPDATE events SET subject_id = NULL WHERE subject_id = :subject_id",
        "UPDATE deltas SET subject_id = NULL WHERE subject_id = :subject_id",
        "DELETE FROM idempotency WHERE subject_id = :subject_id",
        "DELETE FROM subjects WHERE subject_id = :subject_id",  # sessions, consents, templates follow
    ):
        tx.run(statement, subject_id=subject_id)
