"""Making a release: a tar.xz of a model folder or of an installed software, and the manifest_obj about it."""

import hashlib
import io
import lzma
import os
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from cloud_client.contract import MAX_CHUNK_BYTES
from device.platform.files import naming
from device.updates.manifest import MAX_CHUNKS, ReleaseKind
from link1.canonical import JsonObject, b64_encode, canonical_bytes
from link1.plain_file import sync_folder
from models.manifest import MANIFEST_NAME, load_manifest
from tools.palmctl.errors import ReleaseError
from tools.palmctl.release_file import LENGTH, MAGIC

_XZ_PRESET: Final = 1
"""The weights of a network hardly shrink at any; byte code and libraries to 30 %."""


def pack_model(folder: Path) -> bytes:
    """The payload of a model: its manifest and the files that names. Raises ModelsError."""
    manifest = load_manifest(folder)
    return pack_files(folder, sorted({MANIFEST_NAME, *(file.name for file in manifest.files)}))


def pack_app(folder: Path) -> bytes:
    """The payload of a software: an environment as the package installs it in /opt/palm-access/versions.

    The interpreter, or links to it, stay out; the installation makes links. Raises ReleaseError, and OSError
    for what cannot be read.
    """
    if not (folder / "VERSION").is_file() or not (folder / "bin" / "palmd").is_file():
        raise ReleaseError(
            f"{folder} is no installed software (VERSION and bin/palmd are wanted); name the folder "
            "/opt/palm-access/versions/VERSION of a board, or opt/palm-access/package of an unpacked .deb"
        )

    def unreadable(error: OSError) -> None:
        raise error

    names: list[str] = []
    for base, folders, files in os.walk(folder, onerror=unreadable):
        inside = Path(base).relative_to(folder)
        for name in (*folders, *files):
            path = Path(base, name)
            if inside == Path("bin") and name.startswith("python"):
                continue
            if path.is_symlink():
                raise ReleaseError(f"{path} is a link; a release holds plain files only")
            if path.is_file():
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
    chunk_bytes: int = MAX_CHUNK_BYTES,
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


def chunk_bodies(
    payload: bytes, release_seq: int, chunk_bytes: int = MAX_CHUNK_BYTES
) -> Iterator[JsonObject]:
    """The bodies of `svc.update.chunk`, in order."""
    for index, start in enumerate(range(0, len(payload), chunk_bytes)):
        data = b64_encode(payload[start : start + chunk_bytes])
        yield {"release_seq": release_seq, "index": index, "data_b64": data}


def write_release(path: Path, wrapper: JsonObject, payload: bytes) -> None:
    """Write a release file (`tools.palmctl.release_file`). Raises OSError."""
    signed = canonical_bytes(wrapper)
    with naming(path):
        path.unlink(missing_ok=True)  # a stick may bring a link by this name
        with path.open("xb") as file:
            file.write(MAGIC + LENGTH.pack(len(signed)) + signed + payload)


def give_name(aside: Path, path: Path) -> None:
    """Have a written file on the disk, and then under its name. A stick takes its time. Raises OSError."""
    with naming(path):
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.replace(path)
    with suppress(OSError):  # not every file system of a stick lets a folder be synced
        sync_folder(path.parent)
