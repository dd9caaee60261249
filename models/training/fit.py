"""Learn the shipped model from generated palms: ``python -m models.training.fit --out RUN --cache CACHE``.

Draws the palms, warps crops from them, learns the line code's basis and writes the ONNX file. Each stage is
kept in ``CACHE``, so a run that was interrupted goes on where it stopped. Features are computed on a GPU
when there is one.
"""

import hashlib
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import click
import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from models.embedding import Embedder
from models.evaluation.generated_people import embed_all
from models.training.canvases import TRAINING_SEED_START
from models.training.close_crops import INFRARED_SHARE, CloseVariation, sample_crop, turn_palm
from models.training.export import export_onnx
from models.training.fuse import fuse, main_directions
from models.training.line_code import Basis, LineCode, learn_basis
from models.training.network import EMBEDDING_SIZE
from models.training.squares import PalmSquares, load_or_draw

LINE_SIZE: Final = 384
"""Of the vector's 512 numbers; the rest are the net's."""
NET_WEIGHT: Final = 0.2
"""The net's share of a cosine; chosen, like the line code's settings, on one real set
(docs/lab/SCORES.md)."""
_NET_CROPS: Final = 2000
_BATCH: Final = 64


@dataclass(frozen=True, slots=True)
class FitPlan:
    """The arguments of a run."""

    people: int
    close_ups: int
    crops: int
    seed: int


def sample_crops(squares: PalmSquares, plan: FitPlan) -> NDArray[np.uint8]:
    """Crops (n, 112, 112) of palms drawn by lot, each perhaps turned or mirrored into another palm."""
    rng = np.random.default_rng(plan.seed)
    palms = np.sort(rng.integers(0, len(squares.planes), plan.crops))
    crops = np.empty((plan.crops, 112, 112), dtype=np.uint8)
    for i, palm in enumerate(palms):
        infrared = bool(rng.random() < INFRARED_SHARE)
        crop = sample_crop(squares, int(palm), rng, infrared, CloseVariation())
        crops[i] = turn_palm(crop, int(palm), int(rng.integers(0, 2)))
    return crops


def line_features(crops: NDArray[np.uint8]) -> NDArray[np.float32]:
    """What the line code sees in the crops, (n, FEATURES)."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    code = LineCode(1).to(device)
    parts = []
    with torch.inference_mode():
        for start in range(0, len(crops), _BATCH):
            part = torch.from_numpy(crops[start : start + _BATCH]).to(device)
            parts.append(code.features(code.seen(part)).cpu().numpy())
    return np.concatenate(parts)


def learned_basis(plan: FitPlan, cache: Path, *, processes: int) -> Basis:
    """The basis of a plan, from ``cache`` if it was learned before."""
    path = cache / f"basis-{plan.people}-{plan.close_ups}-{plan.crops}-{plan.seed}.npz"
    if path.exists():
        kept = np.load(path)
        return Basis(kept["directions"], kept["offsets"])
    squares = load_or_draw(plan.people, plan.close_ups, cache, processes=processes)
    basis = learn_basis(line_features(sample_crops(squares, plan)))
    part = path.with_suffix(".part.npz")
    np.savez(part, directions=basis.directions, offsets=basis.offsets)
    part.replace(path)
    return basis


@click.command()
@click.option("--people", default=1500, show_default=True, help="Generated people; both hands are drawn.")
@click.option("--close-ups", default=10_000, show_default=True, help="Close-up palms in addition to theirs.")
@click.option("--crops", default=20_000, show_default=True, help="Crops the basis is learned from.")
@click.option("--seed", default=77, show_default=True)
@click.option("--processes", default=1, show_default=True, help="For drawing the palms.")
@click.option(
    "--net",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="Finished run of models.training.train, or a model folder, whose net goes into the vector too.",
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Run directory.")
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Drawn palms (about 3 GB).",
)
def main(
    *,
    people: int,
    close_ups: int,
    crops: int,
    seed: int,
    processes: int,
    net: Path,
    out: Path,
    cache: Path,
) -> None:
    """Learn the line code from generated palms, join it with the trained net, and write the ONNX file."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    out.mkdir(parents=True, exist_ok=True)
    cache.mkdir(parents=True, exist_ok=True)
    plan = FitPlan(people, close_ups, crops, seed)
    code = LineCode(LINE_SIZE)
    code.take(learned_basis(plan, cache, processes=processes))
    export_onnx(code, out / "line-code.onnx")
    net_file = net / "palm-embedding.onnx"
    shown = sample_crops(load_or_draw(people, close_ups, cache), replace(plan, crops=_NET_CROPS))
    directions = main_directions(embed_all(Embedder(net_file), shown), EMBEDDING_SIZE - LINE_SIZE)
    fuse(out / "line-code.onnx", net_file, directions, NET_WEIGHT, out / "palm-embedding.onnx")
    record = {
        "command": "python -m models.training.fit --net NET "
        f"--people {people} --close-ups {close_ups} --crops {crops} --seed {seed}",
        **asdict(plan),
        "palms": 2 * people + close_ups,
        "first_seed": TRAINING_SEED_START,
        "method": "line code (fixed Gabor filters, whitened principal directions of their answers) and net",
        "line_size": LINE_SIZE,
        "net_weight": NET_WEIGHT,
        "net": _told_net(net, net_file),
        "data": "generated palms only; no picture of a person",
        "torch": str(torch.__version__),
        "python": ".".join(map(str, sys.version_info[:3])),
    }
    (out / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    click.echo(f"learned from {crops} crops; the model is {out / 'palm-embedding.onnx'}")


def _told_net(folder: Path, file: Path) -> dict[str, object]:
    """How the net was trained, as its run or its model's manifest has it, and which file it is."""
    run, manifest = folder / "training.json", folder / "manifest.json"
    told = json.loads((run if run.exists() else manifest).read_text("utf-8"))
    return {**told.get("training", told), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


if __name__ == "__main__":
    main()
