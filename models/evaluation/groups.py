"""Error rates at a device's threshold, of everyone and by groups of people, after ISO/IEC 19795-10."""

import csv
import io
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.evaluation.measures import Comparisons, Interval, resampled_interval
from models.evaluation.sets import EvaluationSetError

UNNAMED: Final = "not said"
"""The group of people whom the file does not name: a comparison of groups leaves no person out."""
MOST_GROUP_BYTES: Final = 1 << 20

_RESAMPLES: Final = 200

_Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Groups:
    """Who belongs to which group, of each attribute."""

    attributes: tuple[str, ...]
    of_person: Mapping[str, tuple[str, ...]]
    """One group for each attribute."""


@dataclass(frozen=True, slots=True)
class GroupRates:
    """Errors at a device's threshold of one group; ``attribute`` and ``group`` are empty for everyone."""

    attribute: str
    group: str
    people: int
    pictures: int
    failure_to_acquire: Interval
    fnmr: Interval | None
    """None where no two pictures of one palm were compared."""
    fmr: Interval | None
    """Of pairs of two people of the group; None where it has no such pair."""

    def record(self) -> dict[str, Any]:
        """JSON-ready figures."""
        rates = {"failure_to_acquire": self.failure_to_acquire, "fnmr": self.fnmr, "fmr": self.fmr}
        return {
            "attribute": self.attribute,
            "group": self.group,
            "people": self.people,
            "pictures": self.pictures,
            **{name: rate.record() if rate else None for name, rate in rates.items()},
        }


@dataclass(frozen=True, slots=True, eq=False)
class ErrorCounts:
    """Errors at one threshold, counted for every person (n,) and for every pair of people (n, n)."""

    people: tuple[str, ...]
    shown: _Counts
    failed: _Counts
    mated: _Counts
    missed: _Counts
    non_mated: _Counts
    false: _Counts


def parse_groups(data: bytes) -> Groups:
    """The groups of a CSV text: a header ``person,ATTRIBUTE…``, then a line for each person.

    Raises ``EvaluationSetError`` for anything else; says the line.
    """
    try:
        lines = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as e:
        raise EvaluationSetError(f"the file of groups is no CSV text in UTF-8: {e}") from e
    header = [name.strip() for name in lines[0]] if lines else []
    attributes = tuple(header[1:])
    if header[:1] != ["person"] or not attributes or len(set(attributes)) < len(attributes):
        raise EvaluationSetError(
            "the file of groups must begin with person,ATTRIBUTE…, each once; "
            f"found {','.join(header)[:80]!r}"
        )
    of_person: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(lines[1:], start=2):
        if not any(line):
            continue
        person, *some = [value.strip() for value in line]
        if len(some) != len(attributes) or not person or person in of_person:
            raise EvaluationSetError(
                f"line {number} of the file of groups must name a person once and {len(attributes)} groups, "
                f"found {','.join(line)[:80]!r}"
            )
        of_person[person] = tuple(value or UNNAMED for value in some)
    return Groups(attributes, of_person)


def require_named(groups: Groups, people: Collection[str]) -> None:
    """Raise ``EvaluationSetError`` when ``groups`` names none of the ``people`` of a set."""
    if not set(groups.of_person) & set(people):
        known = ", ".join(sorted(people)[:5])
        raise EvaluationSetError(
            f"the file of groups names none of the set's {len(people)} people, who are named {known} …"
        )


def count_errors(
    found: Comparisons, rows: Sequence[str], shown: Counter[str], *, score: float, across_sessions: bool
) -> ErrorCounts:
    """Errors where a score of at least ``score`` is a match.

    rows: the person on every row of ``found``. shown: how many pictures of each person were shown, also those
    that gave no capture.
    """
    people = tuple(sorted(shown))
    place = {person: i for i, person in enumerate(people)}
    row = np.array([place[person] for person in rows], dtype=np.int64)
    n = len(people)
    mated, non_mated = found.masks(across_sessions=across_sessions)

    def of_people(pairs: NDArray[np.bool_]) -> _Counts:
        return np.bincount(row[np.nonzero(pairs)[0]], minlength=n)

    def of_pairs(pairs: NDArray[np.bool_]) -> _Counts:
        one, other = np.nonzero(pairs)
        return np.bincount(row[one] * n + row[other], minlength=n * n).reshape(n, n)

    all_shown = np.array([shown[person] for person in people])
    return ErrorCounts(
        people,
        shown=all_shown,
        failed=all_shown - np.bincount(row, minlength=n),
        mated=of_people(mated),
        missed=of_people(mated & (found.known < score)),
        non_mated=of_pairs(non_mated),
        false=of_pairs(non_mated & (found.strangers >= score)),
    )


def group_rates(counts: ErrorCounts, groups: Groups | None) -> tuple[GroupRates, ...]:
    """The rates of everyone, then of every group of every attribute.

    Raises ``EvaluationSetError`` when ``groups`` names no person of the set.
    """
    everyone = _rates(counts, "", "", list(range(len(counts.people))))
    if groups is None:
        return (everyone,)
    require_named(groups, counts.people)
    found = [everyone]
    unnamed = (UNNAMED,) * len(groups.attributes)
    for i, attribute in enumerate(groups.attributes):
        members: dict[str, list[int]] = {}
        for place, person in enumerate(counts.people):
            members.setdefault(groups.of_person.get(person, unnamed)[i], []).append(place)
        found += [_rates(counts, attribute, name, some) for name, some in sorted(members.items())]
    return tuple(found)


def worst_over_best(rates: Sequence[GroupRates]) -> dict[str, dict[str, float | None]]:
    """Of every attribute and rate the highest of its groups over the lowest; None where that is no number."""
    attributes = dict.fromkeys(one.attribute for one in rates if one.attribute)
    return {
        attribute: {
            name: _ratio([getattr(one, name) for one in rates if one.attribute == attribute])
            for name in ("failure_to_acquire", "fnmr", "fmr")
        }
        for attribute in attributes
    }


def _ratio(rates: Sequence[Interval | None]) -> float | None:
    values = [rate.value for rate in rates if rate is not None]
    return round(max(values) / min(values), 3) if len(values) > 1 and min(values) > 0 else None


def _rates(counts: ErrorCounts, attribute: str, group: str, members: list[int]) -> GroupRates:
    among = np.ix_(members, members)
    rng = np.random.default_rng(19795)
    n = len(members)
    draws = [np.bincount(rng.integers(0, n, n), minlength=n).astype(np.float64) for _ in range(_RESAMPLES)]

    def of_people(errors: _Counts, trials: _Counts) -> Interval | None:
        again = [(float(draw @ errors[members]), float(draw @ trials[members])) for draw in draws]
        compared = int(np.count_nonzero(trials[members]))
        return _interval(int(errors[members].sum()), int(trials[members].sum()), again, compared)

    def of_pairs(errors: _Counts, trials: _Counts) -> Interval | None:
        # A pair weighs as often as both its people came.
        again = [(float(d @ errors[among] @ d), float(d @ trials[among] @ d)) for d in draws]
        tried = trials[among] > 0
        compared = int(np.count_nonzero(np.triu(tried | tried.T)))  # (a, b) and (b, a) are one pair of people
        return _interval(int(errors[among].sum()), int(trials[among].sum()), again, compared)

    failed = of_people(counts.failed, counts.shown)
    if failed is None:
        raise EvaluationSetError(f"no picture of the group {group!r} was shown")
    return GroupRates(
        attribute,
        group,
        people=n,
        pictures=int(counts.shown[members].sum()),
        failure_to_acquire=failed,
        fnmr=of_people(counts.missed, counts.mated),
        fmr=of_pairs(counts.false, counts.non_mated),
    )


def _interval(
    errors: int, trials: int, again: Sequence[tuple[float, float]], independent: int
) -> Interval | None:
    if not trials:
        return None
    return resampled_interval(errors / trials, [part / of for part, of in again if of], independent)
