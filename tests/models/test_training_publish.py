"""What a scored model is published with."""

import numpy as np

from models.evaluation.generated_people import Captures, SearchFigures
from models.training.publish import Scored, choose_agree_q

_NOTHING_SHOWN = Captures(np.empty((0, 112, 112), np.uint8), np.empty(0, np.int64), 0, 0, 0)


def _scored(highest: float) -> Scored:
    scores = np.random.default_rng(0).beta(2, 20, 100_000).astype(np.float32)
    return Scored(
        _NOTHING_SHOWN,
        np.array([0.8], np.float32),
        scores * np.float32(highest / float(scores.max())),
        SearchFigures(0.3, 0.03, 0.4, 1.0),
    )


def test_the_worst_look_decides_unless_real_palms_called_for_more() -> None:
    easy, hard = _scored(0.2), _scored(0.4)
    assert choose_agree_q([easy, hard], 0) == choose_agree_q([hard, easy], 0) == choose_agree_q([hard], 0)
    assert choose_agree_q([easy], 0) < choose_agree_q([hard], 0) < 9_000
    assert choose_agree_q([hard], 9_000) == 9_000
