"""Who is calling. Every failure is the same 401, and takes the same work as far as that can be had."""

import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cloud_client.contract import PROVISIONING_SCHEME
from cloud_client.reference_server.contract.problems import unauthenticated
from cloud_client.reference_server.contract.request_signature import VerifiedRequest, verify_request
from cloud_client.reference_server.contract.words import NONCE_MEMORY_S, DeviceStatusWord
from cloud_client.reference_server.domain.tenancy.callers import (
    DeviceCaller,
    Environment,
    PartnerCaller,
    ProvisioningCaller,
)
from cloud_client.reference_server.errors import HttpSignatureError
from cloud_client.reference_server.store.base import Row, Tx
from cloud_client.reference_server.store.vault import token_hash
from link1.keys import PublicKey

API_KEY = re.compile(r"svc_(live|test)_([0-9a-z]{8,32})_([A-Za-z0-9]{32,64})")
PROVISIONING_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,128}")
REVOKED_KEYS_ANSWER_MS = 90 * 24 * 3600 * 1000
"""How long a revoked device that never acknowledged its wipe can still fetch it."""

_NO_SECRET = bytes(32)
_SIGNATURE_HEADERS = ("signature-input", "signature", "content-digest")


@dataclass(frozen=True, slots=True)
class SignedParts:
    """What of a request's head its signature may cover."""

    method: str
    authority: str
    path: str
    query: str
    headers: Mapping[str, Sequence[str]]


def credential(values: Sequence[str], scheme: str) -> str:
    """What follows ``scheme`` and exactly one space in the only Authorization header."""
    if len(values) != 1:
        raise unauthenticated("no Authorization header, or several")
    found, _, rest = values[0].partition(" ")
    if found.lower() != scheme.lower():
        raise unauthenticated(f"Authorization is not of the scheme {scheme}")
    return rest


def authenticate_key(tx: Tx, authorization: Sequence[str]) -> PartnerCaller:
    """The API key of ``Authorization: Bearer …``."""
    found = API_KEY.fullmatch(credential(authorization, "Bearer"))
    if found is None:
        raise unauthenticated("what follows Bearer is no API key")
    mode, key_id, secret = found.groups()
    caller = key_in_force(tx, key_id, token_hash(secret))
    if caller is None or caller.environment.livemode != (mode == "live"):
        raise unauthenticated("the API key is unknown, revoked, or of the other environment")
    return caller


def key_in_force(tx: Tx, key_id: str, secret_sha256: bytes) -> PartnerCaller | None:
    """The API key with this id and secret; None when it is unknown or revoked."""
    row = tx.one(
        "SELECT tenant_id, livemode, scopes, secret_sha256, revoked_ms FROM api_keys WHERE key_id = :key_id",
        key_id=key_id,
    )
    matches = hmac.compare_digest(row["secret_sha256"] if row else _NO_SECRET, secret_sha256)
    if row is None or not matches or row["revoked_ms"] is not None:
        return None
    environment = Environment(row["tenant_id"], bool(row["livemode"]))
    return PartnerCaller(key_id, environment, frozenset(row["scopes"].split()))


def verify_device(
    tx: Tx, parts: SignedParts, now_ms: int, *, for_revoked: bool
) -> tuple[DeviceCaller, VerifiedRequest]:
    """The device that signed the head of a request; its body is not read yet, and nothing is changed.

    It takes reads only, so that who has no key never gets to the writer. ``for_revoked`` lets the key of a
    revoked device through too (until it has acknowledged its wipe).
    """

    def key_of(kid: str) -> PublicKey | None:
        row = _device_of(tx, kid)
        return None if row is None else PublicKey(row["pub"])  # checked when it was registered

    verified = _verify(parts, key_of, now_ms)
    if tx.exists(
        "SELECT 1 FROM nonces WHERE kid = :kid AND nonce = :nonce", kid=verified.kid, nonce=verified.nonce
    ):
        raise unauthenticated("the nonce was used before")
    return _admitted(tx, verified.kid, now_ms, for_revoked=for_revoked), verified


def admit_device(tx: Tx, verified: VerifiedRequest, now_ms: int, *, for_revoked: bool) -> None:
    """A device whose request is whole: its nonce is spent and it counts as seen now."""
    device = _admitted(tx, verified.kid, now_ms, for_revoked=for_revoked)
    spend_nonce(tx, verified, now_ms)
    tx.run(
        """UPDATE devices SET last_seen_ms = :now_ms, network_ms = :now_ms
           WHERE tenant_id = :tenant_id AND device_id = :device_id""",
        now_ms=now_ms,
        tenant_id=device.environment.tenant_id,
        device_id=device.device_id,
    )


def _admitted(tx: Tx, kid: str, now_ms: int, *, for_revoked: bool) -> DeviceCaller:
    row = _device_of(tx, kid)
    if row is None:
        raise unauthenticated("keyid names no known key")
    revoked = row["status"] == DeviceStatusWord.REVOKED and for_revoked
    recent = row["revoked_ms"] is None or now_ms - row["revoked_ms"] < REVOKED_KEYS_ANSWER_MS
    if row["status"] != DeviceStatusWord.ACTIVE and not (revoked and recent):
        raise unauthenticated("the device is revoked or wiped")
    environment = Environment(row["tenant_id"], bool(row["livemode"]))
    return DeviceCaller(row["device_id"], environment, row["kind"])


def _device_of(tx: Tx, kid: str) -> Row | None:
    return tx.one(
        """SELECT k.pub, d.tenant_id, d.livemode, d.device_id, d.kind, d.status, d.revoked_ms
           FROM device_keys k JOIN devices d ON d.tenant_id = k.tenant_id AND d.device_id = k.device_id
           WHERE k.kid = :kid AND k.purpose = 'http' AND k.registration_no = d.registration_no""",
        kid=kid,
    )


def authenticate_token(tx: Tx, authorization: Sequence[str], now_ms: int) -> ProvisioningCaller:
    """The provisioning token of ``Authorization: Provisioning …``, known and not expired."""
    token = credential(authorization, PROVISIONING_SCHEME)
    if not PROVISIONING_TOKEN.fullmatch(token):
        raise unauthenticated("what follows Provisioning is no token")
    row = tx.one(
        """SELECT tenant_id, livemode, device_id, expires_ms FROM provisioning_tokens
           WHERE token_hash = :token_hash""",
        token_hash=token_hash(token),
    )
    if row is None or row["expires_ms"] <= now_ms:
        raise unauthenticated("the provisioning token is unknown or has expired")
    return ProvisioningCaller(token, Environment(row["tenant_id"], bool(row["livemode"])), row["device_id"])


def verify_registration(parts: SignedParts, key: PublicKey, body: bytes, now_ms: int) -> VerifiedRequest:
    """A registration is signed with the http key that its own body brings."""
    verified = _verify(parts, lambda kid: key if kid == key.kid else None, now_ms)
    check_body(verified, body)
    return verified


def check_body(verified: VerifiedRequest, body: bytes) -> None:
    """The body is the one whose digest was signed."""
    try:
        verified.check_body(body)
    except HttpSignatureError as error:
        raise unauthenticated(str(error)) from None


def _verify(parts: SignedParts, key_of: Callable[[str], PublicKey | None], now_ms: int) -> VerifiedRequest:
    headers = {}
    for name in _SIGNATURE_HEADERS:
        values = parts.headers.get(name, ())
        if len(values) > 1:
            raise unauthenticated(f"several {name} headers")
        if values:
            headers[name] = values[0]
    try:
        return verify_request(
            parts.method,
            parts.authority,
            parts.path,
            parts.query,
            headers=headers,
            key_of=key_of,
            now_s=now_ms // 1000,
        )
    except HttpSignatureError as error:
        raise unauthenticated(str(error)) from None


def spend_nonce(tx: Tx, verified: VerifiedRequest, now_ms: int) -> None:
    """Remember a nonce; the second time it is a replay."""
    fresh = tx.run(
        """INSERT INTO nonces (kid, nonce, expires_ms) VALUES (:kid, :nonce, :expires_ms)
           ON CONFLICT DO NOTHING""",
        kid=verified.kid,
        nonce=verified.nonce,
        expires_ms=now_ms + NONCE_MEMORY_S * 1000 + 1000,  # ``created`` counts whole seconds
    )
    if not fresh:
        raise unauthenticated("the nonce was used before")
