from dataclasses import replace

import numpy as np
import pytest

from models.evaluation.measures import PUBLISHED_RATES, Comparisons, Interval, identification, verification


def comparisons(people: int, pictures: int, noise: float, seed: int = 0) -> Comparisons:
    """Two palms a person, two sessions, unit vectors scattered around each palm's own."""
    rng = np.random.default_rng(seed)
    palms = np.repeat(np.arange(2 * people), pictures)
    centres = rng.standard_normal((2 * people, 64))
    vectors = centres[palms] + noise * rng.standard_normal((len(palms), 64))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    sessions = np.tile(np.arange(pictures) % 2, 2 * people)
    cosines = (vectors @ vectors.T).astype(np.float32)
    return Comparisons(cosines, cosines, palms // 2, palms, sessions)


def test_pairs_of_one_person_s_two_palms_are_left_out() -> None:
    measured = verification(comparisons(10, 4, 0.3), across_sessions=False)
    assert (measured.people, measured.palms) == (10, 20)
    assert measured.mated == 20 * 6
    assert measured.non_mated == (80 * 79 // 2) - 20 * 6 - 10 * 16


def test_across_sessions_only_pairs_of_two_days_count() -> None:
    measured = verification(comparisons(10, 4, 0.3), across_sessions=True)
    assert measured.mated == 20 * 4


def test_separate_palms_have_no_errors_and_confused_ones_half() -> None:
    clear = verification(comparisons(30, 4, 0.2), across_sessions=False)
    # Without an error, drawing again shows none: of 30 people 3 / 30 is as much as that says.
    assert clear.eer == Interval(0.0, 0.0, 3 / 30)
    assert [fnmr for _, _, fnmr in clear.fnmr_at_fmr] == [Interval(0.0, 0.0, 3 / 30)] * 2
    confused = verification(comparisons(30, 4, 40.0), across_sessions=False)
    assert confused.eer.value == pytest.approx(0.5, abs=0.06)
    assert confused.eer.low <= confused.eer.value <= confused.eer.high


def test_the_interval_narrows_with_more_people() -> None:
    few = verification(comparisons(8, 4, 2.4), across_sessions=False).eer
    many = verification(comparisons(120, 4, 2.4), across_sessions=False).eer
    assert many.high - many.low < few.high - few.low


def test_only_people_with_a_comparison_of_one_palm_make_an_interval_narrow() -> None:
    found = comparisons(30, 4, 0.2)
    for people, high in ((6, 3 / 6), (2, 1.0), (1, 1.0)):
        here = replace(found, sessions=np.where(found.people < people, found.sessions, 0))
        assert verification(here, across_sessions=True).eer == Interval(0.0, 0.0, high)


def test_a_draw_without_a_comparison_of_one_palm_has_no_rate() -> None:
    found = comparisons(60, 2, 40.0)  # nothing is recognised
    few = replace(found, sessions=np.where(found.people < 3, found.sessions, 0))
    measured = verification(few, across_sessions=True)
    fnmr = measured.fnmr_at_fmr[0][2]
    assert fnmr.value > 0.8
    # One draw in twenty is without all three people: an FNMR of 0 there would be the interval's lower end.
    assert fnmr.low > 0.4


def test_rates_are_stated_only_where_the_comparisons_reach() -> None:
    measured = verification(comparisons(10, 4, 1.0), across_sessions=False)  # some 2,900 non-mated pairs
    assert [fmr for fmr, _, _ in measured.fnmr_at_fmr] == [1e-2]
    fmr, fnmr = measured.det
    assert fmr[0] >= 10 / measured.non_mated * 0.99
    assert np.all(np.diff(fnmr) <= 0)


def test_open_set_search_finds_the_known_and_lets_no_stranger_in() -> None:
    clear = identification(comparisons(60, 4, 0.2))
    assert (clear.enrolled, clear.searches) == (120, 240)  # the second session's two pictures
    assert clear.fpir == (1e-2,)
    assert clear.fnir == (0.0,)
    assert identification(comparisons(60, 4, 40.0)).fnir[0] > 0.9


def test_a_search_is_with_a_picture_of_another_day_than_its_own_palm_s_enrolment() -> None:
    """However sessions are named; what a palm's own day gives is easier, and would flatter."""
    found = comparisons(60, 4, 0.2)
    own_day = found.sessions[:, None] == found.sessions[None, :]
    lost = np.where(own_day, found.known, np.float32(-1.0))
    found = replace(found, known=lost)
    assert identification(found).fnir == (1.0,)
    dated = identification(replace(found, sessions=2 * found.people + found.sessions))
    assert dated == identification(found)
    # Where each has a day of his own, and no second one, there is nothing else to search with.
    assert identification(replace(found, sessions=found.people)).searches == 360


def test_false_matches_are_counted_in_strangers_searches_alone() -> None:
    """What a search scores that the person shown has steered would flatter the rate."""
    found = comparisons(60, 4, 1.5)
    higher = replace(found, strangers=found.known + np.float32(0.2))
    before = verification(found, across_sessions=True)
    after = verification(higher, across_sessions=True)
    for (rate, low, missed), (same, high, more) in zip(before.fnmr_at_fmr, after.fnmr_at_fmr, strict=True):
        assert rate == same
        assert high == pytest.approx(low + 0.2, abs=1e-5)
        assert more.value > missed.value
    assert identification(higher).fnir[0] > identification(found).fnir[0]
    # Who is first in a known person's search is a matter of that search.
    lower = replace(found, strangers=found.known - np.float32(10.0))
    assert 0 < identification(lower).fnir[0] < identification(found).fnir[0]


def test_what_papers_publish_is_left_open_where_the_comparisons_are_too_few() -> None:
    measured = verification(comparisons(60, 4, 1.5), across_sessions=False)  # 114,000 pairs of two people
    tars = [measured.accepted_at(rate) for rate in PUBLISHED_RATES]
    assert [tar is None for tar in tars] == [False, False, True, True]
    assert tars[0] is not None
    assert tars[0].value == 1 - measured.fnmr_at_fmr[1][2].value
    assert tars[0].low <= tars[0].value <= tars[0].high
