"""How well the whole chain tells people apart: whole generated frames of people outside the training set.

Every capture is a new occasion (pose, posture, light, ground, focus) rendered as a whole frame; the hand is
found, the palm cut and embedded as on a device. What is measured here is measured on generated hands and says
nothing about real ones. Run it with ``python -m models.evaluation.generated_people``.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop import cut_palm
from models.crop_geometry import Handedness
from models.embedding import EMBEDDING_SIZE, Embedder
from models.frames import CameraFrame
from models.hand import HandFinder
from models.manifest import load_manifest, open_embedder, shipped_model_dir
from models.synthesis.background import Look
from models.synthesis.person import SyntheticPerson, make_person
from models.synthesis.render import render_frame
from models.synthesis.scene import random_pose, random_setting

Scores = NDArray[np.float32]

EVALUATION_SEED_START: Final = 20_000_000
"""People from this number on are never trained on."""
_SIDES: Final[tuple[Handedness, Handedness]] = ("L", "R")
_DOMAIN: Final = 0xE7A1


@dataclass(frozen=True, slots=True, eq=False)
class Captures:
    """Crops of many hands, and what went wrong on the way to them."""

    crops: NDArray[np.uint8]
    """(n, 112, 112)."""
    hands: NDArray[np.int64]
    """(n,): which hand; 2 * person for the left, 2 * person + 1 for the right."""
    shown: int
    not_found: int
    wrong_side: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Error rates as fractions; thresholds as cosines."""

    mated: int
    non_mated: int
    eer: float
    mated_lowest: float
    mated_p01: float
    """Cosine below which 1 % of the mated comparisons lie."""
    mated_median: float
    non_mated_median: float
    non_mated_highest: float
    fnmr_at_fmr_1e3: float
    fnmr_at_fmr_1e4: float
    fnmr_at_fmr_1e5: float


def capture_people(people: int, captures: int, look: Look, *, first: int = EVALUATION_SEED_START) -> Captures:
    """Show both hands of ``people`` persons ``captures`` times each; about 0.1 s a capture."""
    crops: list[NDArray[np.uint8]] = []
    hands: list[int] = []
    not_found = wrong_side = 0
    for i in range(people):
        person = make_person(first + i)
        for side, handedness in enumerate(_SIDES):
            for occasion in range(captures):
                seen = _capture(person, handedness, occasion, look)
                if isinstance(seen, str):
                    not_found += seen == "not found"
                    wrong_side += seen == "wrong side"
                    continue
                crops.append(seen)
                hands.append(2 * i + side)
    return Captures(np.stack(crops), np.array(hands), 2 * people * captures, not_found, wrong_side)


def _capture(
    person: SyntheticPerson, handedness: Handedness, occasion: int, look: Look
) -> NDArray[np.uint8] | str:
    rng = np.random.default_rng([_DOMAIN, person.seed, handedness == "R", occasion])
    setting = random_setting(rng, int(rng.integers(1 << 30)))
    frame = CameraFrame(render_frame(person, handedness, random_pose(rng), look, rng, setting=setting), 0, 0)
    hand = HandFinder().find(frame)
    if hand is None:
        return "not found"
    return cut_palm(frame, hand) if hand.handedness == handedness else "wrong side"


def embed_all(embedder: Embedder, crops: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Vectors (n, 512) of crops (n, 112, 112)."""
    vectors = [embedder.embed(crops[i : i + 64]) for i in range(0, len(crops), 64)]
    return np.concatenate([np.empty((0, EMBEDDING_SIZE), dtype=np.float32), *vectors])


def compare_all(vectors: NDArray[np.float32], hands: NDArray[np.int64]) -> tuple[Scores, Scores]:
    """Cosines of every pair of captures: (mated, non-mated).

    The two hands of one person are left out: they are neither the same hand nor two people.
    """
    cosines = vectors @ vectors.T
    upper = np.triu(np.ones(cosines.shape, dtype=bool), 1)
    same_hand = hands[:, None] == hands[None, :]
    same_person = (hands // 2)[:, None] == (hands // 2)[None, :]
    return cosines[upper & same_hand], cosines[upper & ~same_person]


def false_match_rate(non_mated: Scores, threshold: float) -> float:
    """Part of the non-mated comparisons at or above the threshold."""
    return float(np.mean(non_mated >= threshold))


def false_non_match_rate(mated: Scores, threshold: float) -> float:
    """Part of the mated comparisons below the threshold."""
    return float(np.mean(mated < threshold))


def threshold_at(non_mated: Scores, fmr: float) -> float:
    """The lowest threshold whose measured false match rate is at most ``fmr``; needs 1 / fmr comparisons."""
    allowed = math.floor(fmr * len(non_mated))
    highest = np.partition(non_mated, len(non_mated) - allowed - 1)[len(non_mated) - allowed - 1 :]
    return float(np.nextafter(highest.min(), np.float32(2.0)))


def equal_error_rate(mated: Scores, non_mated: Scores) -> float:
    """Where the two error rates meet, between the two nearest thresholds."""
    mated, non_mated = np.sort(mated), np.sort(non_mated)
    thresholds = np.unique(np.concatenate([mated, non_mated[:: max(1, len(non_mated) // 20_000)]]))
    fnmr = np.searchsorted(mated, thresholds, side="left") / len(mated)
    fmr = 1.0 - np.searchsorted(non_mated, thresholds, side="left") / len(non_mated)
    at = int(np.argmin(np.abs(fnmr - fmr)))
    return float((fnmr[at] + fmr[at]) / 2)


def extrapolated_threshold(non_mated: Scores, fmr: float) -> float:
    """A threshold for a rate too low to be counted, from the shape of the highest thousandth of the scores.

    Peaks over threshold: a generalised Pareto distribution (Pickands 1975) fitted by moments (Hosking and
    Wallis 1987). A fit, not a count: pairs that share a hand are not independent, and nothing vouches for the
    shape beyond the highest score seen.
    """
    start = threshold_at(non_mated, 1e-3)
    excess = np.asarray(non_mated[non_mated >= start], dtype=np.float64) - start
    ratio = excess.mean() ** 2 / excess.var()
    shape, scale = 0.5 * (1.0 - ratio), 0.5 * excess.mean() * (ratio + 1.0)
    rarer = len(excess) / len(non_mated) / fmr
    beyond = math.log(rarer) if abs(shape) < 1e-6 else (rarer**shape - 1.0) / shape
    return start + float(scale * beyond)


def figures(mated: Scores, non_mated: Scores) -> Figures:
    """Summarise."""

    def fnmr_at(fmr: float) -> float:
        return round(false_non_match_rate(mated, threshold_at(non_mated, fmr)), 6)

    return Figures(
        mated=len(mated),
        non_mated=len(non_mated),
        eer=round(equal_error_rate(mated, non_mated), 6),
        mated_lowest=round(float(mated.min()), 4),
        mated_p01=round(float(np.quantile(mated, 0.01)), 4),
        mated_median=round(float(np.median(mated)), 4),
        non_mated_median=round(float(np.median(non_mated)), 4),
        non_mated_highest=round(float(non_mated.max()), 4),
        fnmr_at_fmr_1e3=fnmr_at(1e-3),
        fnmr_at_fmr_1e4=fnmr_at(1e-4),
        fnmr_at_fmr_1e5=fnmr_at(1e-5),
    )


@dataclass(frozen=True, slots=True)
class SearchFigures:
    """Search scores against a gallery of all other people: of strangers, and of people who are enrolled."""

    stranger_best_p999: float
    """Cosine that the best candidate of 99.9 % of the strangers' searches stays below."""
    stranger_gap_p99: float
    """99th percentile of a stranger's distance between the best and the second-best person."""
    known_gap_p01: float
    """1st percentile of a known person's distance between himself and the next person."""
    rank1: float
    """Part of the searches of known people whose best candidate is the right hand."""


def search_figures(vectors: NDArray[np.float32], hands: NDArray[np.int64]) -> SearchFigures:
    """Enrol the first capture of every hand and search all others, with and without their own person."""
    enrolled_rows = np.unique(hands, return_index=True)[1]
    probe_rows = np.setdiff1d(np.arange(len(hands)), enrolled_rows)
    cosines = vectors[probe_rows] @ vectors[enrolled_rows].T
    owners, enrolled = hands[probe_rows], hands[enrolled_rows]
    own_person = (owners // 2)[:, None] == (enrolled // 2)[None, :]
    own_hand = owners[:, None] == enrolled[None, :]
    others = np.where(own_person, np.float32(-1.0), cosines)
    # Best score of each other person: the two hands of one person are adjacent columns of one group.
    persons = np.unique(enrolled // 2, return_index=True)[1]
    by_person = np.sort(np.maximum.reduceat(others, persons, axis=1), axis=1)
    own = np.where(own_hand, cosines, np.float32(-1.0)).max(axis=1)
    best_other = by_person[:, -1]
    right = np.argmax(cosines, axis=1)
    return SearchFigures(
        stranger_best_p999=round(float(np.quantile(best_other, 0.999)), 4),
        stranger_gap_p99=round(float(np.quantile(best_other - by_person[:, -2], 0.99)), 4),
        known_gap_p01=round(float(np.quantile(own - best_other, 0.01)), 4),
        rank1=round(float(np.mean(enrolled[right] == owners)), 6),
    )


def _keep(shown: Captures, folder: Path) -> None:
    """As person/hand/session/picture."""
    for number, (crop, hand) in enumerate(zip(shown.crops, shown.hands, strict=True)):
        place = folder / f"{hand // 2:04}" / _SIDES[hand % 2] / "1"
        place.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(place / f"{number:06}.png"), crop)


@click.command()
@click.option("--people", default=60, show_default=True, help="Generated people, both hands.")
@click.option("--captures", default=4, show_default=True, help="Occasions for each hand.")
@click.option("--first", default=EVALUATION_SEED_START, show_default=True, help="Number of the first person.")
@click.option("--look", type=click.Choice(["rgb", "nir"]), default="rgb", show_default=True)
@click.option(
    "--model", type=click.Path(path_type=Path, file_okay=False), help="Model folder [the shipped one]."
)
@click.option(
    "--crops",
    type=click.Path(path_type=Path, file_okay=False),
    help="Also keep the crops, for palmctl evaluate.",
)
def main(
    *, people: int, captures: int, first: int, look: Look, model: Path | None, crops: Path | None
) -> None:
    """Score a model on whole generated frames of unseen people, one vector against one; prints JSON."""
    manifest = load_manifest(model if model is not None else shipped_model_dir())
    agree = manifest.agree_q / 10_000
    shown = capture_people(people, captures, look, first=first)
    if crops is not None:
        _keep(shown, crops)
    vectors = embed_all(open_embedder(manifest), shown.crops)
    mated, non_mated = compare_all(vectors, shown.hands)
    record = {
        "shown": shown.shown,
        "not_found": shown.not_found,
        "wrong_side": shown.wrong_side,
        **asdict(figures(mated, non_mated)),
        "agree_q": manifest.agree_q,
        "fmr_at_agree": false_match_rate(non_mated, agree),
        "fnmr_at_agree": round(false_non_match_rate(mated, agree), 6),
        **asdict(search_figures(vectors, shown.hands)),
    }
    click.echo(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
