"""A command's line to the running core: which socket it is, and how it is asked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

Ask = Callable[..., Any]
"""`ask(op, timeout_s=…, payload=…, **members)` → Packet. Raises IpcUnreachable or IpcRefused."""


def control_socket_of(config: Path | None) -> Path:
    """The technician's socket of the device that `config` describes. Raises ConfigError."""
    from device.config.config import config_path, load_config

    return load_config(config_path(config)).control_socket


def totem_socket_of(config: Path | None) -> Path:
    """The socket of its enrolment screen. Raises ConfigError."""
    from device.config.config import config_path, load_config

    return load_config(config_path(config)).totem_socket
