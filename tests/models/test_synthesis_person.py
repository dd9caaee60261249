import numpy as np
import pytest

from models.synthesis.anatomy import Posture, outline_of, random_posture, valleys_of
from models.synthesis.creases import HEAD, HEART, LIFE, crease_statistics, rare_courses, sample_main_creases
from models.synthesis.palm import PALM_WINDOW, draw_skin
from models.synthesis.person import make_person
from tests.shares import share_of


def test_a_person_is_the_same_person_every_time() -> None:
    one = make_person(7).hand("L")
    again = make_person(7).hand("L")
    assert make_person(7) == make_person(7)
    assert one.shape == again.shape
    for a, b in zip(one.lines.main, again.lines.main, strict=True):
        np.testing.assert_array_equal(a.points, b.points)


def test_people_and_hands_differ() -> None:
    courses = [make_person(seed).hand(side).lines.main[0].points for seed in range(5) for side in ("L", "R")]
    for i, a in enumerate(courses):
        for b in courses[i + 1 :]:
            assert np.abs(a - b).max() > 0.005


def test_no_person_has_a_negative_number() -> None:
    with pytest.raises(ValueError, match="from 0"):
        make_person(-1)


def test_main_creases_follow_the_published_statistics() -> None:
    stats = crease_statistics()
    np.testing.assert_allclose(sample_main_creases(np.zeros(16)).reshape(-1), stats.mean)
    rng = np.random.default_rng(3)
    drawn = np.stack([sample_main_creases(rng.standard_normal(16)).reshape(-1) for _ in range(2000)])
    assert np.abs(drawn.mean(axis=0) - stats.mean).max() < 0.03
    along = (drawn - stats.mean) @ stats.components.T
    np.testing.assert_allclose(along.std(axis=0), stats.deviations, rtol=0.12)


def test_few_palms_have_a_simian_crease_and_as_few_a_sydney_line() -> None:
    sampled = sample_main_creases(np.zeros(16))
    drawn = [rare_courses(np.random.default_rng(seed), sampled) for seed in range(2000)]
    simian = [courses for courses in drawn if len(courses) == 2]
    three = [courses for courses in drawn if len(courses) == 3]
    sydney = [courses for courses in three if courses[HEAD][-1, 0] != sampled[HEAD, -1, 0]]
    assert len(simian) + len(three) == 2000
    assert 100 < len(simian) < 180
    assert 100 < len(sydney) < 180
    for life, across in simian:
        np.testing.assert_array_equal(life, sampled[LIFE])
        np.testing.assert_array_equal(across[[0, -1]], [sampled[HEAD, 0], sampled[HEART, -1]])
    for _, head, heart in sydney:
        np.testing.assert_array_equal(head[0], sampled[HEAD, 0])
        assert 1.0 <= head[-1, 0] <= 1.1, "it reaches the edge of the palm"
        np.testing.assert_array_equal(heart, sampled[HEART])


@share_of("people", 50, 150)
def test_some_whole_hands_have_rare_lines(people: int) -> None:
    counts = [len(make_person(seed).hand(side).lines.main) for seed in range(people) for side in ("L", "R")]
    usual = counts.count(3) / len(counts)
    assert 0.4 < usual < 0.75
    assert counts.count(2) > people / 30, "simian creases, neither broken nor doubled"
    assert max(counts) > 4, "more than one line broken or doubled"


def test_valleys_stand_in_the_order_of_an_open_hand() -> None:
    rng = np.random.default_rng(4)
    for seed in range(12):
        outline = outline_of(make_person(seed).hand("L").shape, random_posture(rng))
        valleys = valleys_of(outline)
        assert (np.diff(valleys[:, 0]) > 0.1).all(), "thumb side first"
        assert valleys[0, 1] > valleys[1:, 1].max(), "the thumb's valley is nearest to the wrist"
        assert 0.35 < valleys[3, 0] - valleys[1, 0] < 0.70


def test_skin_layers_keep_their_ranges_and_belong_to_the_person() -> None:
    def skin(seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        identity = make_person(seed).hand("R")
        layers = draw_skin(identity, Posture(), outline_of(identity.shape, Posture()), PALM_WINDOW)
        assert layers.creases.shape == PALM_WINDOW.shape
        assert layers.mask.min() >= 0.0 and layers.mask.max() <= 1.0
        assert layers.veins.min() >= 0.0 and layers.veins.max() <= 1.0
        assert layers.creases.max() > 0.3
        return np.asarray(layers.creases)

    np.testing.assert_array_equal(skin(1), skin(1))
    assert np.corrcoef(skin(1).ravel(), skin(2).ravel())[0, 1] < 0.5
