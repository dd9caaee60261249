"""What an operator sends to devices: configuration, trust bundles, updates.

The service fills inboxes by itself with everything else (receipts, revocations, the gallery).
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from cloud_client.reference_server.contract.bodies import Body, read_model
from cloud_client.reference_server.contract.mail import (
    ConfigObject,
    TrustBundleObject,
    UpdateChunkBody,
    UpdateManifestObject,
)
from cloud_client.reference_server.contract.problems import Problem
from cloud_client.reference_server.contract.words import DeviceStatusWord
from cloud_client.reference_server.domain.devices import config as device_config
from cloud_client.reference_server.domain.devices.records import row_by_id
from cloud_client.reference_server.domain.devices.registration import key_object
from cloud_client.reference_server.domain.devices.rollouts import MAIL_STEP
from cloud_client.reference_server.domain.mail import outbox as mail_outbox
from cloud_client.reference_server.domain.mailbox import inbox as mail_inbox
from cloud_client.reference_server.domain.mailbox.kinds import InboxMail, MailKind
from cloud_client.reference_server.domain.tenancy import signers
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.errors import OperatorError
from cloud_client.reference_server.ops.commands import check_environment
from cloud_client.reference_server.ops.retention import PAUSE_S
from cloud_client.reference_server.store.base import CloudStore, Row, Tx
from cloud_client.reference_server.store.vault import Vault
from link1.canonical import JsonObject, read_strict
from link1.errors import FormatError
from link1.sealed import INBOX_CT_MAX_BYTES
from link1.signed import Kind

_SENDABLE: Final[Mapping[MailKind, tuple[type[Body], Kind | None]]] = {
    MailKind.CONFIG: (ConfigObject, Kind.CONFIG),
    MailKind.TRUST_BUNDLE: (TrustBundleObject, Kind.TRUST_BUNDLE),
    MailKind.UPDATE_MANIFEST: (UpdateManifestObject, Kind.UPDATE_MANIFEST),
    MailKind.UPDATE_CHUNK: (UpdateChunkBody, None),
}
"""The type of record, the shape of what the file holds, and what it is signed as."""

STEP_DEVICES: Final = 50
"""Sealed to in one transaction, in a tenth of a second; others write in between."""
SENDABLE: Final = tuple(kind.value for kind in _SENDABLE)


def send(
    tx: Tx,
    vault: Vault,
    environment: Environment,
    device_id: str,
    mail: tuple[str, bytes],
    *,
    now_ms: int,
) -> dict[str, Any]:
    """``mail send``: (type, contents of the file) into the inbox of one device."""
    word, content = mail
    kind, obj = _read(word, content)
    device = mailable_device(tx, environment, device_id)
    if kind is MailKind.CONFIG and not device_config.claim_config_seq(tx, environment, obj["config_seq"]):
        raise OperatorError(
            "this config_seq was given out before: take a higher one (`palmctl cloud config show` prints "
            "the last), or let `palmctl cloud config set` count"
        )
    if kind is MailKind.TRUST_BUNDLE:
        _check_revoked(tx, obj["revoked_kids"], now_ms)
    sign_as = _SENDABLE[kind][1]
    body = obj if sign_as is None else device_config.sign_bundle(tx, vault, sign_as, obj, now_ms)
    try:
        posted = mail_inbox.post(tx, vault, device, InboxMail(kind, body), now_ms=now_ms)
    except FormatError as error:
        raise OperatorError(f"the record cannot be sealed: {error}") from None
    return {"device_id": device_id, "seq": posted.seq, "rid": posted.rid}


def _check_revoked(tx: Tx, revoked_kids: Collection[str], now_ms: int) -> None:
    for use in signers.USES:
        kid = signers.kid_in_force(tx, use, now_ms)
        if kid in revoked_kids:
            raise OperatorError(
                f"{kid} is this service's {use} key, and a device takes nothing more from a revoked key: "
                f"`palmctl cloud signer rotate --use {use}` first"
            )


def send_all(
    store: CloudStore,
    vault: Vault,
    environment: Environment,
    device_id: str,
    letters: Iterator[tuple[str, bytes]],
    *,
    now_ms: int,
    on_step: Callable[[int], None],
) -> dict[str, Any]:
    """``send`` of one after another, a few in a transaction; ``on_step`` takes how many were sent so far."""
    seqs: list[int] = []
    while some := list(islice(letters, MAIL_STEP)):

        def step(tx: Tx, some: list[tuple[str, bytes]] = some) -> list[int]:
            return [send(tx, vault, environment, device_id, mail, now_ms=now_ms)["seq"] for mail in some]

        seqs += store.write(step, lock=environment.tenant_id)
        on_step(len(seqs))
        time.sleep(PAUSE_S)
    return {"device_id": device_id, "first_seq": seqs[0], "last_seq": seqs[-1]}


def resume(tx: Tx, vault: Vault, environment: Environment, device_id: str, *, now_ms: int) -> dict[str, Any]:
    """``mail resume``: after a restore, what a device mailed before is lost here and deleted there. Its mail
    goes on with the first record that has come since."""
    device = mailable_device(tx, environment, device_id)
    missing = mail_outbox.skip_missing(tx, vault, environment, device, now_ms)
    if missing is None:
        raise OperatorError("no record of this device waits for one before it: let its mail come in first")
    acked_upto_seq = mail_inbox.box_of(tx, device)["outbox_seq"]
    return {"device_id": device_id, "missing": missing, "acked_upto_seq": acked_upto_seq}


def sign_manifest(tx: Tx, vault: Vault, obj: JsonObject, now_ms: int) -> JsonObject:
    """A manifest_obj signed as `send` signs it, for a release that travels on a stick."""
    _checked(UpdateManifestObject, obj, "the manifest")
    return device_config.sign_bundle(tx, vault, Kind.UPDATE_MANIFEST, obj, now_ms)


def trust_bundle(tx: Tx, vault: Vault, environment: Environment, now_ms: int) -> dict[str, Any]:
    """``mail bundle``: a bundle_obj of every key that counts now, for devices that cannot ask for them."""
    check_environment(tx, environment)
    return {
        "v": 1,
        "bundle_seq": now_ms,
        "issued_at_ms": now_ms,
        "roots": [key_object(vault.root.public).plain()],
        "keys": [key.plain() for key in signers.published(tx, now_ms)],
        "seal_keys": [
            {"kid": key.kid, "alg": "x25519", "pub_b64": key.public.b64}
            for key in signers.seal_keys(tx, vault)
        ],
        "revoked_kids": [],
        "dbd_keys": device_config.dbd_keys(tx, environment),
    }


def show_config(tx: Tx, environment: Environment) -> dict[str, Any]:
    """``config show``: the configuration that devices are to follow."""
    check_environment(tx, environment)
    return device_config.current_config(tx, environment)


def set_config(
    store: CloudStore, vault: Vault, environment: Environment, changes: Mapping[str, Any], now_ms: int
) -> dict[str, Any]:
    """``config set``: a new configuration, signed and mailed to every active device of the environment.

    Cut off before its end, it is in force for all of them, and those that live on mail alone may lack it:
    given once more it goes to all again.
    """
    config = store.write(lambda tx: _changed(tx, environment, changes, now_ms))
    last: str | None = ""

    def step(tx: Tx) -> str | None:
        return _send_config(tx, vault, environment, last or "", now_ms)

    while (last := store.write(step)) is not None:
        time.sleep(PAUSE_S)
    return config


def _changed(tx: Tx, environment: Environment, changes: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    if not changes:
        raise OperatorError("nothing to change: give at least one of the options")
    check_environment(tx, environment)
    if _misnamed(device_config.current_config(tx, environment)["thresholds"], changes):
        raise OperatorError(
            "other thresholds need another --thr-id: every verdict names by it what it was judged by"
        )
    config = device_config.change_config(tx, environment, changes, now_ms)
    _checked(ConfigObject, config, "the configuration")
    return config


def _misnamed(in_force: Mapping[str, Any], changes: Mapping[str, Any]) -> bool:
    """Whether thresholds would change under a name that others have."""
    if "thr_id" not in changes:
        return bool(changes.keys() & in_force.keys())
    asked = {name: changes.get(name, value) for name, value in in_force.items()}
    known = (in_force, device_config.DEFAULT_THRESHOLDS)
    return any(each["thr_id"] == asked["thr_id"] and each != asked for each in known)


def _send_config(tx: Tx, vault: Vault, environment: Environment, after: str, now_ms: int) -> str | None:
    """The configuration to some more devices; the last one of them, None when there were no more."""
    mail = InboxMail(MailKind.CONFIG, device_config.signed_config(tx, vault, environment, now_ms))
    devices = tx.all(
        """SELECT * FROM devices
           WHERE tenant_id = :tenant_id AND livemode = :livemode AND status = 'active' AND device_id > :after
           ORDER BY device_id LIMIT :most""",
        after=after,
        most=STEP_DEVICES,
        **environment.params,
    )
    for device in devices:
        mail_inbox.post(tx, vault, device, mail, now_ms=now_ms)
    return devices[-1]["device_id"] if devices else None


def _read(word: str, content: bytes) -> tuple[MailKind, JsonObject]:
    if word not in SENDABLE:
        raise OperatorError(f"--type is one of {', '.join(SENDABLE)}: the service sends the others by itself")
    kind = MailKind(word)
    try:
        obj = read_strict(content, max_bytes=2 * INBOX_CT_MAX_BYTES)
    except FormatError as error:
        raise OperatorError(f"--body is no JSON object that can be signed: {error}") from None
    _checked(_SENDABLE[kind][0], obj, "--body")
    return kind, obj


def _checked(model: type[Body], obj: JsonObject, what: str) -> None:
    try:
        read_model(model, obj)
    except Problem as problem:
        places = ", ".join(f"{error.pointer or '/'} ({error.code})" for error in problem.errors)
        raise OperatorError(f"{what} is outside the contract: {places}") from None


def mailable_device(tx: Tx, environment: Environment, device_id: str) -> Row:
    """A device that can open mail. OperatorError when there is none of that name."""
    try:
        device = row_by_id(tx, environment, device_id)
    except Problem:
        raise OperatorError("no such device in this environment: look at --tenant and --mode") from None
    if device["status"] == DeviceStatusWord.WIPED:
        raise OperatorError("the device is wiped and can open nothing: register it with new keys first")
    return device
