"""Many probes against the coarse codes in one pass: integer matrix products by onnxruntime.

FAISS reads a segment again for each query and multiplies in floating point. `MatMulInteger` takes the codes
as they lie in memory (uint8 with zero point 128) and the whole-numbered queries as int8, so both compute the
same integers and rank alike; `python -m tools.rig.bench.gallery` compares their times. A processor without
8-bit dot products may saturate sums: `exact_products` compares with plain arithmetic, and FAISS does all the
work where they differ.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gallery.stream import VECTOR_LENGTH

FROM_PROBES: Final = 4
"""Fewer probes are faster by FAISS."""
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
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # an arena keeps what is freed
    session = onnxruntime.InferenceSession(_MODEL, options, ["CPUExecutionProvider"])
    extremes = np.array([[255, 255], [255, 0], [0, 255], [0, 0]], dtype=np.uint8)
    codes = np.tile(extremes, (4, VECTOR_LENGTH // 2))
    queries = np.tile(
        np.array([[127, 127], [-127, 127], [127, -127]], dtype=np.int8).T, (VECTOR_LENGTH // 2, 2)
    )
    exact = (codes.astype(np.int64) - 128) @ queries.astype(np.int64)
    products = session.run(None, {"a": codes, "b": np.ascontiguousarray(queries)})[0]
    return session if np.array_equal(products, exact) else None


def best_rows(
    session: Any,
    segments: Iterable[tuple[NDArray[np.int64], NDArray[np.uint8]]],
    whole: NDArray[np.float32],
    k: int,
) -> NDArray[np.int64]:
    """The numbers of the best `k` rows for each query, as one array of any order, some of them repeated.

    `segments`: row numbers (n,) with codes (n, 512); `whole`: (p, 512) of whole numbers from −127 to 127.
    """
    queries = np.ascontiguousarray(whole.T.astype(np.int8))
    scores = np.empty((0, len(whole)), dtype=np.int32)
    numbers = np.empty((0, len(whole)), dtype=np.int64)
    for its_numbers, codes in segments:
        start = 0
        while start < len(codes):
            end = start + (_BLOCK_ROWS if len(scores) else _FIRST_ROWS)
            block = session.run(None, {"a": codes[start:end], "b": queries})[0]
            rows = np.arange(len(block))
            if len(scores) == k:
                rows = np.flatnonzero((block > scores.min(axis=0)).any(axis=1))
            scores = np.concatenate([scores, block[rows]])
            repeated = np.repeat(its_numbers[start + rows, np.newaxis], len(whole), axis=1)
            numbers = np.concatenate([numbers, repeated])
            if len(scores) > k:
                first = np.argpartition(scores, -k, axis=0)[-k:]
                scores = np.take_along_axis(scores, first, axis=0)
                numbers = np.take_along_axis(numbers, first, axis=0)
            start = end
    return numbers.ravel()
