"""Emptying a device on a technician's word, whether or not its core runs.

    done = reset_device(config, device_id)      # `palmctl factory-reset`

A core that runs does it itself, for it has the databases open; where none runs it is done here. Either way it
finishes after any interruption: run it again, or start palmd.
"""

import sqlite3
from dataclasses import dataclass
from typing import Final

from device.config.config import DeviceConfig
from device.errors import IpcNotPermitted, IpcUnreachable, StateError
from device.platform.control import ask_core
from device.wipe.wipe import WipeStage, read_wipe, reset_folder

RESET_WITHIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Reset:
    """`by_core`: palmd was running, and has ended. `untold_wipe_id`: the service had ordered a wipe and was
    not told that it is done; there the device stays `revoked` for good."""

    by_core: bool
    untold_wipe_id: str | None


def reset_device(config: DeviceConfig, device_id: str) -> Reset:
    """Destroy everything in the state directory of that device.

    Raises IpcRefused, IpcNotPermitted, StateError, OSError."""
    try:
        told = ask_core(
            config.control_socket, "factory_reset", timeout_s=RESET_WITHIN_S, device_id=device_id
        ).header
    except IpcNotPermitted:
        raise  # a core may well be running
    except IpcUnreachable:
        return Reset(False, _reset_here(config))
    untold = told.get("untold_wipe_id")
    return Reset(True, untold if isinstance(untold, str) else None)


def _reset_here(config: DeviceConfig) -> str | None:
    if _in_use(config):
        raise StateError(
            "palmd is running but does not answer at its socket; run this as root, "
            "or stop it first: systemctl stop palmd"
        )
    state_dir, device = config.device.state_dir, config.device
    try:
        wipe = read_wipe(state_dir)
    except StateError:
        wipe = None  # damaged: all the more reason to finish it
    reset_folder(state_dir, device.id, device.gate_id, device.dbd_id)
    return wipe.wipe_id if wipe is not None and wipe.stage is not WipeStage.CONFIRMED else None


def _in_use(config: DeviceConfig) -> bool:
    """Whether a process holds the journal; a core does, for as long as it runs."""
    if not config.journal_path.exists():
        return False
    connection = sqlite3.connect(f"{config.journal_path.absolute().as_uri()}?mode=ro", uri=True, timeout=0)
    try:
        connection.execute("SELECT count(*) FROM meta").fetchone()
    except sqlite3.OperationalError as error:
        return "locked" in str(error) or "busy" in str(error)
    except sqlite3.DatabaseError:
        return False
    finally:
        connection.close()
    return False
