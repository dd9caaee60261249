import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from models.embedding import EMBEDDING_SIZE, Embedder
from models.errors import ModelFileError, PixelsError
from models.manifest import known_crop, load_manifest, open_embedder, shipped_model_dir


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return open_embedder(load_manifest(shipped_model_dir()))


def test_vectors_have_unit_length(embedder: Embedder) -> None:
    crops = np.random.default_rng(0).integers(0, 255, (5, 112, 112), dtype=np.uint8)
    crops[3], crops[4] = 0, 255
    vectors = embedder.embed(crops)
    assert vectors.shape == (5, EMBEDDING_SIZE)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


def test_a_batch_gives_what_its_crops_give_alone(embedder: Embedder) -> None:
    crops = np.stack([known_crop(), known_crop()[::-1], known_crop()[:, ::-1]])
    together = embedder.embed(crops)
    alone = np.concatenate([embedder.embed(crop[None]) for crop in crops])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert embedder.embed(crops[:0]).shape == (0, EMBEDDING_SIZE)


@pytest.mark.parametrize(
    "crops",
    [
        np.zeros((1, 112, 112), dtype=np.float32),
        np.zeros((112, 112), dtype=np.uint8),
        np.zeros((1, 112, 111), dtype=np.uint8),
        np.zeros((1, 112, 112, 3), dtype=np.uint8),
    ],
)
def test_other_pixels_are_refused(
    embedder: Embedder, crops: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
) -> None:
    with pytest.raises(PixelsError, match="uint8"):
        embedder.embed(crops)


def test_an_absent_or_foreign_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no model file"):
        Embedder(tmp_path / "absent.onnx")
    (tmp_path / "text.onnx").write_text("not a model")
    with pytest.raises(ModelFileError, match="cannot be loaded"):
        Embedder(tmp_path / "text.onnx")


def test_the_runtime_writes_nothing_into_the_home_folder(tmp_path: Path) -> None:
    """ONNX Runtime's wheels carry telemetry that is on unless told otherwise before the import."""
    script = (
        "from models.manifest import *\n"
        "open_embedder(load_manifest(shipped_model_dir())).embed(known_crop()[None])\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ORT_", "XDG_"))}
    environment["HOME"] = str(tmp_path)
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=60)
    assert list(tmp_path.rglob("*")) == []
