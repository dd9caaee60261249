"""The thresholds that a scored model is published with."""

import numpy as np

from models.evaluation import Captures, SearchFigures
from models.manifest import Thresholds
from models.training.publish import Scored, choose_thresholds

_NOTHING_SHOWN = Captures(np.empty((0, 112, 112), np.uint8), np.empty(0, np.int64), 0, 0, 0)


def _scored(highest: float, stranger_gap: float, known_gap: float) -> Scored:
    scores = np.random.default_rng(0).beta(2, 20, 100_000).astype(np.float32)
    return Scored(
        _NOTHING_SHOWN,
        np.array([0.8], np.float32),
        scores * np.float32(highest / float(scores.max())),
        SearchFigures(0.3, stranger_gap, known_gap, 1.0),
    )


def _chosen(*scored: Scored, accept_least_q: int = 0, margin_least_q: int = 0) -> Thresholds:
    return choose_thresholds(
        "m-t1", list(scored), accept_least_q=accept_least_q, margin_least_q=margin_least_q,
        quality_q=45, enrol_quality_q=65, pad_q=5000,
    )  # fmt: skip


def test_the_worst_look_decides_unless_real_palms_called_for_more() -> None:
    easy, hard = _scored(0.2, 0.03, 0.4), _scored(0.4, 0.07, 0.4)
    assert _chosen(easy, hard) == _chosen(hard, easy) == _chosen(hard)
    assert _chosen(easy).accept_q < _chosen(hard).accept_q
    assert (_chosen(easy).margin_q, _chosen(hard).margin_q) == (300, 700)
    assert _chosen(hard, margin_least_q=1000).margin_q == 1000
    assert _chosen(hard, margin_least_q=500).margin_q == 700
    assert _chosen(hard, accept_least_q=9000).accept_q == 9000


def test_no_margin_is_computed_that_known_people_come_near() -> None:
    assert _chosen(_scored(0.3, 0.2, 0.12)).margin_q == 600
