"""The inbox of a device: sealed records from the service, one seq after the other.

Invariants
1. A seq is given out once: a registration with new keys voids what was not acknowledged and goes on.
2. What is in the inbox can be opened by the device alone. A record that has to change (an erasure, a
   refusal) is replaced under its seq by another, sealed again.
3. A record stays until the device has acknowledged it through its outbox, and then 30 days.
"""

import json
import os
from dataclasses import dataclass
from typing import Any, Final

from cloud_client.reference_server.domain.mailbox.kinds import InboxMail, MailKind
from cloud_client.reference_server.domain.tenancy import signers
from cloud_client.reference_server.domain.tenancy.rows import device_params
from cloud_client.reference_server.store.base import Row, Tx
from cloud_client.reference_server.store.vault import Vault
from link1.bodies import Box
from link1.canonical import b64_decode
from link1.keys import SealPublicKey
from link1.sealed import SERVICE_ID, seal_record

MOST_LOST: Final = 1_000_000
"""Records that a restore may have lost of an inbox: no device can name a seq that ends its own."""
KEEP_ACKNOWLEDGED_MS: Final = 30 * 24 * 3600 * 1000
_BEFORE_A_WIPE: Final = (MailKind.POST_RECEIPT.value, MailKind.TRUST_BUNDLE.value)


@dataclass(frozen=True, slots=True)
class Posted:
    """A body after it was put into an inbox."""

    seq: int
    rid: str


def open_box(tx: Tx, device: Row) -> None:
    """A registration with new keys: the old outbox is closed, what was not acknowledged is void."""
    where = device_params(device)
    tx.run(
        """INSERT INTO mail_boxes (tenant_id, device_id) VALUES (:tenant_id, :device_id)
           ON CONFLICT DO NOTHING""",
        **where,
    )
    void(tx, device)
    tx.run("DELETE FROM outbox WHERE tenant_id = :tenant_id AND device_id = :device_id", **where)
    tx.run(
        """UPDATE mail_boxes SET first_seq = inbox_seq + 1, applied_seq = inbox_seq, outbox_seq = 0,
                  mailed_epoch = 0, mailed_seq = 0, refused = '[]'
           WHERE tenant_id = :tenant_id AND device_id = :device_id""",
        **where,
    )


def box_of(tx: Tx, device: Row) -> Row:
    """The positions of both boxes of a device."""
    return tx.row(
        "SELECT * FROM mail_boxes WHERE tenant_id = :tenant_id AND device_id = :device_id",
        **device_params(device),
    )


def post(tx: Tx, vault: Vault, device: Row, mail: InboxMail, *, now_ms: int) -> Posted:
    """Seal a body to the device and put it behind everything in its inbox."""
    seq = tx.scalar(
        """UPDATE mail_boxes SET inbox_seq = inbox_seq + 1
           WHERE tenant_id = :tenant_id AND device_id = :device_id RETURNING inbox_seq""",
        **device_params(device),
    )
    rid, kept = _sealed(tx, vault, device, int(seq), mail, now_ms=now_ms)
    tx.run(
        """INSERT INTO inbox (tenant_id, device_id, seq, kind, record, ct, body, release_seq, created_ms)
           VALUES (:tenant_id, :device_id, :seq, :kind, :record, :ct, :body, :release_seq, :now_ms)""",
        seq=seq,
        **kept,
        now_ms=now_ms,
        **device_params(device),
    )
    return Posted(int(seq), rid)


def replace(tx: Tx, vault: Vault, device: Row, seq: int, mail: InboxMail, *, now_ms: int) -> None:
    """Put another record under a seq that the device has not acknowledged."""
    _, kept = _sealed(tx, vault, device, seq, mail, now_ms=now_ms)
    tx.run(
        """UPDATE inbox SET kind = :kind, record = :record, ct = :ct, body = :body,
                  release_seq = :release_seq, reissues = reissues + 1, listed = 0
           WHERE tenant_id = :tenant_id AND device_id = :device_id AND seq = :seq""",
        seq=seq,
        **kept,
        **device_params(device),
    )


def announce_wipe(tx: Tx, vault: Vault, device: Row, mail: InboxMail, *, now_ms: int) -> None:
    """The device is revoked: the order to wipe is posted at once, and takes the place of what is before it.

    Its reports no longer count, so a record that it refuses would be in the way of the order for good. Only
    what no device refuses stays: receipts, and a bundle, which may bring the key that the order is signed by.
    """
    refused = {item["seq"] for item in json.loads(box_of(tx, device)["refused"])}
    for row in tx.all(
        """SELECT seq, kind FROM inbox
           WHERE tenant_id = :tenant_id AND device_id = :device_id AND acked_ms IS NULL""",
        **device_params(device),
    ):
        if row["kind"] not in _BEFORE_A_WIPE or row["seq"] in refused:
            replace(tx, vault, device, row["seq"], mail, now_ms=now_ms)
    post(tx, vault, device, mail, now_ms=now_ms)


def acknowledge(tx: Tx, device: Row, applied_seq: int, now_ms: int) -> None:
    """The device has applied everything up to ``applied_seq``; an acknowledgement never falls."""
    where = device_params(device)
    taken = tx.run(
        """UPDATE mail_boxes SET applied_seq = :applied_seq
           WHERE tenant_id = :tenant_id AND device_id = :device_id
             AND applied_seq < :applied_seq AND :applied_seq <= inbox_seq""",
        applied_seq=applied_seq,
        **where,
    )
    if taken:
        tx.run(
            """UPDATE inbox SET acked_ms = :now_ms
               WHERE tenant_id = :tenant_id AND device_id = :device_id AND seq <= :applied_seq
                 AND acked_ms IS NULL""",
            applied_seq=applied_seq,
            now_ms=now_ms,
            **where,
        )


def go_on_after(tx: Tx, device: Row, applied_seq: int) -> None:
    """The device has applied records that this database has lost: it takes nothing under their seqs."""
    tx.run(
        """UPDATE mail_boxes SET inbox_seq = :applied_seq
           WHERE tenant_id = :tenant_id AND device_id = :device_id
             AND inbox_seq < :applied_seq AND :applied_seq <= inbox_seq + :most""",
        applied_seq=applied_seq,
        most=MOST_LOST,
        **device_params(device),
    )


def void(tx: Tx, device: Row) -> None:
    """What waits here can no longer be opened."""
    tx.run(
        """DELETE FROM inbox
           WHERE tenant_id = :tenant_id AND device_id = :device_id AND acked_ms IS NULL""",
        **device_params(device),
    )


def _sealed(
    tx: Tx, vault: Vault, device: Row, seq: int, mail: InboxMail, *, now_ms: int
) -> tuple[str, dict[str, Any]]:
    """The rid of a new record, and the columns that keep it. FormatError when the body is too large."""
    rid = os.urandom(16).hex()
    record = seal_record(
        box=Box.IN,
        src=SERVICE_ID,
        dst=device["device_id"],
        seq=seq,
        rid=rid,
        created_ms=now_ms,
        type_=mail.kind.value,
        body=mail.body,
        to=SealPublicKey(device["seal_pub"]),  # checked when it was registered
        signer=signers.signing_key(tx, vault, "post", now_ms),
        certificate=signers.certificate(tx, vault, "post", now_ms),
    )
    ciphertext = b64_decode(record.pop("ct_b64"))
    return rid, {
        "kind": mail.kind.value,
        "ct": ciphertext,
        "record": json.dumps(record),
        "body": None if mail.kept_body is None else json.dumps(mail.kept_body),
        "release_seq": mail.release_seq,
    }
