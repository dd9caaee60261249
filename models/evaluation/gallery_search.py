"""Searching for every picture of a set among the others, as a device does: with its person enrolled, and as a
stranger in a gallery from which that person is left out.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from models.embedding import Embedder
from models.evaluation.measures import Scores
from models.evaluation.sets import Picture
from models.probes import STILL, Crops, Slip, next_slips, probe_crops
from models.template_choice import MOST_TEMPLATES

Told = Callable[[str, int, int], None]
"""(stage, done, of how many)."""

Vectors = NDArray[np.float32]
Mask = NDArray[np.bool_]

_NEVER: Final = np.float32(-np.inf)


class GalleryScoring(Protocol):
    """How a gallery scores: ``tools.rig.gallery_scoring.Scoring``, which models do not import."""

    def units(self, vectors: Vectors) -> Vectors:
        """Vectors (n, 512), for ``scores``."""
        ...

    def scores(self, held: Vectors, shown: Vectors) -> Vectors:
        """Of units (n, 512) and (m, 512): (n, m)."""
        ...


ScoringAmong = Callable[[Vectors], GalleryScoring]
"""From the vectors (m, 512) of the enrolled people to the scoring of their gallery."""


class Probes:
    """The vectors of one crop's probes; each is embedded once, however many searches ask for it."""

    def __init__(self, embedder: Embedder, crop: Crops, still: Vectors) -> None:
        """``crop`` (112, 112) and its own vector (512,)."""
        self._embedder, self._crop = embedder, crop
        self._vectors = {STILL: still}

    def vectors(self, slips: Sequence[Slip]) -> Vectors:
        """(n, 512) of n slips."""
        fresh = [slip for slip in slips if slip not in self._vectors]
        if fresh:
            embedded = self._embedder.embed(probe_crops(self._crop, fresh))
            self._vectors.update(zip(fresh, embedded, strict=True))
        return np.stack([self._vectors[slip] for slip in slips])


def walk(probes: Probes, scoring: GalleryScoring, held: Vectors, among: Mask) -> tuple[list[Slip], Scores]:
    """Search by probes, on towards the nearest of the rows ``among`` (n,) of the units ``held`` (n, 512).

    What was tried, and the best score of every row (n,): also of rows that the search did not walk towards.
    """
    slips: list[Slip] = []
    fresh = [STILL]
    scores = np.empty((0, len(held)), dtype=np.float32)
    while fresh:
        slips += fresh
        shown = scoring.units(probes.vectors(fresh))
        scores = np.concatenate([scores, scoring.scores(shown, held)])
        fresh = next_slips(slips, int(scores[:, among].max(axis=1).argmax()))
    return slips, scores.max(axis=0)


def search_all(
    embedder: Embedder,
    crops: Crops,
    pictures: Sequence[Picture],
    vectors: Vectors,
    *,
    scoring_among: ScoringAmong,
    told: Told,
) -> tuple[Scores, Scores]:
    """Search for every picture twice: with its person enrolled, and in a gallery without that person.

    Both (n, n): row the picture that is shown, column the picture that is held. In the second table every
    row of the person shown, of either palm, is left out before anything is estimated or searched, and is
    -inf. A search walks towards the nearest picture of the other sessions where there are such, as a gallery
    is of another day.
    """
    people = np.array([picture.person for picture in pictures])
    sessions = np.array([picture.session for picture in pictures])
    enrolled = enrolled_rows(pictures)
    scoring = scoring_among(vectors[enrolled])
    held = scoring.units(vectors)
    known = np.empty((len(crops), len(crops)), dtype=np.float32)
    strangers = np.full_like(known, _NEVER)
    done = 0
    for person in dict.fromkeys(people.tolist()):
        others = people != person
        # A stranger is no part of the population either: the scoring is estimated again without that person.
        apart = scoring_among(vectors[[row for row in enrolled if others[row]]])
        held_apart = apart.units(vectors[others])
        for row in np.flatnonzero(~others):
            probes = Probes(embedder, crops[row], vectors[row])
            not_itself = np.arange(len(crops)) != row
            known[row] = walk(probes, scoring, held, _of_other_days(sessions, row, not_itself))[1]
            towards = _of_other_days(sessions, row, others)[others]
            strangers[row, others] = walk(probes, apart, held_apart, towards)[1]
            done += 1
            told("probes", done, len(crops))
    return known, strangers


def _of_other_days(sessions: NDArray[np.str_], row: np.intp, present: Mask) -> Mask:
    elsewhere = present & (sessions != sessions[row])
    return elsewhere if elsewhere.any() else present


def enrolled_rows(pictures: Sequence[Picture]) -> list[int]:
    """The first pictures of every palm, of the session that comes first: what an operator would have."""
    of_palm: dict[str, list[int]] = {}
    for i, picture in enumerate(pictures):
        of_palm.setdefault(picture.palm, []).append(i)
    rows = []
    for some in of_palm.values():
        first = min(pictures[i].session for i in some)
        rows += [i for i in some if pictures[i].session == first][:MOST_TEMPLATES]
    return sorted(rows)
