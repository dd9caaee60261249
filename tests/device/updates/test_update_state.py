"""Where updates stand: every way in which the state changes, without a disk."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device.errors import TrustError, UpdateRefused
from device.updates.manifest import (
    Manifest,
    Offer,
    check_app_version,
    read_chunk,
    read_manifest,
    version_numbers,
)
from device.updates.state import (
    SHIPPED,
    GalleryFacts,
    ModelSlot,
    UpdateState,
    app_settled,
    app_switched,
    app_verified,
    ended_on_purpose,
    given_up,
    model_for,
    model_tested,
    offered,
    proved,
    returned,
    rolled_back,
    starting,
    withdrawn,
)
from link1.canonical import JsonObject
from link1.errors import FormatError
from link1.keys import SigningKey
from link1.sealed import SignerPurpose
from tests.device.updates.update_setting import SIGNER, manifest, now_ms, release, signed

OLD, NEW = "palm-1", "palm-2"
PAYLOAD = bytes(200)


def waiting(model_id: str = NEW) -> UpdateState:
    """Release 7, a model, waits; the shipped model is in force and right for epoch 1."""
    state = offered(UpdateState(home_epoch=1), manifest(PAYLOAD, 7))
    return model_tested(state, manifest(PAYLOAD, 7), model_id)


@pytest.mark.parametrize(
    ("facts", "model"),
    [
        (GalleryFacts(1, OLD), SHIPPED),
        (GalleryFacts(2, OLD), SHIPPED),  # a rebuild with the old model
        (GalleryFacts(2, NEW), 7),
        (GalleryFacts(1, NEW), 7),
        (GalleryFacts(1, None), SHIPPED),  # empty, and still the old model's epoch
        (GalleryFacts(2, None), 7),
        (GalleryFacts(2, "palm-3"), SHIPPED),  # nobody has that one
        (None, 7),
    ],
)
def test_the_model_follows_the_gallery(facts: GalleryFacts | None, model: int) -> None:
    assert model_for(waiting(), facts, OLD, 0) == model


def test_a_model_of_the_same_id_needs_no_epoch() -> None:
    assert model_for(waiting(OLD), GalleryFacts(1, OLD), OLD, 0) == 7
    assert model_for(waiting(OLD), GalleryFacts(1, None), OLD, 0) == 7


def test_a_new_epoch_with_the_old_model_brings_the_old_model_back() -> None:
    state = proved(starting(waiting(), GalleryFacts(2, NEW), OLD, 0))
    assert (state.model, state.previous, state.home_epoch) == (7, SHIPPED, 2)
    assert model_for(state, GalleryFacts(3, OLD), OLD, 0) == SHIPPED
    assert model_for(state, GalleryFacts(3, None), OLD, 0) == 7


def test_an_empty_gallery_belongs_to_the_model_that_has_served_its_epoch() -> None:
    served = starting(waiting(), GalleryFacts(2, OLD), OLD, 0)
    assert served.home_epoch == 2
    assert model_for(served, GalleryFacts(2, None), OLD, 0) == SHIPPED
    assert model_for(served, GalleryFacts(3, None), OLD, 0) == 7
    assert starting(waiting(), GalleryFacts(2, None), OLD, 0).home_epoch == 2  # by the switch
    for facts in (GalleryFacts(3, "palm-3"), None):
        assert starting(waiting(), facts, OLD, 0).home_epoch == 1


def test_the_way_back_of_one_that_follows_a_trial_is_the_one_before_both() -> None:
    facts = GalleryFacts(1, OLD)
    on_trial = starting(waiting(OLD), facts, OLD, 0)
    eight = manifest(PAYLOAD, 8)
    both = model_tested(offered(ended_on_purpose(on_trial), eight), eight, OLD)
    state = starting(both, facts, OLD, 0)
    assert state.trial is not None
    assert (state.model, state.previous, state.trial.back_to) == (8, SHIPPED, SHIPPED)
    # The gallery of the model before comes back: that one needs no trial, and the one on trial is kept.
    state = starting(starting(waiting(), GalleryFacts(2, NEW), OLD, 0), GalleryFacts(3, OLD), OLD, 0)
    assert (state.model, state.previous, state.trial) == (SHIPPED, 7, None)


def test_one_that_waits_for_an_offer_is_not_taken_for_its_gallery_either() -> None:
    held_back = replace(waiting(), by_network=(7,))
    assert model_for(held_back, GalleryFacts(2, NEW), OLD, 0) == SHIPPED
    other = replace(held_back, slots=(ModelSlot(5, "1", NEW), *held_back.slots))
    assert model_for(other, GalleryFacts(2, NEW), OLD, 0) == 5


def test_one_that_dies_on_trial_gives_way_at_the_next_start() -> None:
    facts = GalleryFacts(1, OLD)
    state = starting(waiting(OLD), facts, OLD, 0)
    assert state.trial is not None
    assert state.model == 7
    state = starting(state, facts, OLD, 0)
    assert (state.model, state.trial, state.slots) == (SHIPPED, None, ())
    assert state.failed is not None
    assert (state.failed.release_seq, state.failed.code) == (7, "died_on_trial")
    assert starting(state, facts, OLD, 0).model == SHIPPED


def test_power_cuts_alone_do_not_take_away_the_one_model_that_can_serve() -> None:
    facts = GalleryFacts(2, NEW)
    state = waiting()
    for _ in range(3):
        state = starting(state, facts, OLD, 0)
        assert state.model == 7
    assert starting(state, facts, OLD, 0).model == SHIPPED


def test_an_end_on_purpose_counts_for_nothing() -> None:
    facts = GalleryFacts(1, OLD)
    state = waiting(OLD)
    for _ in range(5):
        state = ended_on_purpose(starting(state, facts, OLD, 0))
        assert state.model == 7
    died_once = starting(starting(waiting(), GalleryFacts(2, NEW), OLD, 0), GalleryFacts(2, NEW), OLD, 0)
    ended = ended_on_purpose(died_once).trial
    assert ended is not None
    assert ended.starts == 1


def test_release_seq_never_falls_and_one_seq_is_one_release() -> None:
    state = offered(UpdateState(), manifest(PAYLOAD, 7))
    assert offered(state, manifest(PAYLOAD, 7)) is state
    with pytest.raises(UpdateRefused, match="older") as refused:
        offered(state, manifest(PAYLOAD, 6))
    assert refused.value.code == "release_rollback"
    with pytest.raises(UpdateRefused) as refused:
        offered(state, manifest(b"other", 7))
    assert refused.value.code == "release_conflict"
    failed = given_up(state, "bad_hash")
    assert offered(failed, manifest(PAYLOAD, 7)).receiving is None
    assert offered(failed, manifest(PAYLOAD, 8)).receiving is not None


def test_the_way_back_only_where_it_serves() -> None:
    state = proved(starting(waiting(), GalleryFacts(2, NEW), OLD, 0))
    with pytest.raises(UpdateRefused) as refused:
        rolled_back(state, GalleryFacts(2, NEW), OLD)
    assert refused.value.code == "other_epoch"
    assert rolled_back(state, GalleryFacts(2, None), OLD).model == SHIPPED
    state = proved(starting(waiting(OLD), GalleryFacts(1, OLD), OLD, 0))
    back = rolled_back(state, GalleryFacts(1, OLD), OLD)
    assert (
        starting(back, GalleryFacts(1, OLD), OLD, 0).model == back.model == SHIPPED
    )  # the next start keeps it
    with pytest.raises(UpdateRefused) as refused:
        rolled_back(UpdateState(), None, OLD)
    assert refused.value.code == "nothing_before"


def software(release_seq: int) -> Manifest:
    return manifest(PAYLOAD, release_seq, kind="app", name="palm-access-device")


def test_the_newest_withdrawn_release_of_each_kind_is_reported() -> None:
    state = withdrawn(offered(UpdateState(), manifest(PAYLOAD, 7)), 7)
    state = withdrawn(offered(state, software(8)), 8)
    state = withdrawn(offered(state, manifest(PAYLOAD, 9)), 9)
    assert {note.kind: note.release_seq for note in state.withdrawn} == {"app": 8, "model": 9}
    taken = offered(state, software(8))  # again
    assert [note.release_seq for note in taken.withdrawn] == [9]


def test_software_that_is_whole_ends_a_failure_of_software_alone_and_needs_its_offer_until_it_runs() -> None:
    for failed, kept in ((software(7), None), (manifest(PAYLOAD, 7), 7)):
        state = given_up(offered(UpdateState(), failed), "bad_hash")
        state = app_verified(offered(state, software(8), by_network=True), software(8))
        assert state.app is not None
        assert (state.receiving, state.app.release_seq, state.by_network) == (None, 8, (8,))
        assert (withdrawn(state, 8).app, withdrawn(app_switched(state), 8).app) == (None, state.app)
        assert (None if state.failed is None else state.failed.release_seq) == kept
        assert app_settled(state, "").installed is not None
        assert app_settled(state, "").by_network == ()
        assert app_settled(app_settled(state, "no_start"), "").failed is not None  # settled once


def test_the_first_release_of_a_kind_may_be_number_one() -> None:
    for first in (manifest(PAYLOAD, 1), software(1)):
        assert offered(UpdateState(), first).receiving is first
    assert model_tested(UpdateState(), manifest(PAYLOAD, 1), OLD).waiting != SHIPPED


def test_a_release_that_another_follows_while_it_is_received_is_reported_as_withdrawn() -> None:
    newer = software(8)
    state = offered(offered(UpdateState(), manifest(PAYLOAD, 7)), newer)
    assert state.receiving == newer
    assert [note.release_seq for note in state.withdrawn] == [7]


def test_what_is_over_needs_no_offer_and_what_is_in_force_is_not_withdrawn() -> None:
    over = given_up(offered(UpdateState(), manifest(PAYLOAD, 7), by_network=True), "bad_hash")
    assert over.by_network == ()
    in_force = proved(starting(waiting(OLD), GalleryFacts(1, OLD), OLD, 0))
    assert withdrawn(in_force, 7) == in_force


def test_an_offer_holds_for_a_day() -> None:
    state = replace(waiting(), by_network=(7,), offer=Offer(1_000, (7,)))
    assert state.may_switch(7, 1_000 + 86_400_000)
    assert not state.may_switch(7, 1_001 + 86_400_000)
    assert not replace(state, offer=Offer(1_000, (8,))).may_switch(7, 1_000)


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from(["offer", "test", "start", "prove", "return", "give_up", "epoch"]), max_size=25)
)
def test_whatever_happens_the_state_reads_back_and_names_a_model_that_is_there(steps: list[str]) -> None:
    state, facts, seq = UpdateState(home_epoch=1), GalleryFacts(1, OLD), 0
    for step in steps:
        highest = state.release_seq
        match step:
            case "offer":
                seq += 1
                state = offered(state, manifest(PAYLOAD, seq))
            case "test" if state.receiving is not None:
                state = model_tested(state, state.receiving, NEW if seq % 2 else OLD)
            case "start":
                state = starting(state, facts, OLD, 0)
            case "prove":
                state = proved(state)
            case "return":
                state = returned(state, "unhealthy")
            case "give_up":
                state = given_up(state, "bad_hash")
            case "epoch":
                facts = GalleryFacts(facts.epoch + 1, NEW if facts.epoch % 2 else None)
        assert state.release_seq >= highest
        assert state.model == SHIPPED or state.slot(state.model) is not None
        assert state.waiting is None or state.slot(state.waiting) is not None
        assert len(state.slots) <= 8
        assert UpdateState.from_obj(state.to_obj()) == state


@pytest.mark.parametrize(
    "changed",
    [
        {"size": 0},
        {"size": 1 << 40},
        {"chunk_size": 256 * 1024 + 1, "chunk_count": 1},
        {"chunk_size": 1 << 20},
        {"chunk_count": 3},
        {"kind": "firmware"},
        {"sha256": "0"},
        {"release_seq": 0},
        {"v": 2},
        {"version": ""},
    ],
)
def test_a_manifest_outside_the_contract_or_its_caps_is_refused(changed: JsonObject) -> None:
    with pytest.raises(UpdateRefused):
        manifest(PAYLOAD, 7, **changed)


@pytest.mark.parametrize(
    "wrong",
    [
        {"root": SigningKey.generate()},
        {"not_after_ms": 1},
        {"purpose": SignerPurpose.POST},
    ],
)
def test_a_manifest_that_no_root_vouches_for_is_refused(wrong: dict[str, Any]) -> None:
    from tests.device.updates.update_setting import ROOT

    with pytest.raises(TrustError):
        read_manifest(signed(release(PAYLOAD, 7), **wrong), roots=[ROOT.public], now_ms=now_ms())
    changed = signed(release(PAYLOAD, 7))
    changed["manifest_obj"]["release_seq"] = 8
    with pytest.raises(TrustError):
        read_manifest(changed, roots=[ROOT.public], now_ms=now_ms())
    assert SIGNER.public != ROOT.public


def test_versions_compare_as_numbers() -> None:
    assert version_numbers("1.10.0") == (1, 10, 0)
    assert version_numbers("1.x") is None
    check_app_version(manifest(PAYLOAD, 7, min_app_version="0.9"), "0.10.0")
    for wanted in ("0.10.1", "1", "next"):
        with pytest.raises(UpdateRefused) as refused:
            check_app_version(manifest(PAYLOAD, 7, min_app_version=wanted), "0.10.0")
        assert refused.value.code == "app_too_old"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"release_seq": 7, "index": -1, "data_b64": "AAAA"},
        {"release_seq": 7, "index": 0, "data_b64": "AAA"},
        {"release_seq": True, "index": 0, "data_b64": "AAAA"},
        {"release_seq": 7, "index": 1 << 20, "data_b64": "AAAA"},
    ],
)
def test_a_chunk_outside_the_contract_is_malformed(body: JsonObject) -> None:
    with pytest.raises(FormatError):
        read_chunk(body)


def test_slots_are_kept_for_the_present_model_and_the_one_before_only() -> None:
    state = replace(
        UpdateState(app_seq=4, model_seq=9),
        slots=(ModelSlot(3, "1", OLD), ModelSlot(5, "2", OLD), ModelSlot(8, "3", NEW)),
        model=5,
        previous=3,
        waiting=8,
    )
    state = model_tested(replace(state, receiving=manifest(PAYLOAD, 9)), manifest(PAYLOAD, 9), NEW)
    assert [slot.release_seq for slot in state.slots] == [3, 5, 9]
