"""Two ONNX embeddings side by side in one vector: the cosine of two fused vectors is the weighted mean of
both.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.embedding import EMBEDDING_SIZE

_WIDEST: Final = 0.9
"""Line strengths reach 0.77 on real palms; what is above counts as this."""
_ZERO: Final = 128
"""The byte that means 0."""
_INPUT: Final = "crops"
_OUTPUT: Final = "vectors"


def main_directions(vectors: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """(512, size): the directions in which most of the vectors (n, 512) lie."""
    return np.asarray(np.linalg.eigh(vectors.T @ vectors)[1][:, ::-1][:, :size], dtype=np.float32)


def fuse(line: Path, net: Path, directions: NDArray[np.float32], net_weight: float, out: Path) -> None:
    """Write the model that runs ``line`` (unit vectors) and ``net`` on the same crops.

    Of the net's vectors only ``directions`` (512, k) stay; ``net_weight`` is its share of the fused cosine.
    ``line`` is a file of ``LineCode``, ``net`` one of ``PalmNet``.
    """
    import onnx
    from onnx import helper, numpy_helper

    first, second = _prefixed(line, "line/"), _prefixed(net, "net/")
    in_bytes = _project_in_bytes(first)
    kept = _project_onto(second, directions)
    constants = {
        "fuse/least": np.array(1e-12, dtype=np.float32),
        "fuse/line_share": np.array((1.0 - net_weight) ** 0.5, dtype=np.float32),
        "fuse/net_share": np.array(net_weight**0.5, dtype=np.float32),
        **in_bytes,
        **kept,
    }
    nodes = [
        *first.node,
        *second.node,
        helper.make_node("ReduceL2", ["fuse/kept"], ["fuse/length"], axes=[1], keepdims=1),
        helper.make_node("Max", ["fuse/length", "fuse/least"], ["fuse/above"]),
        helper.make_node("Div", ["fuse/kept", "fuse/above"], ["fuse/unit"]),
        helper.make_node("Mul", ["line/" + _OUTPUT, "fuse/line_share"], ["fuse/line"]),
        helper.make_node("Mul", ["fuse/unit", "fuse/net_share"], ["fuse/net"]),
        helper.make_node("Concat", ["fuse/line", "fuse/net"], [_OUTPUT], axis=1),
    ]
    made = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    used = {name for node in nodes for name in node.input}
    initial = [one for one in (*first.initializer, *second.initializer, *made) if one.name in used]
    graph = helper.make_graph(
        nodes,
        "palm-embedding",
        [helper.make_tensor_value_info(_INPUT, onnx.TensorProto.UINT8, ["n", 112, 112])],
        [helper.make_tensor_value_info(_OUTPUT, onnx.TensorProto.FLOAT, ["n", EMBEDDING_SIZE])],
        initial,
    )
    source = onnx.load(str(line))
    fused = helper.make_model(graph, opset_imports=source.opset_import, ir_version=source.ir_version)
    onnx.checker.check_model(fused)
    onnx.save(fused, str(out))


def _prefixed(path: Path, prefix: str) -> Any:
    """The file's graph with every name prefixed but the crops'."""
    import onnx
    from onnx import compose

    graph = compose.add_prefix(onnx.load(str(path)), prefix).graph
    for node in graph.node:
        for i, given in enumerate(node.input):
            if given == prefix + _INPUT:
                node.input[i] = _INPUT
    return graph


def _constants(graph: Any) -> dict[str, NDArray[np.float32]]:
    from onnx import numpy_helper

    return {one.name: numpy_helper.to_array(one) for one in graph.initializer}


def _only(graph: Any, kind: str) -> tuple[int, Any]:
    """Place and node of the one node of a kind."""
    ((at, node),) = [(i, node) for i, node in enumerate(graph.node) if node.op_type == kind]
    return at, node


def _project_in_bytes(graph: Any) -> dict[str, NDArray[Any]]:
    """Change the line code's projection into one of bytes: it waits for its weights' way from memory.

    The vectors keep a cosine of 0.9999 with the exact ones. Returns the constants that this takes. All bytes
    are unsigned: with signed weights, processors without VNNI add pairs of products in 16 bits, and overflow.
    """
    from onnx import TensorProto, helper

    at, gemm = _only(graph, "Gemm")
    weights = _constants(graph)[gemm.input[1]]
    scales = np.abs(weights).max(axis=1) / np.float32(127.0)
    step = np.float32(_WIDEST / 127.0)
    nodes = [
        helper.make_node("QuantizeLinear", [gemm.input[0], "bytes/step", "bytes/zero"], ["bytes/features"]),
        helper.make_node(
            "MatMulInteger",
            ["bytes/features", "bytes/weights", "bytes/zero", "bytes/zero"],
            ["bytes/sums"],
        ),
        helper.make_node("Cast", ["bytes/sums"], ["bytes/float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["bytes/float", "bytes/scales"], ["bytes/scaled"]),
        helper.make_node("Add", ["bytes/scaled", gemm.input[2]], [gemm.output[0]]),
    ]
    _replace(graph, slice(at, at + 1), nodes)
    return {
        "bytes/step": np.array(step, dtype=np.float32),
        "bytes/zero": np.array(_ZERO, dtype=np.uint8),
        "bytes/weights": np.ascontiguousarray(np.round(weights / scales[:, None] + _ZERO).T.astype(np.uint8)),
        "bytes/scales": np.asarray(scales * step, dtype=np.float32),
    }


def _project_onto(graph: Any, directions: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """Let the net's last product end in ``directions`` instead of its own 512, as ``fuse/kept``.

    Its own unit length falls away: what is kept is brought to length 1 again. Returns the constants.
    """
    from onnx import helper

    at, product = _only(graph, "MatMul")
    _, norm = _only(graph, "BatchNormalization")
    constants = _constants(graph)
    weight, bias, mean, variance = (constants[name].astype(np.float64) for name in norm.input[1:])
    epsilon = next(helper.get_attribute_value(a) for a in norm.attribute if a.name == "epsilon")
    gain = weight / np.sqrt(variance + epsilon)
    nodes = [
        helper.make_node("MatMul", [product.input[0], "kept/weights"], ["kept/product"]),
        helper.make_node("Add", ["kept/product", "kept/bias"], ["fuse/kept"]),
    ]
    _replace(graph, slice(at, len(graph.node)), nodes)
    return {
        "kept/weights": np.asarray((constants[product.input[1]] * gain) @ directions, dtype=np.float32),
        "kept/bias": np.asarray((bias - mean * gain) @ directions, dtype=np.float32),
    }


def _replace(graph: Any, where: slice, nodes: list[Any]) -> None:
    after = list(graph.node)
    after[where] = nodes
    del graph.node[:]
    graph.node.extend(after)
