"""What the carrier does next, decided without a socket or a clock."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_client.errors import CloudAnswerError, CloudError, CloudProblem, CloudUnreachable
from cloud_client.retry import Backoff
from device.syncd.policy import (
    BatchSize,
    FetchDeltas,
    FetchSnapshot,
    GalleryCourse,
    Reachability,
    is_judged,
    next_cursor_of,
)
from device.values.carrier import CloudState, GalleryPosition

AT = GalleryPosition(1, 10)
FURTHER = GalleryPosition(1, 11)
AWAY = CloudUnreachable("cut")
EXPIRED = CloudProblem(410, "history_expired")


def course() -> GalleryCourse:
    return GalleryCourse(AT, Backoff(lambda: 0.0))


def test_the_first_request_does_not_wait_and_the_next_ones_do() -> None:
    plan = course()
    assert plan.next_request() == FetchDeltas(AT, 0)
    assert plan.deltas_taken(AT, 0.01) == 0
    assert plan.next_request() == FetchDeltas(AT, 55)
    assert plan.deltas_taken(FURTHER, 20.0) == 0
    assert plan.next_request() == FetchDeltas(FURTHER, 55)


def test_what_was_applied_is_acknowledged_at_once_however_quickly_it_came() -> None:
    plan = course()
    plan.deltas_taken(AT, 0.01)
    for seq in range(11, 40):
        assert plan.deltas_taken(GalleryPosition(1, seq), 0.001) == 0
        assert plan.next_request() == FetchDeltas(GalleryPosition(1, seq), 55)


def test_long_polls_that_end_at_once_with_nothing_do_not_spin() -> None:
    plan = course()
    plan.deltas_taken(AT, 0.01)
    assert [plan.deltas_taken(AT, 0.01) for _ in range(4)] == [1, 2, 4, 8]
    assert plan.deltas_taken(AT, 55.0) == 0
    assert plan.deltas_taken(AT, 0.01) == 1


def test_after_an_outage_the_first_request_only_looks_whether_the_service_is_back() -> None:
    plan = course()
    plan.deltas_taken(AT, 0.01)
    assert [plan.failed(AWAY) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert plan.next_request() == FetchDeltas(AT, 0)
    assert plan.deltas_taken(AT, 0.01) == 0
    assert plan.next_request() == FetchDeltas(AT, 55)


def test_a_wait_that_the_service_asks_for_is_kept() -> None:
    assert course().failed(CloudProblem(429, "rate_limited", retryable=True, retry_after_s=77)) == 77


def test_history_that_has_expired_is_made_good_by_a_snapshot_page_by_page() -> None:
    plan = course()
    assert plan.failed(EXPIRED) == 0
    assert plan.next_request() == FetchSnapshot(None)
    assert plan.snapshot_page_taken(AT, done=False, next_cursor="c2") == 0
    assert plan.next_request() == FetchSnapshot("c2")
    assert plan.snapshot_page_taken(GalleryPosition(1, 90), done=True, next_cursor=None) == 0
    assert plan.next_request() == FetchDeltas(GalleryPosition(1, 90), 0)


def test_a_snapshot_that_leads_nowhere_is_not_taken_in_a_circle() -> None:
    plan = course()
    delays = []
    for _ in range(4):
        delays.append(plan.failed(EXPIRED))
        plan.snapshot_page_taken(AT, done=True, next_cursor=None)
    assert delays == [0, 2, 4, 8]


def test_an_erasure_that_ends_an_open_snapshot_makes_it_begin_again() -> None:
    plan = course()
    plan.failed(EXPIRED)
    plan.snapshot_page_taken(AT, done=False, next_cursor="c2")
    assert plan.failed(CloudProblem(410, "cursor_expired")) > 0
    assert plan.next_request() == FetchSnapshot(None)


def test_an_outage_inside_a_snapshot_goes_on_with_the_same_page() -> None:
    plan = course()
    plan.failed(EXPIRED)
    plan.snapshot_page_taken(AT, done=False, next_cursor="c2")
    plan.failed(AWAY)
    assert plan.next_request() == FetchSnapshot("c2")


@pytest.mark.parametrize("code", ["gap", "bad_chain", "wrong_epoch", "state_mismatch"])
def test_pages_that_do_not_continue_what_the_core_holds_lead_to_a_snapshot(code: str) -> None:
    plan = course()
    assert plan.page_refused(code, AT) > 0
    assert plan.next_request() == FetchSnapshot(None)


@pytest.mark.parametrize(
    "code", ["bad_signature", "freeze", "rollback", "malformed", "store", "wrong_stream"]
)
def test_pages_that_a_snapshot_would_not_make_better_are_asked_for_again_later(code: str) -> None:
    plan = course()
    assert [plan.page_refused(code, AT) for _ in range(3)] == [1, 2, 4]
    assert plan.next_request() == FetchDeltas(AT, 0)


def test_a_page_refused_because_the_core_has_moved_on_needs_no_snapshot() -> None:
    plan = course()
    plan.page_refused("gap", FURTHER)
    assert plan.next_request() == FetchDeltas(FURTHER, 0)


_EVENTS = st.one_of(
    st.tuples(st.just("taken"), st.integers(10, 14)),
    st.tuples(st.just("page"), st.booleans(), st.sampled_from([None, "c"])),
    st.tuples(st.just("refused"), st.sampled_from(["gap", "freeze", "bad_chain"]), st.integers(10, 14)),
    st.tuples(
        st.just("failed"),
        st.sampled_from(
            [AWAY, EXPIRED, CloudProblem(410, "cursor_expired"), CloudProblem(401, "unauthenticated")]
        ),
    ),
)


@given(st.lists(_EVENTS, max_size=60))
def test_no_course_of_events_makes_a_busy_loop_or_an_acknowledgement_ahead_of_the_core(
    events: list[tuple[object, ...]],
) -> None:
    plan = course()
    said = AT
    idle_in_a_row = 0
    for event in events:
        snapshot = isinstance(plan.next_request(), FetchSnapshot)
        before = said
        if event[0] == "taken" and not snapshot:
            said = GalleryPosition(1, event[1])  # type: ignore[arg-type]
            delay = plan.deltas_taken(said, 0.01)
        elif event[0] == "page" and snapshot:
            delay = plan.snapshot_page_taken(said, done=bool(event[1]), next_cursor=event[2])  # type: ignore[arg-type]
        elif event[0] == "refused":
            said = GalleryPosition(1, event[2])  # type: ignore[arg-type]
            delay = plan.page_refused(str(event[1]), said)
        elif event[0] == "failed":
            error = event[1]
            assert isinstance(error, CloudError)
            delay = plan.failed(error)
        else:
            continue
        progress = said != before or (snapshot and event[0] == "page")
        idle_in_a_row = 0 if delay > 0 or progress else idle_in_a_row + 1
        assert idle_in_a_row <= 2
        request = plan.next_request()
        if isinstance(request, FetchDeltas):
            assert request.position == said


def test_only_a_valid_cursor_is_followed() -> None:
    assert next_cursor_of(json.dumps({"next_cursor": "abc_=-"}).encode()) == "abc_=-"
    for body in (
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"next_cursor":null}',
        b'{"next_cursor":"a b"}',
        b'{"next_cursor":7}',
    ):
        assert next_cursor_of(body) is None


@pytest.mark.parametrize(
    ("error", "judged"),
    [
        (AWAY, False),
        (CloudAnswerError("html"), False),
        (CloudProblem(403, ""), False),
        (CloudProblem(413, ""), False),
        (CloudProblem(401, "unauthenticated"), False),
        (CloudProblem(409, "idempotency_in_progress", retryable=True), False),
        (CloudProblem(429, "rate_limited"), False),
        (CloudProblem(500, "internal_error"), False),
        (CloudProblem(503, "service_unavailable"), False),
        (CloudProblem(404, "route_not_found"), False),
        (CloudProblem(415, "unsupported_media_type"), False),
        (CloudProblem(428, "idempotency_key_required"), False),
        (CloudProblem(403, "enrollment_session_invalid"), True),
        (CloudProblem(409, "enrollment_session_state_conflict"), True),
        (CloudProblem(422, "validation_failed"), True),
        (CloudProblem(422, "model_unsupported"), True),
        (CloudProblem(413, "payload_too_large"), True),
        (CloudProblem(400, "malformed_json"), True),
    ],
)
def test_only_a_judgement_of_the_service_on_the_content_ends_an_upload(
    error: CloudError, judged: bool
) -> None:
    assert is_judged(error) is judged


def test_the_one_item_that_spoils_a_batch_is_found_by_halving() -> None:
    size, sizes = BatchSize(100), []
    while True:
        sizes.append(size.size)
        if size.refused(size.size):
            break
    assert sizes == [100, 50, 25, 12, 6, 3, 1]
    for expected in (2, 4, 8, 16, 32, 64, 100, 100):
        size.taken()
        assert size.size == expected


def test_a_service_whose_answers_are_refused_is_reachable_and_says_why() -> None:
    picture = Reachability()
    picture.answered()
    assert picture.refused("gallery", "bad_signature") == CloudState(True, "online, but bad_signature")
    both = CloudState(True, "online, but bad_signature; malformed")
    assert picture.refused("keys", "malformed") == both
    assert picture.answered() is None
    assert picture.taken("gallery") == CloudState(True, "online, but malformed")
    assert picture.taken("keys") == CloudState(True, "online")
    assert picture.taken("keys") is None


def test_the_picture_of_the_service_changes_only_when_it_changes() -> None:
    picture = Reachability()
    assert not picture.state.online
    assert picture.answered() == CloudState(online=True, detail="online")
    assert picture.answered() is None
    assert picture.failed(CloudProblem(404, "route_not_found")) is None
    down = picture.failed(CloudProblem(500, "internal_error", request_id="a"))
    assert down == CloudState(online=False, detail="the service answers 500 internal_error")
    assert picture.failed(CloudProblem(500, "internal_error", request_id="b")) is None
    away = picture.failed(AWAY)
    assert away is not None and not away.online
    refused = picture.failed(CloudProblem(401, "unauthenticated"))
    assert refused is not None and refused.online and "revoked" in refused.detail
