from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device.passage.decision import (
    PAD_UNKNOWN,
    Attempt,
    Outcome,
    build_verdict,
    judge,
    margin_q_of,
    score_q_of,
)
from device.values.recognition import Sighting
from link1.errors import FormatError
from link1.objects import GalleryMark, Pad, Verdict, VerdictDecision, VerdictResult
from models.thresholds import Thresholds
from tests.device.core_makers import (
    ALICE,
    DEVICE_ID,
    GALLERY,
    LIVE,
    NOW_MS,
    THRESHOLDS,
    good_sighting,
    make_request,
    no_hand,
    poor_sighting,
)

# The table "What a verdict says" of LINK/1 §4, one capture a row. accept_q is 6000, margin_q 500, pad_q 5000.
TABLE: list[tuple[dict[str, Any], VerdictResult | None]] = [
    ({}, VerdictResult.MATCH),
    ({"score": 0.6, "margin": 0.05}, VerdictResult.MATCH),
    ({"score": 0.59996, "margin": 0.04996}, VerdictResult.MATCH),  # as signed: 6000 and 500
    ({"score": 0.59994}, VerdictResult.NO_MATCH),
    ({"score": 0.1}, VerdictResult.NO_MATCH),
    ({"score": -0.3, "margin": 0.0}, VerdictResult.NO_MATCH),
    ({"score": None, "margin": None, "candidate": None}, VerdictResult.NO_MATCH),  # an empty match set
    ({"margin": 0.0499}, VerdictResult.AMBIGUOUS),
    ({"margin": 0.0}, VerdictResult.AMBIGUOUS),
    ({"margin": None}, VerdictResult.MATCH),  # there is no second person
    ({"score": 0.1, "margin": 0.0}, VerdictResult.NO_MATCH),
    ({"pad": Pad("fail", "texture", 9_000)}, VerdictResult.SPOOF),
    ({"pad": Pad("pass", "texture", 4_999)}, VerdictResult.SPOOF),
    ({"pad": Pad("fail", "texture", 0), "score": 0.1}, VerdictResult.SPOOF),
    ({"pad": Pad("unknown", "texture", 0)}, None),
    ({"pad": None}, None),
    ({"good": False}, None),
    ({"good": False, "pad": Pad("fail", "texture", 0)}, None),
    ({"hand_present": False}, None),
]


@pytest.mark.parametrize(("changes", "expected"), TABLE)
def test_one_capture(changes: dict[str, Any], expected: VerdictResult | None) -> None:
    assert judge(good_sighting(**changes), THRESHOLDS) is expected


def test_the_first_good_match_is_accepted() -> None:
    attempt = Attempt(THRESHOLDS, attempts=3)
    assert attempt.add(poor_sighting()) is None
    assert attempt.add(good_sighting(score=0.2)) is None
    sighting = good_sighting()
    assert attempt.add(sighting) == Outcome(
        VerdictResult.MATCH,
        score_q=8_000,
        margin_q=4_000,
        quality_q=80,
        pad=LIVE,
        attempts=3,
        subject_ref=ALICE.subject_ref,
        onboard_ref="ticket-17",
        hand="R",
        sighting=sighting,
    )


def test_a_rejection_takes_as_many_good_captures_as_configured() -> None:
    attempt = Attempt(THRESHOLDS, attempts=2)
    assert attempt.add(good_sighting(score=0.3)) is None
    assert attempt.add(poor_sighting()) is None
    assert attempt.add(no_hand()) is None
    outcome = attempt.add(good_sighting(score=0.2))
    assert outcome is not None
    assert outcome.result is VerdictResult.NO_MATCH
    assert outcome.score_q == 3_000
    assert outcome.attempts == 3
    assert outcome.subject_ref is None


def test_the_best_of_the_rejected_captures_speaks() -> None:
    attempt = Attempt(THRESHOLDS, attempts=3)
    attempt.add(good_sighting(score=0.2))
    attempt.add(good_sighting(score=0.7, margin=0.01))
    outcome = attempt.add(good_sighting(score=0.4))
    assert outcome is not None
    assert (outcome.result, outcome.score_q, outcome.margin_q) == (VerdictResult.AMBIGUOUS, 7_000, 100)


def test_a_failed_liveness_check_ends_it_at_once() -> None:
    attempt = Attempt(THRESHOLDS, attempts=3)
    outcome = attempt.add(good_sighting(pad=Pad("pass", "texture", 100)))
    assert outcome is not None
    assert outcome.result is VerdictResult.SPOOF
    assert outcome.pad == Pad("fail", "texture", 100)
    assert (outcome.score_q, outcome.margin_q, outcome.subject_ref) == (0, 10_000, None)


def test_a_hand_that_leaves_early_is_judged_by_what_there_is() -> None:
    attempt = Attempt(THRESHOLDS, attempts=3)
    attempt.add(good_sighting(score=0.1))
    assert attempt.decisive == 1
    assert attempt.conclude().result is VerdictResult.NO_MATCH


def test_no_good_capture_abstains_with_the_best_of_the_poor() -> None:
    attempt = Attempt(THRESHOLDS, attempts=3)
    for quality_q in (10, 40, 30):
        attempt.add(poor_sighting(quality_q=quality_q))
    outcome = attempt.conclude()
    assert outcome.result is VerdictResult.POOR_CAPTURE
    assert (outcome.quality_q, outcome.attempts, outcome.pad) == (40, 3, PAD_UNKNOWN)


def test_a_capture_that_is_not_known_to_be_live_is_poor() -> None:
    attempt = Attempt(THRESHOLDS, attempts=1)
    attempt.add(good_sighting(pad=Pad("unknown", "parallax", 0)))
    outcome = attempt.conclude()
    assert outcome.result is VerdictResult.POOR_CAPTURE
    assert outcome.pad == Pad("unknown", "parallax", 0)


def test_abstaining_says_nothing_about_the_hand() -> None:
    attempt = Attempt(THRESHOLDS, attempts=3)
    attempt.add(good_sighting(score=0.1))
    outcome = attempt.abstain(VerdictResult.GALLERY_EXPIRED)
    assert outcome == Outcome(VerdictResult.GALLERY_EXPIRED, attempts=1)


@given(st.floats(-1.5, 1.5), st.none() | st.floats(-0.5, 2.5))
def test_quantised_numbers_stay_in_the_contract(score: float, margin: float | None) -> None:
    sighting = Sighting(True, 0, score=score, margin=margin)
    assert -10_000 <= score_q_of(sighting) <= 10_000
    assert 0 <= margin_q_of(sighting) <= 20_000


pads = st.builds(Pad, st.sampled_from(["pass", "fail", "unknown"]), st.just("m"), st.integers(0, 10_000))
sightings = st.builds(
    good_sighting,
    score=st.floats(-1, 1),
    margin=st.none() | st.floats(0, 1),
    good=st.booleans(),
    hand_present=st.booleans(),
    quality_q=st.integers(0, 100),
    pad=st.none()
    | st.builds(Pad, st.sampled_from(["pass", "fail", "unknown"]), st.just("m"), st.integers(0, 10_000)),
)


@given(st.lists(sightings, max_size=8), st.integers(1, 4))
def test_whatever_is_seen_makes_a_verdict_of_the_contract(seen: list[Sighting], attempts: int) -> None:
    attempt = Attempt(THRESHOLDS, attempts=attempts)
    outcome = next(filter(None, map(attempt.add, seen)), None) or attempt.conclude()
    request, _ = make_request("any")
    verdict = build_verdict(
        request,
        outcome,
        device_id=DEVICE_ID,
        verdict_seq=1,
        prev_ref="0" * 32,
        decided_at_ms=NOW_MS,
        model_id="m",
        thr_id="t",
        gallery=GALLERY,
    )
    assert Verdict.from_obj(verdict.to_obj()) == verdict
    if verdict.decision is VerdictDecision.ACCEPT:
        assert verdict.score_q >= THRESHOLDS.accept_q
        assert verdict.margin_q >= THRESHOLDS.margin_q
        assert verdict.pad.res == "pass"
        assert outcome.sighting is not None
        assert outcome.sighting.good


def test_a_verdict_names_the_gallery_that_was_searched() -> None:
    searched = GalleryMark("stream-1", 1, 6, "f" * 16)
    request, _ = make_request("a")
    outcome = Attempt(THRESHOLDS, attempts=1).add(good_sighting(gallery=searched))
    assert outcome is not None
    verdict = build_verdict(
        request,
        outcome,
        device_id=DEVICE_ID,
        verdict_seq=9,
        prev_ref="1" * 32,
        decided_at_ms=NOW_MS,
        model_id="m",
        thr_id="t",
        gallery=GALLERY,
    )
    assert verdict.gallery == searched
    assert (verdict.verdict_seq, verdict.prev_ref, verdict.txn_id) == (9, "1" * 32, request.txn_id)


@pytest.mark.parametrize("change", [{"accept_q": 10_001}, {"quality_q": True}, {"thr_id": ""}, {"pad_q": -1}])
def test_thresholds_outside_the_contract(change: dict[str, Any]) -> None:
    members = THRESHOLDS.to_obj()
    assert Thresholds.from_obj(members) == THRESHOLDS
    with pytest.raises(FormatError):
        Thresholds.from_obj(members | change)
