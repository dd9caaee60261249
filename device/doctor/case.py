"""Facts about the device, read once, so that all checks see the same."""

from dataclasses import dataclass, field
from pathlib import Path

from device.config.config import DeviceConfig, load_config
from device.errors import ConfigError, DeviceError, IpcError, StateError
from device.platform.clock import Clock
from device.trust.credentials import open_stored
from device.trust.keystore import KeyStore
from device.trust.trust import Trust, load_trust
from device.values.status import CoreStatus, read_status
from link1.errors import is_not_permitted


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

    def system(self, path: str) -> Path:
        """`/sys/…` or `/proc/…` below `root`."""
        return self.root / path.lstrip("/")


def take_case(config_path: Path, clock: Clock, root: Path = Path("/")) -> Case:
    """Read the facts; what cannot be read becomes a finding of a check, never an error."""
    try:
        config = load_config(config_path)
    except ConfigError as error:
        why = "the configuration cannot be used"
        closed = frozenset({"configuration"} if is_not_permitted(error) else ())
        return Case(config_path, None, str(error), None, why, None, why, None, why, clock, root, closed)
    closed_parts = set[str]()
    trust, trust_problem = None, ""
    try:
        trust = load_trust(config.trust_path)
    except DeviceError as error:
        trust_problem = _noted("trust", error, closed_parts)
    keys, keys_problem = None, ""
    try:
        keys = open_stored(config.keys_dir)
    except DeviceError as error:
        keys_problem = _noted("keys", error, closed_parts)
    status, status_problem = None, ""
    try:
        status = read_status(config.control_socket)
    except IpcError as error:
        status_problem = _noted("status", error, closed_parts)
    return Case(
        config_path,
        config,
        "",
        trust,
        trust_problem,
        keys,
        keys_problem,
        status,
        status_problem,
        clock,
        root,
        frozenset(closed_parts),
    )


def _noted(part: str, error: DeviceError, closed: set[str]) -> str:
    """The error's text; `part` is added to `closed` when this user lacks the permission."""
    if is_not_permitted(error):
        closed.add(part)
    return str(error)
