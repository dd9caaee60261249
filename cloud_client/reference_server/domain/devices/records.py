"""Devices as the partner sees them: list and revoke."""

import json
import os
from typing import Final

from cloud_client.reference_server.contract import answers as shown
from cloud_client.reference_server.contract.bodies import RevokeDevice
from cloud_client.reference_server.contract.problems import ProblemCode
from cloud_client.reference_server.contract.words import DeviceStatusWord
from cloud_client.reference_server.domain.call import ApiAnswer, Call
from cloud_client.reference_server.domain.devices import config as device_config
from cloud_client.reference_server.domain.mailbox import inbox as mail_inbox
from cloud_client.reference_server.domain.mailbox.kinds import InboxMail, MailKind
from cloud_client.reference_server.domain.pages import Listed, list_page, read_cursor
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.domain.tenancy.rows import device_params, own_row
from cloud_client.reference_server.store.base import Row, Tx
from cloud_client.reference_server.store.vault import Vault

UNATTESTED: Final = "KEY_UNATTESTED"
OFFLINE: Final = "OFFLINE"
_OF_THE_SERVICE: Final = frozenset({UNATTESTED, OFFLINE})
"""The health words that the service knows better than the device."""
_FILTERS: Final = ("status", "gate_id", "kind")


def list_devices(call: Call, tx: Tx) -> ApiAnswer:
    """listDevices: newest first."""
    after = read_cursor(call, "devices", max_age_ms=None)
    filters = {name: value for name in _FILTERS if (value := call.query[name]) is not None}
    listed = Listed("devices", "devices", "registered_ms", "device_id", shown.DevicePage, filters)
    return list_page(call, tx, listed, after, lambda row: device_object(tx, row, call.now_ms))


def revoke_device(call: Call, tx: Tx) -> ApiAnswer:
    """revokeDevice: its keys are dead but for fetching the signed wipe and acknowledging it.

    The wipe goes into the inbox too, for a device without a network.
    """
    body: RevokeDevice = call.body
    row = row_by_id(tx, call.environment, call.path["device_id"])
    revoked = revoke(tx, call.vault, row, body.reason, call.now_ms)
    return ApiAnswer(200, device_object(tx, revoked, call.now_ms))


def revoke(tx: Tx, vault: Vault, device: Row, reason: str, now_ms: int) -> Row:
    """Revoke an active device and post its wipe; the row as it is then. Another device stays as it is."""
    if device["status"] != DeviceStatusWord.ACTIVE:
        return device
    revoked = tx.row(
        """UPDATE devices SET status = 'revoked', revoked_ms = :now_ms, revoke_reason = :reason,
                  wipe_id = :wipe_id
           WHERE tenant_id = :tenant_id AND device_id = :device_id RETURNING *""",
        now_ms=now_ms,
        reason=reason,
        wipe_id=os.urandom(16).hex(),
        **device_params(device),
    )
    mail = InboxMail(MailKind.DEVICE_REVOKE, device_config.signed_status(tx, vault, revoked, now_ms))
    mail_inbox.announce_wipe(tx, vault, revoked, mail, now_ms=now_ms)
    tx.announce("device", device["tenant_id"], device["device_id"])
    return revoked


def mark_wiped(tx: Tx, device: Row, wipe_id: str) -> bool:
    """A revoked device has destroyed what it held; False when that is not the wipe it was given."""
    wiped = tx.run(
        """UPDATE devices SET status = 'wiped'
           WHERE tenant_id = :tenant_id AND device_id = :device_id AND status = 'revoked'
             AND wipe_id = :wipe_id""",
        **device_params(device),
        wipe_id=wipe_id,
    )
    if wiped:
        mail_inbox.void(tx, device)
        tx.run(
            "DELETE FROM attested_leaves WHERE tenant_id = :tenant_id AND device_id = :device_id",
            **device_params(device),
        )
    return bool(wiped)


def row_by_id(tx: Tx, environment: Environment, device_id: str) -> Row:
    """A device's row. Problem 404 (missing, other tenant) or 403 (other environment)."""
    return own_row(tx, environment, "devices", ProblemCode.DEVICE_NOT_FOUND, device_id=device_id)


def heard_by_mail(tx: Tx, device: Row, now_ms: int) -> None:
    """Something that the device has signed came by mail."""
    tx.run(
        "UPDATE devices SET mail_ms = :now_ms WHERE tenant_id = :tenant_id AND device_id = :device_id",
        now_ms=now_ms,
        **device_params(device),
    )


def is_attested(row: Row, now_ms: int) -> bool:
    """Whether a certificate chain vouches for the device's keys now."""
    return bool(now_ms < row["attested_until_ms"])


def offline_after_ms(tx: Tx, tenant_id: str) -> int:
    """How long nothing may come from a device before it counts as offline, in milliseconds."""
    after_s: int = tx.scalar(
        "SELECT offline_after_s FROM tenants WHERE tenant_id = :tenant_id", tenant_id=tenant_id
    )
    return after_s * 1000


def health_of(row: Row, now_ms: int, offline_ms: int) -> list[str]:
    """The health words of a device: its own, and those that are the service's alone."""
    words = set(json.loads(row["health"])) - _OF_THE_SERVICE
    if not is_attested(row, now_ms):
        words.add(UNATTESTED)
    if now_ms - max(row["network_ms"], row["mail_ms"]) >= offline_ms:
        words.add(OFFLINE)
    return sorted(words)


def trust_of(*, attested: bool) -> shown.TrustAnswer:
    """How far a device's keys are vouched for."""
    return shown.TrustAnswer(attest_level="x509" if attested else "none", verified=attested)


def device_object(tx: Tx, row: Row, now_ms: int) -> shown.DeviceAnswer:
    keys = tx.all(
        """SELECT purpose, kid FROM device_keys
           WHERE tenant_id = :tenant_id AND device_id = :device_id AND registration_no = :registration_no
           ORDER BY purpose DESC""",
        **device_params(row),
        registration_no=row["registration_no"],
    )
    return shown.DeviceAnswer.of(
        row,
        app=shown.App(pkg=row["app_pkg"], version=row["app_version"]),
        gallery=shown.GalleryOfDevice.of(
            row,
            stream=Environment(row["tenant_id"], bool(row["livemode"])).stream,
            epoch=row["acked_epoch"],
            seq=row["acked_seq"],
        ),
        keys=[shown.KeyOfDevice.of(key, alg="ed25519") for key in keys],
        trust=trust_of(attested=is_attested(row, now_ms)),
        health=health_of(row, now_ms, offline_after_ms(tx, row["tenant_id"])),
    )
