"""Release files, as a stick carries them: `PALMUPD1` ‖ u32 length (big-endian) ‖ the signed manifest's JSON ‖
payload."""

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from device.errors import UpdateRefused
from device.updates.manifest import MAX_MANIFEST_BYTES, Manifest
from link1.canonical import read_strict
from link1.errors import FormatError, reason_of
from link1.plain_file import open_plain_file
from tools.palmctl.errors import ReleaseError

MAGIC: Final = b"PALMUPD1"
LENGTH: Final = struct.Struct(">I")
_BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ReleaseFile:
    """A release on a stick: what its manifest says, and where the payload begins in the file."""

    path: Path
    manifest: Manifest
    payload_at: int

    def chunks(self) -> Iterator[tuple[int, bytes]]:
        """Index and bytes of each chunk."""
        size = self.manifest.chunk_size
        with self.path.open("rb") as file:
            file.seek(self.payload_at)
            for index in range(self.manifest.chunk_count):
                yield index, file.read(size)


def read_release(path: Path) -> ReleaseFile:
    """Look into a release file; who signed it is for the device to judge. Raises ReleaseError."""
    try:
        with open_plain_file(path) as file:
            return _read(path, file)
    except OSError as error:
        raise ReleaseError(f"{path} cannot be read ({reason_of(error)}); name a release file") from error
    except (FormatError, UpdateRefused) as error:
        raise ReleaseError(f"{path} is no release file; fetch it again, or make it again") from error


def _read(path: Path, file: BinaryIO) -> ReleaseFile:
    if file.read(len(MAGIC)) != MAGIC:
        raise FormatError("another file")
    (length,) = LENGTH.unpack(file.read(LENGTH.size).rjust(LENGTH.size, b"\xff"))
    if length > MAX_MANIFEST_BYTES:
        raise FormatError("the manifest is too long")
    manifest = Manifest.from_obj(read_strict(file.read(length), max_bytes=MAX_MANIFEST_BYTES))
    announced, found = manifest.size, path.stat().st_size - file.tell()
    if announced != found:
        raise ReleaseError(f"{path} holds {found} bytes of payload, {announced} are announced; copy it again")
    payload_at, digest = file.tell(), hashlib.sha256()
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
    # A device that finds this out itself has the release as failed, and takes it no more.
    if digest.hexdigest() != manifest.sha256:
        raise ReleaseError(f"{path} holds another payload than is announced; copy it again")
    return ReleaseFile(path, manifest, payload_at)
