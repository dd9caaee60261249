"""The sockets on which commands ask the running core."""

from collections.abc import Callable
from pathlib import Path

from device.platform.ipc import Packet

Ask = Callable[..., Packet]
"""`ask(op, timeout_s=…, payload=…, **members)`. Raises IpcUnreachable or IpcRefused."""


def control_socket_of(config: Path | None) -> Path:
    """The technician's socket of the device that `config` describes. Raises ConfigError."""
    from device.config.config import config_path, load_config

    return load_config(config_path(config)).control_socket


def totem_socket_of(config: Path | None) -> Path:
    """The socket of its enrolment screen. Raises ConfigError."""
    from device.config.config import config_path, load_config

    return load_config(config_path(config)).totem_socket
