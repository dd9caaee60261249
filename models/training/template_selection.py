"""Are chosen templates better than the first ones? ``python -m models.training.template_selection``.

Generated people are enrolled twice from the same captures: with the first three that reach enrolment quality,
as they came, and with the three that ``choose_templates`` takes of up to six. Later captures of passage
quality are compared with both, at the shipped threshold: false non-match rate against the same hand, false
match rate against all others (ISO/IEC 19795-1, one attempt against the best of a hand's templates). Then
again with one failed crop, a palm turned by a right angle, among the first three.
"""

import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

import click
import cv2
import numpy as np
from numpy.typing import NDArray

from models.manifest import load_manifest, open_embedder, shipped_model_dir
from models.quality import assess
from models.synthesis.background import Look
from models.template_choice import MOST_TEMPLATES, choose_templates
from models.training.quality_captures import Lost, probes

FIRST_PERSON: Final = 27_000_000
"""People from this number on are shown; nothing was trained on them or fitted to them."""
CANDIDATES: Final = 6
_SHOWN_TO_ENROL: Final = 8
_LOOKS: Final[tuple[Look, Look]] = ("rgb", "nir")
_WAYS: Final = ("first three", "chosen", "first three, one failed crop", "chosen, one failed crop")


@dataclass(frozen=True, slots=True, eq=False)
class Enrolled:
    """One hand: its templates (k, 512) by every one of ``_WAYS``, and its later captures (n, 512)."""

    templates: tuple[NDArray[np.float32], ...]
    later: NDArray[np.float32]


def enrol(look: Look, number: int) -> Enrolled | None:
    """The hand of one person; None where fewer than two captures are good enough to enrol it."""
    cv2.setNumThreads(1)
    manifest = load_manifest(shipped_model_dir())
    embedder, thresholds = open_embedder(manifest), manifest.thresholds
    agree_cosine = manifest.agree_q / 10_000
    crops: list[NDArray[np.uint8]] = []
    quality_q: list[int] = []
    later: list[NDArray[np.uint8]] = []
    for i, seen in enumerate(probes(embedder, look, 1, first=number, lost=Lost())):
        q = assess(seen.frame, seen.hand, seen.crop, seen.previous).quality_q
        if i < _SHOWN_TO_ENROL and q >= thresholds.enrol_quality_q and len(crops) < CANDIDATES:
            crops.append(seen.crop)
            quality_q.append(q)
        elif i >= _SHOWN_TO_ENROL and q >= thresholds.quality_q:
            later.append(seen.crop)
    if len(crops) < 2:
        return None
    templates = []
    failed = np.ascontiguousarray(np.rot90(crops[1]))
    for captured in (crops, [crops[0], failed, *crops[2:]]):
        vectors = embedder.embed(np.stack(captured))
        chosen = choose_templates(
            vectors @ vectors.T, quality_q, agree_cosine=agree_cosine, most=MOST_TEMPLATES
        )
        templates += [vectors[:MOST_TEMPLATES], vectors[list(chosen)]]
    empty = np.zeros((0, vectors.shape[1]), np.float32)
    return Enrolled(tuple(templates), embedder.embed(np.stack(later)) if later else empty)


def rates(hands: list[Enrolled], way: int, accept: float) -> dict[str, float | int]:
    """Every later capture against every hand enrolled by one way."""
    later = np.concatenate([hand.later for hand in hands])
    of = np.repeat(np.arange(len(hands)), [len(hand.later) for hand in hands])
    best = np.stack([(later @ hand.templates[way].T).max(axis=1) for hand in hands], axis=1)
    mated = of[:, None] == np.arange(len(hands))
    return {
        "templates": sum(len(hand.templates[way]) for hand in hands),
        "mated": int(mated.sum()),
        "false_non_matches": int((best[mated] < accept).sum()),
        "fnmr": round(float((best[mated] < accept).mean()), 4),
        "non_mated": int((~mated).sum()),
        "false_matches": int((best[~mated] >= accept).sum()),
        "mated_cosine_p05": round(float(np.percentile(best[mated], 5)), 3),
    }


@click.command()
@click.option(
    "--people", default=100, show_default=True, help="Generated people in each look; one hand each."
)
def main(*, people: int) -> None:
    """Compare templates that were chosen with those that came first; prints JSON."""
    accept = load_manifest(shipped_model_dir()).agree_q / 10_000
    hands: list[Enrolled] = []
    with ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as workers:
        for k, look in enumerate(_LOOKS):
            numbers = range(FIRST_PERSON + k * people, FIRST_PERSON + (k + 1) * people)
            found = workers.map(partial(enrol, look), numbers, chunksize=5)
            hands += [hand for hand in found if hand is not None]
    told = {name: rates(hands, way, accept) for way, name in enumerate(_WAYS)}
    click.echo(json.dumps({"hands": len(hands), "threshold": accept, **told}, indent=2))


if __name__ == "__main__":
    main()
