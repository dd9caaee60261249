"""What the templates of a match set have in common, and cosines that leave it out.

Strangers' palms are alike: the same creases run across all of them, and one camera sees them and one cutter
cuts them. A cosine counts what all palms share as evidence that two captures are of one palm. So the mean of
the templates is subtracted from every vector, and directions in which they all differ much count for less:
the Mahalanobis cosine. With few templates the mean is poorly estimated, so a constant prior for stranger
similarity is subtracted from the score. docs/lab/SCORES.md has the gain.

Both come from the match set at hand and from nothing else. They are sums of whole numbers over coarse codes,
so that a template taken out leaves exactly nothing behind in them; they are in memory alone.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gallery.codes import COARSE_UNITS, rows_of
from gallery.stream import VECTOR_LENGTH

MOST_ROWS: Final = 16_384
"""Templates that take part; with more of them a start would take longer, and nothing else would change."""

_MEAN_PRIOR: Final = 60
"""Templates without a direction that are added to the real ones: few people do not make a mean."""
_SPREAD_PRIOR: Final = 600
_SPREAD_SHARE: Final = 0.3
"""Weight of the spread against an even one, where templates are many: captures of one palm differ along
the same directions as palms do, so that removing all of it would remove the palm."""

_STRANGERS: Final = 0.07
"""Mean plain cosine of strangers on Tongji; 0.10 on CASIA multispectral, 0.19 on IITD."""

_CHUNK: Final = 512
"""Rows whose products float32 adds up exactly: below 1,040 of them, 127² each is below 2²⁴."""

_LEAF: Final = 64
"""Rows of a matrix that LAPACK inverts as it is."""

_Sums = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Likeness:
    """A linear map after which an ordinary cosine is the Mahalanobis cosine."""

    mean: NDArray[np.float32]
    """(512,), turned."""
    spread: NDArray[np.float32]
    """(512, 512): the inverse of the spread is this times its transpose."""
    left: float
    """Expected similarity of strangers that is left because few templates estimate the mean poorly."""

    def units(self, turned: NDArray[np.float32]) -> NDArray[np.float32]:
        """Turned vectors (n, 512), of length 1 → (n, 512) of length 1, for ``scores``."""
        mapped = (turned - self.mean) @ self.spread
        return np.asarray(mapped / np.linalg.norm(mapped, axis=1, keepdims=True), dtype=np.float32)

    def scores(self, held: NDArray[np.float32], shown: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of units (n, 512) and (m, 512): (n, m), 1 for one palm at its best and about 0 for strangers."""
        return (held @ shown.T - np.float32(self.left)) / np.float32(1.0 - self.left)

    def queries(self, units: NDArray[np.float32]) -> NDArray[np.float32]:
        """What raw turned templates are multiplied with to rank them: (n, 512) out of ``units``.

        A template's own length after the map is left out of it, which moves a rank by few places.
        """
        return units @ self.spread.T


@dataclass(frozen=True, eq=False)
class Population:
    """The sums over some templates; immutable."""

    numbers: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """(n,): the rows that take part, at most MOST_ROWS."""
    total: _Sums = field(default_factory=lambda: np.zeros(VECTOR_LENGTH))
    """(512,), in units of the coarse code."""
    products: _Sums = field(default_factory=lambda: np.zeros((VECTOR_LENGTH, VECTOR_LENGTH)))

    def with_rows(self, numbers: NDArray[np.int64], coarse: NDArray[np.uint8]) -> "Population":
        """Also these (n,) rows with their (n, 512) coarse codes, as many as there is room for."""
        room = MOST_ROWS - len(self.numbers)
        if room <= 0 or not len(numbers):
            return self
        total, products = _summed(coarse[:room])
        taken = np.concatenate([self.numbers, numbers[:room]])
        return Population(taken, self.total + total, self.products + products)

    def without_rows(self, numbers: NDArray[np.int64], coarse: NDArray[np.uint8]) -> "Population":
        """Without these rows; those of them that took no part change nothing."""
        part = np.isin(numbers, self.numbers)
        if not part.any():
            return self
        with rows_of(coarse, part) as rows:
            total, products = _summed(rows)
        left = self.numbers[~np.isin(self.numbers, numbers)]
        return Population(left, self.total - total, self.products - products)

    @cached_property
    def likeness(self) -> Likeness:
        """The map that belongs to these templates; some 5 ms of work the first time."""
        n = len(self.numbers)
        if n == 0:
            none = np.zeros(VECTOR_LENGTH, dtype=np.float32)
            return Likeness(none, np.eye(VECTOR_LENGTH, dtype=np.float32), _STRANGERS)
        average = self.total / (COARSE_UNITS * n)
        mean = average * (n / (n + _MEAN_PRIOR))
        # In place and in single precision: what a gallery holds in memory is counted by the byte.
        spread = (self.products / (COARSE_UNITS**2 * n)).astype(np.float32)
        spread -= (np.outer(average, mean) + np.outer(mean, average - mean)).astype(np.float32)
        share = _SPREAD_SHARE * n / (n + _SPREAD_PRIOR)
        spread *= share * VECTOR_LENGTH / float(np.trace(spread))
        spread[np.diag_indices(VECTOR_LENGTH)] += np.float32(1.0 - share)
        root = _inverse_root(spread).T
        left = _STRANGERS * (_MEAN_PRIOR / (n + _MEAN_PRIOR)) ** 2
        return Likeness(mean.astype(np.float32), np.ascontiguousarray(root), left)


def _inverse_root(spread: NDArray[np.float32]) -> NDArray[np.float32]:
    """The inverse of the Cholesky factor of a positive definite matrix (n, n), in quarters: the zeros above
    the diagonal are left out of the work, and the rest is products, a ninth of LAPACK's time for n = 512."""
    n = len(spread)
    if n <= _LEAF:
        return np.asarray(np.linalg.inv(np.linalg.cholesky(spread)))
    half = n // 2
    first = _inverse_root(spread[:half, :half])
    below = spread[half:, :half] @ first.T
    second = _inverse_root(spread[half:, half:] - below @ below.T)
    root = np.zeros_like(spread)
    root[:half, :half], root[half:, half:] = first, second
    root[half:, :half] = -second @ below @ first
    return root


def _summed(coarse: NDArray[np.uint8]) -> tuple[_Sums, _Sums]:
    """The sum of these codes and of their products with themselves; exact."""
    total, products = np.zeros(VECTOR_LENGTH), np.zeros((VECTOR_LENGTH, VECTOR_LENGTH))
    for start in range(0, len(coarse), _CHUNK):
        signed = coarse[start : start + _CHUNK].astype(np.float32)
        signed -= 128.0
        total += signed.sum(axis=0)
        products += signed.T @ signed
    return total, products
