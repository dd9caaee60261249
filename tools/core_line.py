"""A command's line to the running core: which socket it is, and what to say when nobody answers."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from device.config.config import DeviceConfig

Ask = Callable[..., Any]
"""`ask(op, timeout_s=…, payload=…, **members)` → Packet. Raises IpcUnreachable or IpcRefused."""


def control_socket_of(config: Path | None) -> Path:
    """The technician's socket of the device that `config` describes; exits with 3 when it cannot be read."""
    return _config_of(config).control_socket


def totem_socket_of(config: Path | None) -> Path:
    """The socket of its enrolment screen; exits with 3 when `config` cannot be read."""
    return _config_of(config).totem_socket


def _config_of(config: Path | None) -> "DeviceConfig":
    from device.config.config import config_path, load_config
    from device.errors import ConfigError

    try:
        return load_config(config_path(config))
    except ConfigError as error:
        click.echo(f"{error}", err=True)
        sys.exit(3)


def no_daemon(error: Exception) -> NoReturn:
    """Say that the core does not answer, and leave with 3."""
    click.echo(
        f"{error}\nStart it with: systemctl start palmd; see why it stopped with: journalctl -u palmd",
        err=True,
    )
    sys.exit(3)
