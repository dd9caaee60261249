"""A factory reset step by step: identify the device, stop the daemons, then wipe (`device.wipe.wipe`).

A running core performs the reset itself, because it has the databases open; otherwise it is done here. After
an interruption it is completed by the next run, or by the next start of palmd.
"""

import contextlib
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from device.config.config import DeviceConfig
from device.errors import DeviceError, IpcNotPermitted, IpcUnreachable, StateError
from device.platform.ipc import ask_core
from device.trust.keystore import KeyStore
from device.trust.trust import load_trust
from device.values.control import DeviceNamed
from device.values.status import read_status
from device.wipe.wipe import FILE_NAME, WipeStage, finish_wipe, holds_device, read_wipe, reset_folder
from gallery.store import FILE_NAME as GALLERY_FILE
from tools.palmctl.errors import ResetRefused

_BOOTED = Path("/run/systemd/system")
_STOPPED_WITHIN_S = 30.0
_PROBE_WITHIN_S = 5.0
RESET_WITHIN_S = 60.0
_WAITING = "SELECT count(*) FROM verdicts WHERE due"
_UNITS = ("palm-syncd.service", "palmd.service")


@dataclass(frozen=True, slots=True)
class Here:
    """The device that would be destroyed, and what goes with it; None where a number could not be read.

    `wiped`: all was destroyed before, by order of the service. `untold_wipe`: it does not know yet that this
    is done; the key for it goes too.
    `uploads_waiting`: verdicts that the service does not have yet. `verdict_seq`: number of the last verdict.
    """

    device_id: str
    gate_id: str
    dbd_id: str
    wiped: bool
    untold_wipe: bool
    keys: bool
    uploads_waiting: int | None
    verdict_seq: int | None
    templates: int | None


def who_is_here(config: DeviceConfig) -> Here | None:
    """The device as it was registered, or as configured where registration never finished; else None."""
    state_dir = config.device.state_dir
    if not state_dir.is_dir() or not holds_device(state_dir):
        return None  # a folder of others, which a wrong [device] state_dir names, is not emptied
    for read in (lambda: load_trust(config.trust_path), lambda: read_wipe(state_dir)):
        try:
            found = read()
        except DeviceError:
            continue
        if found is not None:
            wiped, untold = _wiped(state_dir)
            losses = (False, 0, 0, 0) if wiped else _losses(config)
            return Here(found.device_id, found.gate_id, found.dbd_id, wiped, untold, *losses)
    of = config.device
    return Here(of.id, of.gate_id, of.dbd_id, False, False, *_losses(config))


def _wiped(state_dir: Path) -> tuple[bool, bool]:
    """Whether a wipe that the service ordered has destroyed all, and whether it has still to learn of it."""
    try:
        wipe = read_wipe(state_dir)
    except StateError:
        return False, False
    if wipe is None or wipe.wipe_id is None:
        return False, False
    return wipe.stage is not WipeStage.ERASING, wipe.stage is not WipeStage.CONFIRMED


def _losses(config: DeviceConfig) -> tuple[bool, int | None, int | None, int | None]:
    """Keys, uploads, the last verdict's number and templates: as palmd tells it while it runs and holds the
    databases, else as they are counted; an absent or damaged file counts as unknown."""
    try:
        told = read_status(config.control_socket)
    except DeviceError:
        return (
            KeyStore.exists(config.keys_dir),
            _counted(config.journal_path, _WAITING),
            _counted(config.journal_path, "SELECT coalesce(max(seq), 0) FROM verdicts"),
            _counted(config.gallery_dir / GALLERY_FILE, "SELECT count(*) FROM template"),
        )
    return True, told.uploads_waiting, told.verdict_seq, told.gallery.templates


def begun_before(config: DeviceConfig) -> bool:
    """Whether a technician's reset was cut off here; a damaged record of one counts, as its text says."""
    try:
        wipe = read_wipe(config.device.state_dir)
    except StateError:
        return (config.device.state_dir / FILE_NAME).is_file()
    return wipe is not None and wipe.wipe_id is None


def stop_daemons(config: DeviceConfig, tell: Callable[[str], None]) -> None:
    """See to it that no palmd is at work on the state. Raises ResetRefused."""
    if not palmd_runs(config):
        return
    systemctl = shutil.which("systemctl")
    if systemctl is None or not _BOOTED.is_dir():
        return  # no unit of a service manager: asked, palmd empties the device itself, and ends
    tell("stopping palmd and palm-syncd …")
    done = subprocess.run([systemctl, "stop", *_UNITS], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ResetRefused("systemctl could not stop palmd; run this as root: sudo palmctl factory-reset")
    give_up_s = time.monotonic() + _STOPPED_WITHIN_S
    while palmd_runs(config):
        if time.monotonic() > give_up_s:
            raise ResetRefused(
                "a palmd still runs after the unit was stopped: end the program that started it"
            )
        time.sleep(0.2)


def carry_out(config: DeviceConfig, here: Here) -> None:
    """Destroy everything, or go on with what was begun. Raises WipeUnfinished,
    IpcRefused, IpcNotPermitted, StateError, OSError.
    """
    state_dir = config.device.state_dir
    if palmd_runs(config):
        try:
            read_status(config.control_socket)
        except DeviceError:
            raise ResetRefused(
                "a palmd holds this device without answering: end it (systemctl stop palmd), then try again"
            ) from None
        try:
            named = DeviceNamed(here.device_id).to_obj()
            ask_core(config.control_socket, "factory_reset", timeout_s=RESET_WITHIN_S, **named)
            return
        except IpcNotPermitted:
            raise  # a core may be running
        except IpcUnreachable:  # it may have ended meanwhile
            if _journal_in_use(config):
                raise StateError(
                    "palmd is running but does not answer at its socket; run this as root, "
                    "or stop it first: systemctl stop palmd"
                ) from None
    if begun_before(config):
        with contextlib.suppress(StateError):  # its record is damaged: a new one finishes the work as well
            finish_wipe(state_dir)
            return
    reset_folder(state_dir, here.device_id, here.gate_id, here.dbd_id)


def palmd_runs(config: DeviceConfig) -> bool:
    """Whether a palmd listens or holds its journal; in doubt it is. One too busy to answer is running too."""
    if _journal_in_use(config):
        return True
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_WITHIN_S)
        try:
            probe.connect(str(config.control_socket))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True
    return True


def _journal_in_use(config: DeviceConfig) -> bool:
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
    with contextlib.closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0)
    ) as db:
        return int(db.execute(query).fetchone()[0])
