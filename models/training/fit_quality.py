"""The small monotone model behind ``quality_q``: a logistic regression whose weights cannot be negative."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

RIDGE: Final = 1e-4
STEPS: Final = 20_000

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Logistic:
    """Log odds of a false non-match: ``intercept + faults @ weights``, no weight below 0."""

    intercept: float
    weights: Matrix


def fit(faults: Matrix, failed: NDArray[np.bool_]) -> Logistic:
    """Fit by accelerated projected gradient (FISTA, Beck and Teboulle 2009); deterministic.

    ``faults`` (n, m), 0..1 each, more is worse; ``failed`` (n,). A small ridge keeps the weights finite where
    a fault parts the probes without a mistake.
    """
    n = len(faults)
    terms = np.hstack([np.ones((n, 1)), faults])
    step = 1.0 / (0.25 * float(np.linalg.norm(terms, 2)) ** 2 / n + RIDGE)
    now = ahead = np.zeros(terms.shape[1])
    momentum = 1.0
    ridge = np.full(terms.shape[1], RIDGE)
    ridge[0] = 0.0
    for _ in range(STEPS):
        slope = terms.T @ (_sigmoid(terms @ ahead) - failed) / n + ridge * ahead
        moved = ahead - step * slope
        moved[1:] = np.maximum(moved[1:], 0.0)
        faster = (1.0 + np.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
        ahead = moved + (momentum - 1.0) / faster * (moved - now)
        now, momentum = moved, faster
    return Logistic(float(now[0]), now[1:])


def _sigmoid(x: Matrix) -> Matrix:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(x, -40.0, 40.0))))
