"""Rates by group must not flatter: no error counted is no rate of zero, and no person is left out."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.evaluation.groups import (
    UNNAMED,
    ErrorCounts,
    Groups,
    count_errors,
    group_rates,
    parse_groups,
    worst_over_best,
)
from models.evaluation.measures import Comparisons, Interval
from models.evaluation.sets import EvaluationSetError

PEOPLE, PICTURES = 12, 4
SEX = Groups(("sex",), {str(person): ("f" if person < 6 else "m",) for person in range(PEOPLE - 1)})


def counts(seed: int = 0, noise: float = 1.0) -> ErrorCounts:
    """Two palms of each person; of the last person one picture of five gave no capture."""
    rng = np.random.default_rng(seed)
    palms = np.repeat(np.arange(2 * PEOPLE), PICTURES)
    vectors = rng.standard_normal((2 * PEOPLE, 16))[palms] + noise * rng.standard_normal((len(palms), 16))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    table = (vectors @ vectors.T).astype(np.float32)
    found = Comparisons(table, table, palms // 2, palms, np.zeros_like(palms))
    shown = Counter({str(person): 2 * PICTURES for person in range(PEOPLE)}) + Counter({str(PEOPLE - 1): 2})
    return count_errors(found, [str(p // 2) for p in palms], shown, score=0.5, across_sessions=False)


def test_everyone_s_errors_are_those_of_all_pairs() -> None:
    errors = counts()
    everyone = group_rates(errors, None)[0]
    assert (everyone.people, everyone.pictures) == (PEOPLE, 2 * PICTURES * PEOPLE + 2)
    assert everyone.failure_to_acquire.value == pytest.approx(2 / everyone.pictures)
    assert errors.mated.sum() == 2 * PEOPLE * PICTURES * (PICTURES - 1) // 2
    assert errors.non_mated.sum() == PEOPLE * (PEOPLE - 1) // 2 * (2 * PICTURES) ** 2
    assert everyone.fnmr is not None
    assert everyone.fnmr.value == errors.missed.sum() / errors.mated.sum()
    assert everyone.fnmr.low < everyone.fnmr.value < everyone.fnmr.high


def test_a_person_whom_the_file_does_not_name_is_a_group() -> None:
    rates = group_rates(counts(), SEX)
    assert [(one.attribute, one.group, one.people) for one in rates] == [
        ("", "", 12), ("sex", "f", 6), ("sex", "m", 5), ("sex", UNNAMED, 1),
    ]  # fmt: skip
    assert rates[-1].fmr is None  # one person has no pair of two people
    assert rates[-1].failure_to_acquire == Interval(0.2, 0.0, 1.0)  # and says nothing about others
    assert worst_over_best(rates)["sex"]["failure_to_acquire"] is None  # the best of them has no failure


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.2, 0.6, 1.0, 3.0]))
def test_rates_of_groups_average_to_everyone_s_and_lie_in_their_intervals(seed: int, noise: float) -> None:
    everyone, *some = group_rates(counts(seed, noise), SEX)
    for one in [everyone, *some]:
        for rate in (one.failure_to_acquire, one.fnmr, one.fmr):
            assert rate is None or 0.0 <= rate.low <= rate.value <= rate.high <= 1.0
            assert rate is None or rate.value > 0 or rate.high > 0
    fnmr = [one.fnmr.value * one.people for one in some if one.fnmr is not None]
    assert everyone.fnmr is not None
    assert sum(fnmr) / everyone.people == pytest.approx(everyone.fnmr.value)


def test_no_error_counted_is_no_rate_of_zero() -> None:
    everyone = group_rates(counts(noise=0.01), None)[0]
    assert everyone.fnmr is not None
    assert (everyone.fnmr.value, everyone.fnmr.high) == (0.0, 3 / PEOPLE)


def test_people_and_pairs_without_a_comparison_do_not_narrow_an_interval() -> None:
    people = np.tile(np.arange(PEOPLE), 2)  # two pictures of each, half of the people on a second day
    sessions = np.where(people < 6, np.repeat([0, 1], PEOPLE), 0)
    table = np.where(people[:, None] == people[None, :], np.float32(1), np.float32(0))
    names = [str(person) for person in people]
    found = Comparisons(table, table, people, people, sessions)
    errors = count_errors(found, names, Counter(names), score=0.5, across_sessions=True)
    everyone = group_rates(errors, None)[0]
    assert everyone.fnmr == Interval(0.0, 0.0, 3 / 6)
    assert everyone.fmr == Interval(0.0, 0.0, 3 / (15 + 6 * 6))  # the other six were never compared
    assert everyone.failure_to_acquire == Interval(0.0, 0.0, 3 / PEOPLE)


def test_a_file_of_groups_is_read() -> None:
    groups = parse_groups("\ufeffperson,sex, age\r\n1,f,20-40\r\n\r\n2, m,\r\n".encode())
    assert groups == Groups(("sex", "age"), {"1": ("f", "20-40"), "2": ("m", UNNAMED)})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "must begin with person"),
        (b"name,sex\n1,f\n", "must begin with person"),
        (b"person\n1\n", "must begin with person"),
        (b"person,sex,sex\n1,f,f\n", "each once"),
        (b"person,sex\n1,f\n1,m\n", "line 3"),
        (b"person,sex\n1,f,20\n", "line 2"),
        (b"person,sex\n\xff,f\n", "no CSV text"),
        (b'person,sex\n1,"f', "no CSV text"),
    ],
)
def test_another_file_is_refused_by_its_line(text: bytes, says: str) -> None:
    with pytest.raises(EvaluationSetError, match=says):
        parse_groups(text)


def test_groups_of_another_set_are_refused() -> None:
    with pytest.raises(EvaluationSetError, match="named 0, 1, 10"):
        group_rates(counts(), Groups(("sex",), {"anna": ("f",)}))
