"""Train the two networks of the hand finder on generated scenes, resumably, on one core.

``python -m models.training.hand_train --net coarse --minutes 20 --out RUN --cache CACHE``, then ``fine``
"""

import json
import math
import time
from pathlib import Path
from typing import Final

import click
import cv2
import numpy as np
import torch
from torch.nn import functional

from models.training.hand_network import FINE_PX, CoarseNet, FineNet
from models.training.hand_pool import Pool, draw_pool
from models.training.hand_samples import CoarseBatch, FineBatch, coarse_batch, fine_batch

Net = CoarseNet | FineNet
Parts = dict[str, torch.Tensor]

HANDS: Final = 1300
GROUNDS: Final = 400
_BATCH: Final = 48
_RATE: Final = 3e-3
_WARM_UP: Final = 60
_SAVE_EVERY_S: Final = 45.0
_LOG_EVERY: Final = 50


def coarse_loss(net: CoarseNet, batch: CoarseBatch) -> Parts:
    """Focal loss on the centres (as CenterNet, Zhou et al. 2019), and the other channels near them."""
    cells, cover = net(torch.from_numpy(batch.pictures))
    heat, told = torch.from_numpy(batch.heat), torch.from_numpy(batch.told)
    chance = torch.sigmoid(cells[:, 0]).clamp(1e-5, 1 - 1e-5)
    there = heat > 0.999
    hit = torch.where(there, (1 - chance) ** 2 * -torch.log(chance), 0.0)
    miss = torch.where(there, 0.0, (1 - heat) ** 4 * chance**2 * -torch.log(1 - chance))
    hands = max(1.0, float(there.sum()))
    near = (heat * (heat > 0.35)).unsqueeze(1)
    weight = near / max(1.0, float(near.sum()))
    yes_no = functional.binary_cross_entropy_with_logits(cells[:, 1:3], told[:, :2], reduction="none")
    up = functional.normalize(cells[:, 6:8], dim=1)
    return {
        "heat": (hit.sum() + miss.sum()) / hands,
        "yes_no": (yes_no * weight).sum(),
        "place": 0.5 * ((cells[:, 3:5] - told[:, 2:4]).abs() * weight).sum(),
        "size": 2.0 * ((cells[:, 5:6] - told[:, 4:5]).abs() * weight).sum(),
        "up": 2.0 * ((up - told[:, 5:7]).abs() * weight).sum(),
        "cover": functional.binary_cross_entropy_with_logits(cover, torch.from_numpy(batch.cover)),
    }


def fine_loss(net: FineNet, batch: FineBatch) -> Parts:
    """Where the points are, first as cells and then to the fraction of a pixel; and what it is."""
    maps, points, judged = net(torch.from_numpy(batch.crops))
    wanted = torch.from_numpy(batch.points)
    known = ~torch.isnan(wanted[:, :, 0])
    wanted = torch.nan_to_num(wanted)
    at = torch.arange(maps.shape[3], dtype=torch.float32)
    cell = FINE_PX / maps.shape[3]
    centre = (wanted + 0.5) / cell - 0.5
    across = torch.exp(-((at - centre[:, :, 0:1]) ** 2) / (2 * 0.7**2))
    down = torch.exp(-((at - centre[:, :, 1:2]) ** 2) / (2 * 0.7**2))
    target = (down.unsqueeze(3) * across.unsqueeze(2)).flatten(2)
    target = target / target.sum(2, keepdim=True).clamp(min=1e-6)
    scores = functional.log_softmax(maps.flatten(2), 2)
    count = max(1.0, float(known.sum()))
    told = ~torch.isnan(torch.from_numpy(batch.mirrored))
    mirrored = torch.nan_to_num(torch.from_numpy(batch.mirrored))
    flip = functional.binary_cross_entropy_with_logits(judged[:, 1], mirrored, reduction="none")
    return {
        "cells": (-(target * scores).sum(2) * known).sum() / count,
        "points": 0.5 * ((points - wanted).abs().sum(2) * known).sum() / count,
        "open": functional.binary_cross_entropy_with_logits(judged[:, 0], torch.from_numpy(batch.is_open)),
        "mirrored": (flip * told).sum() / max(1.0, float(told.sum())),
    }


def _losses(net: Net, pool: Pool, rng: np.random.Generator) -> Parts:
    if isinstance(net, CoarseNet):
        return coarse_loss(net, coarse_batch(rng, pool, _BATCH))
    return fine_loss(net, fine_batch(rng, pool, _BATCH))


def train(name: str, minutes: float, seed: int, out: Path, cache: Path) -> None:
    """Run (or go on with) one network's training; the newest state is ``out``/NAME.pt."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    out.mkdir(parents=True, exist_ok=True)
    pool = draw_pool(cache, hands=HANDS, grounds=GROUNDS)
    torch.manual_seed(seed)
    net: Net = CoarseNet() if name == "coarse" else FineNet()
    net = net.to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=_RATE, weight_decay=1e-3)
    seconds, steps, file = 0.0, 0, out / f"{name}.pt"
    if file.exists():
        kept = torch.load(file, weights_only=True)
        net.load_state_dict(kept["net"])
        optimizer.load_state_dict(kept["optimizer"])
        seconds, steps = float(kept["seconds"]), int(kept["steps"])
    # A resumed run draws other samples than those it has seen.
    rng = np.random.default_rng([seed, steps])
    saved_s, means = seconds, dict[str, float]()
    while seconds < minutes * 60:
        started = time.monotonic()
        rate = _RATE * 0.5 * (1 + math.cos(math.pi * min(1.0, seconds / (minutes * 60)))) + 1e-5
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (steps + 1) / _WARM_UP)
        parts = _losses(net, pool, rng)
        loss = torch.stack(list(parts.values())).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        for key, value in parts.items():
            now = float(value.detach())
            means[key] = 0.98 * means.get(key, now) + 0.02 * now
        steps += 1
        seconds += time.monotonic() - started
        if steps % _LOG_EVERY == 0:
            shown = {key: round(value, 4) for key, value in means.items()}
            click.echo(json.dumps({"steps": steps, "samples": steps * _BATCH, "s": round(seconds), **shown}))
        if seconds - saved_s > _SAVE_EVERY_S or seconds >= minutes * 60:
            saved_s = seconds
            _save(file, net, optimizer, seconds, steps)


def _save(file: Path, net: Net, optimizer: torch.optim.Optimizer, seconds: float, steps: int) -> None:
    kept = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "seconds": seconds, "steps": steps}
    torch.save(kept, file.with_suffix(".new"))
    file.with_suffix(".new").replace(file)


@click.command()
@click.option("--net", "name", type=click.Choice(["coarse", "fine"]), required=True)
@click.option("--minutes", default=20.0, show_default=True, help="Time to train, earlier runs counted in.")
@click.option("--seed", default=1, show_default=True)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True)
@click.option("--cache", type=click.Path(path_type=Path, file_okay=False), required=True)
def main(*, name: str, minutes: float, seed: int, out: Path, cache: Path) -> None:
    """Train one network; started again, it goes on where it was."""
    train(name, minutes, seed, out, cache)


if __name__ == "__main__":
    main()
