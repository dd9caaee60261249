"""Error rates as ISO/IEC 19795-1 names them, with intervals, as far down as the comparisons reach."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.evaluation.generated_people import equal_error_rate, false_non_match_rate, threshold_at

Scores = NDArray[np.float32]

RATES: Final = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
PUBLISHED_RATES: Final = RATES[1:]
"""At which papers state how many pairs of one palm are accepted."""
_FPIR: Final = (1e-2, 1e-3)
ERRORS_NEEDED: Final = 10
"""A rate is reported only when at least this many false matches were counted for it."""
_RESAMPLES: Final = 200
_PAIRS_RESAMPLED: Final = 200_000
_CONFIDENCE: Final = 0.95
_RULE_OF_THREE: Final = 3.0
"""Of n independent trials without an error, 3 / n is the upper end of the 95 % interval (ISO/IEC 19795-1)."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A rate and its 95 % interval, from drawing the people again with replacement; without an error by the
    rule of three.
    """

    value: float
    low: float
    high: float

    def record(self) -> dict[str, float]:
        """JSON-ready."""
        return {"value": round(self.value, 6), "low": round(self.low, 6), "high": round(self.high, 6)}


@dataclass(frozen=True, slots=True)
class Identification:
    """Open-set search: every palm is enrolled by one picture, and every other picture is a search."""

    enrolled: int
    searches: int
    """Each done twice: with the person enrolled, and as a stranger."""
    fpir: tuple[float, ...]
    fnir: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class VerificationScores:
    """Every picture against every other."""

    people: int
    palms: int
    mated: int
    non_mated: int
    eer: Interval
    fnmr_at_fmr: tuple[tuple[float, float, Interval], ...]
    """(FMR, threshold, FNMR) of every rate that the number of comparisons supports."""
    det: tuple[NDArray[np.float64], NDArray[np.float64]] = field(repr=False)
    """False match rates and false non-match rates along all thresholds."""

    def accepted_at(self, rate: float) -> Interval | None:
        """TAR, 1 − FNMR, at this false match rate; None where the comparisons are too few to say."""
        for fmr, _, fnmr in self.fnmr_at_fmr:
            if fmr == rate:
                return Interval(1 - fnmr.value, 1 - fnmr.high, 1 - fnmr.low)
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Comparisons:
    """The similarities of all pictures with all, and whose they are.

    (n, n), row the picture shown, column the picture held; higher is more alike.
    """

    known: Scores
    """From searches with the person shown enrolled."""
    strangers: Scores
    """From searches in galleries without the person shown; where nothing is searched, ``known`` again."""
    people: NDArray[np.int64]
    palms: NDArray[np.int64]
    sessions: NDArray[np.int64]

    def masks(self, *, across_sessions: bool) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which pairs (n, n) are of one palm, which of two people; the two palms of a person are neither.

        In every pair the earlier picture is the one held, as it is at a gate.
        """
        pairs = np.tril(np.ones(self.known.shape, dtype=bool), -1)
        if across_sessions:
            pairs &= self.sessions[:, None] != self.sessions[None, :]
        mated = pairs & (self.palms[:, None] == self.palms[None, :])
        return mated, pairs & (self.people[:, None] != self.people[None, :])


def verification(found: Comparisons, *, across_sessions: bool) -> VerificationScores:
    """Compare every pair of pictures; with ``across_sessions`` only pairs from different days."""
    mated_mask, non_mated_mask = found.masks(across_sessions=across_sessions)
    mated, non_mated = found.known[mated_mask], found.strangers[non_mated_mask]
    supported = [rate for rate in RATES if len(non_mated) * rate >= ERRORS_NEEDED]
    thresholds = [threshold_at(non_mated, rate) for rate in supported]
    eers: list[float] = []
    misses: list[list[float]] = [[] for _ in thresholds]
    for draw in _resampled(found, mated_mask, non_mated_mask):
        eers.append(_weighted_eer(*draw))
        for again, threshold in zip(misses, thresholds, strict=True):
            again.append(_weighted_fnmr(draw[0], draw[1], threshold))
    # People with two compared pictures of one palm limit what an EER of 0 says too: any two of
    # them were compared with each other, and three people and more make no fewer pairs than people.
    compared = len(np.unique(found.people[mated_mask.any(axis=1)]))
    points = [
        (rate, threshold, resampled_interval(false_non_match_rate(mated, threshold), again, compared))
        for rate, threshold, again in zip(supported, thresholds, misses, strict=True)
    ]
    return VerificationScores(
        people=len(np.unique(found.people)),
        palms=len(np.unique(found.palms)),
        mated=len(mated),
        non_mated=len(non_mated),
        eer=resampled_interval(equal_error_rate(mated, non_mated), eers, compared),
        fnmr_at_fmr=tuple(points),
        det=_det(mated, non_mated),
    )


Draw = tuple[Scores, NDArray[np.float64], Scores, NDArray[np.float64]]


def _resampled(
    found: Comparisons, mated_mask: NDArray[np.bool_], non_mated_mask: NDArray[np.bool_]
) -> Iterator[Draw]:
    """Scores with weights for people drawn with replacement; a pair weighs as often as both its people
    came. Draws without a pair of one palm, or of two people, have no rate and are left out.
    """
    _, person = np.unique(found.people, return_inverse=True)
    rows, columns = np.nonzero(mated_mask)
    mated, owner = found.known[rows, columns], person[rows]
    rows, columns = np.nonzero(non_mated_mask)
    rng = np.random.default_rng(19795)
    # So many pairs are enough for the interval of an equal error rate, and few enough for two hundred draws.
    if len(rows) > _PAIRS_RESAMPLED:
        kept = rng.choice(len(rows), _PAIRS_RESAMPLED, replace=False)
        rows, columns = rows[kept], columns[kept]
    order = np.argsort(found.strangers[rows, columns])
    non_mated = found.strangers[rows, columns][order]
    one, other = person[rows][order], person[columns][order]
    by_score = np.argsort(mated)
    mated, owner = mated[by_score], owner[by_score]
    count = int(person.max()) + 1
    for _ in range(_RESAMPLES):
        times = np.bincount(rng.integers(0, count, count), minlength=count).astype(np.float64)
        of_one, of_two = times[owner], times[one] * times[other]
        if of_one.any() and of_two.any():
            yield mated, of_one, non_mated, of_two


def _weighted_eer(mated: Scores, mw: NDArray[np.float64], other: Scores, ow: NDArray[np.float64]) -> float:
    below_mated = np.concatenate([[0.0], np.cumsum(mw)]) / mw.sum()
    below_other = np.concatenate([[0.0], np.cumsum(ow)]) / ow.sum()
    fnmr = below_mated[:-1]
    fmr = 1.0 - below_other[np.searchsorted(other, mated, side="left")]
    at = int(np.argmin(np.abs(fnmr - fmr)))
    return float((fnmr[at] + fmr[at]) / 2)


def _weighted_fnmr(mated: Scores, weights: NDArray[np.float64], threshold: float) -> float:
    return float(weights[mated < threshold].sum() / weights.sum())


def resampled_interval(value: float, draws: Sequence[float], independent: int) -> Interval:
    """A rate, and between which rates 95 % of those of drawn people lie.

    independent: of how many people, or pairs of people, there was a comparison.
    """
    if independent < 2:  # one person says nothing about others
        return Interval(value, 0.0, 1.0)
    if not value:  # drawing again what has no error shows none: an interval of nothing would flatter
        return Interval(0.0, 0.0, min(1.0, _RULE_OF_THREE / independent))
    low, high = np.quantile(draws, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    return Interval(value, float(min(low, value)), float(max(high, value)))


def _det(mated: Scores, non_mated: Scores) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The curve at false match rates from one comparison up to all, evenly along the logarithm."""
    descending = np.sort(non_mated)[::-1]
    lowest = ERRORS_NEEDED / len(non_mated)
    fmr = np.geomspace(lowest, 1.0, 160)
    at = np.minimum(len(descending) - 1, np.maximum(0, np.ceil(fmr * len(descending)).astype(int) - 1))
    fnmr = np.searchsorted(np.sort(mated), descending[at], side="left") / len(mated)
    return fmr, np.asarray(fnmr, dtype=np.float64)


def identification(found: Comparisons) -> Identification:
    """Enrol the first picture of every palm; search with the others, with and without their person."""
    _, enrolled, palm = np.unique(found.palms, return_index=True, return_inverse=True)
    probes = np.setdiff1d(np.arange(len(found.palms)), enrolled)
    # The probes of the session that gave their own palm's enrolment are left out where another session of a
    # palm exists. Sessions may be named by their dates, so that no two people have one in common.
    of_another_day = found.sessions[probes] != found.sessions[enrolled[palm[probes]]]
    if of_another_day.any():
        probes = probes[of_another_day]
    searches = np.ix_(probes, enrolled)
    known, strangers = found.known[searches], found.strangers[searches]
    same_palm = found.palms[probes][:, None] == found.palms[enrolled][None, :]
    same_person = found.people[probes][:, None] == found.people[enrolled][None, :]
    lowest = np.float32(-math.inf)
    own = np.where(same_palm, known, lowest).max(axis=1)
    other = np.where(same_person, lowest, known).max(axis=1)
    stranger = np.where(same_person, lowest, strangers).max(axis=1)
    supported = tuple(rate for rate in _FPIR if len(stranger) * rate >= 1.0)
    fnir = []
    for rate in supported:
        threshold = threshold_at(stranger, rate)
        fnir.append(float(np.mean((own < threshold) | (own <= other))))
    return Identification(len(enrolled), len(probes), supported, tuple(fnir))


def as_record(measured: VerificationScores) -> dict[str, Any]:
    """The figures as JSON-ready values, without the curve."""

    return {
        "people": measured.people,
        "palms": measured.palms,
        "mated": measured.mated,
        "non_mated": measured.non_mated,
        "eer": measured.eer.record(),
        "fnmr_at_fmr": [
            {"fmr": fmr, "threshold": round(threshold, 4), "fnmr": fnmr.record()}
            for fmr, threshold, fnmr in measured.fnmr_at_fmr
        ],
    }
