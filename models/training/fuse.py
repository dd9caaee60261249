"""Two ONNX embeddings side by side in one vector: the cosine of two fused vectors is the weighted mean of
both.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.embedding import EMBEDDING_SIZE

_LARGE: Final = 100_000
"""Matrices with more numbers are kept in half precision, which a basis does not feel."""
_INPUT: Final = "crops"
_OUTPUT: Final = "vectors"


def main_directions(vectors: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """(512, size): the directions in which most of the vectors (n, 512) lie."""
    return np.asarray(np.linalg.eigh(vectors.T @ vectors)[1][:, ::-1][:, :size], dtype=np.float32)


def fuse(line: Path, net: Path, directions: NDArray[np.float32], net_weight: float, out: Path) -> None:
    """Write the model that runs ``line`` (unit vectors) and ``net`` on the same crops.

    Of the net's vectors only ``directions`` (512, k) stay; ``net_weight`` is its share of the fused cosine.
    """
    import onnx
    from onnx import compose, helper, numpy_helper

    first = compose.add_prefix(onnx.load(str(line)), "line/")
    second = compose.add_prefix(onnx.load(str(net)), "net/")
    for part, name in ((first, "line/"), (second, "net/")):
        for node in part.graph.node:
            for i, given in enumerate(node.input):
                if given == name + _INPUT:
                    node.input[i] = _INPUT
    epsilon = np.array(1e-12, dtype=np.float32)
    constants = {
        "fuse/directions": directions,
        "fuse/least": epsilon,
        "fuse/line_share": np.array((1.0 - net_weight) ** 0.5, dtype=np.float32),
        "fuse/net_share": np.array(net_weight**0.5, dtype=np.float32),
    }
    nodes = [
        *first.graph.node,
        *second.graph.node,
        helper.make_node("MatMul", ["net/" + _OUTPUT, "fuse/directions"], ["fuse/kept"]),
        helper.make_node("ReduceL2", ["fuse/kept"], ["fuse/length"], axes=[1], keepdims=1),
        helper.make_node("Max", ["fuse/length", "fuse/least"], ["fuse/above"]),
        helper.make_node("Div", ["fuse/kept", "fuse/above"], ["fuse/unit"]),
        helper.make_node("Mul", ["line/" + _OUTPUT, "fuse/line_share"], ["fuse/line"]),
        helper.make_node("Mul", ["fuse/unit", "fuse/net_share"], ["fuse/net"]),
        helper.make_node("Concat", ["fuse/line", "fuse/net"], [_OUTPUT], axis=1),
    ]
    made = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    initial, casts = _halved([*first.graph.initializer, *second.graph.initializer, *made])
    graph = helper.make_graph(
        [*casts, *nodes],
        "palm-embedding",
        [helper.make_tensor_value_info(_INPUT, onnx.TensorProto.UINT8, ["n", 112, 112])],
        [helper.make_tensor_value_info(_OUTPUT, onnx.TensorProto.FLOAT, ["n", EMBEDDING_SIZE])],
        initial,
    )
    fused = helper.make_model(graph, opset_imports=first.opset_import, ir_version=first.ir_version)
    onnx.checker.check_model(fused)
    onnx.save(fused, str(out))


def _halved(initial: list[Any]) -> tuple[list[Any], list[Any]]:
    from onnx import TensorProto, helper, numpy_helper

    kept, casts = [], []
    for tensor in initial:
        value = numpy_helper.to_array(tensor)
        if value.dtype != np.float32 or value.ndim != 2 or value.size < _LARGE:
            kept.append(tensor)
            continue
        kept.append(numpy_helper.from_array(value.astype(np.float16), tensor.name + "/half"))
        casts.append(helper.make_node("Cast", [tensor.name + "/half"], [tensor.name], to=TensorProto.FLOAT))
    return kept, casts
