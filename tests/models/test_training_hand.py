"""What the hand finder learns from: truth that matches the pictures; and training that goes on."""

from pathlib import Path

import numpy as np
import pytest

from models.hand_network import COARSE_PX, FINE_PX
from models.training.hand_pool import Pool, draw_pool
from models.training.hand_samples import CELLS, coarse_batch, fine_batch


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    return draw_pool(tmp_path_factory.mktemp("pool"), hands=8, grounds=4)


def test_a_drawn_pool_is_read_again(pool: Pool, tmp_path: Path) -> None:
    drawn = draw_pool(tmp_path, hands=2, grounds=1)
    again = draw_pool(tmp_path, hands=2, grounds=1)
    assert np.array_equal(drawn.hands, again.hands)
    assert np.array_equal(drawn.hands, pool.hands[:2])


def test_whole_pictures_say_where_their_hand_is(pool: Pool) -> None:
    batch = coarse_batch(np.random.default_rng(1), pool, 24)
    assert batch.pictures.shape == (24, COARSE_PX, COARSE_PX)
    shown = batch.heat.max(axis=(1, 2)) == 1.0
    assert 12 <= shown.sum() < 24
    assert not batch.cover[~shown].any()
    for k in np.flatnonzero(shown):
        row, column = np.unravel_index(int(batch.heat[k].argmax()), (CELLS, CELLS))
        assert np.abs(batch.told[k, 2:4, row, column]).max() <= 0.6
        assert np.hypot(*batch.told[k, 5:7, row, column]) == pytest.approx(1.0, abs=1e-5)


def test_straightened_pieces_have_their_valleys_in_order(pool: Pool) -> None:
    batch = fine_batch(np.random.default_rng(2), pool, 40)
    assert batch.crops.shape == (40, FINE_PX, FINE_PX)
    told = ~np.isnan(batch.points[:, 1:4]).any(axis=(1, 2))
    assert told.sum() > 8
    assert (batch.is_open[told] == 1.0).all()
    assert (batch.mirrored[told] == 0.0).all()
    # A left hand, fingers up: index–middle is left of ring–little.
    assert (batch.points[told, 1, 0] < batch.points[told, 3, 0]).all()


def test_training_goes_on_where_it_was(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from models.training import hand_train

    monkeypatch.setattr(hand_train, "draw_pool", lambda *_, **__: pool)
    for name in ("coarse", "fine"):
        hand_train.train(name, 1e-3, 1, tmp_path, tmp_path)
        first = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        hand_train.train(name, first["seconds"] / 60 + 1e-3, 1, tmp_path, tmp_path)
        assert torch.load(tmp_path / f"{name}.pt", weights_only=True)["steps"] > first["steps"] > 0
