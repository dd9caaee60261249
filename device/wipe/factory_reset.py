"""A factory reset ordered by a technician, with or without a running core.

    losses = count_losses(config)               # what it would destroy, before asking for confirmation
    reset_device(config, device_id)             # `palmctl factory-reset`

A running core performs the reset itself, because it has the databases open; otherwise it is done here. After
an interruption it is completed by the next run, or by the next start of palmd.
"""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from device.config.config import DeviceConfig
from device.errors import IpcNotPermitted, IpcUnreachable, StateError
from device.platform.ipc import ask_core
from device.trust.keystore import KeyStore
from device.values.control import DeviceNamed
from device.wipe.wipe import reset_folder
from gallery.store import FILE_NAME as GALLERY_FILE

RESET_WITHIN_S: Final = 60.0
_WAITING: Final = "SELECT count(*) FROM verdicts WHERE uploaded < revision"


@dataclass(frozen=True, slots=True)
class ResetLosses:
    """What a reset would destroy; None where a number could not be read.

    `uploads_waiting`: verdicts that the service does not have yet.
    """

    keys: bool
    uploads_waiting: int | None
    verdicts: int | None
    templates: int | None


def count_losses(config: DeviceConfig) -> ResetLosses:
    """Count what exists; an absent or damaged file counts as unknown."""
    gallery = config.gallery_dir / GALLERY_FILE
    return ResetLosses(
        keys=KeyStore.exists(config.keys_dir),
        uploads_waiting=_counted(config.journal_path, _WAITING),
        verdicts=_counted(config.journal_path, "SELECT count(*) FROM verdicts"),
        templates=_counted(gallery, "SELECT count(*) FROM template"),
    )


def reset_device(config: DeviceConfig, device_id: str) -> None:
    """Destroy everything in the state directory of that device; a palmd that runs there ends.

    Raises IpcRefused, IpcNotPermitted, StateError, OSError."""
    named = DeviceNamed(device_id).to_obj()
    try:
        ask_core(config.control_socket, "factory_reset", timeout_s=RESET_WITHIN_S, **named)
    except IpcNotPermitted:
        raise  # a core may be running
    except IpcUnreachable:
        _reset_here(config)


def _reset_here(config: DeviceConfig) -> None:
    if journal_in_use(config):
        raise StateError(
            "palmd is running but does not answer at its socket; run this as root, "
            "or stop it first: systemctl stop palmd"
        )
    device = config.device
    reset_folder(device.state_dir, device.id, device.gate_id, device.dbd_id)


def journal_in_use(config: DeviceConfig) -> bool:
    """Whether another process has locked the journal, as a running palmd does."""
    try:
        _first(config.journal_path, "SELECT count(*) FROM sqlite_master")
    except sqlite3.DatabaseError as error:
        return error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
    return False


def _counted(path: Path, query: str) -> int | None:
    try:
        return _first(path, query)
    except (sqlite3.Error, TypeError):
        return None


def _first(path: Path, query: str) -> int | None:
    """The number that the query returns, None without a file; the file is not changed."""
    if not path.is_file():
        return None
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0)) as db:
        return int(db.execute(query).fetchone()[0])
