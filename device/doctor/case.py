"""What the checks share: the facts about the device, read once, so that all see the same; the finding that
each returns; and readers of the kernel's small files about the machine."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from device.config.config import DeviceConfig, load_config
from device.errors import DeviceError, StateError
from device.platform.clock import Clock
from device.trust.credentials import open_stored
from device.trust.keystore import KeyStore
from device.trust.trust import Trust, load_trust
from device.values.status import CoreStatus, read_status
from link1.canonical import JsonObject
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


class CheckResult(StrEnum):
    """`skip`: there is nothing to check here, which is not a fault. `not_checked`: this user may not look, so
    the result is unknown."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    NOT_CHECKED = "not_checked"


@dataclass(frozen=True, slots=True)
class Finding:
    """`detail`: what was found. `todo`: the next step; empty when there is none."""

    result: CheckResult
    detail: str
    todo: str = ""

    def to_obj(self, name: str) -> JsonObject:
        """One item of `palmctl doctor --json`; `name`: of the check."""
        return {"name": name, "result": str(self.result), "detail": self.detail, "todo": self.todo}


def ok(detail: str) -> Finding:
    return Finding(CheckResult.OK, detail)


def warn(detail: str, todo: str) -> Finding:
    return Finding(CheckResult.WARN, detail, todo)


def fail(detail: str, todo: str) -> Finding:
    return Finding(CheckResult.FAIL, detail, todo)


def skip(detail: str, todo: str = "") -> Finding:
    return Finding(CheckResult.SKIP, detail, todo)


def not_checked(detail: str) -> Finding:
    """For what this user may not read. The advice to run as root is printed once, above all findings."""
    return Finding(CheckResult.NOT_CHECKED, detail)


def text_of(path: Path) -> str | None:
    """The stripped text of a file of /proc or /sys; None when it is absent or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def number_of(path: Path, base: int = 10) -> int | None:
    """The content of such a file as an integer; None when it is not one."""
    text = text_of(path)
    try:
        return None if text is None else int(text, base)
    except ValueError:
        return None


def is_there(path: Path) -> bool:
    """Whether `path` exists. Raises PermissionError when this user may not know."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def is_closed(folder: Path) -> bool:
    """Whether `folder` exists and this user may not read it. Raises as `is_there` does."""
    return is_there(folder) and not os.access(folder, os.R_OK | os.X_OK)
