"""Does quality predict a false non-match? ``python -m models.training.quality_curve`` says, on unseen people.

The error-versus-discard curve (Grother and Tabassi 2007, there "error versus reject"): captures of lower
quality are put aside, and the rate of false non-matches among the rest must fall. The smaller the area under
the curve, the better; captures put aside at random leave the rate as it was. Compared in the same run with
the weakest component, which is what quality was before it was calibrated.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from numpy.typing import NDArray

from models.evaluation.charts import Curve, curves
from models.manifest import load_manifest, shipped_model_dir
from models.quality import COMPONENTS, shipped_calibration
from models.training.measure_quality import Measured, measure

FIRST_PERSON: Final = 60_000_000
"""People from this number on are never trained on and nothing is fitted to them."""
SHARES: Final = np.linspace(0.0, 0.9, 91)
"""Shares put aside; beyond 90 % too few captures are left to count."""
RESAMPLES: Final = 200
_BEFORE: Final = [COMPONENTS.index(name) for name in ("sharpness", "exposure", "coverage", "pose", "motion")]
_BANDS: Final = ((0, 25), (25, 45), (45, 65), (65, 85), (85, 101))

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Area:
    """Area under an error-versus-discard curve as part of the area for captures put aside at random, and the
    interval that holds 95 % of what other people of the same number would give (bootstrap over people)."""

    share: float
    low: float
    high: float


def curve(quality: Values, failed: Flags) -> Values:
    """Rate of false non-matches left at each of ``SHARES``; captures of one quality share their failures."""
    order = np.argsort(quality, kind="stable")
    levels, at = np.unique(quality[order], return_inverse=True)
    mean = np.bincount(at, failed[order], len(levels)) / np.bincount(at, minlength=len(levels))
    left = np.append(np.cumsum(mean[at][::-1])[::-1], 0.0)
    aside = np.floor(SHARES * len(failed)).astype(int)
    return np.asarray(left[aside] / (len(failed) - aside))


def area(quality: Values, failed: Flags) -> float:
    """Area under the curve, as part of the area for captures put aside at random."""
    return float(curve(quality, failed).mean() / max(float(failed.mean()), 1e-12))


def area_with_interval(quality: Values, failed: Flags, person: NDArray[np.int64]) -> Area:
    """:func:`area`, and its bootstrap interval; whole people are drawn, for their captures are alike."""
    rng = np.random.default_rng(1)
    people, at = np.unique(person, return_inverse=True)
    rows = [np.flatnonzero(at == i) for i in range(len(people))]
    areas = []
    for _ in range(RESAMPLES):
        drawn = np.concatenate([rows[i] for i in rng.integers(len(people), size=len(people))])
        areas.append(area(quality[drawn], failed[drawn]))
    low, high = np.quantile(areas, [0.025, 0.975])
    return Area(round(area(quality, failed), 3), round(float(low), 3), round(float(high), 3))


def qualities(measured: Measured) -> tuple[Values, Values, Values]:
    """``quality_q``; the same without its caps; and the weakest component, which quality was before."""
    calibration = shipped_calibration()
    rows = [dict(zip(COMPONENTS, row, strict=True)) for row in measured.parts]
    pairs = zip(rows, measured.detail, strict=True)
    now = np.array([calibration.quality(parts, detail) for parts, detail in pairs], dtype=np.float64)
    fitted = np.round([calibration.fitted(parts) for parts in rows])
    return now, fitted, np.round(measured.parts[:, _BEFORE].min(axis=1))


def summary(measured: Measured, failed: Flags) -> dict[str, Any]:
    """All figures of this page of the documentation."""
    now, fitted, before = qualities(measured)
    best_possible = -failed.astype(np.float64)
    return {
        "shown": measured.lost.shown,
        "not_found": measured.lost.not_found,
        "wrong_side": measured.lost.wrong_side,
        "probes": len(failed),
        "false_non_match_rate": round(float(failed.mean()), 4),
        "area": {
            "quality_q": asdict(area_with_interval(now, failed, measured.person)),
            "weakest component (before)": asdict(area_with_interval(before, failed, measured.person)),
            "without the caps": round(area(fitted, failed), 3),
            "random": 1.0,
            "best possible": round(area(best_possible, failed), 3),
            **{
                f"{name} alone": round(area(np.round(measured.parts[:, i]), failed), 3)
                for i, name in enumerate(COMPONENTS)
            },
            **{
                look: round(area(now[rows], failed[rows]), 3)
                for look, rows in (("rgb", ~measured.nir), ("nir", measured.nir))
            },
        },
        "floors": [_floor(now, before, failed, floor) for floor in (45, 65)],
        "bands": [_band(now, failed, low, high) for low, high in _BANDS],
        "bands_without_the_caps": [_band(fitted, failed, low, high) for low, high in _BANDS],
    }


def _floor(now: Values, before: Values, failed: Flags, floor: int) -> dict[str, float]:
    """What a floor puts aside, and what is rejected of the rest; the same for as many captures put aside by
    the weakest component."""
    kept = now >= floor
    alike = np.sort(before)[::-1][max(0, int(kept.sum()) - 1)]
    return {
        "quality_q": floor,
        "put_aside": round(float((~kept).mean()), 4),
        "false_non_match_rate": rejected(failed, kept),
        "the_same_share_by_weakest_component": rejected(failed, before >= alike),
    }


def _band(now: Values, failed: Flags, low: int, high: int) -> dict[str, float]:
    rows = (now >= low) & (now < high)
    rate = rejected(failed, rows)
    return {"from": low, "to": min(high, 100), "probes": int(rows.sum()), "false_non_match_rate": rate}


def rejected(failed: Flags, rows: Flags) -> float:
    """Rate of false non-matches among ``rows``, 0 where there are none."""
    return round(float(failed[rows].mean()), 4) if rows.any() else 0.0


@click.command()
@click.option("--people", default=100, show_default=True, help="Generated people; one hand, two looks.")
@click.option(
    "--model", type=click.Path(path_type=Path, file_okay=False), help="Model folder [the shipped one]."
)
@click.option("--picture", type=click.Path(path_type=Path, dir_okay=False), help="Where to draw it (SVG).")
def main(*, people: int, model: Path | None, picture: Path | None) -> None:
    """The error-versus-discard curve of quality_q on generated people nothing was fitted to; prints JSON."""
    folder = model if model is not None else shipped_model_dir()
    manifest = load_manifest(folder)
    measured = measure(folder, people, first=FIRST_PERSON)
    failed = measured.failed(manifest)
    if not failed.any():
        raise click.ClickException("no capture was rejected, so nothing can be predicted; show more people")
    told = {"model_id": manifest.model_id, "agree_q": manifest.agree_q}
    click.echo(json.dumps(told | {"people": people} | summary(measured, failed), indent=2))
    if picture is not None:
        now, _, before = qualities(measured)
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_text(
            curves(
                "Error versus discard",
                f"{len(failed):,} captures of {people} generated people, model {manifest.model_id}",
                SHARES.tolist(),
                [
                    Curve("quality_q", curve(now, failed).tolist()),
                    Curve("weakest component", curve(before, failed).tolist()),
                    Curve("discarded at random", [float(failed.mean())] * len(SHARES)),
                ],
                across="part of the captures discarded, lowest quality first",
                up="false non-match rate of the rest",
            ),
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
