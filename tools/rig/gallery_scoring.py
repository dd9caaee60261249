"""A gallery's scores without a gallery, for trials and measurements."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gallery.codes import SIGN_BYTES, Coder
from gallery.population import Likeness, Population
from gallery.stream import VECTOR_LENGTH


@dataclass(frozen=True, slots=True, eq=False)
class Scoring:
    """How a gallery scores, for trials without one."""

    coder: Coder
    likeness: Likeness

    def units(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Vectors (n, 512) of any length but 0, for ``scores``."""
        return self.likeness.units(self.coder.turn(vectors))

    def scores(self, held: NDArray[np.float32], shown: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of units (n, 512) and (m, 512): (n, m), as the gallery would score them."""
        return self.likeness.scores(held, shown)


def scoring_among(enrolled: NDArray[np.float32], coder: Coder | None = None) -> Scoring:
    """The scoring of a gallery in which ``enrolled`` (m, 512) are the templates.

    ``coder``: that of the gallery; whichever way it turns vectors, the scores are the same but for rounding.
    """
    coder = coder or Coder(bytes(SIGN_BYTES))
    codes = coder.encode(enrolled)[:, :VECTOR_LENGTH]
    return Scoring(coder, Population().with_rows(np.arange(len(codes)), codes).likeness)
