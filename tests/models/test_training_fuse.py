"""Putting two embeddings into one file: run where torch and onnx are installed (the ``train`` extra)."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

torch = pytest.importorskip("torch", reason="torch comes with the dependency group train only")
pytest.importorskip("onnx", reason="onnx comes with the dependency group train only")


def test_the_fused_cosine_is_the_weighted_mean(tmp_path: Path) -> None:
    from models.embedding import Embedder
    from models.training.export import export_onnx
    from models.training.fuse import fuse, main_directions
    from models.training.line_code import LineCode
    from models.training.network import PalmNet

    torch.manual_seed(0)
    crops = np.random.default_rng(0).integers(0, 255, (4, 112, 112), dtype=np.uint8)
    line, net = LineCode(384).eval(), PalmNet().eval()
    norm = net.project_norm
    for values in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
        values.uniform_(0.5, 1.5)
    export_onnx(line, tmp_path / "line.onnx")
    export_onnx(net, tmp_path / "net.onnx")
    with torch.inference_mode():
        seen = line(torch.from_numpy(crops)).numpy()
        told = net(torch.from_numpy(crops)).numpy()
    directions = main_directions(told, 128)
    fuse(tmp_path / "line.onnx", tmp_path / "net.onnx", directions, 0.25, tmp_path / "fused.onnx")
    assert onnxruntime.InferenceSession(tmp_path / "fused.onnx").get_outputs()[0].shape == ["n", 512]
    vectors = Embedder(tmp_path / "fused.onnx").embed(crops)
    kept = told @ directions
    kept /= np.linalg.norm(kept, axis=1, keepdims=True)
    np.testing.assert_allclose(
        vectors @ vectors.T, 0.75 * (seen @ seen.T) + 0.25 * (kept @ kept.T), atol=2e-3
    )
