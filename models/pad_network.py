"""An operator's own presentation-attack network, dropped in as a folder.

The folder holds one ONNX file and a ``manifest.json``::

    {"v": 1, "kind": "pad", "model_id": "acme-pad-3", "look": "rgb",
     "files": [{"name": "pad.onnx", "size": 812345, "sha256": "…"}],
     "input": {"reach": 2.4, "side_px": 80, "layout": "nchw", "channels": "bgr", "dtype": "float32",
               "mean": [0, 0, 0], "std": [255, 255, 255]},
     "output": {"live": 1, "activation": "softmax"},
     "threshold": 0.7}

It sees a square around the palm, fingers up, ``reach`` palm widths wide (1 is the palm crop itself, 2.4 the
hand with its surroundings), black beyond the frame, and gives the probability that the hand is alive. A file
that is not the one named, another shape, or an answer that is no probability is an error, never a pass.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from link1.errors import FormatError
from models.crop_geometry import CROP_SIZE, similarity_from_valleys
from models.errors import ManifestError, ModelFileError
from models.frames import CameraFrame, as_grey
from models.hand import Hand
from models.manifest import MANIFEST_NAME, ModelFile, check_files, read_manifest
from models.onnx_session import open_session, running

_MODEL_ID: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,15}")
"""16 characters, so that verdicts can name it with the other cues."""

MAX_LOG_ODDS: Final = 8.0
"""A network that is surer than this, 0.9997, is believed no further."""


@dataclass(frozen=True, slots=True)
class PadInput:
    """What the network is shown."""

    reach: float
    side_px: int
    layout: str
    channels: str
    dtype: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def shape(self) -> list[int]:
        """Of one square, without the batch."""
        planes = len(self.mean)
        square = [self.side_px, self.side_px]
        return [planes, *square] if self.layout == "nchw" else [*square, planes]


@dataclass(frozen=True, slots=True)
class PadManifest:
    """A manifest whose file has been found to be the one it names."""

    folder: Path
    model_id: str
    look: Literal["rgb", "nir"]
    file: ModelFile
    input: PadInput
    live: int
    activation: str
    threshold: float


class PadNetwork:
    """A loaded network; may be called from any one thread at a time."""

    def __init__(self, manifest: PadManifest) -> None:
        """Load it and let it judge a grey square. Raises ``ModelFileError``."""
        self.model_id = manifest.model_id
        self._manifest = manifest
        self._path = manifest.folder / manifest.file.name
        self._session = open_session(self._path)
        self._input, self._output = self._checked_ends()
        self._probability(np.full((manifest.input.side_px,) * 2 + (3,), 128, np.uint8))

    def log_odds(self, frame: CameraFrame, hand: Hand) -> float | None:
        """How far above its threshold the network takes the hand for alive: a difference of log odds,
        -8..8, 0 at the threshold. None for a frame of another look than the network was made for.

        Raises ``ModelFileError`` where its answer is no probability.
        """
        if frame.is_colour != (self._manifest.look == "rgb"):
            return None
        probability = self._probability(_square(frame, hand, self._manifest.input))
        apart = _log_odds(probability) - _log_odds(self._manifest.threshold)
        return max(-MAX_LOG_ODDS, min(MAX_LOG_ODDS, apart))

    def _probability(self, square: NDArray[np.uint8]) -> float:
        """Of a live hand; ``square`` is (side, side, 3) BGR or (side, side) grey."""
        with running(self._path, "on one square"):
            out = self._session.run([self._output], {self._input: _tensor(square, self._manifest.input)})[0]
        values = np.asarray(out, dtype=np.float64).reshape(-1)
        if self._manifest.activation == "softmax":
            values = np.exp(values - values.max())
            values /= values.sum()
        elif self._manifest.activation == "sigmoid":
            values = 1.0 / (1.0 + np.exp(-np.clip(values, -60.0, 60.0)))
        probability = float(values[self._manifest.live])
        if not 0.0 <= probability <= 1.0:
            raise ModelFileError(
                f"{self._path} must give probabilities from 0 to 1, found {probability}; correct "
                "output.activation in its manifest, or install the network again"
            )
        return probability

    def _checked_ends(self) -> tuple[str, str]:
        wanted = self._manifest.input
        ends = self._session.get_inputs(), self._session.get_outputs()
        kind = "tensor(float)" if wanted.dtype == "float32" else "tensor(uint8)"
        found_in = [(end.type, list(end.shape)[1:]) for end in ends[0]]
        if found_in != [(kind, wanted.shape)]:
            raise ModelFileError(
                f"{self._path} must have one input {kind} (1, {', '.join(map(str, wanted.shape))}) as its "
                f"manifest says, found {found_in}; correct the manifest's input"
            )
        found_out = [(end.type, list(end.shape)[1:]) for end in ends[1]]
        outputs = found_out[0][1] if found_out and len(found_out[0][1]) == 1 else [0]
        if found_out[0][0] != "tensor(float)" or not (
            isinstance(outputs[0], int) and outputs[0] > self._manifest.live
        ):
            raise ModelFileError(
                f"{self._path} must have a first output tensor(float) (1, k) with k over output.live = "
                f"{self._manifest.live}, found {found_out}; correct the manifest's output"
            )
        if self._manifest.activation == "softmax" and outputs[0] == 1:  # 1 for everything that is shown
            raise ModelFileError(
                f"{self._path} gives one number, of which softmax makes 1 for whatever it is shown; correct "
                "output.activation in its manifest to sigmoid or none"
            )
        return str(ends[0][0].name), str(ends[1][0].name)


def open_pad_network(folder: Path, look: str) -> PadNetwork:
    """The network in ``folder``, for a camera that gives ``look``, proved to load and to answer.

    Raises ``ManifestError`` or ``ModelFileError``, which say what is wrong.
    """
    manifest = load_pad_manifest(folder)
    if manifest.look != look:
        raise ManifestError(
            f"{folder / MANIFEST_NAME}: this network was made for look {manifest.look}, the camera gives "
            f"{look}; install a network made for this camera"
        )
    return PadNetwork(manifest)


def load_pad_manifest(folder: Path) -> PadManifest:
    """Read ``folder``/manifest.json and compare the file with its SHA-256.

    Raises ``ManifestError`` for an absent or wrong manifest, ``ModelFileError`` for a wrong file.
    """
    path, raw = folder / MANIFEST_NAME, read_manifest(folder)
    if raw.get("v") != 1 or raw.get("kind") != "pad":
        raise ManifestError(f'{path}: v must be 1 and kind "pad"; name the folder of a liveness network')
    files = raw.get("files")
    if not isinstance(files, list) or len(files) != 1 or not isinstance(files[0], dict):
        raise ManifestError(f"{path}: files must be a list of one file")
    try:
        file = ModelFile.from_obj(files[0])
    except FormatError as e:
        raise ManifestError(f"{path}: files: {e}") from e
    model_id = raw.get("model_id")
    if not isinstance(model_id, str) or not _MODEL_ID.fullmatch(model_id):
        raise ManifestError(f"{path}: model_id must match {_MODEL_ID.pattern}, found {model_id!r}")
    output = _object(path, raw, "output")
    manifest = PadManifest(
        folder=folder,
        model_id=model_id,
        look=cast('Literal["rgb", "nir"]', _word(path, raw, "look", "rgb", "nir")),
        file=file,
        input=_input(path, _object(path, raw, "input")),
        live=_whole(path, output, "live", 0, 999),
        activation=_word(path, output, "activation", "none", "sigmoid", "softmax"),
        threshold=_number(path, raw, "threshold", 0.001, 0.999),
    )
    check_files(folder, [manifest.file])
    return manifest


def _input(path: Path, raw: Mapping[str, Any]) -> PadInput:
    channels = _word(path, raw, "channels", "bgr", "rgb", "grey")
    planes = 1 if channels == "grey" else 3
    return PadInput(
        reach=_number(path, raw, "reach", 0.5, 6.0),
        side_px=_whole(path, raw, "side_px", 16, 640),
        layout=_word(path, raw, "layout", "nchw", "nhwc"),
        channels=channels,
        dtype=_word(path, raw, "dtype", "float32", "uint8"),
        mean=_planes(path, raw, "mean", planes, -1e6),
        std=_planes(path, raw, "std", planes, 1e-6),
    )


def _square(frame: CameraFrame, hand: Hand, wanted: PadInput) -> NDArray[np.uint8]:
    """The square (side, side, 3) or (side, side) around the middle of the palm crop, fingers up."""
    scale = wanted.side_px / (CROP_SIZE * wanted.reach)
    matrix = similarity_from_valleys(hand.valleys, hand.handedness) * scale
    matrix[:, 2] += (wanted.side_px - CROP_SIZE * scale) / 2.0
    pixels = as_grey(frame) if wanted.channels == "grey" else frame.pixels
    # A hand larger than the square is averaged first, else its fine texture would alias.
    shrink = 1.0 / max(float(np.hypot(matrix[0, 0], matrix[1, 0])), 1e-6)
    if shrink > 1.5:
        pixels = np.asarray(
            cv2.GaussianBlur(pixels, (0, 0), 0.4 * math.sqrt(shrink * shrink - 1.0)), np.uint8
        )
    size = (wanted.side_px, wanted.side_px)
    return np.asarray(cv2.warpAffine(pixels, matrix, size, flags=cv2.INTER_LINEAR), dtype=np.uint8)


def _tensor(square: NDArray[np.uint8], wanted: PadInput) -> NDArray[Any]:
    """One batch of one square in the network's own form."""
    if wanted.channels == "grey":
        planes = square[:, :, :1] if square.ndim == 3 else square[:, :, None]
    else:
        planes = square if square.ndim == 3 else np.repeat(square[:, :, None], 3, axis=2)
        planes = planes[:, :, ::-1] if wanted.channels == "rgb" else planes
    if wanted.layout == "nchw":
        planes = planes.transpose(2, 0, 1)
    if wanted.dtype == "uint8":
        return np.ascontiguousarray(planes[None])
    shape = (-1, 1, 1) if wanted.layout == "nchw" else (1, 1, -1)
    mean, std = (np.array(v, np.float32).reshape(shape) for v in (wanted.mean, wanted.std))
    return np.ascontiguousarray(((planes.astype(np.float32) - mean) / std)[None])


def _log_odds(probability: float) -> float:
    near = min(1.0 - 1e-9, max(1e-9, probability))
    return math.log(near / (1.0 - near))


def _object(path: Path, raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = raw.get(name)
    if not isinstance(value, dict):
        raise ManifestError(f"{path}: {name} must be an object")
    return value


def _word(path: Path, raw: Mapping[str, Any], name: str, *words: str) -> str:
    value = raw.get(name)
    if value not in words:
        raise ManifestError(f"{path}: {name} must be one of {', '.join(words)}, found {value!r}")
    return str(value)


def _whole(path: Path, raw: Mapping[str, Any], name: str, low: int, high: int) -> int:
    value = raw.get(name)
    if type(value) is not int or not low <= value <= high:
        raise ManifestError(f"{path}: {name} must be a whole number from {low} to {high}, found {value!r}")
    return value


def _number(path: Path, raw: Mapping[str, Any], name: str, low: float, high: float) -> float:
    value = raw.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ManifestError(f"{path}: {name} must be a number from {low} to {high}, found {value!r}")
    return float(value)


def _planes(path: Path, raw: Mapping[str, Any], name: str, planes: int, least: float) -> tuple[float, ...]:
    value = raw.get(name)
    if not isinstance(value, list) or len(value) != planes:
        raise ManifestError(f"{path}: {name} must be a list of {planes} numbers, found {value!r}")
    return tuple(_number(path, {name: one}, name, least, 1e6) for one in value)
