"""The wipe: what a revoked or reset device destroys, in which order, and how it completes after a power cut.

The progress is in one small file, `wipe.json`, replaced safely at each step:

    (absent) → erasing → erased → confirmed        ordered by the service
    (absent) → erasing → (absent, folder empty)    ordered by the technician

1. `erasing` is on the disk, with the sealed record `svc.device.wiped` in it, before anything is destroyed. On
   a full disk the journal's reserve makes room for it, and for a technician's order the gallery as well.
2. From then on every start continues where the last one stopped. Each step may be repeated.
3. Keys go first: data, seal and verdict key are overwritten, synced, unlinked, and the folder is synced; then
   every other file of the state directory. Without the data key, remains of those files on the medium cannot
   be read.
4. The http key goes last, when the service knows (device surface §4). Until then it is good for two requests:
   fetching the status and acknowledging the wipe.
5. `confirmed` is permanent: the device reports NOT_READY and the reason until a technician resets it.

Overwriting a file is a logical erasure: flash may keep an old copy of the page
(docs/explanation/SECURITY.md).
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from device.errors import StateError
from device.platform.files import read_kept, replace_synced, shred, with_checksum
from device.trust.keystore import KeyPurpose
from link1.canonical import JsonObject
from link1.errors import FormatError
from link1.members import NAME
from link1.plain_file import sync_folder
from link1.wire import WireObject

FILE_NAME: Final = "wipe.json"
SECRET_FOLDERS: Final = ("keys", "keys.partial", "credentials")
"""Everything in these is overwritten before it is unlinked."""
SPARED: Final = frozenset({FILE_NAME, "lost+found"})
"""Names in the state directory that a wipe leaves."""
_OF_A_DEVICE: Final = frozenset(
    {*SECRET_FOLDERS, FILE_NAME, "trust.json", "journal.db", "gallery", "models", "updates"}
)
"""With one of these names in it, a folder is the state directory of a device, whole or in part."""
WIPED: Final = (
    "NOT_READY: the service has revoked this device, and everything on it is destroyed; to use it again, run "
    "`palmctl factory-reset` and provision it with a new token"
)
"""Shown to people on a wiped device."""
IS_WIPED: Final = "this device is wiped; palmctl status says what to do"
"""What its sockets refuse with."""
REPLY_WITHIN_S: Final = 0.5
"""How long a process stays after a reset, so that its reply reaches the technician."""

_MAX_FILE_BYTES: Final = 64 * 1024
_ORDER: Final = (KeyPurpose.DATA, KeyPurpose.SEAL, KeyPurpose.VERDICT)


class WipeStage(StrEnum):
    ERASING = "erasing"
    ERASED = "erased"
    """Everything but the http key is destroyed; the service does not know yet."""
    CONFIRMED = "confirmed"


class Wipe(WireObject):
    """The progress of a wipe. `wipe_id` is the service's; None when a technician ordered the wipe.

    `record` is the sealed outbox record that reports it to the service, carried by mail or by hand.
    """

    stage: WipeStage
    wipe_id: Annotated[str, NAME] | None
    device_id: Annotated[str, NAME]
    gate_id: Annotated[str, NAME]
    dbd_id: Annotated[str, NAME]
    record: JsonObject | None = None

    @property
    def unconfirmed(self) -> str | None:
        """The wipe_id to report to the service, once everything else is destroyed."""
        return self.wipe_id if self.stage is WipeStage.ERASED else None


class WipeUnfinished(StateError):
    """Not everything could be destroyed; every start tries again."""


def holds_device(state_dir: Path) -> bool:
    """Whether anything in this folder is a device's. Raises OSError."""
    return any(path.name in _OF_A_DEVICE for path in state_dir.iterdir())


def read_wipe(state_dir: Path) -> Wipe | None:
    """The wipe that was begun here, if any. Raises StateError when the file is damaged or unreadable."""
    path = state_dir / FILE_NAME
    try:
        return Wipe.from_obj(read_kept(path, _MAX_FILE_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{path} cannot be read ({error.strerror}); check its owner and mode") from error
    except FormatError as error:
        raise StateError(
            f"{path} is damaged ({error}): a wipe was begun here; run `palmctl factory-reset` to finish it"
        ) from error


def begin_wipe(state_dir: Path, wipe: Wipe) -> None:
    """Make the order durable; from here on every start completes it. Raises OSError; then nothing that the
    device needs is destroyed, and the order can be repeated."""
    try:
        _save(state_dir, wipe)
    except OSError:
        # A full disk must not prevent the wipe. The gallery is larger, but without it a power cut now would
        # leave a device that serves, and has forgotten how far its gallery had come.
        (state_dir / "journal.db.reserve").unlink(missing_ok=True)
        _save(state_dir, wipe)


def finish_wipe(state_dir: Path) -> Wipe | None:
    """Continue a wipe that was begun; None when there is none, or when a technician's is complete.

    Called at every start, while nothing in the state directory is open. Raises WipeUnfinished.
    """
    wipe = read_wipe(state_dir)
    if wipe is None:
        return None
    # Also after `erased`: files written since must not stay.
    _erase(state_dir, keep_http=wipe.wipe_id is not None and wipe.stage is not WipeStage.CONFIRMED)
    if wipe.wipe_id is None:
        (state_dir / FILE_NAME).unlink()
        sync_folder(state_dir)
        return None
    if wipe.stage is WipeStage.ERASING:
        wipe = replace(wipe, stage=WipeStage.ERASED)
        _save(state_dir, wipe)
    return wipe


def confirm_wipe(state_dir: Path) -> Wipe | None:
    """The service knows, or has the record: destroy the http key. Raises WipeUnfinished, OSError."""
    wipe = finish_wipe(state_dir)
    if wipe is None or wipe.stage is WipeStage.CONFIRMED:
        return wipe
    _save(state_dir, replace(wipe, stage=WipeStage.CONFIRMED, record=None))
    return finish_wipe(state_dir)


def reset_folder(state_dir: Path, device_id: str, gate_id: str, dbd_id: str) -> None:
    """The technician's wipe: nothing stays, the service learns nothing. Raises WipeUnfinished, OSError."""
    if not state_dir.is_dir():
        return
    wipe = Wipe(WipeStage.ERASING, None, device_id, gate_id, dbd_id)
    try:
        begin_wipe(state_dir, wipe)
    except OSError:
        # The technician waits for the end, and this device is not to serve again with what it has.
        shutil.rmtree(state_dir / "gallery", ignore_errors=True)
        begin_wipe(state_dir, wipe)
    finish_wipe(state_dir)


def _save(state_dir: Path, wipe: Wipe) -> None:
    # Earlier software, to which a device may return, wants every member.
    text = json.dumps(with_checksum({"v": 1, "record": None} | wipe.to_obj()))
    replace_synced(state_dir / FILE_NAME, text.encode("utf-8"), mode=0o600)


def _erase(state_dir: Path, *, keep_http: bool) -> None:
    http = state_dir / "keys" / KeyPurpose.HTTP.file_name
    kept = {http, state_dir / "credentials" / f"{KeyPurpose.HTTP}.cred"} if keep_http else set()
    left: list[str] = []
    for path in _secrets(state_dir):
        if path not in kept:
            _try(shred, path, left)
    for path in _listed(state_dir, left):
        if path.name not in SPARED:
            _remove(path, kept, left)
    sync_folder(state_dir)
    if left:
        raise WipeUnfinished(
            f"the wipe could not destroy {', '.join(sorted(left))}; check the disk, then start palmd again "
            "or run `palmctl factory-reset` as root: the wipe continues"
        )


def _secrets(state_dir: Path) -> list[Path]:
    """Every file that holds key bytes, in the order of destruction."""
    order = [purpose.value for purpose in _ORDER]
    found = [path for folder in SECRET_FOLDERS for path in _files_in(state_dir / folder)]
    return sorted(found, key=lambda path: order.index(path.stem) if path.stem in order else len(order))


def _files_in(folder: Path) -> list[Path]:
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())


def _remove(path: Path, kept: set[Path], left: list[str]) -> None:
    """Remove a file, or a folder with its content except for `kept`."""
    if path.is_symlink() or not path.is_dir():
        if path not in kept:
            _try(Path.unlink, path, left)
        return
    for child in _listed(path, left):
        _remove(child, kept, left)
    if not any(path in keep.parents for keep in kept if keep.exists()):
        _try(Path.rmdir, path, left)


def _listed(folder: Path, left: list[str]) -> list[Path]:
    """What is in a folder; a folder that may not be listed is `left`, and keeps nothing else from its end."""
    found: list[Path] = []
    _try(lambda path: found.extend(path.iterdir()), folder, left)
    return sorted(found)


def _try(destroy: Callable[[Path], None], path: Path, left: list[str]) -> None:
    try:
        destroy(path)
    except FileNotFoundError:
        return
    except OSError:
        if str(path) not in left:
            left.append(str(path))
