"""How a template vector is kept: rotated, and as 16-bit fixed point in two planes of bytes.

A unit vector is turned by a fixed orthogonal map that belongs to this device: the Sylvester-Hadamard
matrix with secret signs, `H·D / √512`. Afterwards its components are spread evenly (σ = 0.044 whatever
the network that made it), so one fixed scale serves all. Each component is rounded to a multiple of
2⁻¹⁶ and written as `256 × coarse + fine`:

* `coarse` (512 bytes a template) is what the whole gallery is scanned with, in memory, as FAISS's
  `QT_8bit_direct_signed` codes (coarse + 128 as an unsigned byte);
* `fine` (512 bytes more, on the disk alone) joins in to score the best few again. The largest error of a
  cosine out of both is then about 2·10⁻⁵ (measured by `tools.rig.bench.gallery`), a fifth of the unit of
  `score_q`.

Components beyond ±0.498 are cut off there. That is 11 σ for any vector that was not made with knowledge of
the signs, so it does not happen; what is kept is a unit vector in any case, and its scores are cosines.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gallery.stream import VECTOR_LENGTH

CODE_BYTES: Final = 2 * VECTOR_LENGTH
SIGN_BYTES: Final = VECTOR_LENGTH // 8

COARSE_UNITS: Final = 256.0
"""A coarse code is a component times this."""
_UNITS: Final = COARSE_UNITS * 256.0
_LARGEST: Final = 127 * 256 + 127


class Coder:
    """The map of one device; `sign_bits` are 64 secret bytes, always the same for the same store."""

    def __init__(self, sign_bits: bytes) -> None:
        if len(sign_bits) != SIGN_BYTES:
            raise ValueError(f"sign_bits has {SIGN_BYTES} bytes, found {len(sign_bits)}")
        signs = np.unpackbits(np.frombuffer(sign_bits, dtype=np.uint8)).astype(np.float32) * 2.0 - 1.0
        hadamard = np.ones((1, 1), dtype=np.float32)
        while len(hadamard) < VECTOR_LENGTH:
            hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
        self._turn = np.ascontiguousarray((hadamard * signs).T / np.float32(np.sqrt(VECTOR_LENGTH)))

    def turn(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """(n, 512) float32 of any length but 0 → (n, 512) float32 of length 1, turned."""
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        turned: NDArray[np.float32] = (vectors / lengths).astype(np.float32) @ self._turn
        return turned

    def encode(self, vectors: NDArray[np.float32]) -> NDArray[np.uint8]:
        """(n, 512) float32 → (n, 1024) uint8: 512 coarse bytes, then 512 fine bytes, of each."""
        fixed = np.clip(np.rint(self.turn(vectors) * _UNITS), -_LARGEST, _LARGEST).astype(np.int32)
        coarse = (fixed + 128) >> 8
        fine = fixed - (coarse << 8)
        codes = np.empty((len(fixed), CODE_BYTES), dtype=np.uint8)
        # Written in place, as of one template each half would be an array that NumPy keeps (`rows_of`).
        codes[:, :VECTOR_LENGTH] = coarse + 128
        codes[:, VECTOR_LENGTH:].view(np.int8)[:] = fine
        return codes


@contextmanager
def rows_of(coarse: NDArray[np.uint8], which: NDArray[np.bool_]) -> Iterator[NDArray[np.uint8]]:
    """A copy of some rows, overwritten in the end.

    NumPy keeps arrays of less than 1,024 bytes when they are freed, with what is in them: a single row.
    """
    rows = coarse[which]
    try:
        yield rows
    finally:
        rows.fill(0)


def decode(coarse: NDArray[np.uint8], fine: NDArray[np.int8]) -> NDArray[np.float32]:
    """Turned vectors out of their codes: both (n, 512) → (n, 512) float32, of length 1 again."""
    fixed = ((coarse.astype(np.int32) - 128) * 256 + fine).astype(np.float32)
    vectors: NDArray[np.float32] = fixed / np.linalg.norm(fixed, axis=1, keepdims=True)
    return vectors
