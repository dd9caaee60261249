"""What a match set has in common: learned exactly, taken away from every vector, and forgotten exactly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gallery import population as population_module
from gallery.codes import Coder
from gallery.population import Population
from tests.gallery.gallery_service import exact_scores

CODER = Coder(bytes(range(64)))


def alike(rng: np.random.Generator, n: int, shared: float = 0.5) -> NDArray[np.float32]:
    """Unit vectors of strangers that have this much in common, and much scatter along a few directions."""
    common = np.random.default_rng(0).standard_normal(512) / 512**0.5
    own = rng.standard_normal((n, 512)) * np.where(np.arange(512) < 16, 4.0, 1.0)
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    vectors = shared * common + own
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


def coarse(vectors: NDArray[np.float32]) -> NDArray[np.uint8]:
    return CODER.encode(vectors)[:, :512]


def of(vectors: NDArray[np.float32]) -> Population:
    return Population().with_rows(np.arange(len(vectors)), coarse(vectors))


def scores(
    population: Population, held: NDArray[np.float32], shown: NDArray[np.float32]
) -> NDArray[np.float32]:
    likeness = population.likeness
    return likeness.scores(likeness.units(CODER.turn(held)), likeness.units(CODER.turn(shown)))


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(0, 40), st.integers(1, 40), st.integers(1, 40))
def test_what_is_taken_out_leaves_exactly_nothing(seed: int, before: int, more: int, at_once: int) -> None:
    codes = coarse(alike(np.random.default_rng(seed), before + more))
    first = Population().with_rows(np.arange(before), codes[:before])
    both, numbers = first, np.arange(before, before + more)
    for start in range(0, more, at_once):
        part = slice(start, start + at_once)
        both = both.with_rows(numbers[part], codes[before:][part])
    left = both.without_rows(numbers[::-1], codes[before:][::-1])
    assert left.numbers.tolist() == first.numbers.tolist()
    assert np.array_equal(left.total, first.total)
    assert np.array_equal(left.products, first.products)


def test_whole_numbers_are_summed_exactly_whatever_they_are() -> None:
    codes = np.full((2_500, 512), 255, dtype=np.uint8)
    codes[::2, ::3] = 1
    summed = Population().with_rows(np.arange(2_500), codes)
    signed = codes.astype(np.float64) - 128.0  # exact up to 2**53
    assert np.array_equal(summed.total, signed.sum(axis=0))
    assert np.array_equal(summed.products, signed.T @ signed)


def test_beyond_the_most_rows_nothing_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(population_module, "MOST_ROWS", 10)
    codes = coarse(alike(np.random.default_rng(1), 25))
    full = Population().with_rows(np.arange(8), codes[:8]).with_rows(np.arange(8, 16), codes[8:16])
    assert full.numbers.tolist() == list(range(10))
    assert full.with_rows(np.arange(16, 25), codes[16:]) is full
    assert full.without_rows(np.arange(10, 16), codes[10:16]) is full
    left = full.without_rows(np.arange(9, 16), codes[9:16])
    only = Population().with_rows(np.arange(9), codes[:9])
    assert (left.numbers.tolist(), left.total.tolist()) == (list(range(9)), only.total.tolist())
    assert np.array_equal(left.products, only.products)


@settings(max_examples=10)
@given(st.integers(0, 2**32), st.integers(1, 900))
def test_scores_are_mahalanobis_cosines(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    held, shown = alike(rng, n), alike(rng, 5)
    assert np.abs(scores(of(held), held, shown) - exact_scores(CODER, held, shown)).max() < 2e-6


def test_without_anybody_a_score_is_the_plain_cosine_less_what_strangers_have() -> None:
    rng = np.random.default_rng(2)
    held, shown = alike(rng, 20), alike(rng, 20)
    assert np.abs(scores(Population(), held, shown) - (held @ shown.T - 0.07) / 0.93).max() < 1e-6


def test_strangers_score_no_higher_where_few_are_enrolled() -> None:
    """Few templates estimate poorly what all palms have in common; no stranger may pass for that."""
    rng = np.random.default_rng(8)
    held, strangers = alike(rng, 400, shared=0.33), alike(rng, 2_000, shared=0.33)
    means = [float(scores(of(held[:n]), held[:n], strangers).mean()) for n in (1, 3, 10, 30, 100, 400)]
    assert 0.07 < float((held @ strangers.T).mean()) < 0.13
    assert max(means) < 0.03


def test_a_palm_is_entirely_like_itself() -> None:
    vectors = alike(np.random.default_rng(3), 300)
    assert np.abs(np.diag(scores(of(vectors), vectors, vectors)) - 1.0).max() < 1e-6


def test_strangers_who_are_alike_are_told_apart_better() -> None:
    """What it is for: the highest stranger comes down further than the captures of one palm do."""
    rng = np.random.default_rng(4)
    held = alike(rng, 400)
    again = held + 0.9 * alike(rng, 400, shared=0.0)
    strangers = alike(rng, 2_000)

    def overlap(mated: NDArray[np.float32], non_mated: NDArray[np.float32]) -> float:
        return float((mated.mean() - non_mated.mean()) / (mated.std() + non_mated.std()))

    plain_mated = (held * again).sum(axis=1) / np.linalg.norm(again, axis=1)
    plain = overlap(plain_mated, held @ strangers.T)
    fitted = of(held)
    stranger = scores(fitted, held, strangers)
    assert overlap(np.diag(scores(fitted, held, again)), stranger) > 1.2 * plain
    assert float((held @ strangers.T).mean()) > 0.15
    assert abs(float(stranger.mean())) < 0.03


def test_one_template_changes_hardly_anything() -> None:
    """A mean of one palm would be that palm."""
    rng = np.random.default_rng(5)
    held, shown = alike(rng, 1), alike(rng, 200)
    assert np.abs(scores(of(held), held, shown) - scores(Population(), held, shown)).max() < 0.15


def test_templates_that_are_all_the_same_are_no_reason_to_divide_by_nothing() -> None:
    held = np.repeat(alike(np.random.default_rng(6), 1), 3_000, axis=0)
    shown = np.concatenate([held[:1], alike(np.random.default_rng(7), 3)])
    assert np.isfinite(scores(of(held), held[:2], shown)).all()
