"""Registration of a device that has no network: two files on a stick, in three steps.

    1  here         keys made (once) → request file: the body of POST /v1/devices/register
    2  the service  its operator compares the verdict key's id with the one shown here, and accepts the
    request
                    (`palmctl cloud bundle create`) → answer file, signed by a bundle signer
    3  here         root named by the technician → certificate → signature → answers this same request
                    → all checks of an online answer → pinned

1. No file holds a secret. The random token made here identifies this request; it counts only after the
   operator has accepted the request, and only for these keys.
2. There is no TLS connection that authenticates the service. So the technician names the root (its key id is
   printed by `palmctl cloud root show`), and only what this root vouches for is believed.
3. The request is kept in the state directory until it is answered: every step can be repeated, and an answer
   to another request, or to keys from before a reset, is rejected.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from device.config.config import DeviceConfig, write_config
from device.errors import ProvisioningError, TrustError
from device.platform.files import replace_synced
from device.provisioning.online import (
    Provisioned,
    RegistrationFacts,
    check_registration,
    check_writable,
    continued,
    earlier_trust,
    own_keys,
    pin,
    registration_body,
)
from device.trust.credentials import open_stored
from device.trust.keystore import KeyStore
from device.trust.policy import certified
from link1 import members
from link1.canonical import JsonObject, canonical_bytes, read_strict
from link1.errors import FormatError, SignatureError
from link1.keys import PublicKey
from link1.members import HEX32, NAME
from link1.plain_file import read_plain_file
from link1.signed import Kind

REQUEST_TYPE: Final = "palm-access.registration.request"
ANSWER_TYPE: Final = "palm-access.registration.answer"
PENDING_NAME: Final = "registration-request.json"
MAX_FILE_BYTES: Final = 512 * 1024

_TOKEN_BYTES = 32
_TYPE = re.compile(r"[a-z.-]{1,64}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{8,512}")


@dataclass(frozen=True, slots=True)
class Requested:
    """The result of step 1: `content` goes onto the stick."""

    content: bytes
    keys: KeyStore = field(repr=False)
    keys_made: bool


def request_registration(
    config: DeviceConfig, config_path: Path, registration: RegistrationFacts
) -> Requested:
    """Step 1; the same facts give the same request again. Raises ProvisioningError, StateError."""
    check_writable(config, config_path)
    earlier_trust(config, registration)  # another device's is left alone
    keys, keys_made = own_keys(config)
    pending = _read_pending(config)
    token = pending[1] if pending is not None else secrets.token_urlsafe(_TOKEN_BYTES)
    body = read_strict(registration_body(registration, keys, token), max_bytes=MAX_FILE_BYTES)
    content = canonical_bytes({"v": 1, "type": REQUEST_TYPE, "token": token, "body": body})
    replace_synced(_pending_path(config), content, mode=0o600)
    write_config(config_path, config)  # so that step 3 needs only the answer; without trust no palmd starts
    return Requested(content, keys, keys_made)


def pending_registration(config: DeviceConfig) -> RegistrationFacts | None:
    """The facts of step 1, while its answer is awaited. Raises ProvisioningError."""
    pending = _read_pending(config)
    return None if pending is None else pending[0]


def file_type(content: bytes) -> str:
    """The type of a registration file. Raises ProvisioningError."""
    try:
        obj = read_strict(content, max_bytes=MAX_FILE_BYTES)
        members.version_1(obj)
        return members.text(obj, "type", _TYPE)
    except FormatError as error:
        raise ProvisioningError(
            f"this is not a registration file ({error}); name the file made by this command or by "
            "`palmctl cloud bundle create`"
        ) from error


def read_root_kid(text: str) -> str:
    """A key id as a person types it: case, spaces and dashes do not matter. Raises ProvisioningError."""
    kid = re.sub(r"[\s:-]", "", text).lower()
    if not HEX32.fullmatch(kid):
        raise ProvisioningError(
            "a root's key id has 32 hexadecimal digits; `palmctl cloud root show` prints it at the service"
        )
    return kid


def awaited_registration(config: DeviceConfig) -> RegistrationFacts:
    """The registration that waits for an answer; raises ProvisioningError where none does."""
    registration = pending_registration(config)
    if registration is None:
        raise ProvisioningError(
            "no registration was asked for here, or it was finished; begin with: palmctl provision "
            "--offline-bundle FILE --device-id …, and a FILE that does not exist yet"
        )
    return registration


def take_answer(config: DeviceConfig, config_path: Path, content: bytes, root_kid: str) -> Provisioned:
    """Step 3: check that the root `root_kid` vouches for the answer, and pin it.

    Raises ProvisioningError, TrustError, KeyStoreError or ConfigError; then nothing was pinned.
    """
    registration = awaited_registration(config)
    device_id, gate_id, dbd_id = registration.device_id, registration.gate_id, registration.dbd_id
    if (device_id, gate_id, dbd_id) != (config.device.id, config.device.gate_id, config.device.dbd_id):
        raise ProvisioningError(
            f"the request was for device {device_id} at gate {gate_id} with validator {dbd_id}; take its "
            "answer without other ids, or begin again with them and a FILE that does not exist yet"
        )
    check_writable(config, config_path)
    keys, earlier = open_stored(config.keys_dir), earlier_trust(config, registration)
    try:
        answered_at_ms, answer = _verified(content, root_kid, _pending_path(config).read_bytes())
    except FormatError as error:
        raise ProvisioningError(f"the answer is malformed ({error}); have it made again") from error
    except SignatureError as error:
        raise TrustError(
            f"root {root_kid} does not vouch for the answer: {error}; compare the root with the operator, "
            "and have the answer made again"
        ) from error
    trust = check_registration(canonical_bytes(answer), registration, keys, answered_at_ms)
    trust = continued(earlier, trust)
    pin(config, config_path, keys, earlier, trust)
    _pending_path(config).unlink()
    return Provisioned(trust, keys, keys_made=False)


def _verified(content: bytes, root_kid: str, request: bytes) -> tuple[int, JsonObject]:
    """The time and content of the answer, after checking root, certificate, signature and request."""
    obj = read_strict(content, max_bytes=MAX_FILE_BYTES)
    signed = members.nested(obj, "signed")
    claimed = members.nested(signed, Kind.REGISTERED.member)
    answered_at_ms, answer = members.integer(claimed, "answered_at_ms"), members.nested(claimed, "answer")
    root = _named_root(answer, root_kid)
    believed = certified(Kind.REGISTERED, signed, roots=[root], now_ms=answered_at_ms)
    if members.member(believed, "request_sha256") != hashlib.sha256(request).hexdigest():
        raise ProvisioningError(
            "the answer is to another request than the newest one of this board; write that again with "
            "`palmctl provision --offline-bundle FILE`, a FILE that does not exist yet, and have it answered"
        )
    return answered_at_ms, answer


def _named_root(answer: JsonObject, root_kid: str) -> PublicKey:
    for item in members.array(answer, "roots", 1, 64):
        if isinstance(item, dict):
            key = PublicKey.from_b64(members.member(item, "pub_b64"))
            if key.kid == root_kid:
                return key
    raise SignatureError("it comes from a service with another root")


def _pending_path(config: DeviceConfig) -> Path:
    return config.device.state_dir / PENDING_NAME


def _read_pending(config: DeviceConfig) -> tuple[RegistrationFacts, str] | None:
    """Facts and token of the request whose answer is awaited."""
    path = _pending_path(config)
    try:
        obj = read_strict(read_plain_file(path, MAX_FILE_BYTES), max_bytes=MAX_FILE_BYTES)
        body = members.nested(obj, "body")
        facts = RegistrationFacts(
            device_id=members.text(body, "device_id", NAME),
            gate_id=members.text(body, "gate_id", NAME),
            dbd_id=members.text(body, "dbd_id", NAME),
            passage_sensor=members.boolean(body, "passage_sensor"),
            app_version=str(members.member(members.nested(body, "app"), "version")),
            model_id=members.text(body, "model_id", NAME),
        )
        return facts, members.text(obj, "token", _TOKEN)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProvisioningError(f"{path} cannot be read ({error.strerror}); run this as root") from error
    except FormatError as error:
        raise ProvisioningError(
            f"{path} is damaged ({error}); remove it and begin again: the keys are kept"
        ) from error
