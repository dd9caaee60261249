"""What devices fetch apart from the gallery: signed configuration, validator keys, and their own status."""

import json
import os
from collections.abc import Mapping
from typing import Any, Final

from cloud_client.reference_server.contract.words import GALLERY_TTL_MS
from cloud_client.reference_server.domain.gallery import log as gallery_log
from cloud_client.reference_server.domain.tenancy import signers
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.domain.tenancy.rows import device_params
from cloud_client.reference_server.store.base import Row, Tx
from cloud_client.reference_server.store.vault import Vault
from link1.canonical import JsonObject, b64_encode
from link1.keys import PublicKey
from link1.signed import Kind

# A device follows the signed configuration, whatever its model's manifest says. These are the thresholds of
# the model that ships with the device; a test keeps the two equal.
DEFAULT_THRESHOLDS: Final = {
    "thr_id": "palm-gen-4-t1",
    "accept_q": 3600,
    "margin_q": 1000,
    "quality_q": 45,
    "pad_q": 5000,
    "enrol_quality_q": 65,
}
FIRST_CONFIG: Final[JsonObject] = {
    "v": 1,
    "config_seq": 1,
    "thresholds": DEFAULT_THRESHOLDS,
    "attempts": 3,
    "decision_timeout_ms": 5000,
    "passage_timeout_ms": 10_000,
    "gallery_ttl_ms": GALLERY_TTL_MS,
}
CHALLENGE_BYTES: Final = 32
CHALLENGE_MS: Final = 300_000


def current_config(tx: Tx, environment: Environment) -> JsonObject:
    """The config_obj that the environment's devices are to follow."""
    row = _config_row(tx, environment)
    return FIRST_CONFIG if row is None else json.loads(row["config"])


def gallery_ttl_ms(tx: Tx, environment: Environment) -> int:
    """How old the gallery of the environment's devices may get before they recognize no one."""
    return int(current_config(tx, environment)["gallery_ttl_ms"])


def change_config(tx: Tx, environment: Environment, changes: Mapping[str, Any], now_ms: int) -> JsonObject:
    """The config_obj with ``changes`` (members, and members of ``thresholds``), under a higher config_seq.

    It is the seconds of now: after a restore devices may follow a configuration that is lost here, and take
    none that is not above it.
    """
    row = _config_row(tx, environment)
    last_seq = FIRST_CONFIG["config_seq"] if row is None else row["last_seq"]
    config = current_config(tx, environment)
    thresholds = {name: changes.get(name, value) for name, value in config["thresholds"].items()}
    others = {name: changes[name] for name in changes if name not in thresholds}
    config_seq = max(last_seq + 1, now_ms // 1000)
    config = {**config, **others, "thresholds": thresholds, "config_seq": config_seq}
    _store_config(tx, environment, config, config_seq)
    return config


def claim_config_seq(tx: Tx, environment: Environment, config_seq: int) -> bool:
    """Take a config_seq for a configuration of one device; False when it was given out before."""
    row = _config_row(tx, environment)
    if config_seq <= (FIRST_CONFIG["config_seq"] if row is None else row["last_seq"]):
        return False
    _store_config(tx, environment, current_config(tx, environment), config_seq)
    return True


def _config_row(tx: Tx, environment: Environment) -> Row | None:
    return tx.one(
        """SELECT config, last_seq FROM device_configs
           WHERE tenant_id = :tenant_id AND livemode = :livemode""",
        **environment.params,
    )


def _store_config(tx: Tx, environment: Environment, config: JsonObject, last_seq: int) -> None:
    tx.run(
        """INSERT INTO device_configs (tenant_id, livemode, config_seq, last_seq, config)
           VALUES (:tenant_id, :livemode, :config_seq, :last_seq, :config)
           ON CONFLICT (tenant_id, livemode) DO UPDATE
               SET config_seq = excluded.config_seq, last_seq = excluded.last_seq,
                   config = excluded.config""",
        config_seq=config["config_seq"],
        last_seq=last_seq,
        config=json.dumps(config),
        **environment.params,
    )


def signed_config(tx: Tx, vault: Vault, environment: Environment, now_ms: int) -> JsonObject:
    """The signed config_obj of an environment, with its signer's certificate."""
    return sign_bundle(tx, vault, Kind.CONFIG, current_config(tx, environment), now_ms)


def sign_bundle(tx: Tx, vault: Vault, kind: Kind, obj: JsonObject, now_ms: int) -> JsonObject:
    """An object signed by the bundle signer, with the certificate that devices trust it by."""
    wrapper = signers.sign(tx, vault, "bundle", kind, obj, now_ms=now_ms)
    return wrapper | {"signer_cert_b64": signers.certificate(tx, vault, "bundle", now_ms).b64}


def signed_status(tx: Tx, vault: Vault, device: Row, now_ms: int) -> JsonObject:
    """The device's signed status with a fresh challenge, and its wipe when it is revoked."""
    environment = Environment(device["tenant_id"], bool(device["livemode"]))
    challenge = os.urandom(CHALLENGE_BYTES)
    tx.run(
        """INSERT INTO challenges (tenant_id, device_id, challenge, expires_ms)
           VALUES (:tenant_id, :device_id, :challenge, :expires_ms)
           ON CONFLICT (tenant_id, device_id) DO UPDATE
               SET challenge = excluded.challenge, expires_ms = excluded.expires_ms""",
        **device_params(device),
        challenge=challenge,
        expires_ms=now_ms + CHALLENGE_MS,
    )
    state = gallery_log.state_of_stream(tx, environment)
    status: JsonObject = {
        "v": 1,
        "device_id": device["device_id"],
        "status": device["status"],
        "issued_at_ms": now_ms,
        "challenge_b64": b64_encode(challenge),
        "gallery": {
            "stream": state.stream,
            "epoch": state.epoch,
            "seq": state.seq,
            "head": state.head.hex(),
        }
        if device["kind"] == "access"
        else None,
        "config_seq": current_config(tx, environment)["config_seq"],
        "dbd_keys": [_dbd_key_object(row) for row in _dbd_rows(tx, environment, device["dbd_id"])],
        "wipe": None
        if device["status"] == "active"
        else {"wipe_id": device["wipe_id"], "reason": device["revoke_reason"]},
    }
    return signers.sign(tx, vault, "device_status", Kind.DEVICE_STATUS, status, now_ms=now_ms)


def add_dbd_key(tx: Tx, environment: Environment, dbd_id: str, key: PublicKey, now_ms: int) -> None:
    """A validator's key. The first of a dbd_id counts from 0, another from now, ending the one before.

    A key that counted before gets another window, and keeps its earlier ones: what it signed then still
    verifies.
    """
    if tx.exists(
        """SELECT 1 FROM dbd_windows
           WHERE tenant_id = :tenant_id AND livemode = :livemode AND dbd_id = :dbd_id AND kid = :kid
             AND not_after_ms IS NULL""",
        dbd_id=dbd_id,
        kid=key.kid,
        **environment.params,
    ):
        return
    ended = tx.run(
        """UPDATE dbd_windows SET not_after_ms = :now_ms
           WHERE tenant_id = :tenant_id AND livemode = :livemode AND dbd_id = :dbd_id
             AND not_after_ms IS NULL""",
        dbd_id=dbd_id,
        now_ms=now_ms,
        **environment.params,
    )
    tx.run(
        """INSERT INTO dbd_windows (tenant_id, livemode, dbd_id, kid, pub, not_before_ms)
           VALUES (:tenant_id, :livemode, :dbd_id, :kid, :pub, :not_before_ms)
           ON CONFLICT (tenant_id, livemode, dbd_id, kid, not_before_ms)
               DO UPDATE SET not_after_ms = NULL""",
        dbd_id=dbd_id,
        kid=key.kid,
        pub=key.raw,
        not_before_ms=now_ms if ended else 0,
        **environment.params,
    )


def dbd_key_at(tx: Tx, environment: Environment, dbd_id: str, at_ms: int) -> PublicKey | None:
    """The validator's key that counts at an instant."""
    for row in _dbd_rows(tx, environment, dbd_id):
        if row["not_before_ms"] <= at_ms and (row["not_after_ms"] is None or at_ms < row["not_after_ms"]):
            return PublicKey(row["pub"])
    return None


def dbd_key_by_kid(tx: Tx, environment: Environment, dbd_id: str, kid: str, at_ms: int) -> PublicKey | None:
    """The validator's key of a kid, if it counts at an instant."""
    key = dbd_key_at(tx, environment, dbd_id, at_ms)
    return key if key is not None and key.kid == kid else None


def _dbd_rows(tx: Tx, environment: Environment, dbd_id: str) -> list[Row]:
    return tx.all(
        """SELECT * FROM dbd_windows
           WHERE tenant_id = :tenant_id AND livemode = :livemode AND dbd_id = :dbd_id
           ORDER BY not_before_ms DESC, kid""",
        dbd_id=dbd_id,
        **environment.params,
    )


def dbd_keys(tx: Tx, environment: Environment) -> list[dict[str, Any]]:
    """Every window of every validator key of an environment."""
    rows = tx.all(
        """SELECT * FROM dbd_windows WHERE tenant_id = :tenant_id AND livemode = :livemode
           ORDER BY dbd_id, not_before_ms DESC, kid""",
        **environment.params,
    )
    return [_dbd_key_object(row) for row in rows]


def _dbd_key_object(row: Row) -> dict[str, Any]:
    return {
        "dbd_id": row["dbd_id"],
        "kid": row["kid"],
        "pub_b64": b64_encode(row["pub"]),
        "not_before_ms": row["not_before_ms"],
        "not_after_ms": row["not_after_ms"],
    }
