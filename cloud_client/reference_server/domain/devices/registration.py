"""``POST /v1/devices/register``: a device with a provisioning token brings its keys."""

import hashlib
from typing import Any

from cloud_client.reference_server.contract import answers as shown
from cloud_client.reference_server.contract.bodies import RegisterDevice
from cloud_client.reference_server.contract.problems import Problem, ProblemCode, invalid, unauthenticated
from cloud_client.reference_server.contract.strict_json import read_body
from cloud_client.reference_server.contract.words import RESERVED_DEVICE_IDS, DeviceStatusWord
from cloud_client.reference_server.domain.call import ApiAnswer, Call
from cloud_client.reference_server.domain.devices import config as device_config
from cloud_client.reference_server.domain.devices import reports, rollouts
from cloud_client.reference_server.domain.devices.attestation import key_digest
from cloud_client.reference_server.domain.devices.records import device_object, row_by_id
from cloud_client.reference_server.domain.gallery import log as gallery_log
from cloud_client.reference_server.domain.mailbox import inbox as mail_inbox
from cloud_client.reference_server.domain.tenancy import signers, tenants
from cloud_client.reference_server.domain.tenancy.callers import Environment, ProvisioningCaller
from cloud_client.reference_server.store.base import Row, Tx
from cloud_client.reference_server.store.vault import Vault, token_hash
from link1.canonical import canonical_bytes
from link1.errors import FormatError, Link1Error
from link1.keys import PublicKey, SealPublicKey
from link1.sealed import SERVICE_ID
from link1.signed import Kind, verify_object


def registering_http_key(body: bytes) -> PublicKey | None:
    """The http key in a registration body, None when there is no readable one (the body is refused later)."""
    try:
        # By the reader of all bodies: what another one refuses would be taken without a signature.
        read: Any = read_body(body)
        for item in read["keys"]:
            if item["purpose"] == "http":
                return PublicKey.from_b64(item["pub_b64"])
    except (KeyError, TypeError, FormatError, Problem):
        return None
    return None


def register_device(call: Call, tx: Tx) -> ApiAnswer:
    """``POST /v1/devices/register``."""
    again, registered = register(tx, call.vault, call.caller, call.body, call.now_ms)
    return ApiAnswer(200 if again else 201, registered)


def register(
    tx: Tx, vault: Vault, holder: ProvisioningCaller, body: RegisterDevice, now_ms: int
) -> tuple[bool, shown.RegistrationAnswer]:
    """A first registration, one with new keys after a revocation, or the same once more (True).

    Problem 401, 409 or 422.
    """
    environment = holder.environment
    if body.device_id in RESERVED_DEVICE_IDS:  # a request from a stick has no token that was made for an id
        raise invalid("/device_id", "reserved")
    keys = _keys(body)
    try:
        seal_pub = SealPublicKey.from_b64(body.seal_key.pub_b64)
    except FormatError:
        raise invalid("/seal_key/pub_b64", "key") from None
    _check_proof(body, holder, keys["verdict"])
    digest = key_digest(keys["verdict"].raw, keys["http"].raw, seal_pub.raw)
    token = tx.one(
        "SELECT keys_digest FROM provisioning_tokens WHERE token_hash = :token_hash",
        token_hash=token_hash(holder.token),
    )
    if token is None or token["keys_digest"] not in (None, digest):
        raise unauthenticated("the provisioning token has registered other keys")
    again = _registered_again(tx, environment, body, keys, seal_pub)
    if not again:
        _store(tx, environment, body, keys, seal_pub, now_ms=now_ms)
    tx.run(
        "UPDATE provisioning_tokens SET keys_digest = :digest WHERE token_hash = :token_hash",
        digest=digest,
        token_hash=token_hash(holder.token),
    )
    return again, _registered(tx, vault, environment, row_by_id(tx, environment, body.device_id), now_ms)


def _keys(body: RegisterDevice) -> dict[str, PublicKey]:
    keys: dict[str, PublicKey] = {}
    for index, item in enumerate(body.keys):
        try:
            keys[item.purpose] = PublicKey.from_b64(item.pub_b64)
        except FormatError:
            raise invalid(f"/keys/{index}/pub_b64", "key") from None
    if len({key.kid for key in keys.values()}) != 2:
        raise invalid("/keys", "one_verdict_and_one_http_key")
    return keys


def _check_proof(body: RegisterDevice, holder: ProvisioningCaller, verdict_key: PublicKey) -> None:
    """The verdict key has signed everything the body says, and for this token."""
    facts = body.model_dump(exclude={"proof"})
    facts["token_sha256"] = hashlib.sha256(holder.token.encode()).hexdigest()
    if body.device_id != holder.device_id:
        raise unauthenticated("the provisioning token is for another device_id")
    try:
        if canonical_bytes(body.proof.register_obj) != canonical_bytes(facts):  # to Python, 0 is false
            raise unauthenticated("register_obj is not the body without proof, with token_sha256")
        verify_object(Kind.REGISTER, body.proof.model_dump(), verdict_key)
    except Link1Error as error:
        raise unauthenticated(f"proof: {error}") from None


def _registered_again(
    tx: Tx,
    environment: Environment,
    body: RegisterDevice,
    keys: dict[str, PublicKey],
    seal_pub: SealPublicKey,
) -> bool:
    """Whether exactly these keys are the active registration. Problem 409 when others, or elsewhere."""
    conflict = Problem(ProblemCode.DEVICE_STATE_CONFLICT)
    device = tx.one(
        "SELECT * FROM devices WHERE tenant_id = :tenant_id AND device_id = :device_id",
        tenant_id=environment.tenant_id,
        device_id=body.device_id,
    )
    known = tx.all(
        "SELECT kid, tenant_id, device_id, registration_no, purpose FROM device_keys WHERE kid IN (:a, :b)",
        a=keys["verdict"].kid,
        b=keys["http"].kid,
    )
    if device is not None and device["livemode"] != environment.livemode:
        raise conflict
    if device is not None and device["status"] == DeviceStatusWord.ACTIVE:
        mine = [
            row
            for row in known
            if row["tenant_id"] == device["tenant_id"]
            and row["device_id"] == device["device_id"]
            and row["registration_no"] == device["registration_no"]
            and row["kid"] == keys[row["purpose"]].kid
        ]
        if len(mine) != 2 or device["seal_pub"] != seal_pub.raw:
            raise conflict
        return True
    sealed_elsewhere = tx.exists(
        """SELECT 1 FROM devices WHERE seal_pub = :seal_pub
           AND NOT (tenant_id = :tenant_id AND device_id = :device_id)""",
        seal_pub=seal_pub.raw,
        tenant_id=environment.tenant_id,
        device_id=body.device_id,
    )
    if known or sealed_elsewhere:
        raise conflict
    return False


def _store(
    tx: Tx,
    environment: Environment,
    body: RegisterDevice,
    keys: dict[str, PublicKey],
    seal_pub: SealPublicKey,
    *,
    now_ms: int,
) -> None:
    tx.run(
        """INSERT INTO devices (tenant_id, device_id, livemode, kind, status, gate_id, dbd_id,
                                passage_sensor, app_pkg, app_version, model_id, seal_pub, health,
                                last_seen_ms, network_ms, registered_ms, registration_no)
           VALUES (:tenant_id, :device_id, :livemode, :kind, 'active', :gate_id, :dbd_id, :passage_sensor,
                   :app_pkg, :app_version, :model_id, :seal_pub, '[]',
                   :now_ms, :now_ms, :now_ms, 1)
           ON CONFLICT (tenant_id, device_id) DO UPDATE SET
               kind = excluded.kind, status = 'active', gate_id = excluded.gate_id, dbd_id = excluded.dbd_id,
               passage_sensor = excluded.passage_sensor, app_pkg = excluded.app_pkg,
               app_version = excluded.app_version, model_id = excluded.model_id, seal_pub = excluded.seal_pub,
               attested_ms = NULL, attested_until_ms = 0, attested_ca = NULL,
               health = excluded.health, acked_epoch = 0,
               acked_seq = 0, synced_ms = NULL, last_seen_ms = excluded.last_seen_ms,
               network_ms = excluded.network_ms, mail_ms = 0,
               registered_ms = excluded.registered_ms, registration_no = devices.registration_no + 1,
               revoked_ms = NULL, revoke_reason = NULL, wipe_id = NULL""",
        device_id=body.device_id,
        kind=body.kind,
        gate_id=body.gate_id,
        dbd_id=body.dbd_id,
        passage_sensor=int(body.passage_sensor),
        app_pkg=body.app.pkg,
        app_version=body.app.version,
        model_id=body.model_id,
        seal_pub=seal_pub.raw,
        now_ms=now_ms,
        **environment.params,
    )
    for purpose, key in keys.items():
        tx.run(
            """INSERT INTO device_keys (kid, tenant_id, device_id, purpose, pub, registration_no, created_ms)
               SELECT :kid, tenant_id, device_id, :purpose, :pub, registration_no, :now_ms FROM devices
               WHERE tenant_id = :tenant_id AND device_id = :device_id""",
            kid=key.kid,
            purpose=purpose,
            pub=key.raw,
            now_ms=now_ms,
            tenant_id=environment.tenant_id,
            device_id=body.device_id,
        )
    device = row_by_id(tx, environment, body.device_id)
    mail_inbox.open_box(tx, device)
    reports.forget(tx, device)
    rollouts.forget(tx, device)
    rollouts.admit(tx, environment, body.device_id)
    if body.kind == "access":
        gallery_log.adopt_model(tx, environment, body.model_id)


def _registered(
    tx: Tx, vault: Vault, environment: Environment, row: Row, now_ms: int
) -> shown.RegistrationAnswer:
    state = gallery_log.state_of_stream(tx, environment)
    seal_key = signers.seal_key(tx, vault, now_ms).public
    dbd_key = device_config.dbd_key_at(tx, environment, row["dbd_id"], now_ms)
    return shown.RegistrationAnswer(
        device=device_object(tx, row, now_ms),
        tenant_id=row["tenant_id"],
        roots=[key_object(vault.root.public)],
        keys=signers.published(tx, now_ms),
        mail=shown.MailAnswer(
            service_id=SERVICE_ID,
            seal_key=shown.SealKeyAnswer(kid=seal_key.kid, alg="x25519", pub_b64=seal_key.b64),
            signer_certs=[signers.certificate(tx, vault, "post", now_ms).b64],
            inbox_next_seq=mail_inbox.box_of(tx, row)["first_seq"],
        ),
        gallery=shown.StreamEpoch(stream=state.stream, epoch=state.epoch)
        if row["kind"] == "access"
        else None,
        dbd_sign_key=None if dbd_key is None else key_object(dbd_key),
        terms_version=tenants.load(tx, vault, row["tenant_id"]).terms_version,
        config=device_config.signed_config(tx, vault, environment, now_ms),
    )


def key_object(key: PublicKey) -> shown.PublicKeyAnswer:
    """``{kid, alg, pub_b64}``."""
    return shown.PublicKeyAnswer(kid=key.kid, alg="ed25519", pub_b64=key.b64)
