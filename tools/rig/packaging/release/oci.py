"""An OCI image as one archive, written without a daemon: the same files give the same bytes.

The archive is an OCI image layout (`skopeo copy oci-archive:…`, `podman load`) that also has the manifest of
`docker save`, for docker's own `load`.
"""

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

USER: Final = 65532
"""Number of the user and the group that the programs of an image run as; it has no rights anywhere else."""
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
_GZIP_LEVEL: Final = 6


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer in a file. `diff_id` and `digest`: SHA-256 of the tar and of the packed tar, hexadecimal."""

    path: Path
    diff_id: str
    digest: str

    @property
    def described(self) -> dict[str, object]:
        """Its OCI descriptor."""
        return {"mediaType": _LAYER, "digest": f"sha256:{self.digest}", "size": self.path.stat().st_size}


class _Summed(io.RawIOBase):
    """Writes bytes on, and sums them."""

    def __init__(self, out: "io.BufferedWriter | gzip.GzipFile") -> None:
        self._out = out
        self.sum = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer", /) -> int:
        self.sum.update(data)
        return self._out.write(data)


def pack_layer(root: Path, out: Path, epoch: int, own: frozenset[str] = frozenset()) -> Layer:
    """Pack everything below `root` into the file `out`.

    Files belong to root, have the time `epoch` (seconds) and mode 0644 or 0755. `own`: folders, relative to
    `root`, that belong to USER alone (0700). `tmp` is everyone's (1777).
    """
    with out.open("wb") as file:
        packed = _Summed(file)
        with gzip.GzipFile("", "wb", _GZIP_LEVEL, packed, mtime=0) as zipped:
            plain = _Summed(zipped)
            with tarfile.open(mode="w|", fileobj=plain, format=tarfile.PAX_FORMAT) as archive:
                for path in sorted(root.rglob("*")):
                    _add(archive, path, str(path.relative_to(root)), epoch, own)
    return Layer(out, plain.sum.hexdigest(), packed.sum.hexdigest())


def _add(archive: tarfile.TarFile, path: Path, name: str, epoch: int, own: frozenset[str]) -> None:
    info = tarfile.TarInfo(name)
    info.mtime = epoch
    if path.is_symlink():
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
        archive.addfile(info)
    elif path.is_dir():
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        if name in own:
            info.uid = info.gid = USER
            info.mode = 0o700
        if name == "tmp":
            info.mode = 0o1777
        archive.addfile(info)
    else:
        info.size = path.stat().st_size
        info.mode = 0o755 if os.access(path, os.X_OK) else 0o644
        with path.open("rb") as file:
            archive.addfile(info, file)


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """What an image is, besides its layers."""

    name: str
    """Repository and tag, for example `palm-access-cloud:1.0.0`."""
    arch: str
    config: Mapping[str, object]
    """`config` of the OCI image configuration: User, Entrypoint, Env, Labels."""
    epoch: int
    """Seconds since 1970."""


def write_image(image: ContainerImage, layers: Sequence[Layer], out: Path) -> None:
    """Write the archive `out`."""
    created = datetime.fromtimestamp(image.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    config = _json(
        {
            "architecture": image.arch,
            "config": image.config,
            "created": created,
            "history": [{"created": created, "created_by": "make release"} for _ in layers],
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.diff_id}" for layer in layers]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _described("application/vnd.oci.image.config.v1+json", config),
            "layers": [layer.described for layer in layers],
        }
    )
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [
            _described("application/vnd.oci.image.manifest.v1+json", manifest)
            | {
                "platform": {"architecture": image.arch, "os": "linux"},
                "annotations": {"org.opencontainers.image.ref.name": image.name},
            }
        ],
    }
    docker = [
        {
            "Config": _blob(_digest(config)),
            "RepoTags": [image.name],
            "Layers": [_blob(layer.digest) for layer in layers],
        }
    ]
    small = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json(index),
        "manifest.json": _json(docker),
        _blob(_digest(config)): config,
        _blob(_digest(manifest)): manifest,
    }
    part = out.with_suffix(".part")
    with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in small.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), image.epoch
            archive.addfile(info, io.BytesIO(data))
        for layer in layers:
            info = tarfile.TarInfo(_blob(layer.digest))
            info.size, info.mtime = layer.path.stat().st_size, image.epoch
            with layer.path.open("rb") as file:
                archive.addfile(info, file)
    part.rename(out)


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _described(kind: str, data: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": f"sha256:{_digest(data)}", "size": len(data)}


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest}"
