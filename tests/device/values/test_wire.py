"""What crosses the sockets: the members of each object."""

import pytest

from device.values.carrier import BatchAnswered, BatchAsked, ErrandOffered, HelloAnswer
from device.values.control import Rehearsed, ScreenAnswer, TrialPassage, VerdictSent
from device.values.status import (
    CaptureShown,
    ConsentShown,
    CoreStatus,
    EnrolmentShown,
    FailedRelease,
    HealthNote,
    LatencyStatus,
    ModelOnDisk,
    ModelStatus,
    ReceivingStatus,
    RefusedMail,
    UpdatesInForce,
    UpdatesStatus,
    VerdictSummary,
    WipeStatus,
)
from link1.canonical import JsonObject, canonical_bytes, read_strict
from link1.errors import FormatError
from link1.objects import Pad
from link1.wire import WireObject
from tests.device.status_makers import some_status

UPDATES = UpdatesStatus(
    usable=True,
    software="0.2.0-1",
    state=UpdatesInForce(
        release_seq=4,
        receiving=ReceivingStatus(5, "model", "palm", "1.0", chunks=1, chunk_count=9, size=100),
        app_waiting=None,
        model=ModelStatus("m-1", 3, on_trial=False, waiting=None, previous=ModelOnDisk(0, "shipped", None)),
        failed=FailedRelease(2, "app", "0.1.9", "unhealthy"),
    ),
)
UPDATES_OBJ: JsonObject = {
    "usable": True,
    "software": "0.2.0-1",
    "release_seq": 4,
    "receiving": {
        "release_seq": 5, "kind": "model", "name": "palm", "version": "1.0", "chunks": 1, "chunk_count": 9,
        "size": 100,
    },
    "app_waiting": None,
    "model": {
        "model_id": "m-1", "release_seq": 3, "on_trial": False, "waiting": None,
        "previous": {"release_seq": 0, "version": "shipped", "model_id": None},
    },
    "failed": {"release_seq": 2, "kind": "app", "version": "0.1.9", "code": "unhealthy"},
}  # fmt: skip
PAD = Pad("pass", "texture", 9_000)
MESSAGES: list[tuple[WireObject, JsonObject]] = [
    (UPDATES, UPDATES_OBJ),
    (
        UpdatesStatus(usable=False, software="0.2.0", fault="damaged"),
        {"usable": False, "software": "0.2.0", "fault": "damaged"},
    ),
    (LatencyStatus(0), {"count": 0}),
    (
        LatencyStatus(2, 100, 200, {"hand": 50}),
        {"count": 2, "p50_us": 100, "p99_us": 200, "stages_us": {"hand": 50}},
    ),
    (EnrolmentShown("idle"), {"step": "idle"}),
    (EnrolmentShown("failed", "not_sent"), {"step": "failed", "code": "not_sent"}),
    (
        EnrolmentShown("consent", consent=ConsentShown(("L", "R"), "v1", ("research",))),
        {"step": "consent", "hands": ["L", "R"], "terms_version": "v1", "optional": ["research"]},
    ),
    (
        EnrolmentShown("show_hand", capture=CaptureShown(("L",), "L", None, 1, 3)),
        {"step": "show_hand", "hands": ["L"], "hand": "L", "hint": None, "captured": 1, "wanted": 3},
    ),
    (
        ScreenAnswer(3, EnrolmentShown("done"), online=True, unready=""),
        {"seq": 3, "state": {"step": "done"}, "online": True, "unready": ""},
    ),
    (
        TrialPassage(
            False, "accept", "MATCH", 8_000, 80, PAD, 1, 90_000, (("hand", 7),),
            verdict=VerdictSent(9, "a" * 32),
        ),
        {
            "rehearsal": False, "decision": "accept", "result": "MATCH", "score_q": 8_000, "quality_q": 80,
            "pad": {"res": "pass", "mech": "texture", "score_q": 9_000}, "attempts": 1, "total_us": 90_000,
            "stages_us": [["hand", 7]], "verdict_seq": 9, "verdict_ref": "a" * 32,
        },
    ),
    (
        TrialPassage(
            True, "reject", "NO_MATCH", -20, 80, PAD, 3, 0, (),
            rehearsed=Rehearsed(-20, 10_000, None, None, ("center",), "thr-1"),
        ),
        {
            "rehearsal": True, "decision": "reject", "result": "NO_MATCH", "score_q": -20, "quality_q": 80,
            "pad": {"res": "pass", "mech": "texture", "score_q": 9_000}, "attempts": 3, "total_us": 0,
            "stages_us": [], "best_score_q": -20, "margin_q": 10_000, "subject_ref": None, "hand": None,
            "hints": ["center"], "thr_id": "thr-1",
        },
    ),
    (
        HelloAnswer(None, "w-1"),
        {"gallery": None, "wipe_id": "w-1"},
    ),
    (ErrandOffered(0), {"ticket": 0}),
    (ErrandOffered(1, "enrol-1"), {"ticket": 1, "idempotency_key": "enrol-1"}),
]  # fmt: skip


@pytest.mark.parametrize(("message", "obj"), MESSAGES)
def test_the_members_on_the_wire(message: WireObject, obj: JsonObject) -> None:
    """Programs of an earlier version write and read these."""
    assert message.to_obj() == obj
    assert type(message).from_obj(read_strict(canonical_bytes(obj), max_bytes=10_000)) == message


def test_the_members_of_a_status() -> None:
    summary = VerdictSummary(4, "b" * 32, "reject", "NO_MATCH", 80, 100, PAD, 3)
    status = some_status(
        health=(HealthNote("OFFLINE", "away"),), last_verdict=summary, updates=UPDATES, txn_id="c" * 32
    )
    obj = status.to_obj()
    assert obj.keys() == {
        "device_id", "gate_id", "dbd_id", "app", "serving", "health", "camera", "cable", "gallery", "cloud",
        "mail", "updates", "model_id", "thr_id", "txn_id", "last_verdict", "verdict_seq", "uploads_waiting",
        "enrolment", "latency", "verdict_key", "service_time_ms", "counters", "memory",
    }  # fmt: skip
    assert obj["health"] == [{"word": "OFFLINE", "detail": "away"}]
    assert obj["counters"] == {"evidence.bad_signature": 0, "evidence.beyond_limit": 0}
    assert obj["mail"] == {"in_applied_seq": 0, "out_seq": 0, "out_acked_seq": 0, "refused": None}
    assert obj["updates"] == UPDATES_OBJ
    assert CoreStatus.from_obj(read_strict(canonical_bytes(obj), max_bytes=10_000)) == status


def test_the_members_of_a_wiped_device_s_status() -> None:
    wiped = some_status(
        service_time_ms=None, counters=None, memory=None, wipe=WipeStatus("erased", "w-1", {"box": "out"})
    )
    obj = wiped.to_obj()
    assert obj["wipe"] == {"stage": "erased", "wipe_id": "w-1", "record": {"box": "out"}}
    assert obj.keys().isdisjoint({"service_time_ms", "counters", "memory"})
    assert CoreStatus.from_obj(obj) == wiped


def test_mail_that_has_stopped() -> None:
    refused = RefusedMail(7, "bad_signature")
    assert refused.to_obj() == {"seq": 7, "code": "bad_signature"}


@pytest.mark.parametrize("wait_ms", [-1, 60_001])
def test_no_question_waits_longer_than_a_minute(wait_ms: int) -> None:
    with pytest.raises(FormatError, match="wait_ms"):
        BatchAsked.from_obj({"wait_ms": wait_ms, "limit": 10})


def test_a_batch_is_never_answered_without_the_service() -> None:
    with pytest.raises(FormatError, match="status"):
        BatchAnswered.from_obj({"ticket": 1, "status": 0, "code": "unreachable"})
