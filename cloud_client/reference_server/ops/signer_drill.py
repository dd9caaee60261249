"""A rotation of all of the service's signing keys, and what the store knows of the devices that follow."""

from collections import Counter, defaultdict
from typing import Any, Final

from cloud_client.reference_server.contract.times import rfc3339, rfc3339_or_none
from cloud_client.reference_server.domain.mailbox.kinds import MailKind
from cloud_client.reference_server.domain.tenancy import signers
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.store.base import Row, Tx
from cloud_client.reference_server.store.vault import Vault

ROOT: Final = "root"
REGISTERED: Final = "registered"
TRUST_BUNDLE: Final = "trust_bundle"
GALLERY: Final = "gallery"
UNKNOWN: Final = "unknown"
SILENT: Final = "silent"


def drill(tx: Tx, vault: Vault, in_s: int, now_ms: int) -> dict[str, Any]:
    """``signer drill``: a new key for every use, but for those whose newest key is still to begin."""
    for use in signers.USES:
        newest, _ = _newest(tx, use)
        if newest["not_before_ms"] <= now_ms:
            signers.rotate(tx, vault, use, now_ms + in_s * 1000, now_ms)
    return report(tx)


def report(tx: Tx) -> dict[str, Any]:
    """``signer status``: the newest key of every use, and for each active device how it is known to follow.

    ``root``: certified by the root that devices pin, so that no device has to learn the key. ``registered``:
    the answer to the registration listed it. ``trust_bundle``: the device acknowledged mail that lists it.
    ``gallery``: it acknowledged a change that only this key has signed. ``unknown``: it was on the network
    since the key was published; the store does not see who reads ``GET /v1/keys``. ``silent``: it was not;
    mail brings a key only in a trust bundle.
    """
    newest = {use: _newest(tx, use) for use in signers.USES}
    applied = _applied_bundles(tx)
    devices = [
        {
            "tenant_id": device["tenant_id"],
            "mode": Environment(device["tenant_id"], bool(device["livemode"])).mode,
            "device_id": device["device_id"],
            "last_contact": rfc3339(max(device["network_ms"], device["mail_ms"])),
            "follows": {
                use: _follows(device, use, key, applied[device["tenant_id"], device["device_id"]])
                for use, (key, _) in newest.items()
            },
        }
        for device in tx.all(
            """SELECT d.*, l.created_ms AS applied_change_ms FROM devices d
               JOIN streams s ON s.tenant_id = d.tenant_id AND s.livemode = d.livemode
               LEFT JOIN deltas l ON l.stream = s.stream AND l.epoch = d.acked_epoch AND l.seq = d.acked_seq
               WHERE d.status = 'active' ORDER BY d.tenant_id, d.livemode, d.device_id"""
        )
    ]
    return {
        "keys": [
            {
                "use": use,
                "kid_before": None if before is None else before["kid"],
                "kid": key["kid"],
                "published_at": rfc3339_or_none(key["published_ms"]),
                "not_before": rfc3339(key["not_before_ms"]),
                "devices": dict(sorted(Counter(device["follows"][use] for device in devices).items())),
            }
            for use, (key, before) in newest.items()
        ],
        "devices": devices,
    }


def _newest(tx: Tx, use: str) -> tuple[Row, Row | None]:
    """The newest key of a use and the one before it."""
    rows = tx.all(
        """SELECT kid, published_ms, not_before_ms FROM signers WHERE use_word = :use
           ORDER BY not_before_ms DESC, kid LIMIT 2""",
        use=use,
    )
    return rows[0], rows[1] if len(rows) > 1 else None


def _applied_bundles(tx: Tx) -> dict[tuple[str, str], list[str]]:
    """The trust bundles, as mailed, that each device has acknowledged since its registration (those kept)."""
    found = defaultdict(list)
    for row in tx.all(
        """SELECT i.tenant_id, i.device_id, i.body FROM inbox i
           JOIN mail_boxes b ON b.tenant_id = i.tenant_id AND b.device_id = i.device_id
           WHERE i.kind = :kind AND i.acked_ms IS NOT NULL AND i.body IS NOT NULL AND i.seq >= b.first_seq""",
        kind=MailKind.TRUST_BUNDLE.value,
    ):
        found[row["tenant_id"], row["device_id"]].append(row["body"])
    return found


def _follows(device: Row, use: str, key: Row, bundles: list[str]) -> str:
    if use in signers.CERTIFIED:
        return ROOT
    if any(key["kid"] in bundle for bundle in bundles):
        return TRUST_BUNDLE
    published_ms, begins_ms = key["published_ms"], key["not_before_ms"]
    # The registration names the one key to seal to, which is that in force.
    listed_ms = begins_ms if use == signers.SEAL else published_ms
    if listed_ms is not None and device["registered_ms"] >= listed_ms:
        return REGISTERED
    changed_ms = device["applied_change_ms"]
    if use == "gallery" and changed_ms is not None and changed_ms >= begins_ms:
        return GALLERY
    return SILENT if published_ms is not None and device["network_ms"] < published_ms else UNKNOWN
