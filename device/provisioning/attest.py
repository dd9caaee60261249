"""The first attestation of a device, by `palmctl provision`."""

import secrets
from pathlib import Path

from cloud_client.client import CloudClient
from device.config.config import AttestSection
from device.platform.clock import Clock
from device.trust.attestation import attestation_body, note_attested, read_chain
from device.trust.keystore import KeyStore
from device.trust.service_status import read_service_status
from device.trust.trust import Trust
from link1.canonical import read_strict

_MAX_STATUS_BYTES = 64 * 1024


async def attest(
    cloud: CloudClient,
    section: AttestSection,
    *,
    state_dir: Path,
    keys: KeyStore,
    trust: Trust,
    clock: Clock,
) -> None:
    """Answer the challenge of a status.

    Raises AttestationError, CloudError, TrustError, Link1Error, OSError.
    """
    wrapper = read_strict((await cloud.device_status()).body, max_bytes=_MAX_STATUS_BYTES)
    status = read_service_status(
        wrapper,
        device_id=trust.device_id,
        key_of=lambda kid: trust.service_key(kid, "device_status"),
        newest_ms=0,
    )
    body = attestation_body(read_chain(section.chain_file), section.signer, keys, status.challenge)
    await cloud.attest(body, f"attest-{secrets.token_hex(16)}")
    note_attested(state_dir, keys, clock.wall_ms())
