"""From the two trained networks to the folder that ships: ONNX files and their manifest.

``python -m models.training.hand_publish --run RUN --out FOLDER``
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn

from models.hand_network import HandNetwork, open_network
from models.manifest import MANIFEST_NAME, MANIFEST_VERSION
from models.training.hand_network import COARSE_PX, FINE_PX, CoarseNet, FineNet
from models.training.hand_train import GROUNDS, HANDS

_OPSET: Final = 17
_SMALL: Final = 64
"""Weights of fewer numbers stay in full precision."""


class _Points(nn.Module):  # type: ignore[misc]
    """The fine network without its maps."""

    def __init__(self, net: FineNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, pieces: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(n, 5, 2) and (n, 2)."""
        _, points, judged = self.net(pieces)
        return points, judged


def export(net: nn.Module, side: int, names: tuple[str, str, str], path: Path) -> None:
    """One network, (1, side, side) uint8 in; its weights kept as halves, which takes half the space."""
    torch.onnx.export(
        net.eval().to(memory_format=torch.contiguous_format),
        (torch.zeros((1, side, side), dtype=torch.uint8),),
        str(path),
        input_names=[names[0]],
        output_names=list(names[1:]),
        opset_version=_OPSET,
        dynamo=False,
    )
    model = onnx.load(str(path))
    _halve(model.graph)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def _halve(graph: Any) -> None:
    """Store large weights as float16 with a cast in front, which the runtime folds away when it loads."""
    casts = []
    for weight in graph.initializer:
        values = numpy_helper.to_array(weight)
        if values.dtype != np.float32 or values.size < _SMALL:
            continue
        name = weight.name
        weight.CopyFrom(numpy_helper.from_array(values.astype(np.float16), name + ".half"))
        casts.append(onnx.helper.make_node("Cast", [name + ".half"], [name], to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


def publish(run: Path, out: Path) -> None:
    """Export both networks, ask them the known question, and write the manifest."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    training: dict[str, Any] = {"hands": HANDS, "grounds": GROUNDS, "data": "generated scenes only"}
    coarse, fine = CoarseNet(), FineNet()
    nets: tuple[tuple[str, CoarseNet | FineNet], ...] = (("coarse", coarse), ("fine", fine))
    for name, net in nets:
        kept = torch.load(run / f"{name}.pt", weights_only=True)
        net.load_state_dict(kept["net"])
        training[name] = {"steps": int(kept["steps"]), "seconds": round(float(kept["seconds"]))}
    export(coarse, COARSE_PX, ("picture", "cells", "cover"), out / "hand-coarse.onnx")
    export(_Points(fine), FINE_PX, ("piece", "points", "judged"), out / "hand-fine.onnx")
    files = [_file(out / name) for name in ("hand-coarse.onnx", "hand-fine.onnx")]
    manifest = {"v": MANIFEST_VERSION, "model_id": "hand-gen-1", "files": files, "training": training}
    answer = HandNetwork(out / "hand-coarse.onnx", out / "hand-fine.onnx").answer()
    manifest["self_test"] = {"points": [round(float(x), 4) for x in answer]}
    (out / MANIFEST_NAME).write_text(json.dumps(manifest, indent=1) + "\n")
    open_network(out)


def _file(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"name": path.name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


@click.command()
@click.option("--run", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True)
def main(*, run: Path, out: Path) -> None:
    """Make the shipped folder of two trained networks."""
    publish(run, out)


if __name__ == "__main__":
    main()
