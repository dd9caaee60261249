"""Facts about the device, read once, so that all checks see the same."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from device.config.config import DeviceConfig, load_config
from device.errors import DeviceError, StateError
from device.platform.clock import Clock
from device.trust.credentials import open_stored
from device.trust.keystore import KeyStore
from device.trust.trust import Trust, load_trust
from device.values.status import CoreStatus, read_status
from link1.errors import is_not_permitted

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Case:
    """In each pair, the value is None exactly when the `…_problem` says why.

    `status`: the answer of a running palmd. `closed`: what this user may not read (configuration, trust,
    keys, status), which is unknown and not a fault of the device. `root`: the folder of /proc, /sys, /run and
    /dev.
    """

    config_path: Path
    config: DeviceConfig | None
    config_problem: str
    trust: Trust | None
    trust_problem: str
    keys: KeyStore | None = field(repr=False)
    keys_problem: str
    status: CoreStatus | None
    status_problem: str
    clock: Clock
    root: Path = Path("/")
    closed: frozenset[str] = frozenset()

    @property
    def settings(self) -> DeviceConfig:
        """The configuration, for checks that need one."""
        if self.config is None:
            raise StateError(self.config_problem)
        return self.config

    @property
    def service_time_ms(self) -> int:
        """The newest time (epoch) signed by the service that trust.json or palmd knows; else 0."""
        kept_ms = max(self.trust.service_ms, self.trust.status_at_ms) if self.trust else 0
        running_ms = (self.status.service_time_ms or 0) if self.status else 0
        return max(kept_ms, running_ms)

    def system(self, path: str) -> Path:
        """`/sys/…` or `/proc/…` below `root`."""
        return self.root / path.lstrip("/")


def take_case(config_path: Path, clock: Clock, root: Path = Path("/")) -> Case:
    """Read the facts; what cannot be read becomes a finding of a check, never an error."""
    closed = set[str]()
    config, problem = _part("configuration", lambda: load_config(config_path), closed)
    if config is None:
        why = "the configuration cannot be used"
        return Case(
            config_path, None, problem, None, why, None, why, None, why, clock, root, frozenset(closed)
        )
    trust = _part("trust", lambda: load_trust(config.trust_path), closed)
    keys = _part("keys", lambda: open_stored(config.keys_dir), closed)
    status = _part("status", lambda: read_status(config.control_socket), closed)
    return Case(config_path, config, "", *trust, *keys, *status, clock, root, frozenset(closed))


def _part(name: str, read: Callable[[], T], closed: set[str]) -> tuple[T | None, str]:
    """The fact, or why it cannot be read; `name` is added to `closed` when this user may not read it."""
    try:
        return read(), ""
    except DeviceError as error:
        if is_not_permitted(error):
            closed.add(name)
        return None, str(error)
