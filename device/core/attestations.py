"""When the keys of this device are attested, and the evidence for it (device surface §6).

The service's challenge is in each signed status. The carrier asks for the evidence right after the status
whose challenge it answers, so that no later status makes it void.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from device.config.config import AttestSection
from device.errors import AttestationError
from device.health import Health, HealthWord
from device.platform.clock import Clock
from device.trust import attestation
from device.trust.keystore import KeyStore
from device.trust.service_status import ServiceStatus

AFTER_FAILURE_MS: Final = 6 * 3600 * 1000

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Attestations:
    """Every method runs on the loop's thread. `section`: [attest] of the configuration, if it has one."""

    section: AttestSection | None
    state_dir: Path
    keys: KeyStore
    health: Health
    clock: Clock
    _wanted: bool = field(default=False, init=False)
    _not_before_ms: int = field(default=0, init=False)
    _status: ServiceStatus | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._attested_at_ms = attestation.read_attested(self.state_dir, self.keys)

    def service_wants(self, wanted: bool) -> None:
        """`attest_due` of the service. A failure before it does not delay what it newly wants."""
        if wanted and not self._wanted:
            self._not_before_ms = 0
        self._wanted = wanted

    def due(self, status: ServiceStatus) -> bool:
        """Whether to attest with the challenge of this status."""
        now_ms = self.clock.wall_ms()
        if self._attested_at_ms is not None:
            self._look(now_ms)
        self._status = status
        long_ago = now_ms - (self._attested_at_ms or 0) >= attestation.AGAIN_AFTER_MS
        rested = self.clock.monotonic_ms() >= self._not_before_ms
        return self.section is not None and rested and (self._wanted or long_ago)

    async def body(self) -> bytes:
        """The body of `POST /v1/devices/attest` for the newest status. Raises AttestationError,
        FormatError."""
        self._rest()
        if self.section is None or self._status is None:
            raise AttestationError("this device has no [attest] in its configuration, or no status yet")
        body = await asyncio.to_thread(_signed, self.section, self.keys, self._status.challenge)
        self._not_before_ms = 0  # if it is lost on its way, the next status asks again
        return body

    async def answered(self, status: int, code: str) -> None:
        """The service's answer; a refusal leaves its trust as it was. Raises OSError when a success cannot be
        remembered."""
        if status != 200:
            self._rest()
            _log.error("the service does not take the attestation: %d %s", status, code)
            return
        _log.info("the service has verified the attestation of this device's keys")
        now_ms = self.clock.wall_ms()
        try:  # first on the disk: a program that starts again knows what health has said
            await asyncio.to_thread(attestation.note_attested, self.state_dir, self.keys, now_ms)
        finally:
            self._attested_at_ms, self._wanted = now_ms, False
            self._look(now_ms)

    def _rest(self) -> None:
        self._not_before_ms = self.clock.monotonic_ms() + AFTER_FAILURE_MS

    def _look(self, now_ms: int) -> None:
        attested = attestation.is_attested(self._attested_at_ms, now_ms)
        self.health.put(HealthWord.KEY_UNATTESTED, not attested, attestation.UNATTESTED)


def _signed(section: AttestSection, keys: KeyStore, challenge: bytes) -> bytes:
    """Blocks while a secure element signs."""
    return attestation.attestation_body(
        attestation.read_chain(section.chain_file), section.signer, keys, challenge
    )
