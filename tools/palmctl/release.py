"""Making a release: a tar.xz of a model folder or of an installed software, and the manifest_obj about it.

A release file, for a stick, is `PALMUPD1` ‖ u32 length (big-endian) ‖ the signed manifest's JSON ‖ payload.
"""

import hashlib
import io
import json
import lzma
import os
import struct
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from device.updates.manifest import MAX_CHUNKS, MAX_MANIFEST_BYTES, ReleaseKind
from link1.canonical import JsonObject, b64_encode, canonical_bytes, read_strict
from link1.errors import FormatError, reason_of
from link1.plain_file import open_plain_file
from tools.palmctl.errors import ReleaseError

MAGIC: Final = b"PALMUPD1"
CHUNK_BYTES: Final = 256 * 1024
"""342 KiB in base64: well below what a sealed record carries."""
_LENGTH = struct.Struct(">I")
_XZ_PRESET: Final = 1
"""The weights of a network hardly shrink at any; byte code and libraries to 30 %."""


@dataclass(frozen=True, slots=True)
class ReleaseFile:
    """A release on a stick: the signed manifest, and where the payload begins in the file."""

    path: Path
    wrapper: JsonObject
    payload_at: int

    @property
    def manifest(self) -> JsonObject:
        inner = self.wrapper.get("manifest_obj")
        return inner if isinstance(inner, dict) else {}

    def chunks(self, skip: int = 0) -> Iterator[tuple[int, bytes]]:
        """Index and bytes of each chunk from `skip` on."""
        size = int(self.manifest["chunk_size"])
        with self.path.open("rb") as file:
            file.seek(self.payload_at + skip * size)
            for index in range(skip, int(self.manifest["chunk_count"])):
                yield index, file.read(size)


def pack_model(folder: Path) -> bytes:
    """The payload of a model: its manifest and the files that names. Raises ModelsError."""
    from models.manifest import MANIFEST_NAME, load_manifest

    manifest = load_manifest(folder)
    return pack_files(folder, sorted({MANIFEST_NAME, *(file.name for file in manifest.files)}))


def pack_app(folder: Path) -> bytes:
    """The payload of a software: an environment as the package installs it in /opt/palm-access/versions.

    Links to the interpreter stay out; whoever installs makes them. Raises ReleaseError.
    """
    if not (folder / "VERSION").is_file() or not (folder / "bin" / "palmd").is_file():
        raise ReleaseError(
            f"{folder} is no installed software (VERSION and bin/palmd are wanted); name the folder "
            "/opt/palm-access/versions/VERSION of a board, or opt/palm-access/package of an unpacked .deb"
        )
    names: list[str] = []
    for base, folders, files in os.walk(folder):
        inside = Path(base).relative_to(folder)
        for name in (*folders, *files):
            path = Path(base, name)
            if path.is_symlink():
                if inside != Path("bin") or not name.startswith("python"):
                    raise ReleaseError(f"{path} is a link; a release holds plain files only")
            elif path.is_file():
                names.append(str(inside / name))
    return pack_files(folder, sorted(names))


def pack_files(folder: Path, names: Iterable[str]) -> bytes:
    """A tar.xz that depends on nothing but names, contents and which files run."""
    out = io.BytesIO()
    with (
        lzma.open(out, "wb", preset=_XZ_PRESET) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in names:
            path = folder / name
            info = tarfile.TarInfo(name)
            info.size = path.stat().st_size
            info.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            with path.open("rb") as file:
                archive.addfile(info, file)
    return out.getvalue()


def manifest_obj(
    payload: bytes,
    *,
    kind: ReleaseKind,
    name: str,
    version: str,
    min_app_version: str,
    release_seq: int,
    chunk_bytes: int = CHUNK_BYTES,
) -> JsonObject:
    """What is signed about a payload. Raises ReleaseError when it is too large."""
    count = -(-len(payload) // chunk_bytes)
    if len(payload) > kind.max_bytes or count > MAX_CHUNKS:
        raise ReleaseError(
            f"the payload has {len(payload)} bytes, devices take at most {kind.max_bytes} for {kind}; "
            "leave out what a board does not need"
        )
    return {
        "v": 1,
        "kind": str(kind),
        "name": name,
        "version": version,
        "size": len(payload),
        "sha256": hashlib.sha256(payload).hexdigest(),
        "chunk_size": chunk_bytes,
        "chunk_count": count,
        "min_app_version": min_app_version,
        "release_seq": release_seq,
    }


def chunk_bodies(payload: bytes, release_seq: int, chunk_bytes: int = CHUNK_BYTES) -> Iterator[JsonObject]:
    """The bodies of `svc.update.chunk`, in order."""
    for index, start in enumerate(range(0, len(payload), chunk_bytes)):
        data = b64_encode(payload[start : start + chunk_bytes])
        yield {"release_seq": release_seq, "index": index, "data_b64": data}


def write_release(path: Path, wrapper: JsonObject, payload: bytes) -> None:
    """Write a release file. Raises OSError."""
    signed = canonical_bytes(wrapper)
    path.write_bytes(MAGIC + _LENGTH.pack(len(signed)) + signed + payload)


def read_release(path: Path) -> ReleaseFile:
    """Look into a release file; who signed it is for the device to judge. Raises ReleaseError."""
    try:
        with open_plain_file(path) as file:
            return _read(path, file)
    except OSError as error:
        raise ReleaseError(f"{path} cannot be read ({reason_of(error)}); name a release file") from error
    except (FormatError, KeyError, TypeError, ValueError) as error:
        raise ReleaseError(f"{path} is no release file; fetch it again, or make one anew") from error


def _read(path: Path, file: BinaryIO) -> ReleaseFile:
    if file.read(len(MAGIC)) != MAGIC:
        raise FormatError("another file")
    (length,) = _LENGTH.unpack(file.read(_LENGTH.size).rjust(_LENGTH.size, b"\xff"))
    if length > MAX_MANIFEST_BYTES:
        raise FormatError("the manifest is too long")
    release = ReleaseFile(path, read_strict(file.read(length), max_bytes=MAX_MANIFEST_BYTES), file.tell())
    announced, found = int(release.manifest["size"]), path.stat().st_size - release.payload_at
    if announced != found:
        raise ReleaseError(f"{path} holds {found} bytes of payload, {announced} are announced; copy it again")
    return release


def republish(folder: Path, model_id: str, out: Path) -> None:
    """The network of `folder` once more under another model_id, in the new folder `out`: for trying out how a
    model and its gallery epoch change together. Raises ModelsError, OSError."""
    from models.manifest import MANIFEST_NAME, load_manifest

    manifest = load_manifest(folder)
    obj: dict[str, Any] = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    out.mkdir(parents=True)
    for file in manifest.files:
        (out / file.name).write_bytes((folder / file.name).read_bytes())
    (out / MANIFEST_NAME).write_text(json.dumps(obj | {"model_id": model_id}, indent=2), encoding="utf-8")
