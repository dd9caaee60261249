"""The smallest ONNX file there can be, written byte by byte: the mean of each plane of a picture.

The library `onnx` is no part of this project's environment, and a few protobuf fields are all it takes.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

FLOAT = 1


def mean_network(planes: int = 1, side_px: int = 32, batch: int = 1) -> bytes:
    """A model (batch, planes, side, side) float32 → (batch, planes): GlobalAveragePool and Flatten."""
    pool = _text(1, "in") + _text(2, "pooled") + _text(4, "GlobalAveragePool")
    flatten = _text(1, "pooled") + _text(2, "out") + _text(4, "Flatten")
    graph = (
        _field(1, pool)
        + _field(1, flatten)
        + _text(2, "mean")
        + _field(11, _tensor("in", batch, planes, side_px, side_px))
        + _field(12, _tensor("out", batch, planes))
    )
    return _number(1, 8) + _field(8, _text(1, "") + _number(2, 13)) + _field(7, graph)


def for_so_many_crops(model: bytes, batch: int) -> bytes:
    """The shipped model with a fixed number of crops, 1 to 127, in place of its free first dimension."""
    before, free, after = model.rpartition(_text(1, "crops"))
    # A dimension's name `n` in as many bytes as its number, whose varint is one byte longer than need be.
    return before + free + after.replace(_text(2, "n"), bytes([8, 0x80 | batch, 0]), 1)


def of_twice_the_length(model: bytes) -> bytes:
    """The shipped model with its vectors added to themselves, as of one without the division by length."""
    unit = model.replace(_text(2, "vectors"), _text(2, "lengths"), 1)
    twice = _text(1, "lengths") + _text(1, "lengths") + _text(2, "vectors") + _text(4, "Add")
    return unit + _field(7, _field(1, twice))  # a second graph is merged into the first


def write_pad_folder(folder: Path, **changed: Any) -> Path:
    """A liveness network that takes a bright hand for alive, in a folder as an operator would bring it."""
    folder.mkdir(parents=True, exist_ok=True)
    content = mean_network()
    (folder / "pad.onnx").write_bytes(content)
    manifest: dict[str, Any] = {
        "v": 1,
        "kind": "pad",
        "model_id": "bright-1",
        "look": "rgb",
        "files": [{"name": "pad.onnx", "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}],
        "input": {
            "reach": 1.0,
            "side_px": 32,
            "layout": "nchw",
            "channels": "grey",
            "dtype": "float32",
            "mean": [60.0],
            "std": [10.0],
        },
        "output": {"live": 0, "activation": "sigmoid"},
        "threshold": 0.5,
    }
    for name, value in changed.items():
        part = manifest.get(name)
        manifest[name] = part | value if isinstance(part, dict) and isinstance(value, dict) else value
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _field(field, text.encode())


def _tensor(name: str, *shape: int) -> bytes:
    dims = b"".join(_field(1, _number(1, size)) for size in shape)
    return _text(1, name) + _field(2, _field(1, _number(1, FLOAT) + _field(2, dims)))
