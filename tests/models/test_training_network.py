"""The network itself: run where torch is installed (the ``train`` extra)."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch comes with the dependency group train only")
pytest.importorskip("onnx", reason="onnx comes with the dependency group train only")


def test_the_exported_file_answers_like_the_network(tmp_path: Path) -> None:
    from models.embedding import Embedder
    from models.training.export import export_onnx
    from models.training.network import PalmNet

    torch.manual_seed(0)
    net = PalmNet().eval()
    crops = np.random.default_rng(0).integers(0, 255, (3, 112, 112), dtype=np.uint8)
    with torch.no_grad():
        expected = net(torch.from_numpy(crops)).numpy()
    export_onnx(net, tmp_path / "net.onnx")
    np.testing.assert_allclose(Embedder(tmp_path / "net.onnx").embed(crops), expected, atol=1e-4)


def test_light_and_gain_hardly_change_the_vector() -> None:
    from models.training.network import PalmNet

    torch.manual_seed(0)
    net = PalmNet().eval()
    crop = np.random.default_rng(0).integers(60, 120, (1, 112, 112))
    with torch.no_grad():
        one, two = (net(torch.from_numpy(c.astype(np.uint8)))[0] for c in (crop, crop * 2 - 20))
    assert float(one @ two) > 0.99


def test_training_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from models.training import train
    from models.training.canvases import draw_canvases

    canvases = draw_canvases(6)
    monkeypatch.setattr(train, "load_or_draw", lambda *_: canvases)
    first = train.train(train.TrainingPlan(0.02, 6, 12, 1), tmp_path, tmp_path)
    again = train.train(train.TrainingPlan(0.04, 6, 12, 1), tmp_path, tmp_path)
    assert again.steps > first.steps > 0
    assert (tmp_path / "palm-embedding.onnx").exists()
