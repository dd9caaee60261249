"""A model's manifest: what it is, which files it consists of, and its thresholds.

A model is a folder with a ``manifest.json``. Nothing in it is taken on trust: every file's SHA-256 is
compared when the manifest is loaded, and ``open_embedder`` runs one fixed crop through the model and compares
the vector.
"""

import hashlib
import json
import re
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from link1.canonical import b64_decode
from link1.errors import FormatError, reason_of
from link1.plain_file import read_plain_file
from link1.wire import Base64Bytes, Between, WireObject
from models.crop_geometry import CROP_SIZE
from models.embedding import EMBEDDING_SIZE, Embedder
from models.errors import ManifestError, ModelFileError
from models.thresholds import Thresholds

MANIFEST_NAME: Final = "manifest.json"
MANIFEST_VERSION: Final = 1
MAX_MANIFEST_BYTES: Final = 1 << 20
MAX_MODEL_FILE_BYTES: Final = 1 << 28
"""Far above the 6 MiB of the shipped one: a folder that was named by mistake is not read into memory."""
SELF_TEST_COSINE: Final = 0.999
"""Runtimes and processors round differently; a damaged or exchanged model is far below this."""

_LARGEST: Final = 1_000_000
"""Far above every coordinate and chance that a network answers."""
_MODEL_ID: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class ModelFile(WireObject):
    """One file of a model, in the manifest's folder."""

    name: Annotated[str, _FILE_NAME]
    size: Annotated[int, Between(1, 1 << 31)]
    sha256: Annotated[str, _SHA256]


class _SelfTest(WireObject):
    vector_b64: Annotated[str, Base64Bytes(4 * EMBEDDING_SIZE, 4 * EMBEDDING_SIZE)]


class _EmbeddingManifest(WireObject):
    constants: ClassVar = {"v": MANIFEST_VERSION}

    model_id: Annotated[str, _MODEL_ID]
    files: Annotated[tuple[ModelFile, ...], Between(1)]
    thresholds: Thresholds
    self_test: _SelfTest
    agree_q: Annotated[int | None, Between(1, 10_000)] = None


class _PairManifest(WireObject):
    constants: ClassVar = {"v": MANIFEST_VERSION}

    files: Annotated[tuple[ModelFile, ...], Between(2, 2)]


@dataclass(frozen=True, slots=True, eq=False)
class ModelManifest:
    """A manifest whose files have been found to be the ones it names."""

    folder: Path
    model_id: str
    files: tuple[ModelFile, ...]
    thresholds: Thresholds
    agree_q: int
    """Cosine of two vectors, times 10000, from which they count as captures of one palm; a gallery scores in
    another way, and ``accept_q`` is for those scores."""
    known_answer: NDArray[np.float32]
    """(512,) unit vector of ``known_crop()``."""

    @property
    def embedding_path(self) -> Path:
        """The ONNX file of the embedding."""
        return self.folder / self.files[0].name


def shipped_model_dir() -> Path:
    """The folder of the model that comes with this package."""
    shipped = Path(__file__).parent / "shipped"
    folders = sorted(path.parent for path in shipped.glob(f"*/{MANIFEST_NAME}"))
    if len(folders) != 1:
        raise ManifestError(
            f"expected exactly one model with a {MANIFEST_NAME} under {shipped}, found {len(folders)}; "
            "reinstall the package, or name a model folder"
        )
    return folders[0]


def load_manifest(folder: Path) -> ModelManifest:
    """Read ``folder``/manifest.json and compare every file with its size and SHA-256.

    Raises ``ManifestError`` for an absent or wrong manifest, ``ModelFileError`` for a wrong file.
    """
    path = folder / MANIFEST_NAME
    try:
        written = _EmbeddingManifest.from_obj(read_manifest(folder))
    except FormatError as e:
        raise ManifestError(f"{path}: {e}") from e
    answer = np.frombuffer(b64_decode(written.self_test.vector_b64), dtype="<f4").astype(np.float32)
    if not abs(float(np.linalg.norm(answer)) - 1.0) < 1e-3:
        raise ManifestError(f"{path}: self_test.vector_b64 must be little-endian float32 of length 1")
    if not written.thresholds.accept_q:  # an operator may sign such a configuration; no model has it
        raise ManifestError(f"{path}: accept_q must be 1 to 10000, found 0")
    check_files(folder, written.files)
    agree_q = written.thresholds.accept_q if written.agree_q is None else written.agree_q
    return ModelManifest(folder, written.model_id, written.files, written.thresholds, agree_q, answer)


def read_pair(folder: Path) -> tuple[Path, Path, object]:
    """The files of two networks that work together, compared with ``folder``/manifest.json, and its
    ``self_test``.

    Raises ``ManifestError`` for an absent or wrong manifest, ``ModelFileError`` for a wrong file.
    """
    raw = read_manifest(folder)
    try:
        one, other = files = _PairManifest.from_obj(raw).files
    except FormatError as e:
        raise ManifestError(
            f"{folder / MANIFEST_NAME} needs v {MANIFEST_VERSION} and two files ({e}); install it again"
        ) from e
    check_files(folder, files)
    return folder / one.name, folder / other.name, raw.get("self_test")


def known_numbers(folder: Path, member: str, value: object) -> NDArray[np.float64]:
    """The numbers (n,) that ``member`` of ``folder``/manifest.json holds; ``value`` is what was read there.

    Raises ``ManifestError`` for anything but a list of numbers from -1,000,000 to 1,000,000.
    """
    found = value
    if isinstance(value, list):
        wrong = [n for n in value if type(n) not in (int, float) or not abs(n) <= _LARGEST]
        if not wrong:
            return np.asarray(value, dtype=np.float64)
        found = wrong[0]
    raise ManifestError(
        f"{folder / MANIFEST_NAME}: {member} must be a list of numbers from {-_LARGEST:,} to {_LARGEST:,}, "
        f"found {reprlib.repr(found)}; install the package again"
    )


def read_manifest(folder: Path) -> dict[str, Any]:
    """The object in ``folder``/manifest.json; ``ManifestError`` where there is none."""
    path = folder / MANIFEST_NAME
    try:
        raw = json.loads(read_plain_file(path, MAX_MANIFEST_BYTES))
    except OSError as e:
        raise ManifestError(
            f"no readable {path}: {reason_of(e)}; name the folder of an installed model"
        ) from e
    except (ValueError, RecursionError) as e:
        raise ManifestError(f"{path} is not JSON; install the model again") from e
    if not isinstance(raw, dict):
        raise ManifestError(f"{path} must hold an object, found {type(raw).__name__}")
    return raw


def open_embedder(manifest: ModelManifest) -> Embedder:
    """Load the embedding and prove it with the known answer; ``ModelFileError`` when it answers otherwise."""
    embedder = Embedder(manifest.embedding_path)
    vector = embedder.embed(known_crop()[None])[0]
    length = float(np.linalg.norm(vector))
    if not abs(length - 1.0) < 1e-3:
        raise ModelFileError(
            f"{manifest.embedding_path} failed its self test: its vectors must have length 1, found "
            f"{length:.4f}; export it with the division by their length"
        )
    cosine = float(vector @ manifest.known_answer)
    if not cosine >= SELF_TEST_COSINE:
        raise ModelFileError(
            f"{manifest.embedding_path} failed its self test: the cosine with the known answer must be at "
            f"least {SELF_TEST_COSINE}, found {cosine:.4f}; install the model again"
        )
    return embedder


def known_crop() -> NDArray[np.uint8]:
    """The fixed input (112, 112) of the self test: dark curved lines on a slope, from integers alone."""
    y, x = np.mgrid[0:CROP_SIZE, 0:CROP_SIZE]
    ground = 120 + x // 4 + y // 3
    lines = np.zeros_like(ground)
    for bend, start, gap in ((90, 10, 34), (-140, 60, 47), (55, 35, 61)):
        distance = np.abs((y - start - (x * x) // bend) % (2 * gap) - gap)
        lines = np.maximum(lines, 60 - 20 * np.minimum(distance, 3))
    texture = (x * 7 + y * 13 + (x * y) % 11) % 9
    return np.asarray(ground - lines + texture, dtype=np.uint8)


def check_files(folder: Path, files: Iterable[ModelFile]) -> None:
    """Compare files with what a manifest says of them; ``ModelFileError`` where one differs."""
    for file in files:
        path = folder / file.name
        try:
            content = read_plain_file(path, MAX_MODEL_FILE_BYTES)
        except OSError as e:
            raise ModelFileError(
                f"no readable model file {path}: {reason_of(e)}; install the model again"
            ) from e
        found = hashlib.sha256(content).hexdigest()
        if found != file.sha256 or len(content) != file.size:
            raise ModelFileError(
                f"{path} is not the file its manifest names: expected SHA-256 {file.sha256} ({file.size} "
                f"bytes), found {found} ({len(content)} bytes); install the model again"
            )
