"""A model's manifest: what it is, which files it consists of, its thresholds, and how it came to be.

A model is a folder with a ``manifest.json``. Nothing in it is taken on trust: every file's SHA-256 is
compared when the manifest is loaded, and ``open_embedder`` runs one fixed crop through the model and compares
the vector.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from link1.canonical import b64_decode
from link1.errors import FormatError, reason_of
from link1.plain_file import read_plain_file
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

_MODEL_ID: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model, in the manifest's folder."""

    name: str
    size: int
    sha256: str


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
    training: Mapping[str, Any]
    scores: Mapping[str, Any]

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
    manifest = _parse(folder, read_manifest(folder))
    for file in manifest.files:
        check_file(folder / file.name, file)
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """The object in ``folder``/manifest.json; ``ManifestError`` where there is none."""
    path = folder / MANIFEST_NAME
    try:
        raw = json.loads(read_plain_file(path, MAX_MANIFEST_BYTES))
    except OSError as e:
        raise ManifestError(
            f"no readable {path}: {reason_of(e)}; name the folder of an installed model"
        ) from e
    except ValueError as e:
        raise ManifestError(f"{path} is not JSON; install the model again") from e
    if not isinstance(raw, dict):
        raise ManifestError(f"{path} must hold an object, found {type(raw).__name__}")
    return raw


def open_embedder(manifest: ModelManifest, threads: int = 1) -> Embedder:
    """Load the embedding and prove it with the known answer; ``ModelFileError`` when it answers otherwise."""
    embedder = Embedder(manifest.embedding_path, threads)
    vector = embedder.embed(known_crop()[None])[0]
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


def check_file(path: Path, file: ModelFile) -> None:
    """Compare a file with what a manifest says of it; ``ModelFileError`` where it differs."""
    try:
        content = read_plain_file(path, MAX_MODEL_FILE_BYTES)
    except OSError as e:
        raise ModelFileError(f"no readable model file {path}: {reason_of(e)}; install the model again") from e
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise ModelFileError(
            f"{path} is not the file its manifest names: expected SHA-256 {file.sha256} ({file.size} bytes), "
            f"found {found} ({len(content)} bytes); install the model again"
        )


def _parse(folder: Path, raw: dict[str, Any]) -> ModelManifest:
    path = folder / MANIFEST_NAME
    if raw.get("v") != MANIFEST_VERSION:
        raise ManifestError(f"{path}: v must be {MANIFEST_VERSION}, found {raw.get('v')!r}")
    files = raw.get("files")
    if not isinstance(files, list) or not files:
        raise ManifestError(f"{path}: files must be a list of at least one file")
    thresholds = _thresholds(path, raw.get("thresholds"))
    return ModelManifest(
        folder=folder,
        model_id=text_member(path, raw, "model_id", _MODEL_ID),
        files=tuple(file_entry(path, entry) for entry in files),
        thresholds=thresholds,
        agree_q=whole_member(path, raw, "agree_q", 1, 10_000) if "agree_q" in raw else thresholds.accept_q,
        known_answer=_known_answer(path, raw.get("self_test")),
        training=_mapping(path, raw, "training"),
        scores=_mapping(path, raw, "scores"),
    )


def file_entry(path: Path, raw: object) -> ModelFile:
    """One of the ``files`` of the manifest at ``path``."""
    if not isinstance(raw, dict):
        raise ManifestError(f"{path}: every entry of files must be an object")
    return ModelFile(
        text_member(path, raw, "name", _FILE_NAME),
        whole_member(path, raw, "size", 1, 1 << 31),
        text_member(path, raw, "sha256", _SHA256),
    )


def _thresholds(path: Path, raw: object) -> Thresholds:
    if not isinstance(raw, dict):
        raise ManifestError(f"{path}: thresholds must be an object")
    return Thresholds(
        text_member(path, raw, "thr_id", _MODEL_ID),
        accept_q=whole_member(path, raw, "accept_q", 1, 10_000),
        margin_q=whole_member(path, raw, "margin_q", 0, 10_000),
        quality_q=whole_member(path, raw, "quality_q", 0, 100),
        pad_q=whole_member(path, raw, "pad_q", 0, 10_000),
        enrol_quality_q=whole_member(path, raw, "enrol_quality_q", 0, 100),
    )


def _known_answer(path: Path, raw: object) -> NDArray[np.float32]:
    expected = f"{path}: self_test.vector_b64 must be {EMBEDDING_SIZE} little-endian float32 of length 1"
    text = raw.get("vector_b64") if isinstance(raw, dict) else None
    try:
        data = b64_decode(text, length=4 * EMBEDDING_SIZE)
    except FormatError as e:
        raise ManifestError(expected) from e
    vector = np.frombuffer(data, dtype="<f4").astype(np.float32)
    if not abs(float(np.linalg.norm(vector)) - 1.0) < 1e-3:
        raise ManifestError(expected)
    return vector


def text_member(path: Path, raw: Mapping[str, Any], name: str, pattern: re.Pattern[str]) -> str:
    """A text of the manifest at ``path``; ``ManifestError`` unless all of it matches."""
    value = raw.get(name)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ManifestError(f"{path}: {name} must match {pattern.pattern}, found {value!r}")
    return value


def whole_member(path: Path, raw: Mapping[str, Any], name: str, low: int, high: int) -> int:
    """A whole number of the manifest at ``path``."""
    value = raw.get(name)
    if type(value) is not int or not low <= value <= high:
        raise ManifestError(f"{path}: {name} must be a whole number from {low} to {high}, found {value!r}")
    return value


def id_pattern(longest: int) -> re.Pattern[str]:
    """The form of a model's id with at most ``longest`` characters."""
    return re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{longest - 1}}}")


def _mapping(path: Path, raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = raw.get(name)
    if not isinstance(value, dict):
        raise ManifestError(f"{path}: {name} must be an object")
    return MappingProxyType(value)
