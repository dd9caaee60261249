from pathlib import Path

import pytest

from tools.palmctl.bench.daemon import BenchFailed
from tools.rig.bench.flash_wear import PASSAGES_A_DAY, measure_flash_wear, summary


def test_what_a_passage_costs_the_card_is_counted_and_bounded(tmp_path: Path) -> None:
    try:
        figures = measure_flash_wear(tmp_path, passages=140)
    except BenchFailed as error:
        pytest.skip(str(error))
    assert 4_096 < figures["bytes_a_passage"] < 36 * 1024
    assert 1_000 < figures["bytes_kept_a_passage"] < 2_048
    assert figures["bytes_a_day"] > PASSAGES_A_DAY * figures["bytes_a_passage"]
    assert all(line.startswith("flash: ") for line in summary(figures))
