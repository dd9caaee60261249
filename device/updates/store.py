"""Updates on the disk: the release being received, the models' slots, and the state.

    updates/state.json                the UpdateState, replaced as a whole
    updates/incoming/RELEASE/payload  the payload, each chunk at its place
    updates/incoming/RELEASE/chunks   the chunks present: index and CRC-32 of each, 8 bytes
    updates/app/                      a verified software for palm-update.service
    models/RELEASE/                   a model's slot
    models/shipped/                   the shipped model that the gallery belongs to

Only what is on the disk counts: a chunk counts once its bytes and then its note are synced, and a note counts
only if the bytes have its CRC. Files that the state does not name are removed.
"""

import errno
import hashlib
import os
import shutil
import struct
import threading
import zlib
from itertools import chain
from pathlib import Path
from typing import Final

from device.errors import StateError, UpdateRefused
from device.platform.files import read_kept, replace_synced, with_checksum
from device.updates.archive import MODEL_LIMITS, unpack
from device.updates.manifest import Manifest, PayloadChunk
from device.updates.room import KEEP_FREE_BYTES, check_room, unpacking_bytes
from device.updates.state import SHIPPED, UpdateState
from link1 import members
from link1.canonical import JsonObject, canonical_bytes
from link1.errors import FormatError
from link1.plain_file import open_plain_file, read_plain_file, sync_folder
from models.manifest import MANIFEST_NAME

MAX_STATE_BYTES: Final = 64 * 1024
HASH_PIECE_BYTES: Final = 1024 * 1024
PAUSE_S: Final = 0.004
"""Between pieces, so that writing and hashing never occupy the disk or a core for long."""
_REQUIRED_BEFORE: Final[JsonObject] = {
    **dict.fromkeys(("receiving", "app", "previous", "waiting", "trial", "failed")),
    "slots": [],
    "model": SHIPPED,
    "home_epoch": 0,
}
"""Members that earlier software, to which a device may return, wants in every state.json."""

_NOTE = struct.Struct(">II")


class UpdateStore:
    """Everything below `updates` and `models` of one state directory; used by one thread at a time."""

    def __init__(self, state_dir: Path, *, pause_s: float = PAUSE_S) -> None:
        self._updates = state_dir / "updates"
        self._models = state_dir / "models"
        self._pause_s = pause_s
        self.stop = threading.Event()
        """When set, long work ends between two pieces, with StateError."""
        self._here: set[int] | None = None
        """Indices of the chunks that are present; None until the notes are read."""

    @property
    def app_folder(self) -> Path:
        return self._updates / "app"

    def model_folder(self, release_seq: int) -> Path:
        return self._models / str(release_seq)

    def model_folders(self) -> list[Path]:
        """Every model on the disk, the shipped one's copy among them. Raises OSError."""
        return sorted(self._models.iterdir()) if self._models.is_dir() else []

    @property
    def kept_model(self) -> Path:
        """The copy of a shipped model that `keep_model` made; newer software may come with another one."""
        return self._models / "shipped"

    def load(self, first_epoch: int) -> UpdateState:
        """The state; without a file that of a new device, whose model fits `first_epoch`.

        Raises StateError when it cannot be read.
        """
        path = self._updates / "state.json"
        try:
            obj = read_kept(path, MAX_STATE_BYTES)
            # Earlier software wrote one release_seq for both kinds.
            both = members.integer(obj, "release_seq")
            return UpdateState.from_obj({"app_seq": both, "model_seq": both} | obj)
        except FileNotFoundError:
            return UpdateState(home_epoch=first_epoch)
        except OSError as error:
            raise StateError(f"{path} cannot be read ({error.strerror}); check its owner and mode") from error
        except (FormatError, UpdateRefused) as error:
            raise StateError(
                f"{path} is damaged, or of a newer version ({error}); the shipped model is used and no "
                f"update is accepted until {self._updates} is moved away and the newest release sent again"
            ) from error

    def save(self, state: UpdateState) -> None:
        """Make the state durable. Raises StateError."""
        path = self._updates / "state.json"
        try:
            self._folder(self._updates)
            seqs = {"release_seq": state.release_seq, "app_seq": state.app_seq, "model_seq": state.model_seq}
            obj = {"v": 1} | _REQUIRED_BEFORE | seqs | state.to_obj()
            replace_synced(path, canonical_bytes(with_checksum(obj)), mode=0o600)
        except OSError as error:
            raise StateError(f"{path} cannot be written ({error.strerror}); check the disk") from error

    def tidy(self, state: UpdateState) -> None:
        """Remove what the state does not name. Raises StateError."""
        receiving = {str(state.receiving.release_seq)} if state.receiving else set()
        slots = {self.kept_model.name} | {str(slot.release_seq) for slot in state.slots}
        try:
            self._keep_only(self._updates / "incoming", receiving)
            self._keep_only(self._models, slots)
            if state.app is None:
                self._remove(self.app_folder)
        except OSError as error:
            raise StateError(
                f"{self._updates} cannot be tidied ({error.strerror}); check the disk"
            ) from error

    # Receiving

    def begin(self, manifest: Manifest) -> None:
        """Allocate space for a payload. Raises UpdateRefused `no_space`, StateError."""
        folder = self._incoming(manifest)
        check_room(self._updates.parent, manifest.size + unpacking_bytes(manifest), KEEP_FREE_BYTES)
        try:
            self._folder(self._updates)
            self._folder(folder.parent)
            self._folder(folder)
            with (folder / "payload").open("wb") as payload:
                os.posix_fallocate(payload.fileno(), 0, manifest.size)
                os.fsync(payload.fileno())
            # The notes last: when they exist, the payload has its space.
            replace_synced(folder / "chunks", b"", mode=0o600)
        except OSError as error:
            raise StateError(f"{folder} cannot be written ({error.strerror}); check the disk") from error
        self._here = None

    def missing(self, manifest: Manifest, after: int) -> int | None:
        """The next chunk that is not present, from the one after `after` on. Raises StateError."""
        here = self.chunks_here(manifest)
        indices = chain(range(after + 1, manifest.chunk_count), range(after + 1))
        return next((index for index in indices if index not in here), None)

    def take(self, manifest: Manifest, chunk: PayloadChunk) -> int:
        """Write a chunk to its place; it is on the disk when this returns. Returns how many are present.

        A chunk that is present already changes nothing. Raises UpdateRefused `bad_index`, `bad_size`, and
        StateError.
        """
        if chunk.index >= manifest.chunk_count:
            raise UpdateRefused(
                "bad_index", f"the release has {manifest.chunk_count} chunks, none with index {chunk.index}"
            )
        wanted = manifest.chunk_bytes(chunk.index)
        if len(chunk.data) != wanted:
            raise UpdateRefused(
                "bad_size", f"chunk {chunk.index} has {len(chunk.data)} bytes, {wanted} were announced"
            )
        here = self.chunks_here(manifest)
        if chunk.index not in here:
            folder = self._incoming(manifest)
            try:
                with (folder / "payload").open("r+b") as payload:
                    payload.seek(chunk.index * manifest.chunk_size)
                    payload.write(chunk.data)
                    payload.flush()
                    os.fdatasync(payload.fileno())
                with (folder / "chunks").open("r+b") as notes:
                    notes.seek(len(here) * _NOTE.size)
                    notes.write(_NOTE.pack(chunk.index, zlib.crc32(chunk.data)))
                    notes.flush()
                    os.fdatasync(notes.fileno())
            except OSError as error:
                self._here = None
                raise StateError(f"{folder} cannot be written ({error.strerror}); check the disk") from error
            here.add(chunk.index)
            self.stop.wait(self._pause_s)
        return len(here)

    def check_whole(self, manifest: Manifest) -> Path:
        """The payload, if its SHA-256 is the manifest's. Raises UpdateRefused `bad_hash`, StateError."""
        payload = self._incoming(manifest) / "payload"
        digest = hashlib.sha256()
        try:
            with payload.open("rb") as file:
                while piece := file.read(HASH_PIECE_BYTES):
                    digest.update(piece)
                    if self.stop.wait(self._pause_s):
                        raise StateError("the program ends")
        except OSError as error:
            raise StateError(f"{payload} cannot be read ({error.strerror}); check the disk") from error
        if digest.hexdigest() != manifest.sha256:
            raise UpdateRefused(
                "bad_hash",
                "the payload is not what its manifest names; release it again with a new release_seq",
            )
        return payload

    # Unpacking and handing over

    def unpack_model(self, manifest: Manifest, payload: Path) -> Path:
        """Unpack into the inactive slot. Raises UpdateRefused `bad_archive`, `no_space`, StateError."""
        folder = self.model_folder(manifest.release_seq)
        try:
            self._remove(folder)  # left by an interrupted attempt
            self._folder(self._models)
            self._folder(folder)
            unpack(payload, folder, MODEL_LIMITS, keep_free_bytes=KEEP_FREE_BYTES)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise UpdateRefused(
                    "no_space", "the disk is full; make room, and release it again"
                ) from error
            raise StateError(f"{folder} cannot be written ({error.strerror}); check the disk") from error
        return folder

    def keeps(self, shipped: Path) -> bool:
        """Whether `kept_model` is the model in `shipped`: a manifest names its files by their hashes."""
        try:
            wanted = (shipped / MANIFEST_NAME).read_bytes()
            return read_plain_file(self.kept_model / MANIFEST_NAME, len(wanted)) == wanted
        except OSError:
            return False

    def keep_model(self, shipped: Path) -> None:
        """Copy the model in `shipped` to `kept_model`. Raises StateError."""
        folder, new = self.kept_model, self._models / "shipped.new"
        try:
            self._folder(self._models)
            self._remove(new)
            self._folder(new)
            for file in shipped.iterdir():
                replace_synced(new / file.name, file.read_bytes(), mode=0o600)
            self._remove(folder)
            new.rename(folder)
            sync_folder(self._models)
        except OSError as error:
            raise StateError(f"{folder} cannot be written ({error.strerror}); check the disk") from error

    def hand_over_app(self, manifest: Manifest, payload: Path) -> None:
        """Put verified software where `palm-update.service` finds it. The manifest is written last and starts
        that service. Raises StateError."""
        folder = self.app_folder
        try:
            self._remove(folder)
            self._folder(folder)
            os.link(payload, folder / "payload")
            sync_folder(folder)
            replace_synced(folder / "manifest.json", canonical_bytes(manifest.wrapper), mode=0o600)
        except OSError as error:
            raise StateError(f"{folder} cannot be written ({error.strerror}); check the disk") from error

    def chunks_here(self, manifest: Manifest) -> set[int]:
        """The chunks that are present: each note is checked against its bytes, and incomplete chunks are
        forgotten. Raises StateError."""
        if self._here is not None:
            return self._here
        folder = self._incoming(manifest)
        good: dict[int, int] = {}
        try:
            with open_plain_file(folder / "chunks") as notes:
                noted = notes.read(manifest.chunk_count * _NOTE.size)
            with open_plain_file(folder / "payload") as payload:
                for index, crc in _NOTE.iter_unpack(noted[: len(noted) // _NOTE.size * _NOTE.size]):
                    if index >= manifest.chunk_count or index in good:
                        continue
                    payload.seek(index * manifest.chunk_size)
                    if zlib.crc32(payload.read(manifest.chunk_bytes(index))) == crc:
                        good[index] = crc
            kept = b"".join(_NOTE.pack(index, crc) for index, crc in good.items())
            if kept != noted:
                replace_synced(folder / "chunks", kept, mode=0o600)
        except FileNotFoundError:
            self.begin(manifest)  # the power failed between saving the state and making its folder
            self._here = set()
            return self._here
        except OSError as error:
            raise StateError(f"{folder} cannot be read ({error.strerror}); check the disk") from error
        self._here = set(good)
        return self._here

    def _incoming(self, manifest: Manifest) -> Path:
        return self._updates / "incoming" / str(manifest.release_seq)

    def _folder(self, path: Path) -> None:
        if not path.is_dir():
            path.mkdir(mode=0o700)
            sync_folder(path.parent)

    def _keep_only(self, folder: Path, names: set[str]) -> None:
        if folder.is_dir():
            for entry in folder.iterdir():
                if entry.name not in names:
                    self._remove(entry)

    def _remove(self, path: Path) -> None:
        """A folder; or what another program put into the place of one."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.exists() or path.is_symlink():
            path.unlink()
        else:
            return
        sync_folder(path.parent)
