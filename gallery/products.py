"""Many probes against the coarse codes in one pass: integer matrix products by onnxruntime.

FAISS reads a segment again for each query and multiplies in floating point. `MatMulInteger` takes the codes
as they lie in memory (uint8 with zero point 128) and the whole-numbered queries as int8;
`python -m tools.rig.bench.gallery` compares their times. An x86-64 processor without 8-bit dot products adds
pairs of products in 16 bits, which hold 2 × 255 × 64 and not 2 × 255 × 127, so the queries of this pass have
half of FAISS's range, on every processor. `exact_products` compares with plain arithmetic, and FAISS does
all the work where they differ.
"""

import os
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gallery.stream import VECTOR_LENGTH

FROM_PROBES: Final = 4
"""Fewer probes are faster by FAISS."""
QUERY_MOST: Final = 64
"""The whole numbers of a query are from −64 to 64."""
_FIRST_ROWS: Final = 256
"""Rows that set the first floor; of all later ones only those above it are looked at."""
_BLOCK_ROWS: Final = 4_096
"""2 MiB of codes."""

# ModelProto, IR 8, opset 13: y = MatMulInteger(a: uint8 [n, 512], b: int8 [512, p], a_zero_point = 128).
_MODEL: Final = (
    b'\x08\x08:r\n\x1c\n\x01a\n\x01b\n\x02za\x12\x01y"\rMatMulInteger\x12\x01g*\n\x10\x02*\x02\x80\x01B\x02za'
    b"Z\x15\n\x01a\x12\x10\n\x0e\x08\x02\x12\n\n\x03\x12\x01n\n\x03\x08\x80\x04"
    b"Z\x15\n\x01b\x12\x10\n\x0e\x08\x03\x12\n\n\x03\x08\x80\x04\n\x03\x12\x01p"
    b"b\x15\n\x01y\x12\x10\n\x0e\x08\x06\x12\n\n\x03\x12\x01n\n\x03\x12\x01pB\x04\n\x00\x10\r"
)


@cache
def exact_products() -> Any | None:
    """A session that multiplies (n, 512) codes by (512, p) int8 into (n, p) int32, usable from any thread.

    None where this processor's sums are not exact.
    """
    # Its wheels carry telemetry, on by default; this is read when the module is imported.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Half of a search runs on a second core. Spinning would take that core from the camera between blocks.
    options.intra_op_num_threads = min(2, len(os.sched_getaffinity(0)))
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_cpu_mem_arena = False  # an arena keeps what is freed
    session = onnxruntime.InferenceSession(_MODEL, options, ["CPUExecutionProvider"])
    extremes = np.array([[255, 255], [255, 0], [0, 255], [0, 0]], dtype=np.uint8)
    codes = np.tile(extremes, (4, VECTOR_LENGTH // 2))
    signs = np.array([[1, 1], [-1, 1], [1, -1]], dtype=np.int8)
    queries = np.tile((QUERY_MOST * signs).T, (VECTOR_LENGTH // 2, 2))
    exact = (codes.astype(np.int64) - 128) @ queries.astype(np.int64)
    products = session.run(None, {"a": codes, "b": np.ascontiguousarray(queries)})[0]
    return session if np.array_equal(products, exact) else None


_SCORE_ZERO: Final = 1 << 23
"""Added to a score it is no longer negative: 512 products of at most 128 × 64."""
_SCORE_BIT: Final = 32
_QUERY_BIT: Final = 56


def best_rows(
    session: Any,
    segments: Sequence[tuple[NDArray[np.int64], NDArray[np.uint8]]],
    whole: NDArray[np.float32],
    *,
    scale: NDArray[np.float32],
    zero: NDArray[np.float32],
    k: int,
) -> NDArray[np.int64]:
    """The numbers of the rows with the best 8 `k` products, at most `k` of them for each query, rising.

    `segments`: row numbers (n,) with codes (n, 512), at most 2³² rows in all; `whole`: (p, 512) of whole
    numbers from −`QUERY_MOST` to `QUERY_MOST`, p at most 64. Products of different queries compare as
    ``(product − zero) * scale``, (p,) each.
    """
    queries = np.ascontiguousarray(whole.T.astype(np.int8))
    # A product above its query's floor is one integer: query, score, row. Sorting it sorts by all three.
    query_bits = np.arange(len(whole), dtype=np.int64) << _QUERY_BIT
    floor = np.full(len(whole), -_SCORE_ZERO, dtype=np.int32)
    kept = [np.empty(0, dtype=np.int64)]
    new, before = 0, 0
    for _, codes in segments:
        start = 0
        while start < len(codes):
            end = start + (_BLOCK_ROWS if before + start else _FIRST_ROWS)
            block = session.run(None, {"a": codes[start:end], "b": queries})[0]
            above = np.flatnonzero(block > floor)
            row, query = np.divmod(above, len(whole))
            score = block.ravel()[above].astype(np.int64) + _SCORE_ZERO
            kept.append(query_bits[query] | score << _SCORE_BIT | row + (before + start))
            new += len(above)
            if new > 2 * k * len(whole):
                best, floor = _best(np.concatenate(kept), k, len(whole))
                kept, new = [best], 0
            start = end
        before += len(codes)
    best, _ = _best(np.concatenate(kept), k, len(whole))
    query = best >> _QUERY_BIT
    likeness = (_score(best) - zero[query]) * scale[query]
    first = np.argpartition(likeness, max(len(best) - 8 * k, 0))[-8 * k :]
    rows = best[first] & ((1 << _SCORE_BIT) - 1)
    return np.unique(np.concatenate([numbers for numbers, _ in segments])[rows])


def _best(products: NDArray[np.int64], k: int, queries: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The `k` highest of each query, and the score (p,) that a further one must exceed."""
    products = np.sort(products)
    bounds = np.searchsorted(products, np.arange(queries + 1, dtype=np.int64) << _QUERY_BIT)
    first = np.maximum(bounds[1:] - k, bounds[:-1])
    kept = np.concatenate([products[start:end] for start, end in zip(first, bounds[1:], strict=True)])
    floor = np.where(bounds[1:] - bounds[:-1] >= k, _score(products[first]), -_SCORE_ZERO)
    return kept, floor.astype(np.int32)


def _score(products: NDArray[np.int64]) -> NDArray[np.int64]:
    return (products >> _SCORE_BIT & (2 * _SCORE_ZERO - 1)) - _SCORE_ZERO
