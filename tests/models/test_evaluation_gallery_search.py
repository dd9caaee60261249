"""A stranger's search must not know the stranger: what it walks towards decides what it scores."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from models.embedding import Embedder
from models.evaluation.gallery_search import Probes, search_all, walk
from models.evaluation.generated_people import capture_people, embed_all
from models.evaluation.sets import Picture
from models.manifest import load_manifest, open_embedder, shipped_model_dir
from models.probes import STILL, Slip, probe_crops
from tools.rig.gallery_scoring import scoring_among

SLIPPED = Slip(across=2, down=1)
"""Every second picture, so that a search has somewhere to walk to."""


def silent(_stage: str, _done: int, _of: int) -> None:
    pass


@dataclass(frozen=True)
class SlippedSet:
    """Three generated people, both palms, two captures of each, the second one slipped."""

    embedder: Embedder
    crops: NDArray[np.uint8]
    pictures: tuple[Picture, ...]
    vectors: NDArray[np.float32]

    def tables(self, rows: NDArray[np.intp]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Of a set of these pictures alone."""
        pictures = [self.pictures[row] for row in rows]
        return search_all(
            self.embedder,
            self.crops[rows],
            pictures,
            self.vectors[rows],
            scoring_among=scoring_among,
            told=silent,
        )


@pytest.fixture(scope="module")
def slipped() -> SlippedSet:
    embedder = open_embedder(load_manifest(shipped_model_dir()))
    shown = capture_people(3, 2, "rgb", first=30_700_000)
    crops = shown.crops.copy()
    for row in range(1, len(crops), 2):
        crops[row] = probe_crops(crops[row], [SLIPPED])[0]
    pictures = tuple(
        Picture(Path(f"{row}.png"), str(hand // 2), str(hand), "1") for row, hand in enumerate(shown.hands)
    )
    return SlippedSet(embedder, crops, pictures, embed_all(embedder, crops))


@pytest.mark.long
def test_a_strangers_scores_are_those_of_a_set_without_the_person(slipped: SlippedSet) -> None:
    people = np.array([picture.person for picture in slipped.pictures])
    _, strangers = slipped.tables(np.arange(len(people)))
    row = 6
    others = people != people[row]
    alone = np.flatnonzero(others | (np.arange(len(people)) == row))
    _, without = slipped.tables(alone)
    here = int(np.flatnonzero(alone == row)[0])
    assert np.abs(strangers[row, others] - without[here, others[alone]]).max() < 1e-4
    assert np.isneginf(strangers[row, ~others]).all()


def test_the_person_leads_a_known_search_and_not_a_strangers(slipped: SlippedSet) -> None:
    people = np.array([picture.person for picture in slipped.pictures])
    differs = 0
    for row in range(1, len(people), 2):
        others = people != people[row]
        scoring = scoring_among(slipped.vectors[others])
        held = scoring.units(slipped.vectors)
        probes = Probes(slipped.embedder, slipped.crops[row], slipped.vectors[row])
        led, best = walk(probes, scoring, held, np.arange(len(people)) != row)
        alone, unled = walk(probes, scoring, held, others)
        again, shorter = walk(probes, scoring, held[others], np.ones(others.sum(), dtype=bool))
        assert alone == again  # the walk is the same, with any other rows
        assert np.abs(unled[others] - shorter).max() < 1e-4
        assert led[0] == alone[0] == STILL
        differs += led != alone
        assert best[row - 1] >= unled[row - 1] - 1e-4  # the picture of the same palm
    assert differs > len(people) // 4, "nothing here shows whether the person steers the search"
