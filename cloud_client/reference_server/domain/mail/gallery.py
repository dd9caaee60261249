"""The gallery by mail, for a device that may have no network.

A report gives the device's position. What is missing goes into its inbox at once: deltas where they are
still kept, else a whole snapshot; and when nothing is missing a head, which proves that the gallery is
fresh. Records that are on their way count as delivered, so that reports never fill an inbox twice.
"""

import json
from dataclasses import dataclass
from typing import Final

from cloud_client.reference_server.contract.mail import DeviceReport
from cloud_client.reference_server.contract.words import DeviceStatusWord
from cloud_client.reference_server.domain.devices.records import row_by_id
from cloud_client.reference_server.domain.gallery import log as gallery_log
from cloud_client.reference_server.domain.gallery import snapshots
from cloud_client.reference_server.domain.mailbox import inbox as mail_inbox
from cloud_client.reference_server.domain.mailbox.kinds import PALMS_SQL, InboxMail, MailKind
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.domain.tenancy.rows import device_params
from cloud_client.reference_server.store.base import Row, Tx
from cloud_client.reference_server.store.vault import Vault
from gallery.stream import Head

PAGE: Final = 150
"""Entries or deltas in a record: with the longest members they stay under 512 KiB."""

STEP: Final = 4
"""Records in a transaction: about 0.2 s of sealing."""

REISSUES: Final = 3
"""How often a refused record is sealed again before a harmless one takes its place."""


def answer_report(
    tx: Tx, vault: Vault, environment: Environment, device: Row, report: DeviceReport, *, now_ms: int
) -> "Filling | None":
    """Answer a report: refused records again, then the gallery.

    The first records of the gallery are posted when this returns; the result posts the rest.
    """
    if device["status"] != DeviceStatusWord.ACTIVE:
        return None
    _reissue(tx, vault, environment, device, report, now_ms=now_ms)
    if device["kind"] != "access":
        return None
    filling = Filling(vault, environment, now_ms, device, _position(tx, environment, device, report))
    return filling if filling.step(tx, first=True) else None


@dataclass
class Filling:
    """Fills an inbox with what the device misses, some records a transaction, so that others can write too.

    It gives up when something else has changed what is on its way meanwhile (an erasure, new keys); the
    next report starts again.
    """

    vault: Vault
    environment: Environment
    now_ms: int
    device: Row
    at: tuple[int, int]
    """(epoch, seq) of the device once it has applied what is in its inbox."""
    snapshot: tuple[str, str] | None = None
    """An open snapshot and the last template_id out of it."""

    def step(self, tx: Tx, *, first: bool = False) -> bool:
        """Put the next records into the inbox; whether there are more."""
        state = gallery_log.state_of_stream(tx, self.environment)
        if not first and not self._still(tx, state):
            return False
        for _ in range(STEP):
            mail, more = self._next(tx, state)
            mail_inbox.post(tx, self.vault, self.device, mail, now_ms=self.now_ms)
            if not more:
                break
        _note_mailed(tx, self.device, self.at)
        return more

    def _next(self, tx: Tx, state: gallery_log.StreamState) -> tuple[InboxMail, bool]:
        epoch, seq = self.at
        if self.snapshot is None and self.at == (state.epoch, state.seq):
            return _head(tx, self.vault, self.environment, self.now_ms), False
        kept = epoch == state.epoch and seq < state.seq and gallery_log.oldest_seq(tx, state) <= seq + 1
        if self.snapshot is None and kept:
            page = gallery_log.delta_page(
                tx,
                self.vault,
                self.environment,
                after_seq=seq,
                limit=PAGE,
                now_ms=self.now_ms,
            )
            self.at = (epoch, page["data"][-1]["seq"])
            return InboxMail(MailKind.GALLERY_DELTAS, page), bool(page["has_more"])
        if self.snapshot is None:
            self.snapshot = (snapshots.open_snapshot(tx, self.environment, self.now_ms), "")
        page = snapshots.snapshot_page(
            tx,
            self.vault,
            self.environment,
            *self.snapshot,
            now_ms=self.now_ms,
            page_size=PAGE,
        )
        if page["has_more"]:
            self.snapshot = (self.snapshot[0], page["data"][-1]["template_id"])
        head = page["head"]["head_obj"]
        self.at = (head["epoch"], head["seq"])
        return InboxMail(MailKind.GALLERY_SNAPSHOT_PAGE, page), bool(page["has_more"])

    def _still(self, tx: Tx, state: gallery_log.StreamState) -> bool:
        box = mail_inbox.box_of(tx, self.device)
        device = row_by_id(tx, self.environment, self.device["device_id"])
        same_keys = device["registration_no"] == self.device["registration_no"]
        untouched = (box["mailed_epoch"], box["mailed_seq"]) == self.at
        active = device["status"] == DeviceStatusWord.ACTIVE
        return same_keys and untouched and active and state.epoch == self.at[0]


def withdraw(tx: Tx, vault: Vault, environment: Environment, now_ms: int) -> None:
    """A person's palms are deleted: records that may carry them become heads, under the same seqs."""
    # Records that the device has applied are of no further use.
    tx.run(
        f"""DELETE FROM inbox
            WHERE tenant_id = :tenant_id AND acked_ms IS NOT NULL AND kind IN ({PALMS_SQL})
              AND device_id IN (SELECT device_id FROM devices
                                WHERE tenant_id = :tenant_id AND livemode = :livemode)""",  # noqa: S608 - fixed words only
        **environment.params,
    )
    waiting = tx.all(
        f"""SELECT d.*, i.seq AS inbox_seq
            FROM inbox i JOIN devices d ON d.tenant_id = i.tenant_id AND d.device_id = i.device_id
            WHERE d.tenant_id = :tenant_id AND d.livemode = :livemode
              AND i.kind IN ({PALMS_SQL})""",  # noqa: S608 - fixed words only
        **environment.params,
    )
    _to_heads(tx, vault, environment, waiting, now_ms)


def _to_heads(tx: Tx, vault: Vault, environment: Environment, waiting: list[Row], now_ms: int) -> None:
    """Replace inbox records: rows of ``devices`` with ``inbox_seq``."""
    if not waiting:
        return
    head = _head(tx, vault, environment, now_ms)
    for row in waiting:
        mail_inbox.replace(tx, vault, row, row["inbox_seq"], head, now_ms=now_ms)
        _note_mailed(tx, row, (0, 0))


def _note_mailed(tx: Tx, device: Row, position: tuple[int, int]) -> None:
    epoch, seq = position
    tx.run(
        """UPDATE mail_boxes SET mailed_epoch = :epoch, mailed_seq = :seq
           WHERE tenant_id = :tenant_id AND device_id = :device_id""",
        epoch=epoch,
        seq=seq,
        **device_params(device),
    )


def _position(tx: Tx, environment: Environment, device: Row, report: DeviceReport) -> tuple[int, int]:
    """(epoch, seq) of the device once it has applied what is on its way."""
    box = mail_inbox.box_of(tx, device)
    on_its_way = tx.exists(
        f"""SELECT 1 FROM inbox
            WHERE tenant_id = :tenant_id AND device_id = :device_id AND acked_ms IS NULL
              AND kind IN ({PALMS_SQL})""",  # noqa: S608 - fixed words only
        **device_params(device),
    )
    gallery = report.gallery
    reported = (
        (gallery.epoch, gallery.seq)
        if gallery is not None and gallery.stream == environment.stream
        else (0, 0)
    )
    return max(reported, (box["mailed_epoch"], box["mailed_seq"])) if on_its_way else reported


def _head(tx: Tx, vault: Vault, environment: Environment, now_ms: int) -> InboxMail:
    state = gallery_log.state_of_stream(tx, environment)
    head = Head(state.stream, state.epoch, state.seq, state.head, state.count, now_ms)
    return InboxMail(MailKind.GALLERY_HEAD, gallery_log.signed_head(tx, vault, head, now_ms))


def _reissue(
    tx: Tx, vault: Vault, environment: Environment, device: Row, report: DeviceReport, *, now_ms: int
) -> None:
    """Seal the record that blocks the inbox again, by the signer in force now.

    After repeated refusals a receipt replaces it, so that what is behind it arrives; the refusal stays in
    the device's box for the operator to see.
    """
    box = mail_inbox.box_of(tx, device)
    next_seq = box["applied_seq"] + 1
    if all(item.seq != next_seq for item in report.refused):
        return
    row = tx.one(
        """SELECT kind, body, reissues, listed FROM inbox
           WHERE tenant_id = :tenant_id AND device_id = :device_id AND seq = :seq""",
        **device_params(device),
        seq=next_seq,
    )
    if row is None or not row["listed"]:
        return  # the copy that is in the inbox now was not fetched: what was refused is an earlier one
    kind = MailKind(row["kind"])
    if kind.is_gallery:
        # The pages behind it would not fit any more: all of them go, and the report is answered again.
        waiting = tx.all(
            f"""SELECT d.*, i.seq AS inbox_seq
                FROM inbox i JOIN devices d ON d.tenant_id = i.tenant_id AND d.device_id = i.device_id
                WHERE i.tenant_id = :tenant_id AND i.device_id = :device_id AND i.acked_ms IS NULL
                  AND i.kind IN ({PALMS_SQL})""",  # noqa: S608 - fixed words only
            **device_params(device),
        )
        _to_heads(tx, vault, environment, waiting, now_ms)
        return
    if row["body"] is None or row["reissues"] >= REISSUES:
        receipt = {"device_id": device["device_id"], "acked_upto_seq": box["outbox_seq"]}
        mail = InboxMail(MailKind.POST_RECEIPT, receipt)
    elif kind is MailKind.GALLERY_HEAD:
        mail = _head(tx, vault, environment, now_ms)
    else:
        mail = InboxMail(kind, json.loads(row["body"]))
    mail_inbox.replace(tx, vault, device, next_seq, mail, now_ms=now_ms)
