import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device.enrolment.consent import REQUIRED, Asked, TermsFolder, shipped_terms_dir
from device.enrolment.desk import EnrolmentDesk
from device.enrolment.effects import (
    CaptureHint,
    Effect,
    EnrolmentAccepted,
    EnrolmentFailed,
    RedeemCode,
    Step,
    Upload,
    capture_shown,
)
from device.enrolment.flow import BOTH_HANDS, HAND_LIMIT_MS, EnrolmentFlow
from device.enrolment.outbox import LONGEST_WAIT_MS, EnrolmentAnswer, EnrolmentOutbox
from device.enrolment.session import EnrolmentSession, parse_qr, write_enrolment
from device.errors import EnrolmentRefused
from device.values.recognition import EnrolmentLook, HandName, PalmCapture
from device.values.status import EnrolmentShown
from link1.objects import GuideHint, Pad
from models.thresholds import Thresholds
from tests.device.core_makers import HandClock
from tests.device.state_scan import found_in_memory

THRESHOLDS = Thresholds("t1", accept_q=5000, margin_q=500, quality_q=40, pad_q=3000, enrol_quality_q=60)
SESSION_ID = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
TOKEN = "tok_" + "A" * 28
CODE = f"SVC1:ENR:{SESSION_ID}:{TOKEN}"
LIVE = Pad("pass", "texture", 9000)
TICK_MS = 66


def direction(seed: int) -> npt.NDArray[np.float32]:
    vector = np.random.default_rng(seed).standard_normal(512)
    unit: npt.NDArray[np.float32] = (vector / np.linalg.norm(vector)).astype(np.float32)
    return unit


HANDS: dict[HandName, npt.NDArray[np.float32]] = {"L": direction(1), "R": direction(2)}


def prompt(
    step: Step,
    hand: HandName | None = None,
    hint: GuideHint | CaptureHint | None = None,
    captured: int = 0,
    hands: tuple[HandName, ...] = BOTH_HANDS,
) -> EnrolmentShown:
    return capture_shown(step, hand, hint, captured, hands)


class Bench:
    """Plays frames to a flow at 15 a second and gathers what it does."""

    def __init__(self, flow: EnrolmentFlow | None = None) -> None:
        self.flow = flow or EnrolmentFlow("model-1", lambda: THRESHOLDS, agree_cosine=0.5)
        self.now_ms = 10_000
        self.seed = 100
        self.effects: list[Effect] = []
        self.captures: list[PalmCapture] = []

    def capture(
        self,
        hand: HandName,
        *,
        quality_q: int = 80,
        pad: Pad = LIVE,
        of: npt.NDArray[np.float32] | None = None,
    ) -> PalmCapture:
        """A noisy view of a hand: cosines among them are about 0.9."""
        self.seed += 1
        vector = (HANDS[hand] if of is None else of) + 0.3 * direction(self.seed)
        vector /= np.linalg.norm(vector)
        made = PalmCapture(hand, vector.astype(np.float32), quality_q, pad, self.now_ms)
        self.captures.append(made)
        return made

    def add(self, effects: list[Effect]) -> list[Effect]:
        self.effects += effects
        return effects

    def begin(self) -> list[Effect]:
        return self.add(self.flow.qr_seen(CODE, self.now_ms))

    def show(self, hand: HandName, frames: int = 12, *, quality_q: int = 80, pad: Pad = LIVE) -> list[Effect]:
        effects: list[Effect] = []
        for _ in range(frames):
            self.now_ms += TICK_MS
            capture = self.capture(hand, quality_q=quality_q, pad=pad)
            effects += self.flow.look(EnrolmentLook(True, hand, None, capture), self.now_ms)
        return self.add(effects)

    def nothing(self, frames: int = 8) -> list[Effect]:
        effects: list[Effect] = []
        for _ in range(frames):
            self.now_ms += TICK_MS
            effects += self.flow.look(EnrolmentLook(False), self.now_ms)
        return self.add(effects)

    def wait(self, ms: int) -> list[Effect]:
        self.now_ms += ms
        return self.add(self.flow.tick(self.now_ms))

    def uploads(self) -> list[Upload]:
        return [effect for effect in self.effects if isinstance(effect, Upload)]

    def both_hands(self) -> Upload:
        self.begin()
        self.show("L")
        self.nothing()
        self.show("R")
        return self.uploads()[-1]


def read(upload: Upload) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(upload.body)
    return body


def hands_in(upload: Upload) -> list[str]:
    return [item["hand"] for item in read(upload)["hands"]]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_code_begins_and_both_palms_are_uploaded(bench: Bench) -> None:
    assert bench.begin() == [prompt(Step.SHOW_HAND, "L")]
    assert bench.flow.busy
    left = bench.show("L")
    assert prompt(Step.REMOVE_HAND, "L", None, 3) in left
    assert bench.nothing() == [prompt(Step.SHOW_HAND, "R")]
    right = bench.show("R")
    upload = right[-1]
    assert isinstance(upload, Upload)
    assert prompt(Step.SENDING, None, None, 3) in right
    assert (read(upload)["token"], read(upload)["model_id"]) == (TOKEN, "model-1")
    assert read(upload)["consents"] == []
    assert hands_in(upload) == ["L"] * 3 + ["R"] * 3
    for item in read(upload)["hands"]:
        vector = np.frombuffer(base64.b64decode(item["vector_b64"]), "<f4")
        assert vector.shape == (512,)
        assert float(np.linalg.norm(vector)) == pytest.approx(1.0, abs=1e-3)
        assert float(vector @ HANDS[item["hand"]]) > 0.9
        assert (item["quality_q"], item["pad"]) == (80, LIVE.to_obj())


def test_the_answer_of_the_service_ends_it_and_vectors_are_overwritten(bench: Bench) -> None:
    upload = bench.both_hands()
    assert any(capture.vector.any() for capture in bench.captures)
    body = b'{"session_id":"x","subject_ref":"' + b"ab" * 16 + b'"}'
    assert bench.flow.answered(upload.upload_id, EnrolmentAnswer(201, body=body), bench.now_ms) == [
        EnrolmentAccepted(SESSION_ID, review=False)
    ]
    assert not any(capture.vector.any() for capture in bench.captures)
    assert bench.flow.next_deadline_ms is None


def test_the_camera_is_free_before_and_after(bench: Bench) -> None:
    busy = [bench.flow.busy]
    bench.both_hands()
    busy.append(bench.flow.busy)
    assert busy == [False, False]


def test_under_review_is_said_so(bench: Bench) -> None:
    upload = bench.both_hands()
    assert bench.flow.answered(upload.upload_id, EnrolmentAnswer(202, body=b"no json"), bench.now_ms) == [
        EnrolmentAccepted(SESSION_ID, review=True)
    ]


def test_the_code_seen_again_changes_nothing_during_and_after(bench: Bench) -> None:
    bench.begin()
    assert bench.flow.qr_seen(CODE, bench.now_ms) == []
    other = CODE.replace("1b4e28ba", "2b4e28ba")
    assert bench.flow.qr_seen(other, bench.now_ms) == []
    bench = Bench()
    upload = bench.both_hands()
    bench.flow.answered(upload.upload_id, EnrolmentAnswer(201), bench.now_ms)
    assert bench.flow.qr_seen(CODE, bench.now_ms) == []
    assert bench.flow.qr_seen(other, bench.now_ms) != []


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "https://example.org",
        CODE.replace("SVC1", "SVC2"),
        CODE.replace("SVC1", "XYZ1"),
        CODE.lower(),
        CODE + "\n",
        CODE + ":more",
        CODE.replace(SESSION_ID, "not-a-uuid"),
        f"SVC1:ENR:{SESSION_ID}:",
        f"SVC1:ENR:{SESSION_ID}:" + "A" * 300,
    ],
)
def test_other_codes_are_no_sessions(payload: str) -> None:
    assert parse_qr(payload) is None


def test_the_letters_before_a_code_are_the_service_s() -> None:
    code = CODE.replace("SVC1", "PALM1")
    assert parse_qr(code, "PALM") == EnrolmentSession(SESSION_ID, TOKEN)
    flow = EnrolmentFlow("m", lambda: THRESHOLDS, agree_cosine=0.5, qr_prefix="PALM")
    assert flow.qr_seen(CODE, 0) == []
    assert flow.qr_seen(code, 0) != []


def test_a_secret_token_stands_in_no_repr(bench: Bench) -> None:
    upload = bench.both_hands()
    assert TOKEN not in repr(upload)
    assert TOKEN not in repr(parse_qr(CODE))
    assert TOKEN not in repr(bench.effects)


def test_the_wrong_hand_is_told_and_never_taken(bench: Bench) -> None:
    bench.begin()
    effects = bench.show("R", 20)
    assert prompt(Step.SHOW_HAND, "L", CaptureHint.OTHER_HAND) in effects
    assert not any(capture.vector.any() for capture in bench.captures)


def test_the_same_hand_called_the_other_one_is_not_taken(bench: Bench) -> None:
    bench.begin()
    bench.show("L")
    bench.nothing()
    for _ in range(10):
        bench.now_ms += TICK_MS
        same = bench.capture("R", of=HANDS["L"])
        bench.add(bench.flow.look(EnrolmentLook(True, "R", None, same), bench.now_ms))
    assert prompt(Step.SHOW_HAND, "R", CaptureHint.OTHER_HAND) in bench.effects
    assert bench.uploads() == []


def test_the_first_hand_must_leave_before_the_second_counts(bench: Bench) -> None:
    bench.begin()
    bench.show("L")
    assert bench.show("R", 20) == []
    assert bench.nothing() == [prompt(Step.SHOW_HAND, "R")]


def test_captures_that_are_not_known_to_be_live_are_not_taken(bench: Bench) -> None:
    bench.begin()
    for pad in (Pad("unknown", "texture", 0), Pad("fail", "texture", 100), Pad("pass", "texture", 2999)):
        bench.show("L", 10, pad=pad)
    assert not any(capture.vector.any() for capture in bench.captures)


def test_the_best_captures_are_kept(bench: Bench) -> None:
    bench.begin()
    for quality_q in (61, 66, 71, 90, 95, 99, 98):
        bench.show("L", 2, quality_q=quality_q)
    bench.nothing()
    bench.show("R")
    qualities = [item["quality_q"] for item in read(bench.uploads()[0])["hands"][:3]]
    assert min(qualities) > 61


def test_one_capture_that_contradicts_the_others_is_left_out_and_they_are_kept() -> None:
    bench = Bench(EnrolmentFlow("m", lambda: THRESHOLDS, agree_cosine=0.5, qr_hands=("L",)))
    bench.begin()
    failed = bench.capture("L", quality_q=99, of=direction(77))
    bench.add(bench.flow.look(EnrolmentLook(True, "L", None, failed), bench.now_ms))
    bench.show("L", 1)
    prompts = bench.show("L", 11)
    assert hands_in(bench.uploads()[0]) == ["L", "L", "L"]
    assert all(item["quality_q"] == 80 for item in read(bench.uploads()[0])["hands"])
    assert not failed.vector.any()
    assert prompt(Step.SENDING, None, None, 3, ("L",)) in prompts


def test_two_captures_that_contradict_each_other_ask_for_more() -> None:
    bench = Bench(EnrolmentFlow("m", lambda: THRESHOLDS, agree_cosine=0.5, qr_hands=("L",)))
    bench.begin()
    for of, quality_q in ((HANDS["L"], 80), (direction(77), 70)) * 2:
        bench.now_ms += 5 * TICK_MS
        capture = bench.capture("L", of=of, quality_q=quality_q)
        bench.add(bench.flow.look(EnrolmentLook(True, "L", None, capture), bench.now_ms))
    assert prompt(Step.SHOW_HAND, "L", GuideHint.HOLD_STILL, 2, ("L",)) in bench.effects
    assert bench.nothing()[-1] == prompt(Step.SHOW_HAND, "L", None, 0, ("L",))
    assert bench.uploads() == []
    assert not any(capture.vector.any() for capture in bench.captures)


def test_what_was_not_chosen_is_overwritten_as_soon_as_the_hand_is_done(bench: Bench) -> None:
    bench.begin()
    bench.show("L")
    assert sum(capture.vector.any() for capture in bench.captures) == 3


def test_two_captures_will_do_when_the_hand_leaves() -> None:
    bench = Bench(EnrolmentFlow("m", lambda: THRESHOLDS, agree_cosine=0.5, qr_hands=("R",)))
    bench.begin()
    bench.show("R", 4)
    effects = bench.nothing()
    assert isinstance(effects[-1], Upload)
    assert hands_in(effects[-1]) == ["R", "R"]


def test_one_capture_will_not_do_and_is_forgotten_when_the_hand_leaves(bench: Bench) -> None:
    bench.begin()
    bench.nothing()
    bench.show("L", 1)
    assert bench.nothing()[-1] == prompt(Step.SHOW_HAND, "L", None, 0)
    assert not any(capture.vector.any() for capture in bench.captures)


def test_a_frame_repeated_is_one_capture(bench: Bench) -> None:
    bench.begin()
    once = bench.capture("L").vector.copy()
    for _ in range(30):
        bench.now_ms += TICK_MS
        capture = PalmCapture("L", once.copy(), 80, LIVE, bench.now_ms)
        bench.add(bench.flow.look(EnrolmentLook(True, "L", None, capture), bench.now_ms))
    assert all(
        effect.capture.captured <= 1
        for effect in bench.effects
        if isinstance(effect, EnrolmentShown) and effect.capture
    )


def test_captures_that_contradict_each_other_begin_anew() -> None:
    bench = Bench(EnrolmentFlow("m", lambda: THRESHOLDS, agree_cosine=0.5, qr_hands=("L",)))
    bench.begin()
    bench.show("L", 3)
    other = direction(77)
    for _ in range(12):
        bench.now_ms += TICK_MS
        capture = bench.capture("L", of=other)
        bench.add(bench.flow.look(EnrolmentLook(True, "L", None, capture), bench.now_ms))
    upload = bench.uploads()[0]
    for item in read(upload)["hands"]:
        assert float(np.frombuffer(base64.b64decode(item["vector_b64"]), "<f4") @ other) > 0.9


def test_hints_of_the_finder_reach_the_person_and_do_not_flicker(bench: Bench) -> None:
    bench.begin()
    prompts: list[Effect] = []
    for i in range(30):
        bench.now_ms += TICK_MS
        hint = GuideHint.CLOSER if i % 2 else GuideHint.HOLD_STILL
        prompts += bench.flow.look(EnrolmentLook(True, None, hint), bench.now_ms)
    assert 1 <= len(prompts) <= 30 * TICK_MS // 300 + 1


def test_a_hand_that_gives_nothing_in_a_minute_has_one_more(bench: Bench) -> None:
    bench.begin()
    bench.show("L", 3)
    assert bench.wait(bench.flow.next_deadline_ms - bench.now_ms - 1) == []  # type: ignore[operator]
    assert bench.wait(1) == [prompt(Step.SHOW_HAND, "L", CaptureHint.TRY_AGAIN, 0)]
    assert not any(capture.vector.any() for capture in bench.captures)
    bench.show("L")
    bench.nothing()
    bench.show("R")
    assert hands_in(bench.uploads()[-1]) == ["L"] * 3 + ["R"] * 3


def test_the_second_minute_without_a_capture_ends_the_session(bench: Bench) -> None:
    bench.begin()
    bench.wait(60_000)
    assert bench.wait(59_999) == []
    report, failed = bench.wait(1)
    assert isinstance(report, Upload)
    assert read(report) == {"token": TOKEN, "failed": "capture_rejected"}
    assert failed == EnrolmentFailed(SESSION_ID, "capture_rejected")
    assert bench.flow.next_deadline_ms is None
    assert bench.flow.answered(report.upload_id, EnrolmentAnswer(200), bench.now_ms) == []
    assert bench.begin() == []


def test_two_captures_are_enough_when_the_hand_stays_and_gives_no_third(bench: Bench) -> None:
    bench.begin()
    bench.show("L", 3)
    deadline_ms = bench.flow.next_deadline_ms
    assert deadline_ms is not None
    spoof = Pad("fail", "texture", 100)
    bench.show("L", (deadline_ms - bench.now_ms) // TICK_MS, pad=spoof)
    assert bench.wait(deadline_ms - bench.now_ms) == [prompt(Step.REMOVE_HAND, "L", None, 2)]
    bench.nothing()
    bench.show("R")
    assert hands_in(bench.uploads()[-1]) == ["L"] * 2 + ["R"] * 3


def test_each_hand_has_its_minute(bench: Bench) -> None:
    bench.begin()
    bench.wait(50_000)
    bench.show("L")
    bench.nothing()
    assert bench.wait(55_000) == []
    bench.wait(6_000)
    assert bench.effects[-1] == prompt(Step.SHOW_HAND, "L", CaptureHint.TRY_AGAIN, 0)


def test_a_hand_taken_late_in_its_minute_has_time_to_leave(bench: Bench) -> None:
    bench.begin()
    bench.wait(58_000)
    assert prompt(Step.REMOVE_HAND, "L", None, 3) in bench.show("L")
    assert bench.wait(5_000) == []
    assert bench.nothing() == [prompt(Step.SHOW_HAND, "R")]
    bench.show("R")
    assert hands_in(bench.uploads()[-1]) == ["L"] * 3 + ["R"] * 3


def test_hands_are_those_the_redeemed_session_asks_for(bench: Bench) -> None:
    bench.add(bench.flow.begin(EnrolmentSession(SESSION_ID, TOKEN, ("R",)), bench.now_ms))
    assert bench.effects == [prompt(Step.SHOW_HAND, "R", hands=("R",))]
    bench.show("R")
    upload = bench.uploads()[0]
    assert hands_in(upload) == ["R"] * 3
    # The session said which hands it wants: a refusal is no riddle to be tried at.
    assert bench.flow.answered(upload.upload_id, EnrolmentAnswer(422, "validation_failed"), bench.now_ms) == [
        EnrolmentFailed(SESSION_ID, "validation_failed")
    ]


def test_a_code_whose_session_wants_one_hand_is_answered_with_that_hand(bench: Bench) -> None:
    upload = bench.both_hands()
    refused = EnrolmentAnswer(422, "validation_failed")
    (second,) = bench.flow.answered(upload.upload_id, refused, bench.now_ms)
    assert isinstance(second, Upload)
    assert hands_in(second) == ["L"] * 3
    assert (
        bench.flow.answered(upload.upload_id, EnrolmentAnswer(201), bench.now_ms) == []
    )  # an answer to the first again
    (third,) = bench.flow.answered(second.upload_id, refused, bench.now_ms)
    assert isinstance(third, Upload)
    assert hands_in(third) == ["R"] * 3
    assert bench.flow.answered(third.upload_id, refused, bench.now_ms) == [
        EnrolmentFailed(SESSION_ID, "validation_failed")
    ]
    assert not any(capture.vector.any() for capture in bench.captures)


def test_a_refusal_is_final_and_in_the_service_s_word(bench: Bench) -> None:
    upload = bench.both_hands()
    answer = EnrolmentAnswer(403, "enrollment_session_invalid")
    assert bench.flow.answered(upload.upload_id, answer, bench.now_ms) == [
        EnrolmentFailed(SESSION_ID, "enrollment_session_invalid")
    ]


def test_an_upload_that_is_never_answered_ends(bench: Bench) -> None:
    bench.both_hands()
    deadline_ms = bench.flow.next_deadline_ms
    assert deadline_ms is not None
    assert bench.wait(deadline_ms - bench.now_ms) == [EnrolmentFailed(SESSION_ID, "not_sent")]
    assert not any(capture.vector.any() for capture in bench.captures)


def test_a_cancelled_session_can_be_shown_again(bench: Bench) -> None:
    bench.begin()
    bench.show("L", 3)
    assert bench.flow.cancel(bench.now_ms) == [EnrolmentFailed(SESSION_ID, "cancelled")]
    assert not any(capture.vector.any() for capture in bench.captures)
    assert bench.flow.cancel(bench.now_ms) == []
    for _ in range(3):
        bench.now_ms += 2_000
        assert bench.begin() == []  # still held there, and nobody wants it
    bench.now_ms += 3_000
    assert bench.begin() == [prompt(Step.SHOW_HAND, "L")]


def test_looks_without_a_session_are_overwritten(bench: Bench) -> None:
    assert bench.show("L", 2) == []
    assert not any(capture.vector.any() for capture in bench.captures)


TERMS = TermsFolder(shipped_terms_dir(), "v1")
REDEEMED = {
    "session_id": SESSION_ID,
    "token": TOKEN,
    "hands_required": ["R"],
    "dataset_collection": True,
    "terms_version": "v1",
    "expires_at_ms": 1,
}


def screen(**more: Any) -> Bench:
    return Bench(EnrolmentFlow("model-1", lambda: THRESHOLDS, agree_cosine=0.5, terms=TERMS, **more))


def redeem(bench: Bench, **changed: Any) -> list[Effect]:
    asked = bench.flow.code_typed("4f7k-9qrt", bench.now_ms)[-1]
    assert isinstance(asked, RedeemCode)
    answer = EnrolmentAnswer(200, body=json.dumps(REDEEMED | changed).encode())
    return bench.add(bench.flow.redeem_answered(asked.request_id, answer, bench.now_ms))


def test_a_typed_code_is_exchanged_and_its_terms_are_asked_first() -> None:
    bench = screen()
    checking, asked = bench.flow.code_typed(" 4f7k 9qrl ", bench.now_ms)
    assert checking == capture_shown(Step.CHECKING_CODE)
    assert isinstance(asked, RedeemCode) and asked.short_code == "4F7K-9QR1"
    assert "4F7K" not in repr(asked)
    bench.flow.cancel(bench.now_ms)
    (shown,) = redeem(bench)
    assert isinstance(shown, EnrolmentShown) and shown.step == Step.CONSENT
    assert shown.consent is not None
    assert (shown.consent.terms_version, shown.consent.optional) == ("v1", ("dataset_collection",))
    assert not bench.flow.busy
    accepted = bench.flow.accept("v1", ["identification", "enrollment"], 1_760_000_000_000, bench.now_ms)
    assert bench.add(accepted) == [prompt(Step.SHOW_HAND, "R", hands=("R",))]
    bench.show("R")
    body = read(bench.uploads()[0])
    assert body["consents"] == [
        {
            "purpose": purpose,
            "terms_version": "v1",
            "method": "device_screen",
            "accepted_at_ms": 1_760_000_000_000,
        }
        for purpose in ("enrollment", "identification")
    ]


def test_without_consent_no_frame_is_captured() -> None:
    bench = screen()
    bench.begin()
    assert bench.show("L", 30) == []
    assert bench.uploads() == []
    assert not any(capture.vector.any() for capture in bench.captures)


def test_terms_nobody_answers_are_put_away_and_the_code_can_be_shown_again() -> None:
    bench = screen()
    bench.begin()
    assert bench.wait(180_000) == [EnrolmentFailed(SESSION_ID, "no_answer")]
    bench.now_ms += 3_000
    assert isinstance(bench.begin()[0], EnrolmentShown)


def test_terms_that_cannot_be_shown_are_not_asked() -> None:
    bench = screen()
    assert redeem(bench, terms_version="v404") == [EnrolmentFailed(SESSION_ID, "terms_unknown")]
    assert bench.flow.idle


def test_after_a_refusal_the_same_code_typed_again_begins_the_session_again(bench: Bench) -> None:
    """The operator has recorded the consent meanwhile; the session is still open."""
    shown = redeem(bench, hands_required=["L"])
    bench.show("L")
    (refused,) = bench.uploads()
    bench.flow.answered(refused.upload_id, EnrolmentAnswer(422, "consent_required"), bench.now_ms)
    assert bench.begin() == [], "its QR code, still in view, does not"
    assert redeem(bench, hands_required=["L"]) == shown
    bench.show("L")
    sent = bench.uploads()[-1]
    bench.flow.answered(sent.upload_id, EnrolmentAnswer(201), bench.now_ms)
    assert redeem(bench) == [EnrolmentFailed(SESSION_ID, "enrollment_session_invalid")], "it is over"
    assert bench.flow.idle


def test_a_session_whose_palms_were_not_sent_can_be_shown_again(bench: Bench) -> None:
    bench.both_hands()
    deadline_ms = bench.flow.next_deadline_ms
    assert deadline_ms is not None
    bench.wait(deadline_ms - bench.now_ms)
    bench.now_ms += 3_000
    assert bench.begin() == [prompt(Step.SHOW_HAND, "L")]


def test_a_service_that_does_not_answer_a_code_is_given_up() -> None:
    bench = screen()
    asked = bench.flow.code_typed("4F7K9QRT", bench.now_ms)[-1]
    assert isinstance(asked, RedeemCode)
    assert bench.wait(19_999) == []
    assert bench.wait(1) == [EnrolmentFailed("", "unreachable")]
    late = EnrolmentAnswer(200, body=json.dumps(REDEEMED).encode())
    assert bench.flow.redeem_answered(asked.request_id, late, bench.now_ms) == []


@pytest.mark.parametrize("text", ["", "4F7K", "4F7K-9QRU", "4F7K-9QRT-1", "4F7K_9QRT", "４F7K-9QRT"])
def test_other_texts_are_no_codes(text: str) -> None:
    with pytest.raises(EnrolmentRefused, match="8 letters"):
        screen().flow.code_typed(text, 0)


@pytest.mark.parametrize(
    "changed",
    [
        {"hands_required": []},
        {"hands_required": ["L", "L"]},
        {"hands_required": ["X"]},
        {"token": "a b"},
        {"session_id": "1"},
        {"terms_version": "../v1"},
        {"dataset_collection": 1},
    ],
)
def test_an_answer_that_cannot_be_read_begins_nothing(changed: dict[str, Any]) -> None:
    assert redeem(screen(), **changed) == [EnrolmentFailed("", "unreadable_answer")]


TERMS_TEXT = "Termo\n\nQuem trata\nA operadora.\n\nPor quanto tempo\nUm ano.\n"


@pytest.mark.parametrize(
    "data",
    [
        TERMS_TEXT.encode(),
        TERMS_TEXT.replace("\n", "\r\n").encode(),
        TERMS_TEXT.encode("utf-8-sig"),
        TERMS_TEXT.replace("\n\n", "\n  \n").encode(),
    ],
    ids=["plain", "windows", "byte order mark", "spaces in empty lines"],
)
def test_terms_are_read_however_an_editor_ends_its_lines(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "v2.pt-BR.txt").write_bytes(data)
    shown = TermsFolder(tmp_path, "v2").read("v2", "pt-BR")
    assert shown is not None
    assert shown.title == "Termo"
    assert shown.paragraphs == ("Quem trata\nA operadora.", "Por quanto tempo\nUm ano.")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("Termo\n\nRescisão\n".encode("latin-1"), "can't decode byte 0xe3"),
        (b"Termo\n", "expected a title and a paragraph"),
        (b"x" * 40_000, "expected at most 32,768 bytes"),
    ],
)
def test_the_log_says_why_a_file_of_terms_cannot_be_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes, reason: str
) -> None:
    (tmp_path / "v2.pt-BR.txt").write_bytes(data)
    (tmp_path / "v2.en.txt").write_bytes(TERMS_TEXT.encode())
    shown = TermsFolder(tmp_path, "v2").read("v2", "pt-BR")
    assert shown is not None
    assert shown.language == "en"
    assert f"terms in {tmp_path / 'v2.pt-BR.txt'} cannot be shown: " in caplog.text
    assert reason in caplog.text


def test_both_languages_of_the_terms_are_there_and_another_falls_back() -> None:
    read_in = {language: TERMS.read("v1", language) for language in ("pt-BR", "en", "fr", "../en")}
    languages = {asked: text.language for asked, text in read_in.items() if text is not None}
    assert languages == {"pt-BR": "pt-BR", "en": "en", "fr": "pt-BR", "../en": "pt-BR"}
    assert not TERMS.has("v2")
    assert not TERMS.has("../terms/v1")


@given(st.integers(0, 2**32 - 1))
def test_the_body_is_the_json_it_would_be_otherwise(seed: int) -> None:
    captures = [
        PalmCapture("L", direction(seed), 80, LIVE, 0),
        PalmCapture("R", direction(seed + 1), 7, LIVE, 1),
    ]
    body = json.loads(write_enrolment(TOKEN, "m", captures, Asked("v1").accepted("v1", REQUIRED, 5)))
    assert [item["vector_b64"] for item in body["hands"]] == [
        base64.b64encode(capture.vector.astype("<f4").tobytes()).decode() for capture in captures
    ]
    assert [(item["hand"], item["quality_q"]) for item in body["hands"]] == [("L", 80), ("R", 7)]
    assert (body["token"], body["model_id"], len(body["consents"])) == (TOKEN, "m", 2)


WRITER = """
import sys
import numpy as np
from device.enrolment.session import write_enrolment
from device.values.recognition import PalmCapture
from link1.objects import Pad

captures = []
for seed in range(3):
    vector = np.random.default_rng(seed).standard_normal(512).astype(np.float32)
    captures.append(PalmCapture("L", vector, 90, Pad("pass", "x", 9000), 0))
body = write_enrolment("t" * 20, "model-1", captures, [])
body[:] = bytes(len(body))
for capture in captures:
    capture.vector.fill(0.0)
print(flush=True)
sys.stdin.read()
"""


def test_no_part_of_a_vector_stays_in_memory_after_its_body_is_overwritten() -> None:
    needles: dict[str, bytes] = {}
    for seed in range(3):
        raw = np.random.default_rng(seed).standard_normal(512).astype("<f4").tobytes() + bytes(1)
        first, second, third = np.frombuffer(raw, np.uint8).reshape(683, 3).T
        parts = {
            "first": first,
            "second": second,
            "third": third,
            "first of four": first >> 2,
            "second, high": (first & 3) << 4,
            "second, low": second >> 4,
            "third, high": (second & 15) << 2,
            "third, low": third >> 6,
            "fourth": third & 63,
        }
        # What is freed has its first bytes overwritten with the allocator's own.
        needles |= {f"{seed} {name}": part[24:224].tobytes() for name, part in parts.items()}
        needles |= {
            f"{seed} {name}, wide": part[24:224].astype(np.intp).tobytes() for name, part in parts.items()
        }
        needles[f"{seed} raw"] = raw[32:1024]
    command = [sys.executable, "-c", WRITER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        counts = found_in_memory(process.pid, list(needles.values()))
        process.stdin.close()
    assert [name for name, count in zip(needles, counts, strict=True) if count] == []


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["look", "look", "look", "away", "code", "tick", "answer", "cancel"]),
        st.sampled_from(["L", "R"]),
        st.integers(0, 4),
        st.integers(1, 900),
    ),
    max_size=80,
)
PADS = [LIVE, LIVE, LIVE, Pad("unknown", "none", 0), Pad("fail", "none", 0)]
ANSWERS = [EnrolmentAnswer(201), EnrolmentAnswer(422, "validation_failed"), EnrolmentAnswer(403, "forbidden")]


def happen(bench: Bench, kind: str, hand: HandName, variant: int) -> list[Effect]:
    flow, now_ms = bench.flow, bench.now_ms
    match kind:
        case "look":
            return flow.look(EnrolmentLook(True, hand, None, bench.capture(hand, pad=PADS[variant])), now_ms)
        case "away":
            return flow.look(EnrolmentLook(False), now_ms)
        case "code":
            return flow.qr_seen(CODE.replace("1b4e28ba", f"{variant}b4e28ba"), now_ms)
        case "tick":
            return flow.tick(now_ms)
        case "answer":
            last = bench.uploads()[-1:]
            return [
                e for upload in last for e in flow.answered(upload.upload_id, ANSWERS[variant % 3], now_ms)
            ]
        case _:
            return flow.cancel(now_ms)


@settings(max_examples=150)
@given(EVENTS)
def test_whatever_happens_nothing_is_uploaded_that_was_not_captured_well(
    events: list[tuple[str, HandName, int, int]],
) -> None:
    bench = Bench()
    for kind, hand, variant, wait_ms in [("code", "L", 0, 1), *events]:
        bench.now_ms += wait_ms
        bench.add(happen(bench, kind, hand, variant))
    for upload in bench.uploads():
        if "failed" in read(upload):
            continue
        hands = hands_in(upload)
        assert all(2 <= hands.count(hand) <= 3 for hand in set(hands))
        for item in read(upload)["hands"]:
            vector = np.frombuffer(base64.b64decode(item["vector_b64"]), "<f4")
            assert float(vector @ HANDS[item["hand"]]) > 0.9
            assert item["pad"] == LIVE.to_obj()
    # Vectors live only in a session in progress.
    bench.flow.cancel(bench.now_ms)
    assert not any(capture.vector.any() for capture in bench.captures)


def test_thresholds_in_force_are_asked_for_each_time() -> None:
    current = [THRESHOLDS]
    bench = Bench(EnrolmentFlow("m", lambda: current[0], agree_cosine=0.5))
    bench.begin()
    current[0] = replace(THRESHOLDS, pad_q=9500)
    bench.show("L", 12)
    assert not any(capture.vector.any() for capture in bench.captures)


def test_a_code_that_was_cancelled_is_overwritten_and_keeps_no_other_waiting() -> None:
    """Typed wrong, cancelled and typed again, more often than codes may wait."""
    clock = HandClock()
    redeems = EnrolmentOutbox(wake=lambda: None)
    desk = EnrolmentDesk(
        screen().flow, EnrolmentOutbox(wake=lambda: None), redeems, clock, lambda: None, unready=lambda: ""
    )
    for digit in range(5):
        desk.code_typed(f"4F7K-9QR{digit}")
        waiting = redeems.next(clock.monotonic_ms())
        assert waiting is not None
        assert json.loads(waiting.body) == {"short_code": f"4F7K-9QR{digit}"}
        desk.cancel()
        assert not any(waiting.body)
        assert redeems.next(clock.monotonic_ms()) is None


def desk_of(flow: EnrolmentFlow, clock: HandClock, unready: Callable[[], str] = lambda: "") -> EnrolmentDesk:
    """The desk of a device whose service never answers."""
    uploads, redeems = (EnrolmentOutbox(wake=lambda: None) for _ in range(2))
    return EnrolmentDesk(flow, uploads, redeems, clock, lambda: None, unready)


@pytest.mark.parametrize(("why", "code"), [("", "capture_rejected"), ("the camera is away", "not_ready")])
def test_a_camera_that_fails_in_the_middle_does_not_end_the_session(why: str, code: str) -> None:
    """What the camera did not show is not reported as palms that could not be read."""
    clock, reasons = HandClock(), [""]
    desk = desk_of(Bench().flow, clock, lambda: reasons[-1])
    desk.code_seen(CODE)
    reasons.append(why)
    for _ in range(2):
        clock.now_ms += HAND_LIMIT_MS
        desk.tick()
    assert desk.shown == EnrolmentShown("failed", code)
    assert (desk.enrolments.next(clock.now_ms) is None) is (code == "not_ready")


def test_palms_offered_late_are_overwritten_when_their_session_is_given_up() -> None:
    """A code does not name its hands: after a refusal they are offered again, in what is left of its time."""
    bench, clock = Bench(), HandClock()
    desk = desk_of(bench.flow, clock)
    desk.code_seen(CODE)
    frames: list[HandName | None] = [*BOTH_HANDS[:1] * 12, *[None] * 8, *BOTH_HANDS[1:] * 12]
    for hand in frames:
        clock.now_ms = bench.now_ms = clock.now_ms + TICK_MS
        desk.look(EnrolmentLook(hand is not None, hand, None, None if hand is None else bench.capture(hand)))
    first = desk.enrolments.next(clock.now_ms)
    assert first is not None
    clock.now_ms += LONGEST_WAIT_MS - 1_000
    desk.enrolments.answered(first.ticket, EnrolmentAnswer(422, "validation_failed"))
    second = desk.enrolments.next(clock.now_ms)
    assert second is not None
    assert any(second.body)
    clock.now_ms += 1_000
    desk.tick()
    assert desk.shown == EnrolmentShown("failed", "not_sent")
    assert not any(second.body)
    assert desk.enrolments.next(clock.now_ms) is None


async def test_who_waits_for_the_screen_hears_at_once_that_the_device_is_not_ready() -> None:
    desk = desk_of(Bench().flow, HandClock())
    desk.code_seen(CODE)
    seq, _ = await desk.shown_after(0, 0)
    asyncio.get_running_loop().call_soon(desk.health_changed)
    async with asyncio.timeout(10):
        _, shown = await desk.shown_after(seq, 600)
    assert shown.step == "show_hand"
