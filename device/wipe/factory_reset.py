"""A factory reset ordered by a technician, with or without a running core.

    losses = count_losses(config)               # what it would destroy, before asking for confirmation
    done = reset_device(config, device_id)      # `palmctl factory-reset`

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
from device.values.control import DeviceNamed, ResetDone
from device.wipe.wipe import WipeStage, read_wipe, reset_folder
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


@dataclass(frozen=True, slots=True)
class Reset:
    """`by_core`: palmd was running, and has ended. `untold_wipe_id`: the service had ordered a wipe whose
    completion was not reported; it lists the device as `revoked` for good."""

    by_core: bool
    untold_wipe_id: str | None


def count_losses(config: DeviceConfig) -> ResetLosses:
    """Count what exists; an absent or damaged file counts as unknown."""
    gallery = config.gallery_dir / GALLERY_FILE
    return ResetLosses(
        keys=KeyStore.exists(config.keys_dir),
        uploads_waiting=_first(config.journal_path, _WAITING),
        verdicts=_first(config.journal_path, "SELECT count(*) FROM verdicts"),
        templates=_first(gallery, "SELECT count(*) FROM template"),
    )


def reset_device(config: DeviceConfig, device_id: str) -> Reset:
    """Destroy everything in the state directory of that device.

    Raises IpcRefused, IpcNotPermitted, StateError, OSError."""
    try:
        answer = ask_core(
            config.control_socket,
            "factory_reset",
            timeout_s=RESET_WITHIN_S,
            **DeviceNamed(device_id).to_obj(),
        ).header
    except IpcNotPermitted:
        raise  # a core may be running
    except IpcUnreachable:
        return Reset(False, _reset_here(config))
    return Reset(True, ResetDone.from_obj(answer).untold_wipe_id)


def _reset_here(config: DeviceConfig) -> str | None:
    if journal_in_use(config):
        raise StateError(
            "palmd is running but does not answer at its socket; run this as root, "
            "or stop it first: systemctl stop palmd"
        )
    state_dir, device = config.device.state_dir, config.device
    try:
        wipe = read_wipe(state_dir)
    except StateError:
        wipe = None  # damaged; the reset replaces it
    reset_folder(state_dir, device.id, device.gate_id, device.dbd_id)
    return wipe.wipe_id if wipe is not None and wipe.stage is not WipeStage.CONFIRMED else None


def journal_in_use(config: DeviceConfig) -> bool:
    """Whether another process has locked the journal, as a running palmd does."""
    if not config.journal_path.is_file():
        return False
    try:
        with closing(sqlite3.connect(_read_only(config.journal_path), uri=True, timeout=0)) as db:
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        return error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
    return False


def _read_only(path: Path) -> str:
    return f"{path.absolute().as_uri()}?mode=ro"


def _first(path: Path, query: str) -> int | None:
    """The number that the query returns; the file is not changed."""
    if not path.is_file():
        return None
    try:
        with closing(sqlite3.connect(_read_only(path), uri=True, timeout=0)) as db:
            return int(db.execute(query).fetchone()[0])
    except (sqlite3.Error, TypeError):
        return None
