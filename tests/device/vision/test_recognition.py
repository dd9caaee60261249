"""Generated frames through the real vision code, with doubles for model and gallery."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from device.passage.decision import judge
from device.vision.recognition import Interest, Look, Recogniser
from device.vision.tracked_hand import GONE_MS, PROBES, TrackedHand
from gallery.errors import GalleryError, Overtaken, StoreError
from gallery.index import MAX_PROBES, Candidate, Match
from gallery.records import Position
from link1.objects import GalleryMark, GuideHint
from models.embedding import EMBEDDING_SIZE
from models.frames import CameraFrame
from models.hand import Hand, HandFinder
from models.probes import MOST_PROBES
from models.qr import read_qr
from models.synthesis.person import make_person
from models.synthesis.scene import empty_scene, passage, poor_capture, show_qr
from models.thresholds import Thresholds

Pixels = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]

THRESHOLDS = Thresholds("t1", accept_q=5000, margin_q=500, quality_q=40, pad_q=0, enrol_quality_q=55)
POSITION = Position("s", 3, 17, bytes(range(32)))
FRAME_MS = 33
STAGES = ["hand", "crop", "quality", "vector", "match", "liveness"]


class ModelDouble:
    """Projects a coarse view of the crop: alike for alike crops."""

    def __init__(self) -> None:
        self.calls = 0
        self.broken = False
        self._projection = np.random.default_rng(0).standard_normal((196, EMBEDDING_SIZE)).astype(np.float32)

    def embed(self, crops: Pixels) -> Vectors:
        if self.broken:
            raise RuntimeError("no model")
        self.calls += 1
        coarse = crops.reshape(len(crops), 14, 8, 14, 8).mean(axis=(2, 4)).reshape(len(crops), -1)
        coarse = (coarse - coarse.mean(axis=1, keepdims=True)).astype(np.float32)
        vectors = coarse @ self._projection
        unit: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        return unit


class GalleryDouble:
    """Knows one person; remembers what it was asked."""

    def __init__(self) -> None:
        self.probes: list[Vectors] = []
        self.best: Candidate | None = Candidate("ab" * 16, "R", "emp-7")
        self.fault: GalleryError | None = None
        self.scores: dict[int, float] = {}
        """What a search with so many probes comes to, where it is not 0.8."""
        self.nearest = 0
        self.positions: Iterator[Position] = itertools.repeat(POSITION)

    def search(self, probes: Vectors) -> Match:
        self.probes.append(probes.copy())
        if self.fault is not None:
            raise self.fault
        score = self.scores.get(len(probes), 0.8) if self.best else 0.0
        return Match(self.best, score, 0.3, next(self.positions), min(self.nearest, len(probes) - 1))


class Bench:
    def __init__(self, thresholds: Thresholds = THRESHOLDS) -> None:
        self.model = ModelDouble()
        self.gallery: GalleryDouble | None = GalleryDouble()
        self.recogniser = Recogniser(self.model, lambda: self.gallery, lambda: thresholds, agree_cosine=0.5)
        self._numbers = itertools.count(1)
        self.now_ms = 1_000

    def frames(self, pictures: Iterable[Pixels]) -> Iterator[CameraFrame]:
        for pixels in pictures:
            self.now_ms += FRAME_MS
            yield CameraFrame(pixels, self.now_ms, next(self._numbers))

    def looks(self, pictures: Iterable[Pixels], interest: Interest = Interest.PASSAGE) -> list[Look]:
        seen = [self.recogniser.look(frame, interest) for frame in self.frames(pictures)]
        return [look for look in seen if look is not None]


@pytest.fixture(scope="module")
def film() -> list[Pixels]:
    return list(passage(make_person(11), "R", seed=1))


@pytest.fixture(scope="module")
def ground() -> list[Pixels]:
    return list(empty_scene(1, 8))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_hand_held_gives_a_scored_sighting_with_every_stage_timed(film: list[Pixels], bench: Bench) -> None:
    looks = bench.looks(film)
    good = [look for look in looks if look.sighting.good]
    assert len(good) >= 6
    sighting = good[-1].sighting
    assert list(sighting.stage_ms) == STAGES
    assert all(ms >= 0 for ms in sighting.stage_ms.values())
    assert sighting.candidate is not None
    assert (sighting.candidate.subject_ref, sighting.candidate.onboard_ref) == ("ab" * 16, "emp-7")
    assert (sighting.score, sighting.margin) == (0.8, 0.3)
    assert sighting.gallery == GalleryMark("s", 3, 17, bytes(range(8)).hex())
    assert sighting.quality_q >= THRESHOLDS.quality_q
    assert good[-1].hand == "R"
    assert good[-1].capture is None
    assert sighting.at_ms == bench.now_ms - FRAME_MS * (len(film) - good[-1].frame_number)


def test_a_gallery_that_cannot_be_read_decides_nothing_about_the_hand(film: list[Pixels]) -> None:
    bench = Bench()
    assert bench.gallery is not None
    bench.gallery.fault = StoreError("disk I/O error")
    looks = bench.looks(film)
    assert bench.gallery.probes
    assert not any(judge(look.sighting, THRESHOLDS) for look in looks)
    failed = [look for look in looks if look.store_fault]
    assert len(failed) == len(bench.gallery.probes)
    for look in failed:
        assert look.store_fault == "disk I/O error"
        assert look.sighting.hand_present
        assert (look.sighting.score, look.sighting.candidate, look.sighting.gallery) == (None, None, None)
    bench.gallery.fault = None
    assert any(look.sighting.good and not look.store_fault for look in bench.looks(film))


def test_a_search_overtaken_for_ever_is_a_fault_of_its_frame(film: list[Pixels], bench: Bench) -> None:
    assert bench.gallery is not None
    bench.gallery.fault = Overtaken("changed again and again")
    with pytest.raises(Overtaken):
        bench.looks(film)


def test_nobody_there_is_said_so_and_costs_no_model(ground: list[Pixels], bench: Bench) -> None:
    looks = bench.looks(ground)
    assert len(looks) == len(ground)
    assert not any(look.sighting.hand_present for look in looks)
    assert list(looks[0].sighting.stage_ms) == ["hand"]
    assert bench.model.calls == 0


def test_a_hand_leaves_once_it_was_not_seen_for_a_while(film: list[Pixels], ground: list[Pixels]) -> None:
    bench = Bench()
    bench.looks(film[6:15])
    left_ms = bench.now_ms
    looks = bench.looks(ground)
    assert looks
    assert not any(look.sighting.hand_present for look in looks)
    assert looks[0].sighting.at_ms - left_ms >= GONE_MS


def test_frames_in_which_the_hand_was_missed_say_nothing(film: list[Pixels], ground: list[Pixels]) -> None:
    bench = Bench()
    held = film[10]
    looks = bench.looks([held, held, ground[0], held, ground[1], ground[2], held])
    assert [look.sighting.hand_present for look in looks] == [True] * 4


def test_a_hand_has_not_left_while_a_slow_board_was_looking_at_it(film: list[Pixels], bench: Bench) -> None:
    frames = [CameraFrame(film[10], 1_000 + (GONE_MS + 100) * i, i + 1) for i in range(4)]
    looks = [bench.recogniser.look(frame, Interest.PASSAGE) for frame in frames]
    pads = [look.sighting.pad for look in looks if look]
    assert [pad.res for pad in pads if pad] == ["unknown", "pass", "pass", "pass"]


def test_a_poor_capture_is_a_hand_that_is_never_good(bench: Bench) -> None:
    looks = bench.looks(list(poor_capture(make_person(3), "L", seed=2))[6:20])
    assert any(look.sighting.hand_present for look in looks)
    assert not any(look.sighting.good for look in looks)
    assert bench.model.calls == 0
    assert any(look.sighting.hint is not None for look in looks)


def test_idle_only_watches_for_hands(film: list[Pixels], bench: Bench) -> None:
    looks = bench.looks(film[8:14], Interest.IDLE)
    assert all(look.sighting.hand_present and not look.sighting.good for look in looks)
    assert all(list(look.sighting.stage_ms) == ["hand"] for look in looks)
    assert bench.model.calls == 0


def test_enrolment_captures_and_asks_the_gallery_nothing(film: list[Pixels], bench: Bench) -> None:
    looks = bench.looks(film, Interest.ENROLMENT)
    captures = [look.capture for look in looks if look.capture is not None]
    assert captures
    assert all(capture.quality_q >= THRESHOLDS.enrol_quality_q for capture in captures)
    assert all(capture.hand == "R" for capture in captures)
    assert all(abs(float(np.linalg.norm(capture.vector)) - 1.0) < 1e-4 for capture in captures)
    assert bench.gallery is not None
    assert bench.gallery.probes == []
    look = next(look for look in looks if look.capture is not None).for_enrolment()
    assert (look.hand_present, look.hand) == (True, "R")
    captures[0].vector.fill(0.0)  # the flow overwrites what it was given


def test_nothing_seen_of_a_hand_outlives_its_enrolment(film: list[Pixels], bench: Bench) -> None:
    enrolled = [look.sighting.pad for look in bench.looks(film[10:14], Interest.ENROLMENT)]
    afterwards = [look.sighting.pad for look in bench.looks(film[14:16])]
    assert [pad.res for pad in (*enrolled[-1:], *afterwards) if pad] == ["pass", "unknown", "pass"]


def test_probes_are_unit_vectors_of_one_hand(film: list[Pixels], ground: list[Pixels], bench: Bench) -> None:
    bench.looks(film[6:18])
    bench.looks(ground)
    gallery = bench.gallery
    assert gallery is not None
    first = len(gallery.probes)
    bench.looks(list(passage(make_person(12), "L", seed=3))[6:18])
    assert len(gallery.probes) > first
    for probe in gallery.probes:
        assert probe.shape == (1, EMBEDDING_SIZE)
        assert float(np.linalg.norm(probe)) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("scores", "nearest", "searches"),
    [
        ({}, 0, [1]),
        ({1: 0.3}, 0, [1, 8]),
        ({1: 0.4, 8: 0.3}, 0, [1, 8, 12]),
        ({1: 0.3, 8: 0.4}, 0, [1, 8, 12]),
        ({1: 0.3, 8: 0.4, 12: 0.45}, 0, [1, 8, 12, 9]),
        ({1: 0.3, 8: 0.4, 12: 0.45, 9: 0.45}, 0, [1, 8, 12, 9]),
    ],
    ids=[
        "settled at once",
        "slipped far",
        "slipped little",
        "slipped far and a little",
        "slipped further",
        "comes no nearer",
    ],
)
def test_a_palm_that_is_not_settled_is_searched_for_as_it_may_have_slipped(
    film: list[Pixels], scores: dict[int, float], nearest: int, searches: list[int]
) -> None:
    bench = Bench()
    assert bench.gallery is not None
    bench.gallery.scores, bench.gallery.nearest = scores, nearest
    good = [look.sighting for look in bench.looks(film[6:18]) if look.sighting.good]
    live = [sighting.pad is not None and sighting.pad.res == "pass" for sighting in good]
    assert live == [False, *[True] * (len(good) - 1)] and len(good) > 2
    assert [len(probes) for probes in bench.gallery.probes] == searches * (len(good) - 1)
    scored = scores.get(searches[-1], 0.8)
    assert [sighting.score for sighting in good] == [None, *[scored] * (len(good) - 1)]


def test_the_gallery_takes_all_probes_of_a_picture_at_once() -> None:
    assert MOST_PROBES <= MAX_PROBES


def test_a_gallery_that_changed_between_two_searches_is_asked_with_all_probes(film: list[Pixels]) -> None:
    bench = Bench()
    assert bench.gallery is not None
    bench.gallery.scores = {1: 0.3}
    bench.gallery.positions = itertools.chain([POSITION], itertools.repeat(replace(POSITION, seq=18)))
    _, sighting = [look.sighting for look in bench.looks(film[6:18]) if look.sighting.good][:2]
    assert [len(probes) for probes in bench.gallery.probes[:3]] == [1, 8, 9]
    assert sighting.gallery is not None
    assert sighting.gallery.seq == 18


def test_an_unknown_person_is_scored_without_a_candidate(film: list[Pixels], bench: Bench) -> None:
    assert bench.gallery is not None
    bench.gallery.best = None
    _, sighting = [look.sighting for look in bench.looks(film) if look.sighting.good][:2]
    assert (sighting.score, sighting.candidate) == (None, None)
    assert sighting.gallery is not None
    assert {len(probes) for probes in bench.gallery.probes} == {1}


def test_without_a_gallery_a_good_capture_is_still_seen(film: list[Pixels], bench: Bench) -> None:
    bench.gallery = None
    sighting = next(look.sighting for look in bench.looks(film) if look.sighting.good)
    assert (sighting.score, sighting.candidate, sighting.gallery) == (None, None, None)


def test_a_code_is_read(bench: Bench) -> None:
    frames = bench.frames(show_qr("SVC1:ENR:hello", seed=4, n=3))
    assert "SVC1:ENR:hello" in [read_qr(frame) for frame in frames]


def test_hints_are_words_of_the_cable(film: list[Pixels]) -> None:
    bench = Bench(Thresholds("t", 5000, 0, quality_q=101 - 1, pad_q=0, enrol_quality_q=100))
    hints = {look.sighting.hint for look in bench.looks(film)}
    assert hints - {None} <= set(GuideHint)


def unit(seed: int) -> Vectors:
    vector = np.random.default_rng(seed).standard_normal(EMBEDDING_SIZE)
    made: Vectors = (vector / np.linalg.norm(vector)).astype(np.float32)
    return made


def test_fused_probes_are_nearer_to_the_hand_than_single_ones() -> None:
    tracked = TrackedHand()
    truth = unit(1)
    for i in range(PROBES):
        view = truth + unit(10 + i)
        view /= np.linalg.norm(view)
        assert not tracked.hold(view.astype(np.float32), 80, agree_cosine=0.2)
    assert float(tracked.probe() @ truth) > 0.85 > 0.72 > float(view @ truth)


def test_a_vector_of_another_hand_starts_the_probe_anew() -> None:
    tracked = TrackedHand()
    assert not tracked.hold(unit(1), 90, agree_cosine=0.25)
    other = unit(2)
    assert tracked.hold(other, 50, agree_cosine=0.25)
    assert float(tracked.probe() @ other) == pytest.approx(1.0, abs=1e-5)


def test_a_vector_is_compared_with_the_mean_of_those_held() -> None:
    for cosine, other in ((0.7, False), (0.72, True)):
        tracked = TrackedHand()
        one, two = np.eye(2, EMBEDDING_SIZE, dtype=np.float32)
        tracked.hold(one, 80, agree_cosine=-1.0)
        tracked.hold(two, 80, agree_cosine=-1.0)
        assert tracked.hold(one, 80, agree_cosine=cosine) is other, "the mean is 0.707 from each"


def test_only_better_views_replace_those_held() -> None:
    tracked = TrackedHand()
    base = unit(1)
    for i in range(PROBES):
        tracked.hold(base, 80 + i, agree_cosine=0.2)
    poor = base + 0.5 * unit(3)
    poor /= np.linalg.norm(poor)
    tracked.hold(poor, 10, agree_cosine=0.2)
    assert float(tracked.probe() @ base) == pytest.approx(1.0, abs=1e-5)
    tracked.hold(poor, 99, agree_cosine=0.2)
    assert float(tracked.probe() @ base) < 0.999


def test_a_hand_elsewhere_in_the_next_frame_is_another_hand(film: list[Pixels]) -> None:
    finder = HandFinder()
    frame = CameraFrame(film[10], 1_000, 1)
    hand = finder.look(frame)
    assert isinstance(hand, Hand)
    tracked = TrackedHand()
    assert not tracked.see(hand, frame)
    tracked.judged(hand)
    assert not tracked.see(hand, CameraFrame(film[10], 1_033, 2))
    tracked.judged(replace(hand, at_ms=1_033))
    larger = np.ascontiguousarray(np.repeat(np.repeat(film[10], 2, axis=0), 2, axis=1))
    assert tracked.see(hand, CameraFrame(larger, 1_066, 3))
    assert tracked.previous is None
