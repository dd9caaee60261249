import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.evaluation.generated_people import (
    capture_people,
    compare_all,
    embed_all,
    equal_error_rate,
    extrapolated_threshold,
    false_match_rate,
    false_non_match_rate,
    search_figures,
    threshold_at,
)
from models.manifest import load_manifest, open_embedder, shipped_model_dir

UNSEEN_PEOPLE = 30_000_000


def test_pairs_leave_out_the_two_hands_of_one_person() -> None:
    hands = np.array([0, 0, 1, 2, 3, 3])
    mated, non_mated = compare_all(np.eye(6, 512, dtype=np.float32), hands)
    assert len(mated) == 2
    assert len(non_mated) == 3 * 3


@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-1, 1e-2, 1e-3]))
def test_the_threshold_keeps_its_rate_and_is_the_lowest_that_does(seed: int, rate: float) -> None:
    scores = np.random.default_rng(seed).normal(0.1, 0.1, 3000).astype(np.float32)
    threshold = threshold_at(scores, rate)
    assert false_match_rate(scores, threshold) <= rate
    below = np.nextafter(np.float32(threshold), np.float32(-1))
    assert false_match_rate(scores, float(np.nextafter(below, np.float32(-1)))) > rate - 2 / len(scores)


def test_equal_error_rate_of_known_distributions() -> None:
    rng = np.random.default_rng(0)
    mated = rng.normal(2.0, 1.0, 200_000).astype(np.float32)
    non_mated = rng.normal(0.0, 1.0, 200_000).astype(np.float32)
    assert equal_error_rate(mated, non_mated) == pytest.approx(0.1587, abs=0.003)  # Phi(-1)
    assert equal_error_rate(mated + 20, non_mated) == 0.0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_extrapolation_comes_near_the_true_tail(seed: int) -> None:
    scores = np.random.default_rng(seed).normal(0.0, 0.1, 400_000).astype(np.float32)
    assert extrapolated_threshold(scores, 1e-7) == pytest.approx(0.1 * 5.199, abs=0.06)  # the normal quantile


def test_search_figures_of_perfect_and_of_equal_vectors() -> None:
    hands = np.repeat(np.arange(8), 2)
    perfect = search_figures(np.eye(8, 512, dtype=np.float32)[hands], hands)
    assert (perfect.rank1, perfect.known_gap_p01, perfect.stranger_best_p999) == (1.0, 1.0, 0.0)
    confused = search_figures(np.eye(1, 512, dtype=np.float32)[hands * 0], hands)
    assert confused.known_gap_p01 == 0.0


def test_the_shipped_model_knows_unseen_people_and_rejects_strangers() -> None:
    """End to end: whole frames, found, cut, embedded; nobody in it was ever trained on or used to choose."""
    manifest = load_manifest(shipped_model_dir())
    agree = manifest.agree_q / 10_000
    shown = capture_people(6, 3, "rgb", first=UNSEEN_PEOPLE)
    assert shown.not_found + shown.wrong_side <= 1
    mated, non_mated = compare_all(embed_all(open_embedder(manifest), shown.crops), shown.hands)
    assert false_non_match_rate(mated, agree) <= 0.03
    assert false_match_rate(non_mated, agree) == 0.0
    assert float(np.median(mated)) > float(np.median(non_mated)) + 0.4
