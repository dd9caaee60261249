import base64
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.errors import ManifestError, ModelFileError
from models.manifest import MANIFEST_NAME, known_crop, load_manifest, open_embedder, shipped_model_dir
from tests.models.onnx_bytes import for_so_many_crops, of_twice_the_length


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(shipped_model_dir(), tmp_path / "model"))


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / MANIFEST_NAME
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def test_the_shipped_model_is_whole_and_tells_its_story() -> None:
    manifest = load_manifest(shipped_model_dir())
    open_embedder(manifest)
    assert manifest.folder.name == manifest.model_id
    assert manifest.embedding_path.stat().st_size == manifest.files[0].size < 10_000_000
    assert manifest.thresholds.thr_id.startswith(manifest.model_id)
    written = json.loads((manifest.folder / MANIFEST_NAME).read_text())
    assert written["training"]["crops"] > 0
    assert "no real palm" in written["scores"]["data"]
    # Strangers' captures do not agree, by the measured rate, and those of one palm do.
    for look in ("rgb", "nir"):
        assert written["scores"][look]["fmr_at_agree"] <= 1e-4
        assert written["scores"][look]["fnmr_at_agree"] <= 0.05


def test_an_altered_file_is_refused(copy: Path) -> None:
    model = load_manifest(copy).embedding_path
    content = bytearray(model.read_bytes())
    content[len(content) // 2] ^= 1
    model.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"expected SHA-256 .* found .* install the model again"):
        load_manifest(copy)


def test_a_file_of_another_size_than_the_manifest_says_is_refused(copy: Path) -> None:
    """`palmctl model check` shows the manifest's size as the file's."""
    edit(copy, lambda raw: raw["files"][0].update(size=7))
    with pytest.raises(ModelFileError, match=r"\(7 bytes\), found .* \(5469862 bytes\)"):
        load_manifest(copy)


def test_an_absent_file_is_refused(copy: Path) -> None:
    load_manifest(copy).embedding_path.unlink()
    with pytest.raises(ModelFileError, match="No such file"):
        load_manifest(copy)


def test_a_model_that_answers_otherwise_is_refused(copy: Path) -> None:
    other = np.zeros(512, dtype="<f4")
    other[0] = 1.0
    answer = base64.b64encode(other.tobytes()).decode()
    edit(copy, lambda raw: raw["self_test"].update(vector_b64=answer))
    with pytest.raises(ModelFileError, match="self test"):
        open_embedder(load_manifest(copy))


def exchange(folder: Path, change: Callable[[bytes], bytes]) -> None:
    """Another network under the hash that the manifest names."""
    path = load_manifest(folder).embedding_path
    path.write_bytes(change(path.read_bytes()))
    found = {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    edit(folder, lambda raw: raw["files"][0].update(found))


@pytest.mark.parametrize("batch", [1, 2])
def test_a_model_for_a_fixed_number_of_crops_is_refused(copy: Path, batch: int) -> None:
    """A passage asks for one vector, and a stranger's for those of shifted crops too."""
    exchange(copy, lambda model: for_so_many_crops(model, batch))
    with pytest.raises(ModelFileError, match=rf"cannot be run on a batch of {3 - batch} "):
        open_embedder(load_manifest(copy))


def test_a_model_whose_vectors_are_not_of_length_1_is_refused(copy: Path) -> None:
    """Their products would be taken for cosines: two strangers' for those of one hand."""
    exchange(copy, of_twice_the_length)
    with pytest.raises(ModelFileError, match=r"must have length 1, found 2\.0000"):
        open_embedder(load_manifest(copy))


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("v", 2),
        ("model_id", "../other"),
        ("model_id", None),
        ("files", []),
        ("files", [{"name": "../../etc/passwd", "size": 1, "sha256": "0" * 64}]),
        ("files", [{"name": "a.onnx", "size": True, "sha256": "0" * 64}]),
        ("files", ["a.onnx"]),
        ("thresholds", None),
        ("thresholds", {"thr_id": "t", "accept_q": 0.9}),
        ("thresholds", {"thr_id": "t", "accept_q": 10_001}),
        (
            "thresholds",
            {"thr_id": "t", "accept_q": 0, "margin_q": 0, "quality_q": 0, "pad_q": 0, "enrol_quality_q": 0},
        ),
        ("agree_q", 0),
        ("agree_q", "4600"),
        ("self_test", {}),
        ("self_test", {"vector_b64": "AAAA"}),
        ("self_test", {"vector_b64": "no base64!"}),
        ("self_test", {"vector_b64": base64.b64encode(bytes(2048)).decode()}),
    ],
)
def test_a_wrong_member_is_named(copy: Path, member: str, value: object) -> None:
    edit(copy, lambda raw: raw.update({member: value}))
    with pytest.raises(ManifestError, match=str(copy)):
        load_manifest(copy)


def test_without_agree_q_captures_agree_at_accept_q(copy: Path) -> None:
    assert load_manifest(copy).agree_q > load_manifest(copy).thresholds.accept_q
    edit(copy, lambda raw: raw.pop("agree_q"))
    manifest = load_manifest(copy)
    assert manifest.agree_q == manifest.thresholds.accept_q


@pytest.mark.parametrize(
    ("content", "message"), [("{", "not JSON"), ("[" * 100_000, "not JSON"), ("[]", "object")]
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ManifestError, match="no readable"):
        load_manifest(tmp_path)
    (tmp_path / MANIFEST_NAME).write_text(content)
    with pytest.raises(ManifestError, match=message):
        load_manifest(tmp_path)


def test_the_known_crop_is_the_same_everywhere() -> None:
    crop = known_crop()
    assert crop.dtype == np.uint8
    assert crop.shape == (112, 112)
    assert int(crop.astype(np.int64).sum()) == 1878773
    assert int((crop.astype(np.int64) * np.arange(112)).sum()) == 107633715
