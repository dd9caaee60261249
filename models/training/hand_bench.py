"""How well hands are found in scenes outside the training set: with the networks, and with the published
weights.

``python -m models.training.hand_bench`` shows all finders the same frames and prints one JSON object.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import click
import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop import cut_palm
from models.crop_geometry import CROP_SIZE, Handedness, similarity_from_valleys
from models.frames import CameraFrame
from models.hand import Hand, HandFinder
from models.hand_landmarks import installed_landmarks
from models.manifest import load_manifest, open_embedder, shipped_model_dir
from models.synthesis.background import Look
from models.synthesis.hand_scenes import HandScene, hand_scene

FIRST_SEED: Final = 90_000_000
"""Scenes and people from here on are shown to no training."""
KINDS: Final = ("clean", "turned", "clutter", "shut", "empty", "small", "together", "folded")
PICTURES: Final = 9
"""Of a scene that drifts: 0.3 s at a camera's pace."""
LOOKS: Final[tuple[Look, Look]] = ("rgb", "nir")
_SIDES: Final[tuple[Handedness, Handedness]] = ("L", "R")

Corners = NDArray[np.float64]


@dataclass(slots=True)
class Tally:
    """What one finder made of the scenes of one kind."""

    shown: int = 0
    found: int = 0
    """Open hands reported within half a palm's width of the true one; anywhere, where none is open."""
    astray: int = 0
    """Open hands reported elsewhere."""
    wrong_side: int = 0
    error_pct: list[float] = field(default_factory=list)
    """Worst of the three valleys the crop hangs on, in % of the palm's width; one a found hand."""
    overlap: list[float] = field(default_factory=list)
    """Crop square with the true one: intersection over union."""
    cosine: list[float] = field(default_factory=list)
    """Two captures of one palm; only where both were found, on the right side."""
    ms: list[float] = field(default_factory=list)
    """Processor time of one frame."""


def scenes(kind: str, look: Look, people: int) -> Iterator[HandScene]:
    """Two captures of each palm; for ``empty``, two scenes."""
    base = FIRST_SEED + 100_000 * KINDS.index(kind) + 10_000 * LOOKS.index(look)
    for i in range(2 * people):
        yield hand_scene(base + i, kind, look, person=base + i // 2, handedness=_SIDES[i // 2 % 2])


def drifting(scene: HandScene, seed: int) -> Iterator[HandScene]:
    """The scene in a few pictures, in which it moves, turns and grows as a hand does that is nearly still."""
    rng = np.random.default_rng(seed)
    height, width = scene.pixels.shape[:2]
    by = rng.normal(0.0, 0.06, 2) * scene.palm_width_px
    turned, grown = rng.normal(0.0, 1.0), math.exp(rng.normal(0.0, 0.01))
    for k in range(PICTURES):
        matrix = np.asarray(cv2.getRotationMatrix2D((width / 2, height / 2), turned * k, grown**k))
        matrix = matrix + np.pad(k * by[:, None], ((0, 0), (2, 0)))
        moved = cv2.warpAffine(scene.pixels, matrix, (width, height), borderMode=cv2.BORDER_REFLECT)
        noisy = np.clip(moved + rng.normal(0.0, 3.0, moved.shape), 0, 255).astype(np.uint8)
        points = None if scene.points is None else scene.points @ matrix[:, :2].T + matrix[:, 2]
        yield replace(scene, pixels=noisy, points=points, palm_width_px=scene.palm_width_px * grown**k)


def tally(
    finder: HandFinder,
    shown: list[HandScene],
    embed: Callable[[NDArray[np.uint8]], NDArray[np.float32]],
    series: int = 1,
) -> Tally:
    """Show scenes, the two captures of a palm side by side in the list. ``series`` of them come at a camera's
    pace, then comes a pause after which no hand is followed."""
    result, before = Tally(), None
    for i, scene in enumerate(shown):
        frame = CameraFrame(scene.pixels, 1000 * (i // series) + 33 * (i % series), i)
        started = time.process_time()
        seen = finder.look(frame)
        result.ms.append(1000 * (time.process_time() - started))
        result.shown += 1
        vector = None
        if isinstance(seen, Hand):
            vector = _judge(result, frame, seen, scene, embed)
        if i % 2 and vector is not None and before is not None:
            result.cosine.append(float(vector @ before))
        before = vector
    return result


def _judge(
    result: Tally,
    frame: CameraFrame,
    hand: Hand,
    scene: HandScene,
    embed: Callable[[NDArray[np.uint8]], NDArray[np.float32]],
) -> NDArray[np.float32] | None:
    if scene.points is None or not scene.is_open:
        result.found += 1
        return None
    errors = np.hypot(*(hand.valleys[1:] - scene.points[1:4]).T) / scene.palm_width_px
    if math.dist(hand.valleys[1:].mean(axis=0), scene.points[1:4].mean(axis=0)) > 0.5 * scene.palm_width_px:
        result.astray += 1
        return None
    result.found += 1
    if hand.handedness != scene.handedness:
        result.wrong_side += 1
        return None
    result.error_pct.append(100 * float(errors.max()))
    true = _square(scene.points[:4], scene.handedness)
    result.overlap.append(_overlap(_square(hand.valleys, hand.handedness), true))
    return np.asarray(embed(cut_palm(frame, hand)[None])[0])


def _square(valleys: NDArray[np.floating], handedness: Handedness) -> Corners:
    matrix = similarity_from_valleys(valleys, handedness)
    corners = np.array([[0, 0], [CROP_SIZE, 0], [CROP_SIZE, CROP_SIZE], [0, CROP_SIZE]]) - 0.5
    return np.asarray(np.linalg.solve(matrix[:, :2], (corners - matrix[:, 2]).T).T)


def _overlap(one: Corners, other: Corners) -> float:
    both, _ = cv2.intersectConvexConvex(one.astype(np.float32), other.astype(np.float32))
    areas = [float(cv2.contourArea(c.astype(np.float32))) for c in (one, other)]
    return float(both) / max(sum(areas) - float(both), 1e-6)


def summary(result: Tally) -> dict[str, float]:
    """The figures that are printed."""
    figures: dict[str, float] = {"shown": result.shown, "hands": result.found, "astray": result.astray}
    if result.error_pct:
        figures |= {
            "wrong_side": result.wrong_side,
            "valley_error_pct_median": round(float(np.median(result.error_pct)), 2),
            "valley_error_pct_p95": round(float(np.percentile(result.error_pct, 95)), 2),
            "crop_iou_median": round(float(np.median(result.overlap)), 3),
            "crop_iou_p05": round(float(np.percentile(result.overlap, 5)), 3),
        }
    if result.cosine:
        figures |= {
            "pairs": len(result.cosine),
            "cosine_median": round(float(np.median(result.cosine)), 3),
            "cosine_p05": round(float(np.percentile(result.cosine, 5)), 3),
        }
    figures |= {
        "ms_median": round(float(np.median(result.ms)), 2),
        "ms_p95": round(float(np.percentile(result.ms, 95)), 2),
    }
    return figures


@click.command()
@click.option("--people", default=20, show_default=True, help="Palms of each kind of scene and look.")
def main(*, people: int) -> None:
    """Compare the ways to find a hand on the same unseen scenes."""
    cv2.setNumThreads(1)
    embed = open_embedder(load_manifest(shipped_model_dir())).embed
    finders = {"with networks": HandFinder(landmarks=None)}
    if installed_landmarks() is not None:
        finders["with the published weights"] = HandFinder()
    record: dict[str, dict[str, dict[str, float]]] = {}
    for kind in KINDS:
        for look in LOOKS:
            shown = list(scenes(kind, look, people))
            record[f"{kind} {look}"] = {
                name: summary(tally(finder, shown, embed)) for name, finder in finders.items()
            }
        moving = [
            picture for i, scene in enumerate(scenes(kind, "rgb", people)) for picture in drifting(scene, i)
        ]
        record[f"{kind} drifting"] = {
            name: summary(tally(HandFinder(), moving, embed, series))
            for name, series in (("searched", 1), ("followed", PICTURES))
        }
    click.echo(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
