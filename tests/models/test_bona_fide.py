"""The count of hands taken for pictures: its interval, and one presentation of each kind."""

import pytest

from models.training.bona_fide import FIRST_PERSON, LOOKS, presented, wilson_interval


def test_the_interval_is_wilson_s() -> None:
    assert list(wilson_interval(0, 100)) == pytest.approx([0.0, 0.0370], abs=1e-4)
    assert list(wilson_interval(10, 100)) == pytest.approx([0.0552, 0.1744], abs=1e-4)
    assert wilson_interval(100, 100)[1] == 1.0


@pytest.mark.parametrize("number", [FIRST_PERSON, FIRST_PERSON + 2], ids=["plain", "jpeg"])
def test_a_hand_passes_and_one_that_is_never_good_enough_is_not_judged(number: int) -> None:
    assert presented(LOOKS[number % 4 // 2], 45, number) == "passed"
    assert presented(LOOKS[number % 4 // 2], 101, number) == "not judged"
