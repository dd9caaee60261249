"""From a trained network to the ONNX file a device runs.

``python -m models.training.export --run RUN`` exports the newest checkpoint of a run that is still going.
"""

from pathlib import Path

import click
import torch
from torch import nn

from models.crop_geometry import CROP_SIZE
from models.training.network import PalmNet

OPSET = 17


def export_onnx(net: nn.Module, path: Path) -> None:
    """Write the network: ``crops`` (n, 112, 112) uint8 to ``vectors`` (n, 512) float32 of unit length."""
    net = net.eval().to(memory_format=torch.contiguous_format)
    example = torch.zeros((2, CROP_SIZE, CROP_SIZE), dtype=torch.uint8)
    torch.onnx.export(
        net,
        (example,),
        str(path),
        input_names=["crops"],
        output_names=["vectors"],
        dynamic_axes={"crops": {0: "n"}, "vectors": {0: "n"}},
        opset_version=OPSET,
        dynamo=False,
    )


@click.command()
@click.option(
    "--run", "run_dir", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True
)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="ONNX file to write."
)
def main(*, run_dir: Path, out: Path) -> None:
    """Export the newest checkpoint of a run."""
    torch.set_num_threads(1)
    net = PalmNet()
    net.load_state_dict(torch.load(run_dir / "checkpoint.pt", weights_only=True)["net"])
    export_onnx(net, out)


if __name__ == "__main__":
    main()
