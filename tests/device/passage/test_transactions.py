"""The device's side of LINK/1 §4 as dialogues: what comes in, what goes out."""

import pickle
from dataclasses import replace

import pytest

from device.passage.after_verdict import MAX_OPEN, MAX_RECENT
from device.passage.effects import (
    Effect,
    ListOpen,
    RecordDecision,
    RecordDisowned,
    RecordEvidence,
    RecordOutcomeUnknown,
    RecordPassage,
    RememberEnd,
    SendGuide,
    SendVerdict,
    StartCapture,
    StopCapture,
)
from device.passage.engine import TransactionEngine
from device.passage.table import TRANSITIONS, State, Trigger
from link1.objects import ErrorCode, GuideHint, VerdictResult
from tests.device.core_makers import (
    ALICE,
    good_sighting,
    make_decision,
    make_passage,
    make_request,
    no_hand,
    poor_sighting,
    txn_id_of,
)
from tests.device.passage.engine_bench import ALL_WELL, POLICY, EngineBench, errors, resolved, verdicts

CANCELLED, EXPIRED = ErrorCode.CANCELLED, ErrorCode.EXPIRED
CONFLICT, BAD_DECISION = ErrorCode.TXN_CONFLICT, ErrorCode.BAD_DECISION
A, B, C = (txn_id_of(name) for name in "abc")


@pytest.fixture
def bench() -> EngineBench:
    return EngineBench()


def unknowns(effects: list[Effect]) -> list[str]:
    return [effect.verdict_ref for effect in effects if isinstance(effect, RecordOutcomeUnknown)]


def hints(effects: list[Effect]) -> list[GuideHint]:
    return [effect.hint for effect in effects if isinstance(effect, SendGuide)]


def pass_one(bench: EngineBench, name: str) -> None:
    """Somebody's hand comes, answers request `name` with an accept, and leaves."""
    bench.ask(name)
    assert verdicts(bench.see(good_sighting()))
    bench.see(no_hand())


# A passage


def test_a_whole_passage(bench: EngineBench) -> None:
    assert StartCapture(A) in bench.ask("a")
    bench.wait(700)
    shown = bench.see(good_sighting())
    stored = bench.stored("a")
    assert verdicts(shown) == [stored.wrapper]
    assert shown.index(StopCapture()) < shown.index(SendVerdict(A, stored.wrapper))
    assert stored.wrapper["verdict"]["result"] == "MATCH"
    decision = make_decision(stored)
    assert bench.decide(decision) == [RecordDecision(stored.ref, decision[1], awaits_passage=True)]
    passage = make_passage(stored)
    assert bench.turn(passage) == [RecordPassage(stored.ref, passage[1])]
    assert bench.wait(60_000) == []


def test_a_hand_that_is_already_there_counts(bench: EngineBench) -> None:
    bench.see(poor_sighting())
    bench.ask("a")
    assert verdicts(bench.see(good_sighting()))


def test_a_rejection_takes_three_good_captures(bench: EngineBench) -> None:
    bench.ask("a")
    assert not verdicts(bench.see(good_sighting(score=0.1)))
    assert not verdicts(bench.see(good_sighting(score=0.2)))
    assert verdicts(bench.see(good_sighting(score=0.1)))
    assert bench.results == [VerdictResult.NO_MATCH]


def test_a_hand_that_leaves_after_a_good_capture_is_judged_by_it(bench: EngineBench) -> None:
    bench.ask("a")
    bench.see(good_sighting(score=0.1))
    bench.see(no_hand())
    assert bench.results == [VerdictResult.NO_MATCH]


def test_a_hand_without_a_good_capture_abstains_after_its_window(bench: EngineBench) -> None:
    bench.ask("a")
    bench.wait(500)
    bench.see(poor_sighting())
    bench.wait(1_499)
    assert not verdicts(bench.see(poor_sighting()))
    bench.wait(1)
    assert verdicts(bench.see(poor_sighting()))
    assert bench.results == [VerdictResult.POOR_CAPTURE]


def test_a_capture_that_takes_longer_than_the_window_is_waited_for(bench: EngineBench) -> None:
    """A stranger's search on a slow board: it was poor, not unknown."""
    bench.ask("a")
    bench.see(poor_sighting())
    assert not verdicts(bench.wait(4_000))
    assert verdicts(bench.see(good_sighting(score=0.1)))
    assert bench.results == [VerdictResult.NO_MATCH]


def test_a_hand_that_leaves_without_a_good_capture_abstains(bench: EngineBench) -> None:
    bench.ask("a")
    bench.see(poor_sighting())
    bench.wait(300)
    assert verdicts(bench.see(no_hand()))
    assert bench.results == [VerdictResult.POOR_CAPTURE]


def test_a_hand_that_passes_by_burns_no_request(bench: EngineBench) -> None:
    bench.ask("a")
    bench.see(poor_sighting())
    bench.wait(299)
    assert not verdicts(bench.see(no_hand()))
    assert verdicts(bench.see(good_sighting()))
    assert bench.results == [VerdictResult.MATCH]


def test_after_a_hand_that_passed_by_the_request_waits_for_one_as_before(bench: EngineBench) -> None:
    bench.ask("a", ttl_ms=5_000)
    bench.see(poor_sighting())
    bench.wait(200)
    bench.see(no_hand())
    bench.wait(1_000)
    assert hints(bench.see(no_hand())) == [GuideHint.SHOW_HAND]
    assert errors(bench.wait(5_000)) == [(EXPIRED, "request", A)]
    assert bench.verdicts == []


# Expiry


def test_without_a_hand_it_expires_200_ms_before_the_ttl_ends(bench: EngineBench) -> None:
    bench.ask("a", ttl_ms=3_000)
    assert bench.wait(2_799) == []
    assert errors(bench.wait(1)) == [(EXPIRED, "request", A)]
    assert not bench.capturing
    assert bench.verdicts == []


def test_an_end_is_told_only_when_it_is_durable(bench: EngineBench) -> None:
    bench.ask("a", ttl_ms=500)
    bench.hold = True
    assert errors(bench.wait(1_000)) == []
    assert errors(bench.ask("a", ttl_ms=500)) == []
    assert errors(bench.cancel("a")) == []
    assert errors(bench.release()) == [(EXPIRED, "request", A), (EXPIRED, "cancel", A)]


def test_a_hand_that_is_there_then_is_finished_within_a_second_of_the_ttl(bench: EngineBench) -> None:
    bench.ask("a", ttl_ms=1_000)
    bench.wait(790)
    bench.see(poor_sighting())
    assert bench.wait(1_209) == []  # until just before ttl + 1 s
    assert verdicts(bench.wait(1))
    assert bench.results == [VerdictResult.POOR_CAPTURE]


def test_a_hand_that_is_there_then_may_still_match(bench: EngineBench) -> None:
    bench.ask("a", ttl_ms=1_000)
    bench.wait(790)
    bench.see(poor_sighting())
    bench.wait(1_000)
    bench.see(good_sighting())
    assert bench.results == [VerdictResult.MATCH]


def test_a_hand_that_leaves_after_the_deadline_has_its_verdict(bench: EngineBench) -> None:
    bench.ask("a", ttl_ms=1_000)
    bench.wait(790)
    bench.see(poor_sighting())
    bench.wait(20)
    bench.see(no_hand())
    assert bench.results == [VerdictResult.POOR_CAPTURE]


def test_an_expired_request_stays_expired(bench: EngineBench) -> None:
    bench.ask("a", ttl_ms=500)
    bench.wait(1_000)
    bench.see(good_sighting())
    assert errors(bench.ask("a", ttl_ms=500)) == [(EXPIRED, "request", A)]
    assert errors(bench.cancel("a")) == [(EXPIRED, "cancel", A)]
    assert bench.verdicts == []


@pytest.mark.parametrize("again", ["request", "cancel"])
def test_an_end_that_the_disk_refused_is_durable_before_it_is_told_again(
    bench: EngineBench, again: str
) -> None:
    bench.store_works = False
    bench.ask("a", ttl_ms=500)
    assert errors(bench.wait(1_000)) == [(EXPIRED, "request", A)]
    bench.store_works, bench.hold = True, True
    assert errors(bench.ask("a", ttl_ms=500) if again == "request" else bench.cancel("a")) == []
    assert bench.memory == {}
    assert errors(bench.release()) == [(EXPIRED, again, A)]
    assert bench.memory[A].ended is EXPIRED


# The same request again, and others


def test_an_armed_request_again_changes_nothing(bench: EngineBench) -> None:
    bench.ask("a", ttl_ms=1_000)
    bench.wait(600)
    assert bench.ask("a", ttl_ms=1_000) == []
    assert errors(bench.wait(200)) == [(EXPIRED, "request", A)]


def test_a_request_with_a_verdict_gets_the_same_bytes(bench: EngineBench) -> None:
    pass_one(bench, "a")
    for _ in range(3):
        assert bench.ask("a") == [SendVerdict(A, bench.stored("a").wrapper)]
    assert len(bench.verdicts) == 1


def test_a_request_again_while_its_verdict_is_written_gets_it_once(bench: EngineBench) -> None:
    bench.ask("a")
    bench.hold = True
    bench.see(good_sighting())
    assert bench.ask("a") == []
    assert len(verdicts(bench.release())) == 1


def test_a_stale_journal_read_does_not_hide_a_verdict(bench: EngineBench) -> None:
    pass_one(bench, "a")
    request, wrapper = make_request("a", issued_at_ms=1)
    effects = bench.run(bench.engine.request(request, wrapper, None, bench.now_ms))
    assert effects == [SendVerdict(A, bench.stored("a").wrapper)]


@pytest.mark.parametrize("stage", ["armed", "deciding", "decided", "expired", "ending"])
def test_a_known_txn_with_a_difference_is_a_conflict(bench: EngineBench, stage: str) -> None:
    bench.ask("a", ttl_ms=2_000)
    bench.hold = stage in ("deciding", "ending")
    if stage in ("deciding", "decided"):
        bench.see(good_sighting())
    if stage in ("expired", "ending"):
        bench.wait(2_000)
    effects = bench.ask("a", ttl_ms=2_001)
    assert errors(effects) == [(CONFLICT, "request", A)]
    assert not verdicts(effects)
    if stage == "armed":
        assert verdicts(bench.see(good_sighting()))


def test_a_newer_request_replaces_an_older_one(bench: EngineBench) -> None:
    bench.ask("a")
    effects = bench.ask("b")
    assert errors(effects) == []
    assert bench.memory[A].ended is CANCELLED
    assert StartCapture(B) in effects
    assert errors(bench.ask("a")) == [(CANCELLED, "request", A)]
    assert verdicts(bench.see(good_sighting())) == [bench.stored("b").wrapper]


def test_a_replaced_request_is_replaced_while_it_is_captured(bench: EngineBench) -> None:
    bench.ask("a")
    bench.see(good_sighting(score=0.1))
    bench.ask("b")
    assert bench.memory[A].ended is CANCELLED
    for _ in range(3):  # the captures for another request count for nothing here
        assert bench.results == []
        bench.see(good_sighting(score=0.1))
    assert bench.results == [VerdictResult.NO_MATCH]


def test_a_verdict_in_the_making_is_not_replaced(bench: EngineBench) -> None:
    bench.ask("a")
    bench.hold = True
    bench.see(good_sighting())
    bench.ask("b")
    assert verdicts(bench.release()) == [bench.stored("a").wrapper]
    assert A not in [e.txn_id for e in bench.done if isinstance(e, RememberEnd)]


# Cancel


def test_cancelling_what_is_armed(bench: EngineBench) -> None:
    bench.ask("a")
    assert errors(bench.cancel("a")) == [(CANCELLED, "cancel", A)]
    assert not bench.capturing
    assert errors(bench.cancel("a")) == [(CANCELLED, "cancel", A)]
    assert errors(bench.ask("a")) == [(CANCELLED, "request", A)]
    bench.see(good_sighting())
    assert bench.verdicts == []


def test_cancelling_while_a_hand_is_captured(bench: EngineBench) -> None:
    bench.ask("a")
    bench.see(poor_sighting())
    assert errors(bench.cancel("a")) == [(CANCELLED, "cancel", A)]
    bench.see(good_sighting())
    assert bench.verdicts == []


def test_cancelling_the_unknown_is_not_remembered(bench: EngineBench) -> None:
    assert errors(bench.cancel("a")) == [(CANCELLED, "cancel", None)]
    bench.ask("a")
    assert verdicts(bench.see(good_sighting()))


def test_a_cancel_that_crossed_the_verdict_is_not_answered(bench: EngineBench) -> None:
    bench.ask("a")
    bench.hold = True
    bench.see(good_sighting())
    assert bench.cancel("a") == []
    assert verdicts(bench.release())
    assert bench.cancel("a") == []
    decision = make_decision(bench.stored("a"), actuated=False, outcome="BLOQUEAR", reason="fault")
    assert bench.decide(decision) == [
        RecordDecision(bench.stored("a").ref, decision[1], awaits_passage=False)
    ]
    assert bench.cancel("a") == []


# One hand, one verdict


def test_a_hand_answers_one_request(bench: EngineBench) -> None:
    bench.ask("a")
    bench.see(good_sighting())
    effects = bench.ask("b")
    assert StartCapture(B) not in effects
    for _ in range(5):
        bench.wait(100)
        assert not verdicts(bench.see(good_sighting()))
    assert GuideHint.REMOVE_HAND in hints(bench.done)
    assert StartCapture(B) in bench.see(no_hand())
    assert verdicts(bench.see(good_sighting()))
    assert len(bench.verdicts) == 2


def test_a_spent_hand_is_no_hand_when_the_time_is_up(bench: EngineBench) -> None:
    bench.ask("a")
    bench.see(good_sighting())
    bench.ask("b", ttl_ms=1_000)
    assert errors(bench.wait(800)) == [(EXPIRED, "request", B)]


def test_a_hand_stays_spent_through_resets_and_a_camera_that_fails(bench: EngineBench) -> None:
    bench.ask("a")
    bench.see(good_sighting())
    bench.lose_link()
    bench.prove()
    bench.conditions(replace(ALL_WELL, camera=False))
    bench.conditions(ALL_WELL)
    bench.ask("b")
    bench.see(good_sighting())
    assert len(bench.verdicts) == 1


def test_a_hand_that_is_there_after_a_restart_has_answered(bench: EngineBench) -> None:
    """The engine before the restart may have given it a verdict."""
    bench.engine = TransactionEngine(POLICY, ALL_WELL, passage_sensor=True)
    bench.engine.restarted()
    bench.prove()
    bench.see(good_sighting())
    effects = bench.ask("a")
    assert not verdicts(effects)
    assert not verdicts(bench.see(good_sighting()))
    bench.see(no_hand())
    assert verdicts(bench.see(good_sighting()))


def test_a_hand_that_is_there_at_the_first_start_of_all_has_not(bench: EngineBench) -> None:
    bench.engine = TransactionEngine(POLICY, ALL_WELL, passage_sensor=True)
    bench.prove()
    bench.see(good_sighting())
    assert verdicts(bench.ask("a")) or verdicts(bench.see(good_sighting()))


def test_a_hand_that_was_not_used_may_answer_the_next_request(bench: EngineBench) -> None:
    bench.ask("a")
    bench.see(poor_sighting())
    bench.cancel("a")
    bench.ask("b")
    assert verdicts(bench.see(good_sighting()))


# Not ready, gallery expired


def test_an_expired_gallery_is_said_when_a_hand_comes(bench: EngineBench) -> None:
    bench.conditions(replace(ALL_WELL, gallery=False))
    bench.ask("a")
    assert bench.verdicts == []
    assert verdicts(bench.see(good_sighting()))
    assert bench.results == [VerdictResult.GALLERY_EXPIRED]
    assert "subject_ref" not in bench.verdicts[0].wrapper["verdict"]


def test_a_frame_from_before_the_gallery_was_fresh_decides_nothing(bench: EngineBench) -> None:
    """Its search may have been in the gallery as it was before the page that made it fresh."""
    bench.conditions(replace(ALL_WELL, gallery=False))
    bench.ask("a")
    bench.conditions(ALL_WELL)
    assert not verdicts(bench.see(replace(good_sighting(), at_ms=bench.now_ms - 1)))
    assert verdicts(bench.see(replace(good_sighting(), at_ms=bench.now_ms)))


def test_a_recogniser_that_fails_is_said_when_a_hand_comes(bench: EngineBench) -> None:
    bench.conditions(replace(ALL_WELL, recogniser=False, gallery=False))
    bench.see(poor_sighting())
    assert verdicts(bench.ask("a"))
    assert bench.results == [VerdictResult.NOT_READY]


def test_conditions_that_change_while_a_hand_is_there(bench: EngineBench) -> None:
    bench.ask("a")
    bench.see(poor_sighting())
    bench.conditions(replace(ALL_WELL, gallery=False))
    assert bench.results == [VerdictResult.GALLERY_EXPIRED]


@pytest.mark.parametrize("gallery", [True, False])
def test_a_blind_camera_is_said_200_ms_before_the_ttl_ends(bench: EngineBench, gallery: bool) -> None:
    bench.conditions(replace(ALL_WELL, camera=False, gallery=gallery))
    bench.ask("a", ttl_ms=1_000)
    assert not verdicts(bench.wait(799))
    assert verdicts(bench.wait(1))
    assert bench.results == [VerdictResult.NOT_READY]


def test_without_a_hand_a_device_that_is_not_ready_expires_like_any(bench: EngineBench) -> None:
    bench.conditions(replace(ALL_WELL, recogniser=False))
    bench.ask("a", ttl_ms=1_000)
    assert errors(bench.wait(800)) == [(EXPIRED, "request", A)]


def test_a_camera_that_fails_after_the_deadline_ends_the_capture(bench: EngineBench) -> None:
    bench.ask("a", ttl_ms=1_000)
    bench.wait(700)
    bench.see(poor_sighting())
    bench.wait(200)
    assert verdicts(bench.conditions(replace(ALL_WELL, camera=False)))
    assert bench.results == [VerdictResult.NOT_READY]


def test_a_camera_that_comes_back_serves_the_request(bench: EngineBench) -> None:
    bench.conditions(replace(ALL_WELL, camera=False))
    bench.ask("a", ttl_ms=5_000)
    bench.wait(1_000)
    bench.conditions(ALL_WELL)
    assert verdicts(bench.see(good_sighting()))
    assert bench.results == [VerdictResult.MATCH]


def test_after_a_camera_that_failed_a_hand_is_captured_from_the_beginning(bench: EngineBench) -> None:
    """Nothing of the hand before decides, which may have been another person's."""
    bench.ask("a")
    for _ in range(2):
        bench.see(good_sighting(score=0.1))
    bench.conditions(replace(ALL_WELL, camera=False))
    bench.see(good_sighting(score=0.1))  # its last frame, which was still being examined
    bench.wait(3_000)
    bench.conditions(ALL_WELL)
    assert not verdicts(bench.see(poor_sighting()))
    assert not verdicts(bench.see(good_sighting(score=0.1)))
    assert verdicts(bench.see(good_sighting()))
    assert bench.results == [VerdictResult.MATCH]


def test_the_hand_of_an_enrolment_answers_no_request_until_it_has_left(bench: EngineBench) -> None:
    bench.ask("a", ttl_ms=2_000)
    bench.see(poor_sighting())
    bench.engine.hand_enrols(bench.now_ms)
    assert errors(bench.wait(1_800)) == [(EXPIRED, "request", A)]
    bench.ask("b", ttl_ms=2_000)
    assert errors(bench.wait(1_800)) == [(EXPIRED, "request", B)]
    bench.ask("c")
    bench.wait(300)
    assert hints(bench.see(good_sighting())) == [GuideHint.REMOVE_HAND]
    bench.see(no_hand())
    assert verdicts(bench.see(good_sighting()))


def test_a_verdict_that_cannot_be_stored_is_not_sent(bench: EngineBench) -> None:
    bench.ask("a")
    bench.store_works = False
    effects = bench.see(good_sighting())
    assert not verdicts(effects)
    assert errors(effects) == [(EXPIRED, "request", A)]
    assert errors(bench.ask("a")) == [(EXPIRED, "request", A)]


# Resets


def test_a_reset_drops_an_armed_request_without_ending_it(bench: EngineBench) -> None:
    bench.ask("a", ttl_ms=1_000)
    bench.wait(700)
    assert bench.lose_link() == [StopCapture()]
    bench.prove()
    assert StartCapture(A) in bench.ask("a", ttl_ms=1_000)
    assert not errors(bench.wait(799))
    assert errors(bench.wait(1)) == [(EXPIRED, "request", A)]


def test_a_reset_keeps_a_verdict_in_the_making_from_being_pushed(bench: EngineBench) -> None:
    bench.ask("a")
    bench.hold = True
    bench.see(good_sighting())
    bench.lose_link()
    bench.prove()
    effects = bench.release()
    assert not verdicts(effects)
    assert unknowns(effects) == [bench.stored("a").ref]
    assert verdicts(bench.ask("a")) == [bench.stored("a").wrapper]


def test_a_verdict_in_the_making_is_sent_when_the_new_session_asks_again(bench: EngineBench) -> None:
    bench.ask("a")
    bench.hold = True
    bench.see(good_sighting())
    bench.lose_link()
    bench.prove()
    bench.ask("a")
    assert len(verdicts(bench.release())) == 1


def test_an_error_of_an_earlier_session_is_not_told(bench: EngineBench) -> None:
    bench.ask("a")
    bench.hold = True
    bench.cancel("a")
    bench.lose_link()
    bench.prove()
    assert errors(bench.release()) == []
    assert errors(bench.ask("a")) == [(CANCELLED, "request", A)]


# Decisions and passages


def test_without_a_turn_sensor_the_decision_completes() -> None:
    bench = EngineBench(passage_sensor=False)
    pass_one(bench, "a")
    (effect,) = bench.decide(make_decision(bench.stored("a")))
    assert isinstance(effect, RecordDecision)
    assert not effect.awaits_passage
    assert bench.wait(60_000) == []


def test_no_decision_in_five_seconds(bench: EngineBench) -> None:
    pass_one(bench, "a")
    assert unknowns(bench.wait(4_999)) == []
    assert unknowns(bench.wait(1)) == [bench.stored("a").ref]
    decision = make_decision(bench.stored("a"))
    assert RecordDecision(bench.stored("a").ref, decision[1], awaits_passage=True) in bench.decide(decision)
    assert unknowns(bench.wait(10_000)) == [bench.stored("a").ref]
    assert bench.turn(make_passage(bench.stored("a")))


def test_the_five_seconds_run_from_the_last_byte(bench: EngineBench) -> None:
    bench.port_full = True
    pass_one(bench, "a")
    assert unknowns(bench.wait(9_000)) == [], "it has not left"
    bench.engine.verdict_left(bench.stored("a").ref, bench.now_ms)
    assert unknowns(bench.wait(4_999)) == []
    assert unknowns(bench.wait(1)) == [bench.stored("a").ref]


def test_a_verdict_that_never_left_is_unknown_when_its_session_ends(bench: EngineBench) -> None:
    bench.port_full = True
    pass_one(bench, "a")
    assert unknowns(bench.lose_link()) == [bench.stored("a").ref]
    assert bench.wait(60_000) == []


def test_no_passage_in_ten_seconds(bench: EngineBench) -> None:
    pass_one(bench, "a")
    bench.decide(make_decision(bench.stored("a")))
    assert unknowns(bench.wait(9_999)) == []
    assert unknowns(bench.wait(1)) == [bench.stored("a").ref]


def test_a_decision_that_was_not_acted_upon_awaits_no_passage(bench: EngineBench) -> None:
    pass_one(bench, "a")
    bench.decide(make_decision(bench.stored("a"), actuated=False))
    assert bench.wait(60_000) == []


def test_new_requests_are_served_meanwhile(bench: EngineBench) -> None:
    pass_one(bench, "a")
    pass_one(bench, "b")
    pass_one(bench, "c")
    assert [verdict.seq for verdict in bench.verdicts] == [1, 2, 3]
    bench.decide(make_decision(bench.stored("b")))
    assert unknowns(bench.wait(5_000)) == [bench.stored("a").ref, bench.stored("c").ref]


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict_ref": "e" * 32},
        {"gate_id": "gate-8"},
        {"dbd_id": "dbd-8"},
        {"nonce_b64": "A" * 43 + "="},
        {"txn_id": txn_id_of("b")},
        {"txn_id": txn_id_of("never heard of")},
    ],
)
def test_a_wrong_decision_is_refused_once_and_kept(bench: EngineBench, changes: dict[str, str]) -> None:
    pass_one(bench, "a")
    pass_one(bench, "b")
    wrong = make_decision(bench.stored("a"), **changes)
    effects = bench.decide(wrong)
    assert isinstance(effects[0], RecordEvidence)
    assert errors(effects) == [(BAD_DECISION, "decision", None)]
    assert errors(bench.decide(wrong)) == []
    other = make_decision(bench.stored("a"), **changes, decision_seq=9)
    assert errors(bench.decide(other)) == [(BAD_DECISION, "decision", None)]
    good = make_decision(bench.stored("a"))
    assert RecordDecision(bench.stored("a").ref, good[1], awaits_passage=True) in bench.decide(good)


def test_a_wrong_passage_is_treated_like_a_wrong_decision(bench: EngineBench) -> None:
    pass_one(bench, "a")
    wrong = make_passage(bench.stored("a"), verdict_ref="e" * 32)
    assert errors(bench.turn(wrong)) == [(BAD_DECISION, "passage", None)]
    assert errors(bench.turn(wrong)) == []


def test_what_was_signed_wrongly_is_kept_and_not_answered_twice(bench: EngineBench) -> None:
    wrapper = make_decision_of_nothing()
    effects = bench.run(bench.engine.wrong_evidence("decision", wrapper))
    assert [type(effect) for effect in effects] == [RecordEvidence]


def test_a_message_that_was_signed_wrongly_is_kept_under_the_transaction_it_names(bench: EngineBench) -> None:
    for wrapper, txn_id in (
        ({"decision_obj": {"txn_id": A}}, A),
        ({"passage": {"txn_id": A}}, A),
        ({"decision_obj": {"txn_id": A[:-1]}}, None),
        ({"decision_obj": {"txn_id": 7}}, None),
        ({"decision_obj": [A]}, None),
        ({}, None),
    ):
        (effect,) = bench.engine.wrong_evidence("decision", wrapper)
        assert isinstance(effect, RecordEvidence)
        assert effect.txn_id == txn_id


def make_decision_of_nothing() -> dict[str, object]:
    return {"decision_obj": {}, "alg": "ed25519", "signer_kid": "0" * 32, "sig_b64": ""}


def test_a_decision_again_changes_nothing(bench: EngineBench) -> None:
    pass_one(bench, "a")
    decision = make_decision(bench.stored("a"))
    bench.decide(decision)
    assert bench.decide(decision) == []


def test_a_second_decision_does_not_override_the_first(bench: EngineBench) -> None:
    pass_one(bench, "a")
    bench.decide(make_decision(bench.stored("a")))
    effects = bench.decide(make_decision(bench.stored("a"), actuated=False, decision_seq=2))
    assert [type(effect) for effect in effects] == [RecordEvidence]
    bench.turn(make_passage(bench.stored("a")))
    effects = bench.turn(make_passage(bench.stored("a"), passed=False, dbd_event_seq=2))
    assert [type(effect) for effect in effects] == [RecordEvidence]


def test_answers_that_overtake_the_journal(bench: EngineBench) -> None:
    pass_one(bench, "a")
    stale = bench.memory[A]
    engine, stored = bench.engine, bench.stored("a")
    decision, passage = make_decision(stored), make_passage(stored)
    assert bench.run(engine.decision(*decision, stale, bench.now_ms))
    again = engine.decision(*decision, stale, bench.now_ms)
    assert again == [RecordDecision(stored.ref, decision[1], awaits_passage=True)]  # harmless
    other = make_decision(stored, decision_seq=2)
    assert [type(effect) for effect in engine.decision(*other, stale, bench.now_ms)] == [RecordEvidence]
    assert bench.run(engine.passage(*passage, stale))
    assert engine.passage(*passage, stale) == [RecordPassage(stored.ref, passage[1])]
    assert bench.wait(60_000) == []


def test_a_passage_before_its_decision(bench: EngineBench) -> None:
    pass_one(bench, "a")
    assert bench.turn(make_passage(bench.stored("a")))
    (effect,) = bench.decide(make_decision(bench.stored("a")))
    assert isinstance(effect, RecordDecision)
    assert not effect.awaits_passage
    assert bench.wait(60_000) == []


# Resolve


def test_after_a_handshake_it_asks_what_became_of_its_verdicts(bench: EngineBench) -> None:
    pass_one(bench, "a")
    pass_one(bench, "b")
    bench.decide(make_decision(bench.stored("a")))
    bench.lose_link()
    assert resolved(bench.prove()) == [(bench.stored("b").ref,)]
    bench.decide(make_decision(bench.stored("b"), actuated=False))
    assert resolved(bench.wait(60_000)) == []
    assert resolved(bench.prove()) == []


def test_after_a_fault_of_the_journal_it_asks_again_and_what_is_armed_stays_armed(bench: EngineBench) -> None:
    pass_one(bench, "a")
    bench.ask("b")
    assert resolved(bench.journal_back()) == [(bench.stored("a").ref,)]
    assert bench.capturing
    assert verdicts(bench.see(good_sighting()))


def test_all_of_them_are_listed_in_turn(bench: EngineBench) -> None:
    for number in range(70):
        pass_one(bench, str(number))
    bench.lose_link()
    asked = resolved(bench.prove())
    asked += resolved(bench.wait(1_000))
    assert [len(refs) for refs in asked] == [32, 32]
    asked += resolved(bench.wait(1_000))
    assert [ref for refs in asked for ref in refs] == [verdict.ref for verdict in bench.verdicts]
    assert resolved(bench.wait(60_000)) == []


def test_the_next_are_asked_about_as_soon_as_these_are_answered(bench: EngineBench) -> None:
    for number in range(40):
        pass_one(bench, str(number))
    bench.lose_link()
    (first,) = resolved(bench.prove())
    for verdict in bench.verdicts[:31]:
        assert resolved(bench.decide(make_decision(verdict))) == []
    assert resolved(bench.unknown(first[31])) == [tuple(v.ref for v in bench.verdicts[32:])]


def test_unknown_is_recorded_and_overridden_by_a_decision(bench: EngineBench) -> None:
    pass_one(bench, "a")
    ref = bench.stored("a").ref
    assert bench.unknown(ref) == [RecordDisowned((ref,))]
    assert unknowns(bench.wait(60_000)) == [ref]  # where the disk refused the other
    assert resolved(bench.prove()) == []
    decision = make_decision(bench.stored("a"))
    assert bench.decide(decision) == [RecordDecision(ref, decision[1], awaits_passage=True)]


def test_a_listing_of_an_earlier_session_is_let_go(bench: EngineBench) -> None:
    for number in range(40):
        pass_one(bench, str(number))
    bench.hold = True
    bench.prove()
    bench.lose_link()
    bench.prove()
    asked = resolved(bench.release())
    assert [len(refs) for refs in asked] == [32]
    assert asked[0][0] == bench.verdicts[0].ref


def test_a_listing_that_comes_when_the_session_is_over_asks_nothing(bench: EngineBench) -> None:
    pass_one(bench, "a")
    bench.hold = True
    bench.prove()
    bench.lose_link()
    assert resolved(bench.release()) == []


def test_a_new_session_asks_from_the_first_verdict_on(bench: EngineBench) -> None:
    for number in range(40):
        pass_one(bench, str(number))
    bench.lose_link()
    asked = resolved(bench.prove())
    bench.lose_link()
    assert resolved(bench.prove()) == asked == [tuple(v.ref for v in bench.verdicts[:32])]


def test_verdicts_of_this_session_are_not_asked_about(bench: EngineBench) -> None:
    pass_one(bench, "a")
    bench.lose_link()
    bench.prove()
    pass_one(bench, "b")
    assert resolved(bench.wait(60_000)) == []


# Guidance


def test_hints_are_few_and_those_that_hold_are_repeated(bench: EngineBench) -> None:
    sent = [(bench.now_ms, hint) for hint in hints(bench.ask("a", ttl_ms=60_000))]
    for number in range(400):
        bench.wait(10)
        hint = GuideHint.CLOSER if number % 3 else GuideHint.HOLD_STILL
        sighting = replace(poor_sighting(), hint=hint) if 50 < number < 150 else no_hand()
        sent += [(bench.now_ms, hint) for hint in hints(bench.see(sighting))]
    for at_ms, _ in sent:
        assert len([1 for other_ms, _ in sent if at_ms <= other_ms < at_ms + 1_000]) <= 5
    assert {GuideHint.SHOW_HAND, GuideHint.CLOSER} <= {hint for _, hint in sent}


def test_a_hint_that_holds_is_repeated_every_second(bench: EngineBench) -> None:
    bench.ask("a", ttl_ms=60_000)
    bench.wait(999)
    assert hints(bench.see(no_hand())) == []
    bench.wait(1)
    assert hints(bench.see(no_hand())) == [GuideHint.SHOW_HAND]


def test_who_was_judged_is_thanked_in_the_limits_of_hints(bench: EngineBench) -> None:
    bench.ask("a")
    bench.wait(200)
    assert hints(bench.see(good_sighting())) == [GuideHint.THANKS]
    bench.see(no_hand())
    bench.ask("b")
    assert GuideHint.THANKS not in hints(bench.see(good_sighting()))


def test_without_a_request_nobody_is_guided(bench: EngineBench) -> None:
    assert bench.see(replace(poor_sighting(), hint=GuideHint.CLOSER)) == []
    assert bench.see(no_hand()) == []


# Bounds and the table


def test_memory_is_bounded(bench: EngineBench) -> None:
    for number in range(2 * MAX_RECENT):
        pass_one(bench, str(number))
    full_bytes = len(pickle.dumps(bench.engine))
    for number in range(2 * MAX_RECENT, 4 * MAX_RECENT):
        pass_one(bench, str(number))
    assert len(unknowns(bench.done)) == 4 * MAX_RECENT - MAX_OPEN
    assert len(pickle.dumps(bench.engine)) < full_bytes * 1.05


def test_the_first_recent_ones_are_found_in_the_journal(bench: EngineBench) -> None:
    for number in range(2 * MAX_RECENT):
        pass_one(bench, str(number))
    assert verdicts(bench.ask("0")) == [bench.stored("0").wrapper]


def test_the_last_transactions_are_known_before_the_journal_has_them(bench: EngineBench) -> None:
    for number in range(MAX_RECENT + 1):
        pass_one(bench, str(number))
    taken = []
    for number in range(MAX_RECENT + 1):
        (effect, *_) = bench.engine.decision(*make_decision(bench.stored(str(number))), None, bench.now_ms)
        taken.append(isinstance(effect, RecordDecision))
    assert taken == [False] + [True] * MAX_RECENT


def test_a_transaction_with_news_is_known_as_long_as_a_new_one(bench: EngineBench) -> None:
    for number in range(MAX_RECENT):
        pass_one(bench, str(number))
    first = make_decision(bench.stored("0"))
    bench.decide(first)
    pass_one(bench, "one more")
    again = bench.engine.decision(*first, None, bench.now_ms)
    assert [type(effect) for effect in again] == [RecordDecision]
    forgotten = bench.engine.decision(*make_decision(bench.stored("1")), None, bench.now_ms)
    assert [type(effect) for effect in forgotten] == [RecordEvidence]


def test_no_effect_shows_a_person_in_a_log(bench: EngineBench) -> None:
    pass_one(bench, "a")
    bench.decide(make_decision(bench.stored("a")))
    bench.turn(make_passage(bench.stored("a")))
    bench.decide(make_decision(bench.stored("a"), verdict_ref="e" * 32))
    wrappers = [effect for effect in bench.done if hasattr(effect, "wrapper")]
    assert len({type(effect) for effect in wrappers}) == 4
    assert not any(word in repr(effect) for effect in wrappers for word in ("sig_b64", ALICE.subject_ref))


def test_new_settings_hold_from_the_next_attempt_on(bench: EngineBench) -> None:
    bench.engine.configure(replace(POLICY, attempts=1))
    bench.ask("a")
    assert verdicts(bench.see(good_sighting(score=0.1)))


def test_a_question_of_an_ended_session_is_not_repeated(bench: EngineBench) -> None:
    pass_one(bench, "a")
    bench.lose_link()
    assert resolved(bench.prove()) == [(bench.stored("a").ref,)]
    bench.lose_link()
    asked = [effect for effect in bench.wait(5_000) if isinstance(effect, ListOpen)]
    assert asked == []


def test_a_new_time_for_decisions_holds_from_the_next_verdict_on(bench: EngineBench) -> None:
    bench.engine.configure(replace(POLICY, decision_timeout_ms=2_000))
    pass_one(bench, "a")
    assert unknowns(bench.wait(1_999)) == []
    assert unknowns(bench.wait(1)) == [bench.stored("a").ref]


def test_the_table_leads_everywhere_and_nothing_leads_out_of_an_end() -> None:
    reached = {State.ARMED, *TRANSITIONS.values()}
    assert reached == set(State)
    final = {State.COMPLETE, State.CANCELLED, State.EXPIRED, State.FORGOTTEN}
    assert {source for source, _ in TRANSITIONS} == set(State) - final
    assert {trigger for _, trigger in TRANSITIONS} == set(Trigger)


def test_the_open_transaction_can_be_asked_for(bench: EngineBench) -> None:
    assert bench.engine.open_txn_id is None
    bench.ask("c")
    assert bench.engine.open_txn_id == C
