"""From a finished run to a shipped model: score it, choose its thresholds, write its manifest.

``python -m models.training.publish --run RUN --model-id ID --out models/shipped/ID``; needs no torch.
"""

import base64
import hashlib
import json
import math
import shutil
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import CROP_SIZE
from models.embedding import EMBEDDING_SIZE, Embedder
from models.evaluation.gabor_code import compare_all_codes, competitive_codes
from models.evaluation.generated_people import (
    EVALUATION_SEED_START,
    Captures,
    SearchFigures,
    capture_people,
    compare_all,
    embed_all,
    extrapolated_threshold,
    false_match_rate,
    false_non_match_rate,
    figures,
    search_figures,
    threshold_at,
)
from models.manifest import MANIFEST_NAME, MANIFEST_VERSION, known_crop
from models.synthesis.background import Look
from models.thresholds import Thresholds

MODEL_FILE: Final = "palm-embedding.onnx"
COUNTED_FMR: Final = 1e-4
EXTRAPOLATED_FMR: Final = 1e-7
"""One false accept in a thousand strangers' searches of a gallery with 10,000 templates."""
_HOW: Final = (
    "agree_q: for cosines of two vectors, over generated people the model never saw, the higher of the "
    f"threshold counted for a false match rate of {COUNTED_FMR:g} and the one extrapolated for "
    f"{EXTRAPOLATED_FMR:g} (generalised Pareto tail over the highest thousandth), worst look, rounded up, "
    "and no lower than trials on real palms called for. accept_q and margin_q: for the scores of a gallery, "
    "out of trials on real palms. quality_q, enrol_quality_q and pad_q: given by hand. "
    "See docs/reference/MODELS.md. Not validated at a gate."
)
_LOOKS: Final[tuple[Look, Look]] = ("rgb", "nir")


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """One look of the evaluation people."""

    captures: Captures
    mated: NDArray[np.float32]
    non_mated: NDArray[np.float32]
    search: SearchFigures


def score(embedder: Embedder, look: Look, people: int, occasions: int) -> Scored:
    """Show the evaluation people under one look and compare every pair."""
    shown = capture_people(people, occasions, look)
    vectors = embed_all(embedder, shown.crops)
    mated, non_mated = compare_all(vectors, shown.hands)
    return Scored(shown, mated, non_mated, search_figures(vectors, shown.hands))


def agree_cosine(non_mated: NDArray[np.float32]) -> float:
    """The higher of the counted threshold for COUNTED_FMR and the extrapolated one for EXTRAPOLATED_FMR."""
    return max(threshold_at(non_mated, COUNTED_FMR), extrapolated_threshold(non_mated, EXTRAPOLATED_FMR))


def choose_agree_q(scored: list[Scored], least_q: int) -> int:
    """The worst look decides, rounded up to a hundredth of a cosine."""
    return max(least_q, *(100 * math.ceil(agree_cosine(one.non_mated) * 100) for one in scored))


def _report(scored: Scored, agree: float, *, baseline: bool) -> dict[str, Any]:
    report = {
        "shown": scored.captures.shown,
        "hand_not_found": scored.captures.not_found,
        "wrong_side": scored.captures.wrong_side,
        **asdict(figures(scored.mated, scored.non_mated)),
        "fmr_at_agree": false_match_rate(scored.non_mated, agree),
        "fnmr_at_agree": round(false_non_match_rate(scored.mated, agree), 6),
        **asdict(scored.search),
    }
    if baseline:
        codes = competitive_codes(scored.captures.crops)
        report["untrained_gabor_code"] = asdict(figures(*compare_all_codes(codes, scored.captures.hands)))
    return report


def _manifest(
    model: Path,
    model_id: str,
    thresholds: Thresholds,
    agree_q: int,
    *,
    training: dict[str, Any],
    scores: dict[str, Any],
) -> dict[str, Any]:
    content = model.read_bytes()
    answer = Embedder(model).embed(known_crop()[None])[0]
    return {
        "v": MANIFEST_VERSION,
        "model_id": model_id,
        "made_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "input": {
            "dtype": "uint8",
            "shape": ["n", CROP_SIZE, CROP_SIZE],
            "pixels": "grey palm crop, fingers up",
        },
        "output": {"dtype": "float32", "shape": ["n", EMBEDDING_SIZE], "length": 1},
        "files": [
            {"name": model.name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()},
        ],
        "thresholds": {
            **asdict(thresholds),
            "how": _HOW,
        },
        "agree_q": agree_q,
        "self_test": {"vector_b64": base64.b64encode(answer.astype("<f4").tobytes()).decode("ascii")},
        "training": training,
        "scores": scores,
    }


@click.command()
@click.option(
    "--run", "run_dir", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True
)
@click.option("--model-id", required=True)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Model folder.")
@click.option("--people", default=150, show_default=True, help="Evaluation people, both hands.")
@click.option("--occasions", default=4, show_default=True, help="Captures of each hand and look.")
@click.option("--accept-q", required=True, type=int, help="What trials on real palms call for.")
@click.option("--margin-q", required=True, type=int, help="The same for the margin.")
@click.option("--agree-least-q", default=0, show_default=True, help="agree_q is no lower.")
@click.option("--revision", default=1, show_default=True, help="Of the thresholds: the number in thr_id.")
@click.option("--quality-q", default=45, show_default=True)
@click.option("--enrol-quality-q", default=65, show_default=True)
@click.option("--pad-q", default=5000, show_default=True)
def main(
    *,
    run_dir: Path,
    model_id: str,
    out: Path,
    people: int,
    occasions: int,
    accept_q: int,
    margin_q: int,
    agree_least_q: int,
    revision: int,
    quality_q: int,
    enrol_quality_q: int,
    pad_q: int,
) -> None:
    """Score a run on unseen generated people and write the model folder that a device loads."""
    source = run_dir / MODEL_FILE
    embedder = Embedder(source)
    scored = {look: score(embedder, look, people, occasions) for look in _LOOKS}
    agree_q = choose_agree_q(list(scored.values()), agree_least_q)
    thresholds = Thresholds(
        f"{model_id}-t{revision}", accept_q, margin_q, quality_q, pad_q, enrol_quality_q=enrol_quality_q
    )
    scores: dict[str, Any] = {
        "data": f"whole generated frames of {people} people from number {EVALUATION_SEED_START} on, none of "
        "them trained on; found, cut and embedded as on a device; no real palm",
        "people": people,
        "occasions": occasions,
        **{look: _report(s, agree_q / 10_000, baseline=look == "rgb") for look, s in scored.items()},
    }
    training = json.loads((run_dir / "training.json").read_text("utf-8"))
    out.mkdir(parents=True, exist_ok=True)
    model = out / MODEL_FILE
    shutil.copyfile(source, model)
    manifest = _manifest(model, model_id, thresholds, agree_q, training=training, scores=scores)
    (out / MANIFEST_NAME).write_text(
        json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    click.echo(json.dumps({"thresholds": manifest["thresholds"], "scores": scores}, indent=2))


if __name__ == "__main__":
    main()
