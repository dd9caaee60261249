"""Online registration of a device: keys are made here and registered with proof, and trust is pinned.

    keys/ made (once) → POST /v1/devices/register → every member of the answer checked
    → journal.db made (once) → trust.json → configuration file → done

Each step is durable before the next begins, and the next run continues from it: the same keys with the same
token get the same answer, so after any interruption the command is run again. Nothing is pinned before the
whole answer is checked. The service's root is trusted at this first contact because of the TLS connection and
the token, and vouches for everything after that.
"""

import asyncio
import hashlib
import re
import secrets
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cloud_client.client import Answer, CloudClient, ServerAddress
from cloud_client.contract import ServiceCode
from cloud_client.errors import CloudAnswerError, CloudError, CloudProblem
from cloud_client.retry import Backoff, Random, is_transient
from device import APP_PACKAGE
from device.config.config import AttestSection, DeviceConfig, load_config, render_config, write_config
from device.errors import AttestationError, NotProvisioned, ProvisioningError, TrustError
from device.journal.journal import Journal
from device.platform.clock import Clock
from device.platform.files import shred
from device.trust.attestation import attestation_body, note_attested, read_chain
from device.trust.credentials import open_stored
from device.trust.keystore import KeyStore
from device.trust.policy import read_policy
from device.trust.service_status import StatusReader
from device.trust.trust import Trust, load_trust, registered_again, save_trust, trust_from_registration
from device.wipe.wipe import FILE_NAME as WIPE_FILE
from device.wipe.wipe import SPARED, holds_device
from link1 import members
from link1.canonical import JsonObject, canonical_bytes, read_with_fractions
from link1.errors import FormatError, Link1Error, SignatureError
from link1.keys import PublicKey
from link1.sealed import SERVICE_ID, SignerCertificate, SignerPurpose
from link1.signed import Kind, sign_object

KIND: Final = "access"

TRY_FOR_S: Final = 30.0
"""A technician waits at the device; after this time the command ends and may be run again."""

_MAX_ANSWER_BYTES: Final = 256 * 1024
_TRIED: Final = ".provision-"
"""Begins the name of a folder that `check_writable` makes and removes."""
_TOKEN = re.compile(r"[\x21-\x7e]{8,512}")

_REFUSALS: Final[dict[str, str]] = {
    "": "what answers there is not the service, or a proxy before it; check its address with the operator",
    ServiceCode.UNAUTHENTICATED: (
        "the token is wrong, has expired, belongs to another device_id, or was used with other keys; "
        "ask the operator of the service for a new one for this device_id"
    ),
    ServiceCode.DEVICE_STATE_CONFLICT: (
        "this device_id is active with other keys: have that device revoked, then run this again; or these "
        "keys are known under another device_id: run `palmctl factory-reset` first"
    ),
    ServiceCode.VALIDATION_FAILED: "the service rejects these values; check the options named",
    ServiceCode.IDEMPOTENCY_KEY_MISMATCH: "the token was used for another registration; ask for a new one",
}


@dataclass(frozen=True, slots=True)
class RegistrationFacts:
    """The facts of a registration, besides the keys and the token."""

    device_id: str
    gate_id: str
    dbd_id: str
    passage_sensor: bool
    app_version: str
    model_id: str


@dataclass(frozen=True, slots=True)
class Provisioned:
    """The pinned trust, and whether this run made the keys."""

    trust: Trust
    keys: KeyStore = field(repr=False)
    keys_made: bool


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The environment of `provision`: time, randomness, waiting, and progress messages for a person."""

    clock: Clock
    random: Random
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    tell: Callable[[str], None] = lambda _text: None


async def provision(
    config: DeviceConfig,
    config_path: Path,
    registration: RegistrationFacts,
    token: str,
    around: Surroundings,
    *,
    root_kid: str | None = None,
) -> Provisioned:
    """Provision a device, from the beginning or from where an earlier run stopped.

    `root_kid`: the service's only root, where the operator named it; None trusts the one that it shows.
    Raises ProvisioningError, ConfigError, KeyStoreError or TrustError when something is wrong here or with
    the answer, CloudUnreachable when the service did not answer for half a minute.
    """
    if config.cloud is None:
        raise ProvisioningError("registration needs [cloud] url")
    if not _TOKEN.fullmatch(token):
        raise ProvisioningError("that is not a provisioning token: expected 8 to 512 printable characters")
    address = ServerAddress.parse(config.cloud.url, config.cloud.ca_file)
    await asyncio.to_thread(check_writable, config, config_path)
    earlier = await asyncio.to_thread(earlier_trust, config, registration)
    if earlier is not None and root_kid is not None:
        check_named_root(earlier, root_kid, "the one pinned here")
    keys, keys_made = await asyncio.to_thread(own_keys, config)
    around.tell("made this device's keys" if keys_made else "found this device's keys")

    body = registration_body(registration, keys, token)
    async with CloudClient(address, keys.http, around.clock.wall_ms) as cloud:
        answer = await _register(cloud, body, token, around)
    around.tell("registered with the service")

    taken_at_ms = around.clock.wall_ms() if answer.server_time_ms is None else answer.server_time_ms
    trust = check_registration(answer.body, registration, keys, taken_at_ms)
    if root_kid is not None:
        try:
            check_named_root(trust, root_kid, "the service's")
        except TrustError:
            if keys_made:
                await asyncio.to_thread(_unmake_keys, config)
            raise
    trust = continued(earlier, trust)
    await asyncio.to_thread(pin, config, config_path, keys, earlier, trust)
    around.tell(f"pinned the service's keys and wrote {config_path}")
    if config.attest is not None:
        try:
            async with CloudClient(address, keys.http, around.clock.wall_ms) as cloud:
                await _attest(cloud, config.attest, keys, trust)
            await asyncio.to_thread(note_attested, config.device.state_dir, keys, around.clock.wall_ms())
            around.tell("the service has verified the factory's certificate of these keys")
        except (AttestationError, CloudError, TrustError, Link1Error, OSError) as error:
            # The device works without it, and palm-syncd attests at its start.
            around.tell(f"the keys are not attested yet: {error}")
    return Provisioned(trust, keys, keys_made)


async def _attest(cloud: CloudClient, section: AttestSection, keys: KeyStore, trust: Trust) -> None:
    """Answer the challenge of a status.

    Raises AttestationError, CloudError, TrustError, Link1Error.
    """
    wrapper = read_with_fractions((await cloud.device_status()).body, max_bytes=_MAX_ANSWER_BYTES)
    statuses = StatusReader(trust.device_id, lambda kid: trust.service_key(kid, "device_status"))
    chain, challenge = read_chain(section.chain_file), statuses.read(wrapper).challenge
    body = attestation_body(chain, section.signer, keys, challenge)
    await cloud.attest(body, f"attest-{secrets.token_hex(16)}")


def check_named_root(trust: Trust, root_kid: str, whose: str) -> None:
    """Only the root that the operator named is pinned. Raises TrustError."""
    found = [root.kid for root in trust.roots]
    if found != [root_kid]:
        raise TrustError(
            f"expected the service root {root_kid}, found {whose}: {', '.join(found)}; nothing was pinned. "
            "This is another service, or the string of another one: compare with `palmctl cloud root show`"
        )


def _unmake_keys(config: DeviceConfig) -> None:
    """Destroy the keys that this run made and showed to a service that is not the one meant."""
    # Cut off in the middle, what is left has the name that `KeyStore.create` clears away.
    partial = config.keys_dir.rename(config.keys_dir.with_name(config.keys_dir.name + ".partial"))
    for path in partial.iterdir():
        shred(path)
    partial.rmdir()


def continued(earlier: Trust | None, trust: Trust) -> Trust:
    """The answer to a registration, after what is pinned here; roots are not replaced so. Raises
    ProvisioningError."""
    if earlier is None:
        return trust
    if earlier.roots != trust.roots:
        raise ProvisioningError(
            "the service shows another root than the one pinned here; if the service really has a new one, "
            "run `palmctl factory-reset`, have the device revoked, and provision again with a new token"
        )
    return registered_again(earlier, trust)


def registration_body(registration: RegistrationFacts, keys: KeyStore, token: str) -> bytes:
    """The body of ``POST /v1/devices/register``: the same bytes for the same keys, token and facts."""
    facts: JsonObject = {
        "device_id": registration.device_id,
        "kind": KIND,
        "gate_id": registration.gate_id,
        "dbd_id": registration.dbd_id,
        "passage_sensor": registration.passage_sensor,
        "app": {"pkg": APP_PACKAGE, "version": registration.app_version},
        "model_id": registration.model_id,
        "keys": [
            {"purpose": "verdict", "alg": "ed25519", "pub_b64": keys.verdict.public.b64},
            {"purpose": "http", "alg": "ed25519", "pub_b64": keys.http.public.b64},
        ],
        "seal_key": {"alg": "x25519", "pub_b64": keys.seal.public.b64},
    }
    token_sha256 = hashlib.sha256(token.encode("ascii")).hexdigest()
    proof = sign_object(Kind.REGISTER, facts | {"token_sha256": token_sha256}, keys.verdict)
    return canonical_bytes(facts | {"proof": proof})


def check_registration(answer: bytes, asked: RegistrationFacts, keys: KeyStore, taken_at_ms: int) -> Trust:
    """Read and check the whole answer to a registration.

    `taken_at_ms`: epoch ms, by the service's clock if the answer has it. Raises TrustError.
    """
    try:
        obj = read_with_fractions(answer, max_bytes=_MAX_ANSWER_BYTES)
        trust = trust_from_registration(
            obj,
            device_id=asked.device_id,
            gate_id=asked.gate_id,
            dbd_id=asked.dbd_id,
            passage_sensor=asked.passage_sensor,
            pinned_at_ms=taken_at_ms,
        )
        _check_device(members.nested(obj, "device"), asked, keys)
        _check_service(trust, taken_at_ms)
    except FormatError as error:
        raise TrustError(f"the registration answer is outside the contract: {error}") from error
    except SignatureError as error:
        raise TrustError(f"the registration answer is inconsistent: {error}") from error
    read_policy(trust.config, roots=trust.roots, taken_at_ms=taken_at_ms)
    return trust


def _check_device(device: JsonObject, asked: RegistrationFacts, keys: KeyStore) -> None:
    expected = {"kind": KIND, "status": "active", "gate_id": asked.gate_id, "dbd_id": asked.dbd_id}
    for name, value in expected.items():
        if device.get(name) != value:
            raise TrustError(
                f"the service registered other facts than requested: device.{name} differs; to move a device "
                "run `palmctl factory-reset`, have it revoked, then provision it with a new token"
            )
    listed = [item for item in members.array(device, "keys", 0, 64) if isinstance(item, dict)]
    registered = [(item.get("purpose"), item.get("kid")) for item in listed]
    if not all(own in registered for own in (("verdict", keys.verdict.kid), ("http", keys.http.kid))):
        raise TrustError("the service did not register this device's own keys")


def _check_service(trust: Trust, taken_at_ms: int) -> None:
    if trust.service_id != SERVICE_ID:
        raise TrustError(f"mail.service_id is not {SERVICE_ID}")
    if trust.gallery is None:
        raise TrustError("the service gave this access device no gallery stream")
    for use in ("gallery", "device_status"):
        if not any(use in key.use for key in trust.keys):
            raise TrustError(f"the service named no key for {use}")
    roots: list[PublicKey] = list(trust.roots)
    for certificate in trust.signer_certs:
        SignerCertificate.from_b64(certificate).check(SignerPurpose.POST, roots, taken_at_ms)


async def _register(cloud: CloudClient, body: bytes, token: str, around: Surroundings) -> Answer:
    """Repeat the same body with the same key until it is answered, for `TRY_FOR_S` seconds."""
    # A key of its own for each call: the service repeats a refusal to the same key when its reason is gone.
    idempotency_key = f"register-{secrets.token_hex(16)}"
    backoff = Backoff(around.random)
    started_ms = around.clock.monotonic_ms()
    while True:
        try:
            return await cloud.register(body, token, idempotency_key)
        except CloudProblem as error:
            if not is_transient(error):
                what_to_do = _REFUSALS.get(error.code)
                raise ProvisioningError(f"{error}: {what_to_do}" if what_to_do else str(error)) from error
            failure: CloudError = error
        except CloudAnswerError as error:
            raise ProvisioningError(str(error)) from error
        except CloudError as error:
            failure = error
        delay_s = backoff.failed(failure.retry_after_s)
        if (around.clock.monotonic_ms() - started_ms) / 1000 + delay_s > TRY_FOR_S:
            raise failure
        around.tell(f"{failure}; trying again in {delay_s:.0f} s")
        await around.sleep(delay_s)


def check_unused(state_dir: Path) -> None:
    """A wipe and a factory reset empty the whole folder, so nothing of others may be in it."""
    try:
        names = {path.name for path in state_dir.iterdir() if not path.name.startswith(_TRIED)} - SPARED
        if not names or holds_device(state_dir):
            return
    except OSError:
        return  # absent, or `check_writable` says why it cannot be used
    raise ProvisioningError(
        f"{state_dir} holds files that are not a device's ({min(names)!r}), and a wipe would destroy them; "
        "move them away, or name a folder that is empty or absent with --state-dir"
    )


def check_writable(config: DeviceConfig, config_path: Path) -> None:
    """Check before registering that the result can be written, and is read back unchanged."""
    for folder in (config.device.state_dir, config_path.parent):
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=_TRIED) as aside:
                tried = Path(aside) / config_path.name
                tried.write_bytes(render_config(config).encode("utf-8"))
                load_config(tried)
        except OSError as error:
            raise ProvisioningError(f"{folder} cannot be written ({error.strerror})") from error


def earlier_trust(config: DeviceConfig, registration: RegistrationFacts) -> Trust | None:
    """The trust pinned by an earlier run. A damaged file counts as none: this run replaces it."""
    try:
        earlier = load_trust(config.trust_path)
    except (NotProvisioned, TrustError):
        return None
    if earlier.device_id != registration.device_id:
        raise ProvisioningError(
            f"{config.device.state_dir} already holds another device; "
            "`palmctl factory-reset` empties it, --state-dir names another"
        )
    return earlier


def own_keys(config: DeviceConfig) -> tuple[KeyStore, bool]:
    """The device's keys, and whether they were made by this call."""
    if (config.device.state_dir / WIPE_FILE).exists():
        raise ProvisioningError(
            f"the device in {config.device.state_dir} was wiped; run `palmctl factory-reset` first, "
            "which removes the remaining files"
        )
    keys_made = not KeyStore.exists(config.keys_dir)
    left = next((path for path in (config.trust_path, config.journal_path) if path.exists()), None)
    if keys_made and left is not None:  # it would not open with other keys
        raise ProvisioningError(
            f"{left} is of a device whose keys are gone; restore them, or run `palmctl factory-reset`, have "
            "the device revoked, then provision it with a new token"
        )
    return KeyStore.create(config.keys_dir) if keys_made else open_stored(config.keys_dir), keys_made


def pin(config: DeviceConfig, config_path: Path, keys: KeyStore, earlier: Trust | None, trust: Trust) -> None:
    """Write the journal of new keys, the trust, and the configuration, which completes it.

    The journal names the device, so it is made once the service has registered the keys under that name: a
    registration that was refused may be repeated under another. A missing journal of keys that were pinned
    is a loss, and is not replaced. Raises JournalError, TrustError, ConfigError.
    """
    if earlier is None and not config.journal_path.exists():
        Journal.create(
            config.journal_path,
            device_id=trust.device_id,
            verdict_kid=keys.verdict.kid,
            data_key=keys.data_key,
        )
    save_trust(config.trust_path, trust)
    write_config(config_path, config)
