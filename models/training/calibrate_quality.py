"""Fit what ``quality_q`` is made with: ``python -m models.training.calibrate_quality``.

The scale means something by construction: 45 is a capture that the model rejects in one of four comparisons
at its operating threshold although the right hand is enrolled, 65 one in ten, 100 as seldom as a capture
without any fault. So thresholds set on this scale keep their meaning when the model changes and this is run
again.
"""

import json
import math
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from models.manifest import ModelManifest, load_manifest, shipped_model_dir
from models.quality import CALIBRATION_PATH, COMPONENTS
from models.training.fit_quality import fit
from models.training.measure_quality import Measured, measure

FIRST_PERSON: Final = 50_000_100
"""People from this number on are used for this and nothing else."""
ANCHORS: Final = ((0.9, 0.0), (0.25, 45.0), (0.1, 65.0))
"""Probability of a false non-match, and the quality that means it; 100 is a faultless capture's."""


def knots(faultless: float) -> list[tuple[float, float]]:
    """Log odds, rising, and quality. Raises ``ValueError`` where faultless captures leave no room."""
    best = (round(faultless, 4), 100.0)
    others = [(round(math.log(p / (1.0 - p)), 4), quality) for p, quality in reversed(ANCHORS)]
    if best[0] >= others[0][0]:
        raise ValueError(f"faultless captures have log odds of {best[0]}")
    return [best, *others]


def record(manifest: ModelManifest, measured: Measured, people: int) -> dict[str, Any]:
    """What the file holds: the mapping, and how it came to be."""
    failed = measured.failed(manifest)
    model = fit(measured.faults(), failed)
    pairs = np.round(model.weights.reshape(2, len(COMPONENTS)).T, 3).tolist()
    return {
        "v": 1,
        "faultless": round(model.intercept, 4),
        "weights": dict(zip(COMPONENTS, pairs, strict=True)),
        "knots": knots(model.intercept),
        "fitted": {
            "command": f"python -m models.training.calibrate_quality --people {people}",
            "model_id": manifest.model_id,
            "agree_q": manifest.agree_q,
            "first_person": FIRST_PERSON,
            "shown": measured.lost.shown,
            "probes": len(failed),
            "false_non_matches": int(failed.sum()),
        },
    }


@click.command()
@click.option("--people", default=120, show_default=True, help="Generated people; one hand, two looks.")
@click.option(
    "--model", type=click.Path(path_type=Path, file_okay=False), help="Model folder [the shipped one]."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=CALIBRATION_PATH,
    help="[the file in this package]",
)
def main(*, people: int, model: Path | None, out: Path) -> None:
    """Fit the mapping from components to quality_q for a model, and write it. Same model, same file."""
    folder = model if model is not None else shipped_model_dir()
    manifest = load_manifest(folder)
    measured = measure(folder, people, first=FIRST_PERSON)
    try:
        made = record(manifest, measured, people)
    except ValueError as e:
        raise click.ClickException(
            f"{manifest.model_id} rejects even faultless captures too often for this scale ({e}); "
            "train it further, or choose another agree_q"
        ) from e
    out.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    click.echo(out.read_text(encoding="utf-8"), nl=False)


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    main()
