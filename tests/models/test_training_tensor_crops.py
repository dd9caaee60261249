"""Crops drawn in tensors, for a GPU, against those drawn one by one (needs torch: the group `train`)."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from models.training.canvases import PalmCanvases, draw_canvases
from models.training.crops import Crops, Variation, sample_crop

torch = pytest.importorskip("torch", reason="torch comes with the dependency group train only")


@pytest.fixture(scope="module")
def canvases() -> PalmCanvases:
    return draw_canvases(6)


def in_tensors(canvases: PalmCanvases, hands: Any, lamp: Any, variation: Variation, seed: int = 1) -> Crops:
    from models.training.tensor_crops import TensorCanvases

    tensors = TensorCanvases.on(torch.device("cpu"), canvases, seed)
    return np.asarray(tensors.crops(hands, lamp, variation).numpy())


def one_by_one(canvases: PalmCanvases, hands: Any, lamp: Any, variation: Variation) -> Crops:
    rng = np.random.default_rng(0)
    each = zip(hands.tolist(), lamp.tolist(), strict=True)
    return np.stack([sample_crop(canvases, hand, rng, infrared, variation) for hand, infrared in each])


def fine(crops: Crops) -> NDArray[np.float32]:
    """The mean of some crops without what light does to it."""
    mean = crops.mean(axis=0, dtype=np.float32)
    return np.asarray(mean - cv2.GaussianBlur(mean, (0, 0), 6.0)).ravel()


def test_crops_in_tensors_are_like_those_drawn_one_by_one(canvases: PalmCanvases) -> None:
    hands, lamp = torch.arange(12).repeat(30), torch.arange(360) % 3 == 0
    made = in_tensors(canvases, hands, lamp, Variation())
    theirs = one_by_one(canvases, hands, lamp, Variation())
    assert (made.dtype, made.shape) == (theirs.dtype, theirs.shape)
    for name in ("light", "contrast", "detail"):
        mine, other = (
            {
                "light": some.mean(axis=(1, 2)),
                "contrast": some.std(axis=(1, 2)),
                "detail": np.abs(np.diff(some.astype(float), axis=2)).mean(axis=(1, 2)),
            }[name]
            for some in (made, theirs)
        )
        assert abs(mine.mean() - other.mean()) < 0.15 * other.mean(), name
        assert 0.7 < mine.std() / other.std() < 1.4, name


def test_without_variation_a_crop_is_the_cutters_own(canvases: PalmCanvases) -> None:
    """The same hand in the same place: what both ways leave when light, blur and noise are averaged away."""
    still = Variation(shift=0.0, scale=0.0, rotation_deg=0.0, perspective=0.0, elastic_px=0.0)
    hands, lamp = torch.arange(12).repeat_interleave(40), torch.zeros(480, dtype=torch.bool)
    made, theirs = in_tensors(canvases, hands, lamp, still), one_by_one(canvases, hands, lamp, still)
    rows = [slice(40 * hand, 40 * hand + 40) for hand in range(12)]
    alike = np.array([[np.corrcoef(fine(made[a]), fine(theirs[b]))[0, 1] for b in rows] for a in rows])
    assert np.diag(alike).min() > 0.8
    assert (alike - np.eye(12)).max() < 0.5


def test_the_same_seed_draws_the_same_crops(canvases: PalmCanvases) -> None:
    hands, lamp = torch.arange(12), torch.arange(12) % 2 == 0
    first, again, other = (in_tensors(canvases, hands, lamp, Variation(), seed) for seed in (5, 5, 6))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_training_goes_on_where_it_was(
    canvases: PalmCanvases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from models.training import train

    monkeypatch.setattr(train, "load_or_draw", lambda *_: canvases)
    first = train.train(train.TrainingPlan(0.02, 6, 12, 1), tmp_path, tmp_path)
    again = train.train(train.TrainingPlan(0.04, 6, 12, 1), tmp_path, tmp_path)
    assert again.steps > first.steps > 0
    assert (tmp_path / "palm-embedding.onnx").exists()


def test_a_net_learns_from_crops_in_tensors(canvases: PalmCanvases) -> None:
    """What a GPU does, on the processor."""
    from models.training import train
    from models.training.tensor_crops import TensorCanvases

    device = torch.device("cpu")
    plan = train.TrainingPlan(1.0, 6, 12, 1)
    run = train._begin(plan, 12, device)
    tensors = TensorCanvases.on(device, canvases, 1)
    drawn = train.batches(canvases, plan, tensors, np.random.default_rng(1))
    crops, hands = next(drawn)
    assert (crops.dtype, tuple(crops.shape)) == (torch.uint8, (12, 112, 112))
    assert hands[:6].tolist() == hands[6:].tolist()
    assert len(set(hands.tolist())) == 6
    losses = [train._step(run, crops, hands)[0] for _ in range(12)]
    assert losses[-1] < losses[0]
    assert not torch.equal(next(drawn)[0], crops)
