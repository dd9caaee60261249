"""``POST /v1/devices/{device_id}/outbox``: sealed records of a device, carried here by the partner.

A record is checked when it arrives: its sender, its recipient, and whether its contents can be used. A good
record is stored whatever its seq, and its contents are applied when every seq before it has been; both
happen in the transaction that answers. So `acked_upto_seq` never covers what could still be lost.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from cloud_client.reference_server.contract import answers as shown
from cloud_client.reference_server.contract.bodies import VerdictBatch, read_model
from cloud_client.reference_server.contract.mail import MailedReport, SubmitOutbox, WipeDone, read_report
from cloud_client.reference_server.contract.problems import Problem
from cloud_client.reference_server.contract.sealed import check_outbox_record
from cloud_client.reference_server.contract.words import DeviceStatusWord
from cloud_client.reference_server.domain.call import ApiAnswer, Call, why_refused
from cloud_client.reference_server.domain.devices import reports
from cloud_client.reference_server.domain.devices.records import heard_by_mail, mark_wiped, row_by_id
from cloud_client.reference_server.domain.mail import gallery as mail_gallery
from cloud_client.reference_server.domain.mailbox import inbox as mail_inbox
from cloud_client.reference_server.domain.mailbox.kinds import InboxMail, MailKind, OutboxKind
from cloud_client.reference_server.domain.tenancy import signers
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.domain.tenancy.rows import device_params
from cloud_client.reference_server.domain.verdicts import uploads
from cloud_client.reference_server.store.base import Row, Tx
from cloud_client.reference_server.store.vault import Vault
from link1.canonical import JsonObject, b64_decode, canonical_bytes
from link1.errors import SealError
from link1.keys import PublicKey, SealKey
from link1.sealed import open_record

Content = VerdictBatch | MailedReport | WipeDone
_CONTENTS: Final[Mapping[OutboxKind, Callable[[object], Content]]] = {
    OutboxKind.VERDICTS_BATCH: partial(read_model, VerdictBatch),
    OutboxKind.DEVICE_REPORT: read_report,
    OutboxKind.DEVICE_WIPED: partial(read_model, WipeDone),
}


def submit_device_outbox(call: Call, tx: Tx) -> ApiAnswer:
    """submitDeviceOutbox: what was taken, what was known, what was refused; and a receipt in the inbox."""
    body: SubmitOutbox = call.body
    device = row_by_id(tx, call.environment, call.path["device_id"])
    reader = _Reader(tx, call.environment, call.now_ms, signers.seal_keys(tx, call.vault))
    accepted: list[int] = []
    duplicates: list[int] = []
    rejected: list[shown.RejectedRecord] = []
    for item in body.records:
        record = item.model_dump(exclude_unset=True)
        try:
            new = _take(reader, device["device_id"], record)
        except SealError as error:
            rejected.append(shown.RejectedRecord(seq=item.post.seq, rid=item.post.rid, code=error.code))
            reader.refusals.append(f"record {item.post.seq} {error.code}: {error}")
        else:
            (accepted if new else duplicates).append(item.post.seq)
    report = _apply_in_order(reader, device)
    device = row_by_id(tx, call.environment, device["device_id"])
    acked_upto_seq: int = mail_inbox.box_of(tx, device)["outbox_seq"]
    if device["status"] != DeviceStatusWord.WIPED:
        receipt = {"device_id": device["device_id"], "acked_upto_seq": acked_upto_seq}
        mail = InboxMail(MailKind.POST_RECEIPT, receipt)
        mail_inbox.post(tx, call.vault, device, mail, now_ms=call.now_ms)
    filling = None
    if report is not None:
        environment, now_ms = call.environment, call.now_ms
        filling = mail_gallery.answer_report(
            tx, call.vault, environment, device, report.mailed, now_ms=now_ms
        )
    return ApiAnswer(
        200,
        shown.OutboxResult(
            device_id=device["device_id"],
            accepted=accepted,
            duplicates=duplicates,
            rejected=rejected,
            acked_upto_seq=acked_upto_seq,
        ),
        unfinished=None if filling is None else filling.step,
        reason=why_refused(device["device_id"], reader.refusals),
    )


def skip_missing(tx: Tx, vault: Vault, environment: Environment, device: Row, now_ms: int) -> int | None:
    """Go on with the first record that is here; how many are missing before it, None where none is here."""
    applied: int = mail_inbox.box_of(tx, device)["outbox_seq"]
    waiting = tx.all(
        """SELECT seq, record FROM outbox
           WHERE tenant_id = :tenant_id AND device_id = :device_id AND seq > :applied ORDER BY seq""",
        applied=applied,
        **device_params(device),
    )
    if not waiting:
        return None
    first = waiting[0]["seq"]
    reader = _Reader(tx, environment, now_ms, signers.seal_keys(tx, vault))
    for record in (json.loads(row["record"]) for row in waiting if row["record"] is not None):
        _, content = reader.open(record, b64_decode(record["ct_b64"]))
        if isinstance(content, MailedReport):
            mail_inbox.go_on_after(tx, device, content.mailed.mail.in_applied_seq)
    _note_applied(tx, device, first - 1)
    _apply_in_order(reader, device)
    return int(first) - 1 - applied


@dataclass(frozen=True, slots=True)
class _Reader:
    """What it takes to open the records of one request and to apply them."""

    tx: Tx
    environment: Environment
    now_ms: int
    seal_keys: list[SealKey]
    refusals: list[str] = field(default_factory=list)
    """What was refused, and why: of the mail, and of the verdicts in it."""

    def open(self, record: JsonObject, ciphertext: bytes) -> tuple[OutboxKind, Content]:
        """What is inside a record. SealError ``malformed`` when that is nothing we know."""
        refusal = SealError("malformed", "no seal key of the service opens the record")
        for key in self.seal_keys:
            try:
                word, body = open_record(record, ciphertext, key)
                kind = OutboxKind(word)
                return kind, _CONTENTS[kind](body)
            except SealError as error:
                refusal = error
            except ValueError:
                raise SealError("malformed", "the contents are of no known type") from None
            except Problem as problem:
                places = ", ".join(f"{found.pointer} ({found.code})" for found in problem.errors)
                raise SealError("malformed", f"the contents are outside the contract: {places}") from None
        raise refusal


def _take(reader: _Reader, device_id: str, record: JsonObject) -> bool:
    """Store a record; whether it is new. SealError with the code to answer."""
    tx, seq = reader.tx, record["post"]["seq"]
    device = row_by_id(tx, reader.environment, device_id)
    where = {"tenant_id": device["tenant_id"], "device_id": device_id}
    digest = _digest(record)
    held = tx.scalar(
        """SELECT digest FROM outbox
           WHERE tenant_id = :tenant_id AND device_id = :device_id AND seq = :seq""",
        seq=seq,
        **where,
    )
    if held == digest:
        return False
    post, ciphertext = check_outbox_record(record, device_id=device_id, signer=_signer(tx, device))
    if held is not None:
        raise SealError("seq_conflict", "another record came under this seq before")
    if post.seq <= mail_inbox.box_of(tx, device)["outbox_seq"]:
        return False  # it was applied so long ago that only its seq is remembered
    kind, content = reader.open(record, ciphertext)
    if device["status"] != DeviceStatusWord.ACTIVE and kind is not OutboxKind.DEVICE_WIPED:
        raise SealError("unknown_signer", "the keys of a revoked device sign nothing but its wipe")
    if isinstance(content, WipeDone):
        # It does not wait for what came before: the keys that signed that are dead.
        if not mark_wiped(tx, device, content.wipe_id):
            raise SealError("malformed", "no such wipe of this device")
        record = {}
    tx.run(
        """INSERT INTO outbox (tenant_id, device_id, seq, digest, record, received_ms)
           VALUES (:tenant_id, :device_id, :seq, :digest, :record, :now_ms)""",
        seq=seq,
        digest=digest,
        record=json.dumps(record) if record else None,
        now_ms=reader.now_ms,
        **where,
    )
    heard_by_mail(tx, device, reader.now_ms)
    return True


def _signer(tx: Tx, device: Row) -> PublicKey:
    """The verdict key of the present registration. SealError when its device is wiped."""
    row = tx.one(
        """SELECT pub FROM device_keys
           WHERE tenant_id = :tenant_id AND device_id = :device_id AND registration_no = :registration_no
             AND purpose = 'verdict'""",
        **device_params(device),
        registration_no=device["registration_no"],
    )
    if row is None or device["status"] == DeviceStatusWord.WIPED:
        raise SealError("unknown_signer", "the device has no living key")
    return PublicKey(row["pub"])


def _apply_in_order(reader: _Reader, device: Row) -> MailedReport | None:
    """Apply what has come without a gap; the latest report that was in it."""
    tx = reader.tx
    where = device_params(device)
    seq: int = mail_inbox.box_of(tx, device)["outbox_seq"]
    report = None
    while True:
        row = tx.one(
            """SELECT record FROM outbox
               WHERE tenant_id = :tenant_id AND device_id = :device_id AND seq = :seq""",
            seq=seq + 1,
            **where,
        )
        if row is None:
            break
        seq += 1
        if row["record"] is None:
            continue
        record: JsonObject = json.loads(row["record"])
        content = _apply(reader, device, record)
        report = content if isinstance(content, MailedReport) else report
        tx.run(
            """UPDATE outbox SET record = NULL
               WHERE tenant_id = :tenant_id AND device_id = :device_id AND seq = :seq""",
            seq=seq,
            **where,
        )
    _note_applied(tx, device, seq)
    return report


def _note_applied(tx: Tx, device: Row, seq: int) -> None:
    tx.run(
        """UPDATE mail_boxes SET outbox_seq = :seq
           WHERE tenant_id = :tenant_id AND device_id = :device_id""",
        seq=seq,
        **device_params(device),
    )


def _apply(reader: _Reader, device: Row, record: JsonObject) -> Content:
    """Do what a record says; its contents."""
    ciphertext = b64_decode(record["ct_b64"])  # checked when it came
    _, content = reader.open(record, ciphertext)
    if isinstance(content, VerdictBatch):
        # Item by item as on the device's own route; what is refused there is no concern of the mail.
        _, refusals = uploads.take_batch(
            reader.tx, reader.environment, device["device_id"], content, reader.now_ms
        )
        reader.refusals.extend(f"record {record['post']['seq']} {refusal}" for refusal in refusals)
    elif isinstance(content, MailedReport):
        _apply_report(reader, device, content, record["post"]["created_ms"])
    return content


def _apply_report(reader: _Reader, device: Row, report: MailedReport, created_ms: int) -> None:
    tx, mailed = reader.tx, report.mailed
    where = device_params(device)
    tx.run(
        """UPDATE devices SET
                  last_seen_ms = CASE WHEN last_seen_ms < :seen_ms THEN :seen_ms ELSE last_seen_ms END
           WHERE tenant_id = :tenant_id AND device_id = :device_id""",
        seen_ms=min(created_ms, reader.now_ms),
        **where,
    )
    tx.run(
        """UPDATE mail_boxes SET refused = :refused
           WHERE tenant_id = :tenant_id AND device_id = :device_id""",
        refused=json.dumps([item.model_dump() for item in mailed.refused]),
        **where,
    )
    mail_inbox.acknowledge(tx, device, mailed.mail.in_applied_seq, reader.now_ms)
    if report.complete is not None:
        reports.take(tx, reader.environment, device, report.complete, reader.now_ms)
        return
    reports.acknowledge(tx, reader.environment, device, mailed.gallery, reader.now_ms)
    reports.show(tx, device, mailed.health, mailed.app, mailed.model_id)


def _digest(record: JsonObject) -> bytes:
    """What a record is known again by: everything that was signed, with its signature."""
    signed = {name: value for name, value in record.items() if name != "signer_cert_b64"}
    return hashlib.sha256(canonical_bytes(signed)).digest()
