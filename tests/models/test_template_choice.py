"""Which captures become templates: they agree, none is clearly better, and equally good ones differ."""

from itertools import combinations
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.template_choice import EQUAL_Q, MOST_TEMPLATES, choose_templates

AGREE = 0.5
Vectors = list[NDArray[np.float32]]


@st.composite
def captures(draw: st.DrawFn) -> tuple[Vectors, list[int]]:
    """Up to six captures of up to two hands, some of them noisy beyond recognition."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    hands = rng.standard_normal((2, 512))
    vectors = []
    for which, noise in draw(st.lists(st.tuples(st.integers(0, 1), st.floats(0.05, 3.0)), max_size=6)):
        vector = hands[which] + noise * rng.standard_normal(512)
        vectors.append((vector / np.linalg.norm(vector)).astype(np.float32))
    return vectors, [draw(st.integers(0, 100)) for _ in vectors]


def choose(shown: tuple[Vectors, list[int]]) -> tuple[int, ...]:
    vectors, quality_q = shown
    cosine = np.array([[a @ b for b in vectors] for a in vectors], np.float32)
    return choose_templates(cosine, quality_q, agree_cosine=AGREE)


def agree(vectors: Vectors, some: tuple[int, ...]) -> bool:
    return all(float(vectors[a] @ vectors[b]) >= AGREE for a, b in combinations(some, 2))


@given(captures())
def test_the_chosen_agree_and_are_as_many_as_there_can_be(shown: tuple[Vectors, list[int]]) -> None:
    chosen, vectors = choose(shown), shown[0]
    assert list(chosen) == sorted(set(chosen))
    assert len(chosen) <= MOST_TEMPLATES
    assert bool(chosen) == bool(vectors)
    if vectors:
        assert agree(vectors, chosen)
    if len(chosen) < MOST_TEMPLATES:
        assert not any(agree(vectors, some) for some in combinations(range(len(vectors)), len(chosen) + 1))


@given(captures())
def test_no_other_that_would_agree_is_clearly_better(shown: tuple[Vectors, list[int]]) -> None:
    chosen, (vectors, quality_q) = choose(shown), shown
    for inside in chosen:
        for outside in set(range(len(vectors))) - set(chosen):
            swapped = tuple(sorted({*chosen, outside} - {inside}))
            if agree(vectors, swapped):
                assert quality_q[outside] // EQUAL_Q <= quality_q[inside] // EQUAL_Q


@given(captures(), st.integers(0, 100))
def test_of_equally_good_ones_those_that_differ_most_are_kept(
    shown: tuple[Vectors, list[int]], quality_q: int
) -> None:
    vectors = shown[0]
    chosen = choose((vectors, [quality_q] * len(vectors)))

    def likeness(some: tuple[int, ...]) -> float:
        return sum(float(vectors[a] @ vectors[b]) for a, b in combinations(some, 2))

    others = [some for some in combinations(range(len(vectors)), len(chosen)) if agree(vectors, some)]
    assert all(likeness(chosen) <= likeness(some) + 1e-5 for some in others)


@given(captures(), st.randoms(use_true_random=False))
def test_the_order_in_which_they_came_does_not_matter(
    shown: tuple[Vectors, list[int]], random: Random
) -> None:
    vectors, quality_q = shown
    order = list(range(len(vectors)))
    random.shuffle(order)
    again = choose(([vectors[i] for i in order], [quality_q[i] for i in order]))
    chosen = choose(shown)
    if len(chosen) > 1:
        assert sorted(order[i] for i in again) == list(chosen)
    else:
        assert sorted(quality_q[order[i]] // EQUAL_Q for i in again) == [
            quality_q[i] // EQUAL_Q for i in chosen
        ]


def test_a_capture_of_another_hand_is_left_out_however_good_it_is() -> None:
    rng = np.random.default_rng(5)
    hand, other = rng.standard_normal((2, 512))
    mixed = [*(hand + 0.4 * rng.standard_normal((3, 512))), other]
    vectors = [(v / np.linalg.norm(v)).astype(np.float32) for v in mixed]
    assert choose((vectors, [66, 70, 80, 100])) == (0, 1, 2)
