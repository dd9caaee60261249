"""From palm crops to vectors: one ONNX file, run by ONNX Runtime, many crops on two cores."""

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import CROP_SIZE
from models.errors import ModelFileError, PixelsError
from models.onnx_session import open_session, running
from models.second_core import second_core

EMBEDDING_SIZE: Final = 512


class Embedder:
    """A loaded embedding model; may be called from any one thread at a time."""

    def __init__(self, model_path: Path) -> None:
        """Load an ONNX model that takes (n, 112, 112) uint8 and gives (n, 512) float32.

        Raises ``ModelFileError`` when the file is absent, is no model, has another input or output, or does
        not take several crops at once, which the first stranger's passage would ask of it.
        """
        if not model_path.is_file():
            raise ModelFileError(
                f"no model file at {model_path}; install the model or correct the model folder"
            )
        self._path = model_path
        self._session = open_session(model_path)
        self._input, self._output = _checked_ends(self._session, model_path)
        self._second_core = second_core("embedding")
        self._run(np.zeros((2, CROP_SIZE, CROP_SIZE), dtype=np.uint8))

    def embed(self, crops: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Vectors (n, 512) float32 of unit length for palm crops (n, 112, 112) uint8 grey, fingers up.

        Two crops of one hand have a cosine near 1. Raises ``PixelsError`` for another shape or type,
        ``ModelFileError`` when the model does not take so many.
        """
        if crops.dtype != np.uint8 or crops.ndim != 3 or crops.shape[1:] != (CROP_SIZE, CROP_SIZE):
            raise PixelsError(
                f"palm crops must be uint8 (n, {CROP_SIZE}, {CROP_SIZE}), found {crops.dtype} {crops.shape}"
            )
        if not len(crops):
            return np.empty((0, EMBEDDING_SIZE), dtype=np.float32)
        if len(crops) == 1:
            return self._run(crops)
        # A stranger's passage is mostly the vectors of shifted crops. ONNX Runtime's own threads take longer.
        half = len(crops) // 2
        first = self._second_core.submit(self._run, crops[:half])
        second = self._run(crops[half:])
        return np.concatenate([first.result(), second])

    def _run(self, crops: NDArray[np.uint8]) -> NDArray[np.float32]:
        with running(self._path, f"on a batch of {len(crops)}"):
            vectors = self._session.run([self._output], {self._input: np.ascontiguousarray(crops)})[0]
        return np.asarray(vectors, dtype=np.float32)


def _checked_ends(session: Any, model_path: Path) -> tuple[str, str]:
    inputs, outputs = session.get_inputs(), session.get_outputs()
    found_in = [(i.type, list(i.shape)[1:]) for i in inputs]
    if found_in != [("tensor(uint8)", [CROP_SIZE, CROP_SIZE])]:
        raise ModelFileError(
            f"{model_path} must have one input of uint8 (n, {CROP_SIZE}, {CROP_SIZE}), found {found_in}"
        )
    found_out = [(o.type, list(o.shape)[1:]) for o in outputs]
    if found_out != [("tensor(float)", [EMBEDDING_SIZE])]:
        raise ModelFileError(
            f"{model_path} must have one output of float32 (n, {EMBEDDING_SIZE}), found {found_out}"
        )
    return str(inputs[0].name), str(outputs[0].name)
