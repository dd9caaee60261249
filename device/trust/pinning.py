"""The trust and the configuration in force, and the one way in which they change.

Every change is verified, then written to disk, then applied, whichever carrier brings it. Changes run one at
a time, because two carriers may bring one at once. An object that is not newer than the present one changes
nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from device.errors import StateError, TrustError
from device.platform.threads import StoreThread
from device.trust.bundle import with_bundle
from device.trust.policy import Policy, read_policy
from device.trust.service_status import ServiceStatus
from device.trust.trust import Pinned, Trust, load_trust, reread, save_trust, with_dbd_keys, with_service_keys
from link1.canonical import JsonObject

_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Pinning:
    """`path`: of trust.json; `thread`: writes it; `now_ms`: the time for checking validity (epoch).
    `validator_keys_changed` and `policy_changed` are called on the loop, after the change."""

    pinned: Pinned
    policy: Policy
    """The configuration in force."""
    path: Path
    thread: StoreThread
    now_ms: Callable[[], int]
    validator_keys_changed: Callable[[], None]
    policy_changed: Callable[[], None]
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _stopped: bool = field(default=False, init=False)

    def stop(self) -> None:
        """Apply no further change: the pinned trust is being destroyed."""
        self._stopped = True

    async def take_service_keys(self, keys: list[JsonObject]) -> None:
        """The keys listed by GET /v1/keys. Raises TrustError, StateError."""
        now_ms = self.now_ms()
        if await self._pin(lambda trust: with_service_keys(trust, keys, now_ms)):
            _log.info("pinned %d keys of the service", len(self.pinned.trust.keys))

    async def take_validator_keys(self, status: ServiceStatus) -> None:
        """The validator keys of a verified status; no key is removed because the status lacks it."""
        try:
            changed = await self._pin(
                lambda trust: with_dbd_keys(trust, status.dbd_keys, status.issued_at_ms)
            )
        except StateError as error:
            _log.error("the validator keys of the service are not saved: %s", error)
            return
        if changed:
            _log.info("pinned %d windows of validator keys", len(self.pinned.trust.dbd_keys))
            self.validator_keys_changed()
        await self.heard(status.issued_at_ms)

    def noted(self, at_ms: int) -> None:
        """The service signed an object at `at_ms` (epoch) that was verified here and is stored elsewhere."""
        if self.pinned.heard(at_ms) and self.pinned.trust.worth_keeping(at_ms):
            self.validator_keys_changed()

    async def heard(self, at_ms: int) -> None:
        """The service signed an object at `at_ms` (epoch) that was verified here. The time is written to disk
        only when it matters after a restart, because such objects arrive every minute."""
        self.noted(at_ms)
        if self.pinned.trust.worth_keeping(at_ms):
            try:
                await self._pin(lambda trust: reread(trust, {"service_ms": max(trust.service_ms, at_ms)}))
            except StateError as error:
                _log.error("the service's time is not saved: %s", error)

    async def take_config(self, wrapper: JsonObject) -> None:
        """A signed configuration. Raises TrustError when no pinned root vouches for it, StateError."""
        trust, now_ms = self.pinned.trust, self.now_ms()
        policy = read_policy(wrapper, roots=trust.roots, taken_at_ms=now_ms, revoked=trust.revoked_kids)
        if policy.config_seq <= self.policy.config_seq:
            return
        await self._pin(lambda trust: reread(trust, {"config": wrapper}))
        self.policy = policy
        _log.info("configuration %d is in force", policy.config_seq)
        self.policy_changed()

    async def take_bundle(self, wrapper: JsonObject) -> None:
        """A signed trust bundle. Raises TrustError when no pinned root vouches for it, StateError."""
        now_ms = self.now_ms()
        if await self._pin(lambda trust: with_bundle(trust, wrapper, now_ms=now_ms)):
            _log.info("trust bundle %d is in force", self.pinned.trust.bundle_seq)
            self.noted(self.pinned.trust.service_ms)
            self.validator_keys_changed()

    async def _pin(self, change: Callable[[Trust], Trust]) -> bool:
        """Write the changed trust to disk, then apply it; False when nothing changes."""
        async with self._changing:
            if self._stopped or change(self.pinned.trust).obj == self.pinned.trust.obj:
                return False
            try:
                trust = await self.thread.do(lambda: self._saved(change))
            except TrustError as error:
                raise StateError(str(error)) from error  # the disk failed; the signed object is valid
            self.pinned.replace(trust)
            return True

    def _saved(self, change: Callable[[Trust], Trust]) -> Trust:
        """The file, changed: a technician may have registered this device again since the start."""
        found = self.pinned.trust
        with contextlib.suppress(StateError):
            found = load_trust(self.path)
        trust = change(found)
        save_trust(self.path, trust)
        return trust
