"""``bundle create``: a registration from a stick, answered with a signed file.

The operator replaces TLS and the token of an online registration: the verdict key's id is compared with the
id that the device shows. The rest is the registration of the route, with the token that names the request.
"""

import hashlib
import re
from typing import Any, Final

from cloud_client.reference_server.contract.bodies import RegisterDevice, read_model
from cloud_client.reference_server.contract.problems import Problem, ProblemCode
from cloud_client.reference_server.domain.devices import config as device_config
from cloud_client.reference_server.domain.devices import registration
from cloud_client.reference_server.domain.tenancy.callers import Environment, ProvisioningCaller
from cloud_client.reference_server.errors import OperatorError
from cloud_client.reference_server.ops.commands import check_environment
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.store.vault import Vault, token_hash
from link1 import members
from link1.canonical import JsonObject, canonical_bytes, read_strict
from link1.errors import FormatError
from link1.keys import PublicKey
from link1.signed import Kind

REQUEST_TYPE: Final = "palm-access.registration.request"
ANSWER_TYPE: Final = "palm-access.registration.answer"
MAX_REQUEST_BYTES: Final = 64 * 1024
COUNTS_FOR_MS: Final = 3600 * 1000
"""How long the same request may be answered again without being registered again."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,128}")


def verdict_kid_of(content: bytes) -> tuple[str, str]:
    """``(device_id, kid of the verdict key)`` of a request file, for the operator to compare."""
    body = _read(content)[1]
    for item in body.keys:
        if item.purpose == "verdict":
            return body.device_id, _key(item.pub_b64).kid
    raise OperatorError("the request names no verdict key: have the device make it again")


def answer_request(
    tx: Tx, vault: Vault, environment: Environment, content: bytes, *, verdict_kid: str, now_ms: int
) -> tuple[dict[str, Any], bytes]:
    """What the command prints, and the content of the answer file. Raises OperatorError."""
    check_environment(tx, environment)
    token, body = _read(content)
    found = verdict_kid_of(content)[1]
    if found != verdict_kid:
        raise OperatorError(
            f"the request is for verdict key {found}, not for the one given: it comes from another device"
        )
    holder = ProvisioningCaller(token, environment, body.device_id)
    _take_in(tx, holder, now_ms)
    try:
        again, registered = registration.register(tx, vault, holder, body, now_ms)
    except Problem as problem:
        if problem.errors:
            raise _outside_contract(problem) from None
        if problem.code is ProblemCode.UNAUTHENTICATED:
            raise OperatorError(
                "the request is not what its device signed: it was changed or damaged; have it made again"
            ) from None
        raise OperatorError(
            f"the registration is refused ({problem.code}): the device_id is active with other keys, or its "
            "keys are known elsewhere; revoke the old device first, or have the device reset"
        ) from None
    said: JsonObject = {
        "v": 1,
        "request_sha256": hashlib.sha256(content).hexdigest(),
        "answered_at_ms": now_ms,
        "answer": registered.plain(),
    }
    signed = device_config.sign_bundle(tx, vault, Kind.REGISTERED, said, now_ms)
    printed = {
        "device_id": body.device_id,
        "verdict_kid": found,
        "root_kid": vault.root.kid,
        "registered_again": again,
    }
    return printed, canonical_bytes({"v": 1, "type": ANSWER_TYPE, "signed": signed})


def _take_in(tx: Tx, holder: ProvisioningCaller, now_ms: int) -> None:
    """The request's own token counts from here on, in this environment and for this device_id."""
    tx.run(
        """INSERT INTO provisioning_tokens (token_hash, tenant_id, livemode, device_id, expires_ms)
           VALUES (:token_hash, :tenant_id, :livemode, :device_id, :expires_ms)
           ON CONFLICT (token_hash) DO NOTHING""",
        token_hash=token_hash(holder.token),
        device_id=holder.device_id,
        expires_ms=now_ms + COUNTS_FOR_MS,
        **holder.environment.params,
    )
    mine = tx.exists(
        """SELECT 1 FROM provisioning_tokens WHERE token_hash = :token_hash AND tenant_id = :tenant_id
           AND livemode = :livemode AND device_id = :device_id""",
        token_hash=token_hash(holder.token),
        device_id=holder.device_id,
        **holder.environment.params,
    )
    if not mine:
        raise OperatorError("this request was taken in for another tenant, environment or device_id before")


def _read(content: bytes) -> tuple[str, RegisterDevice]:
    try:
        obj = read_strict(content, max_bytes=MAX_REQUEST_BYTES)
        members.version_1(obj)
        if members.member(obj, "type") != REQUEST_TYPE:
            raise FormatError(f"member type is not {REQUEST_TYPE}")
        return members.text(obj, "token", _TOKEN), read_model(RegisterDevice, members.nested(obj, "body"))
    except FormatError as error:
        raise OperatorError(
            f"this is no registration request ({error}): `palmctl provision --offline-bundle FILE` makes one"
        ) from None
    except Problem as problem:
        raise _outside_contract(problem) from None


def _outside_contract(problem: Problem) -> OperatorError:
    places = ", ".join(f"{error.pointer or '/'} ({error.code})" for error in problem.errors)
    return OperatorError(f"the request is outside the contract: {places}; have it made again")


def _key(pub_b64: str) -> PublicKey:
    try:
        return PublicKey.from_b64(pub_b64)
    except FormatError as error:
        raise OperatorError(f"the request's verdict key is none: {error}; have it made again") from None
