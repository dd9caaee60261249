"""Which of several captures of one hand are worth keeping as its templates."""

from collections.abc import Sequence
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

MOST_TEMPLATES: Final = 3
"""So many vectors of one hand does the service take at enrolment."""
EQUAL_Q: Final = 5
"""Captures in the same step of so many points of ``quality_q`` are equally good; less predicts nothing."""


def choose_templates(
    cosine: NDArray[np.float32], quality_q: Sequence[int], *, agree_cosine: float
) -> tuple[int, ...]:
    """The captures to keep, as rising indices: as many as may be, up to MOST_TEMPLATES, that all agree.

    ``cosine`` (n, n) float32, -1..1: of every two captures' vectors, so that the caller need not copy the
    vectors; ``quality_q``: n of 0..100; two agree when their cosine is at least ``agree_cosine``. Among sets
    of the same size the best by quality is taken, in steps of ``EQUAL_Q``; among equally good ones the one
    whose captures differ most, for they cover most poses; then the earliest. Tries every set, so n is a
    handful. Empty for no captures; one alone, the best, where no two agree.

    >>> cosine = np.array([[1.0, 0.7, 0.1], [0.7, 1.0, 0.6], [0.1, 0.6, 1.0]], np.float32)
    >>> choose_templates(cosine, [70, 80, 75], agree_cosine=0.4)
    (1, 2)
    """
    if not quality_q:
        return ()
    steps = [q // EQUAL_Q for q in quality_q]
    for size in range(min(MOST_TEMPLATES, len(steps)), 1, -1):
        agreeing = [
            (sum(steps[i] for i in some), -sum(float(cosine[pair]) for pair in combinations(some, 2)), some)
            for some in combinations(range(len(steps)), size)
            if all(cosine[pair] >= agree_cosine for pair in combinations(some, 2))
        ]
        if agreeing:
            return max(agreeing, key=lambda one: one[:2])[2]
    return (max(range(len(steps)), key=lambda i: steps[i]),)
