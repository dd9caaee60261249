"""Train the palm embedding on generated palms: ``python -m models.training.train --minutes 35 --out RUN``.

A run is resumable: it writes ``RUN/checkpoint.pt`` every two minutes and goes on from there when started
again with the same arguments. The learning-rate and margin schedules follow the share of ``--minutes`` spent,
so a run on a slower machine is a shorter run and says so in ``RUN/training.json``. The network is on a GPU
where there is one; crops are warped on the processor.
"""

import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click
import cv2
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from models.training.canvases import TRAINING_SEED_START, PalmCanvases, load_or_draw
from models.training.crops import Variation, sample_crop
from models.training.export import export_onnx
from models.training.network import EMBEDDING_SIZE, PalmNet

_CHECKPOINT_EVERY_S: Final = 120.0
_LOG_EVERY_STEPS: Final = 50
_COSFACE_SCALE: Final = 24.0
_COSFACE_MARGIN: Final = 0.28
_TEMPERATURE: Final = 0.1
_CONTRAST_WEIGHT: Final = 0.5
_INFRARED_SHARE: Final = 0.3
_LEARNING_RATE: Final = 2e-3
_WEIGHT_DECAY: Final = 5e-4
_WARM_UP_STEPS: Final = 200


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The arguments of a run."""

    minutes: float
    people: int
    batch: int
    seed: int


@dataclass(slots=True)
class Progress:
    """How far a run has come."""

    steps: int = 0
    samples: int = 0
    seconds: float = 0.0


class CosFace(nn.Module):  # type: ignore[misc]
    """Large-margin cosine loss (Wang et al. 2018) over all training hands."""

    def __init__(self, hands: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hands, EMBEDDING_SIZE) * 0.05)

    def forward(self, vectors: torch.Tensor, labels: torch.Tensor, margin: float) -> torch.Tensor:
        """Mean loss of unit ``vectors`` (n, 512) with hand numbers ``labels`` (n,)."""
        cosine = vectors @ functional.normalize(self.weight, dim=1).t()
        cosine[torch.arange(len(labels), device=labels.device), labels] -= margin
        return functional.cross_entropy(cosine * _COSFACE_SCALE, labels)


def info_nce(vectors: torch.Tensor) -> torch.Tensor:
    """Contrast of the first half of the batch with the second, row i of both being one hand."""
    half = len(vectors) // 2
    logits = vectors[:half] @ vectors[half:].t() / _TEMPERATURE
    labels = torch.arange(half, device=vectors.device)
    return (functional.cross_entropy(logits, labels) + functional.cross_entropy(logits.t(), labels)) / 2


def batches(
    canvases: PalmCanvases, plan: TrainingPlan, rng: np.random.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Without end: two crops of each of ``batch / 2`` different hands, both of a pair under the same lamp."""
    variation = Variation()
    while True:
        hands = rng.choice(len(canvases.planes), plan.batch // 2, replace=False)
        infrared = rng.random(len(hands)) < _INFRARED_SHARE
        hands, infrared = np.concatenate([hands, hands]), np.concatenate([infrared, infrared])
        crops = [
            sample_crop(canvases, int(hand), rng, bool(lamp), variation)
            for hand, lamp in zip(hands, infrared, strict=True)
        ]
        yield torch.from_numpy(np.stack(crops)), torch.from_numpy(hands)


@dataclass(slots=True)
class Run:
    """Everything a checkpoint holds."""

    plan: TrainingPlan
    net: PalmNet
    loss: CosFace
    optimizer: torch.optim.Optimizer
    progress: Progress

    def share(self) -> float:
        """Part of the planned time that is spent, 0 to 1."""
        return self.progress.seconds / (self.plan.minutes * 60)


def train(plan: TrainingPlan, out: Path, cache: Path) -> Progress:
    """Run (or go on with) the training and leave the newest checkpoint and the ONNX file in ``out``."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    canvases = load_or_draw(plan.people, cache)
    run = _begin(plan, len(canvases.planes), device)
    _resume(out, run)
    progress = run.progress
    # A resumed run draws other crops than those it has seen.
    drawn = batches(canvases, plan, np.random.default_rng([plan.seed, progress.steps]))
    saved_s = progress.seconds
    while run.share() < 1.0:
        started = time.monotonic()
        crops, labels = (part.to(device) for part in next(drawn))
        classified, contrasted = _step(run, crops, labels)
        progress.steps += 1
        progress.samples += len(crops)
        progress.seconds += time.monotonic() - started
        if progress.steps % _LOG_EVERY_STEPS == 0:
            _log(out, progress, classified, contrasted)
        if progress.seconds - saved_s > _CHECKPOINT_EVERY_S:
            _save(out, run)
            saved_s = progress.seconds
    _save(out, run)
    export_onnx(run.net.cpu(), out / "palm-embedding.onnx")
    return progress


def _begin(plan: TrainingPlan, hands: int, device: torch.device) -> Run:
    torch.manual_seed(plan.seed)
    net = PalmNet().to(device, memory_format=torch.channels_last)
    loss = CosFace(hands).to(device)
    decayed = [p for p in net.parameters() if p.ndim > 1]
    plain = [p for p in net.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": _WEIGHT_DECAY},
            {"params": [*plain, *loss.parameters()], "weight_decay": 0.0},
        ],
        lr=_LEARNING_RATE,
    )
    return Run(plan, net, loss, optimizer, Progress())


def _step(run: Run, crops: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    share = run.share()
    rate = _LEARNING_RATE * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * share)))
    for group in run.optimizer.param_groups:
        group["lr"] = rate * min(1.0, (run.progress.steps + 1) / _WARM_UP_STEPS)
    with torch.autocast(crops.device.type, torch.bfloat16):
        vectors = run.net(crops)
    classified = run.loss(vectors, labels, _COSFACE_MARGIN * min(1.0, share / 0.5))
    contrasted = info_nce(vectors)
    run.optimizer.zero_grad(set_to_none=True)
    (classified + _CONTRAST_WEIGHT * contrasted).backward()
    run.optimizer.step()
    return float(classified.item()), float(contrasted.item())


def _log(out: Path, progress: Progress, classified: float, contrasted: float) -> None:
    record = {**asdict(progress), "cosface": round(classified, 4), "info_nce": round(contrasted, 4)}
    line = json.dumps(record)
    with (out / "log.jsonl").open("a", encoding="utf-8") as log:
        log.write(line + "\n")
    click.echo(line)


def _save(out: Path, run: Run) -> None:
    state = {
        "plan": asdict(run.plan),
        "progress": asdict(run.progress),
        "net": run.net.state_dict(),
        "loss": run.loss.state_dict(),
        "optimizer": run.optimizer.state_dict(),
    }
    temporary = out / "checkpoint.part"
    torch.save(state, temporary)
    temporary.replace(out / "checkpoint.pt")


def _resume(out: Path, run: Run) -> None:
    path = out / "checkpoint.pt"
    if not path.exists():
        return
    state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    if {**state["plan"], "minutes": 0} != {**asdict(run.plan), "minutes": 0}:
        raise click.ClickException(
            f"{path} belongs to a run with {state['plan']}; give the same arguments or another --out"
        )
    run.net.load_state_dict(state["net"])
    run.loss.load_state_dict(state["loss"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.progress = Progress(**state["progress"])


@click.command()
@click.option("--minutes", default=32.0, show_default=True, help="Training time, without drawing the palms.")
@click.option(
    "--people", default=4000, show_default=True, help="Generated people; both hands are identities."
)
@click.option("--batch", default=128, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Run directory.")
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Drawn palms (about 2 GB).",
)
def main(*, minutes: float, people: int, batch: int, seed: int, out: Path, cache: Path) -> None:
    """Train the palm embedding on one core, or on a GPU where there is one, and export it to ONNX."""
    plan = TrainingPlan(minutes, people, batch, seed)
    progress = train(plan, out, cache)
    record = {
        "command": "python -m models.training.train "
        f"--minutes {minutes:g} --people {people} --batch {batch} --seed {seed}",
        **asdict(plan),
        "hands": 2 * people,
        "first_person_seed": TRAINING_SEED_START,
        "steps": progress.steps,
        "samples": progress.samples,
        "trained_minutes": round(progress.seconds / 60, 1),
        "data": "generated palms only; no picture of a person",
        "torch": str(torch.__version__),
        "python": ".".join(map(str, sys.version_info[:3])),
    }
    (out / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    click.echo(f"trained on {progress.samples} crops; the model is {out / 'palm-embedding.onnx'}")


if __name__ == "__main__":
    main()
