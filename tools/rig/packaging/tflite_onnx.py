"""Write a TensorFlow Lite network as ONNX, without TensorFlow.

    python tools/rig/packaging/tflite_onnx.py NETWORK.tflite NETWORK.onnx

Knows the operators of the networks that `tools.rig.packaging.hand_weights` takes and no other. Runs with the
packages of `lock/convert.txt` alone, so it imports nothing of this repository. Pictures stay as the network
had them, (1, height, width, channels) float32; inside, channels come first, as ONNX has them. Weights stay
halves, and the same input gives the same bytes.
"""

import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import tflite
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

_TYPES: Final[dict[int, type[np.generic]]] = {
    tflite.TensorType.FLOAT32: np.float32,
    tflite.TensorType.FLOAT16: np.float16,
    tflite.TensorType.INT32: np.int32,
}
_FIRST: Final = [0, 3, 1, 2]
_LAST: Final = [0, 2, 3, 1]
OPSET: Final = 17


class Conversion:
    """One network on its way. Every tensor of four dimensions has its channels first until it is reshaped."""

    def __init__(self, data: bytes) -> None:
        """Convert the whole of it. Raises ValueError for an operator or an option that is not known here."""
        self._model = tflite.Model.GetRootAsModel(data, 0)
        self._graph = self._model.Subgraphs(0)
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._halves: dict[int, NDArray[Any]] = {}
        inputs = [self._value(self._graph.Inputs(i), "") for i in range(self._graph.InputsLength())]
        self._node("Transpose", [inputs[0].name], self._name(self._graph.Inputs(0)), perm=_FIRST)
        for i in range(self._graph.OperatorsLength()):
            self._operator(self._graph.Operators(i))
        outputs = []
        for i in range(self._graph.OutputsLength()):
            outputs.append(self._value(self._graph.Outputs(i), "output_", i))
            self._node("Identity", [self._name(self._graph.Outputs(i))], outputs[-1].name)
        graph = helper.make_graph(self._nodes, "hand", inputs, outputs, list(self._constants.values()))
        self.model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
        onnx.checker.check_model(self.model)

    def _value(self, index: int, prefix: str, number: int = 0) -> Any:
        name = f"{prefix}{number}" if prefix else "picture"
        shape = [int(n) for n in self._graph.Tensors(index).ShapeAsNumpy()]
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    def _name(self, index: int) -> str:
        return f"t{index}"

    def _shape(self, index: int) -> list[int]:
        return [int(n) for n in self._graph.Tensors(index).ShapeAsNumpy()]

    def _array(self, index: int) -> NDArray[Any]:
        """The numbers of a constant tensor."""
        if index in self._halves:
            return self._halves[index]
        tensor = self._graph.Tensors(index)
        data = self._model.Buffers(tensor.Buffer()).DataAsNumpy()
        if isinstance(data, int):
            raise ValueError(f"tensor {index}: expected a constant, found a value that is computed")
        return np.frombuffer(data.tobytes(), _TYPES[tensor.Type()]).reshape(self._shape(index))

    def _node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self._nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def _constant(self, name: str, array: NDArray[Any]) -> str:
        """A constant's name; halves become single numbers when the network is loaded."""
        if array.dtype != np.float16:
            self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
            return name
        if f"{name}_half" not in self._constants:
            self._constants[f"{name}_half"] = numpy_helper.from_array(
                np.ascontiguousarray(array), f"{name}_half"
            )
            self._node("Cast", [f"{name}_half"], name, to=TensorProto.FLOAT)
        return name

    def _operator(self, operator: Any) -> None:
        code = self._model.OperatorCodes(operator.OpcodeIndex())
        kind = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        ins = [operator.Inputs(i) for i in range(operator.InputsLength())]
        known = tflite.BuiltinOperator
        match kind:
            case known.DEQUANTIZE:
                self._halves[operator.Outputs(0)] = self._array(ins[0])
            case known.CONV_2D | known.DEPTHWISE_CONV_2D:
                self._convolution(operator, ins, operator.Outputs(0), deep=kind == known.DEPTHWISE_CONV_2D)
            case known.PRELU | known.ADD | known.MAX_POOL_2D | known.PAD | known.RESIZE_BILINEAR:
                self._on_picture(kind, operator, ins, operator.Outputs(0))
            case _:
                self._on_list(kind, operator, ins, operator.Outputs(0))

    def _on_picture(self, kind: int, operator: Any, ins: list[int], out: int) -> None:
        name, x = self._name(out), self._name(ins[0])
        known = tflite.BuiltinOperator
        match kind:
            case known.PRELU:
                # x + (1 - a) * ReLU(-x). ONNX Runtime keeps channels in blocks from one convolution to the
                # next, and changes to rows and back for its own PRelu, for a Sub and for a Mul.
                rise = 1.0 - self._array(ins[1]).astype(np.float32).ravel()
                below = self._scaled(x, f"{name}_minus", np.full_like(rise, -1.0))
                scaled = self._scaled(self._node("Relu", [below], f"{name}_below"), f"{name}_rise", rise)
                self._node("Add", [scaled, x], name)
            case known.ADD:
                self._active(operator, tflite.AddOptions, "Add", [x, self._name(ins[1])], name)
            case known.MAX_POOL_2D:
                options = _options(operator, tflite.Pool2DOptions)
                size = (options.FilterHeight(), options.FilterWidth())
                steps = (options.StrideH(), options.StrideW())
                pads = self._pads(options, ins[0], size, steps)
                self._node("MaxPool", [x], name, kernel_shape=size, strides=steps, pads=pads)
            case known.PAD:
                # Channels of nothing after those there are: a convolution, for the same reason.
                there, all_of_them = self._shape(ins[0])[3], self._shape(out)[3]
                if self._array(ins[1]).tolist() != [[0, 0], [0, 0], [0, 0], [0, all_of_them - there]]:
                    raise ValueError("PAD: only channels after the others are known here")
                kept = np.eye(all_of_them, there, dtype=np.float16).reshape(all_of_them, there, 1, 1)
                self._node("Conv", [x, self._constant(f"{name}_kept", kept)], name)
            case _:
                options = _options(operator, tflite.ResizeBilinearOptions)
                if options.AlignCorners():
                    raise ValueError("RESIZE_BILINEAR: aligned corners are not known here")
                size4 = np.array([self._shape(out)[i] for i in _FIRST], np.int64)
                way = "half_pixel" if options.HalfPixelCenters() else "asymmetric"
                inputs = [x, "", "", self._constant(f"{name}_size", size4)]
                self._node("Resize", inputs, name, mode="linear", coordinate_transformation_mode=way)

    def _scaled(self, x: str, name: str, factors: NDArray[np.float32]) -> str:
        """A picture with each channel multiplied by a factor of its own."""
        kernel = self._constant(f"{name}_factors", factors.reshape(-1, 1, 1, 1))
        return self._node("Conv", [x, kernel], name, group=len(factors))

    def _on_list(self, kind: int, operator: Any, ins: list[int], out: int) -> None:
        name, x = self._name(out), self._name(ins[0])
        known = tflite.BuiltinOperator
        match kind:
            case known.RESHAPE:
                if len(self._shape(ins[0])) == 4:
                    x = self._node("Transpose", [x], f"{name}_last", perm=_LAST)
                shape = self._constant(f"{name}_shape", np.array(self._shape(out), np.int64))
                self._node("Reshape", [x, shape], name)
            case known.CONCATENATION:
                if len(self._shape(out)) == 4:
                    raise ValueError("CONCATENATION: pictures are not known here, only lists")
                axis = _options(operator, tflite.ConcatenationOptions).Axis()
                self._node("Concat", [self._name(i) for i in ins], name, axis=axis)
            case known.MEAN:
                keep = int(_options(operator, tflite.ReducerOptions).KeepDims())
                if sorted(self._array(ins[1]).ravel().tolist()) != [1, 2] or keep:
                    raise ValueError("MEAN: expected the mean of a whole picture")
                self._node("ReduceMean", [x], name, axes=[2, 3], keepdims=0)
            case known.FULLY_CONNECTED:
                weights = [self._constant(self._name(i), self._array(i)) for i in ins[1:]]
                self._active(operator, tflite.FullyConnectedOptions, "Gemm", [x, *weights], name, transB=1)
            case known.LOGISTIC:
                self._node("Sigmoid", [x], name)
            case _:
                raise ValueError(f"operator {kind} is not known here")

    def _convolution(self, operator: Any, ins: list[int], out: int, *, deep: bool) -> None:
        kind = tflite.DepthwiseConv2DOptions if deep else tflite.Conv2DOptions
        options = _options(operator, kind)
        if (options.DilationHFactor(), options.DilationWFactor()) != (1, 1):
            raise ValueError("a convolution with holes is not known here")
        kernel = self._array(ins[1])
        kernel = kernel.transpose(3, 0, 1, 2) if deep else kernel.transpose(0, 3, 1, 2)
        steps = (options.StrideH(), options.StrideW())
        inputs = [
            self._name(ins[0]),
            self._constant(f"{self._name(out)}_kernel", kernel),
            self._constant(f"{self._name(out)}_bias", self._array(ins[2])),
        ]
        self._active(
            operator,
            kind,
            "Conv",
            inputs,
            self._name(out),
            strides=steps,
            pads=self._pads(options, ins[0], kernel.shape[2:], steps),
            group=self._shape(ins[0])[3] if deep else 1,
        )

    def _active(
        self, operator: Any, options: Any, kind: str, inputs: list[str], name: str, **attributes: Any
    ) -> None:
        """A node, and the activation that TensorFlow Lite has inside it."""
        activation = _options(operator, options).FusedActivationFunction()
        known = tflite.ActivationFunctionType
        if activation == known.NONE:
            self._node(kind, inputs, name, **attributes)
            return
        before = self._node(kind, inputs, f"{name}_before", **attributes)
        if activation == known.RELU:
            self._node("Relu", [before], name)
        elif activation == known.RELU6:
            ends = [
                self._constant(end, np.array(value, np.float32))
                for end, value in (("zero", 0.0), ("six", 6.0))
            ]
            self._node("Clip", [before, *ends], name)
        else:
            raise ValueError(f"activation {activation} is not known here")

    def _pads(self, options: Any, index: int, size: Any, steps: tuple[int, int]) -> list[int]:
        """Top, left, bottom, right, as TensorFlow pads: the odd pixel after the picture."""
        if options.Padding() == tflite.Padding.VALID:
            return [0, 0, 0, 0]
        whole = [
            max(0, (-(-side // step) - 1) * step + int(reach) - side)
            for side, reach, step in zip(self._shape(index)[1:3], size, steps, strict=True)
        ]
        before = [amount // 2 for amount in whole]
        return before + [amount - first for amount, first in zip(whole, before, strict=True)]


def _options(operator: Any, kind: Any) -> Any:
    table, found = operator.BuiltinOptions(), kind()
    found.Init(table.Bytes, table.Pos)
    return found


def main() -> None:
    source, goal = Path(sys.argv[1]), Path(sys.argv[2])
    goal.write_bytes(Conversion(source.read_bytes()).model.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
