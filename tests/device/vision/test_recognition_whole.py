"""From generated films to outcomes, with the shipped model; and a folder of files as a live camera."""

import asyncio
import base64
import itertools
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from device.camera.source import open_camera
from device.enrolment.effects import Upload
from device.enrolment.flow import EnrolmentFlow
from device.enrolment.session import EnrolmentSession
from device.passage.decision import Attempt, Outcome
from device.values.recognition import HandName
from device.vision.capture import CameraState, CaptureThread, FrameSlot
from device.vision.inference import InferenceThread, RecognitionFault
from device.vision.recognition import Interest, Look, Recogniser
from gallery.codes import SIGN_BYTES, Coder
from gallery.index import Index, Match
from gallery.records import Position
from gallery.seal import Template
from link1.objects import VerdictResult
from models.embedding import Embedder
from models.frames import CameraFrame
from models.manifest import ModelManifest, load_manifest, open_embedder, shipped_model_dir
from models.synthesis.person import make_person
from models.synthesis.scene import empty_scene, passage, poor_capture, show_qr
from models.thresholds import Thresholds
from tests.models.simulated_attacks import fill_the_view
from tools.rig.virtual_camera import VirtualCamera

Pixels = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]

ENROLLED = (101, 109)
STRANGER = 205
FRAME_MS = 66


class Templates:
    """The match set of a gallery, without its store."""

    def __init__(self) -> None:
        self.rows: list[Template] = []
        self._index = Index(Coder(bytes(SIGN_BYTES)))

    def add(self, subject_ref: str, hand: str, vector: Vectors) -> None:
        code = self._index.coder.encode(vector[np.newaxis])[0].tobytes()
        template = Template(bytes(16), bytes.fromhex(subject_ref), hand, "m", None, False, code)
        self._index = self._index.with_templates([(len(self.rows), template)])
        self.rows.append(template)

    def search(self, probes: Vectors) -> Match:
        here = Position("s", 1, 9, bytes(32))
        return self._index.search(probes, lambda numbers: [self.rows[n] for n in numbers.tolist()], here)


class Gate:
    """One device's way from frames to outcomes, without threads."""

    def __init__(self, manifest: ModelManifest, embedder: Embedder) -> None:
        wanted = manifest.thresholds
        self.thresholds = Thresholds(
            wanted.thr_id,
            wanted.accept_q,
            wanted.margin_q,
            wanted.quality_q,
            wanted.pad_q,
            wanted.enrol_quality_q,
        )
        self.model_id = manifest.model_id
        self.templates = Templates()
        self.agree_cosine = manifest.agree_q / 10_000
        self.recogniser = Recogniser(
            embedder, lambda: self.templates, lambda: self.thresholds, agree_cosine=self.agree_cosine
        )
        self.now_ms = 0
        self._numbers = itertools.count(1)

    def looks(self, film: Iterable[Pixels], interest: Interest, *, then_empty: bool = True) -> Iterator[Look]:
        for pixels in itertools.chain(film, empty_scene(3, 6) if then_empty else ()):
            self.now_ms += FRAME_MS
            look = self.recogniser.look(CameraFrame(pixels, self.now_ms, next(self._numbers)), interest)
            if look is not None:
                yield look

    def enrol(self, seed: int) -> None:
        flow = EnrolmentFlow(self.model_id, lambda: self.thresholds, agree_cosine=self.agree_cosine)
        hands: tuple[HandName, ...] = ("L", "R")
        effects = flow.begin(EnrolmentSession(f"session {seed}", "token", hands), self.now_ms)
        for hand in hands:
            film = passage(
                make_person(seed), hand, seed=seed + ord(hand), frames_in=2, frames_held=14, frames_out=2
            )
            for look in self.looks(film, Interest.ENROLMENT):
                effects += flow.look(look.for_enrolment(), self.now_ms)
        (upload,) = (effect for effect in effects if isinstance(effect, Upload))
        for item in json.loads(upload.body)["hands"]:
            vector = np.frombuffer(base64.b64decode(item["vector_b64"]), "<f4")
            self.templates.add(ref(seed), item["hand"], vector)

    def passes(self, film: Iterable[Pixels]) -> Outcome:
        attempt, outcome = Attempt(self.thresholds, attempts=3), None
        for look in self.looks(film, Interest.PASSAGE):
            if outcome is None and look.sighting.hand_present:
                outcome = attempt.add(look.sighting)
        return outcome or attempt.conclude()


def ref(seed: int) -> str:
    return f"{seed:032x}"


@pytest.fixture(scope="module")
def manifest() -> ModelManifest:
    return load_manifest(shipped_model_dir())


@pytest.fixture(scope="module")
def gate(manifest: ModelManifest) -> Gate:
    made = Gate(manifest, open_embedder(manifest))
    for seed in ENROLLED:
        made.enrol(seed)
    return made


@pytest.mark.parametrize(("seed", "hand"), [(101, "L"), (101, "R"), (109, "R")])
def test_an_enrolled_palm_is_accepted_as_its_own(gate: Gate, seed: int, hand: HandName) -> None:
    outcome = gate.passes(passage(make_person(seed), hand, seed=seed * 31))
    assert outcome.result is VerdictResult.MATCH
    assert (outcome.subject_ref, outcome.hand) == (ref(seed), hand)
    assert outcome.pad.res == "pass"
    assert outcome.sighting is not None
    assert list(outcome.sighting.stage_ms) == ["hand", "crop", "quality", "vector", "match", "liveness"]


def test_a_stranger_scores_below_somebody_enrolled(gate: Gate) -> None:
    stranger = gate.passes(passage(make_person(STRANGER), "L", seed=7))
    known = gate.passes(passage(make_person(ENROLLED[1]), "L", seed=17))
    assert stranger.score_q < known.score_q


def test_a_poor_capture_is_nobody(gate: Gate) -> None:
    outcome = gate.passes(poor_capture(make_person(ENROLLED[0]), "L", seed=5))
    assert outcome.result is VerdictResult.POOR_CAPTURE
    assert outcome.subject_ref is None


def held_still(seed: int, n: int) -> list[Pixels]:
    """A left hand; those of all people are in the same place before the same ground."""
    return list(passage(make_person(seed), "L", 5, frames_in=0, frames_held=n, frames_out=0, scene_seed=5))


@pytest.mark.parametrize("before", [Interest.PASSAGE, Interest.PREVIEW, Interest.ENROLMENT])
def test_a_picture_of_an_enrolled_palm_gains_nothing_from_a_live_hand_before_it(
    gate: Gate, before: Interest
) -> None:
    picture = list(fill_the_view(held_still(ENROLLED[0], 3), 5, coloured=False))
    assert gate.passes(picture).result is VerdictResult.SPOOF
    for _ in gate.looks(held_still(STRANGER, 2), before, then_empty=False):
        pass
    assert gate.passes(picture).result is VerdictResult.SPOOF


def test_a_picture_is_not_enrolled_on_the_evidence_of_a_live_hand_before_it(gate: Gate) -> None:
    live, picture = held_still(STRANGER, 5), fill_the_view(held_still(ENROLLED[0], 3), 5, coloured=False)
    captures = [look.capture for look in gate.looks([*live, *picture], Interest.ENROLMENT) if look.capture]
    assert [capture.pad.res for capture in captures] == ["unknown", *["pass"] * 4, *["fail"] * 3]


class Diary:
    """Listens at the loop until a hand has come, was captured well, and has left, and a code was read."""

    def __init__(self) -> None:
        self.good = 0
        self.left = asyncio.Event()
        self.code = asyncio.Event()
        self.faults: list[RecognitionFault] = []
        self._there = False

    def on_look(self, look: Look) -> None:
        self.good += look.sighting.good
        if self._there and self.good and not look.sighting.hand_present:
            self.left.set()
        self._there = look.sighting.hand_present

    def on_code(self, payload: str) -> None:
        if payload == "SVC1:ENR:shown":
            self.code.set()

    def on_fault(self, fault: RecognitionFault) -> None:
        self.faults.append(fault)


def test_both_pictures_of_a_module_reach_the_liveness_check(manifest: ModelManifest) -> None:
    """A passage in colour beside near infrared; then the same beside what a screen shows there."""
    colour, infrared = (
        list(passage(make_person(101), "R", seed=2, look=look, scene_seed=9, frames_in=3, frames_held=5))
        for look in ("rgb", "nir")
    )
    for dark, res in ((False, "pass"), (True, "fail")):
        gate = Gate(manifest, open_embedder(manifest))
        for i in range(2):
            gate.templates.add(ref(i), "R", np.eye(512, dtype=np.float32)[i])
        pads = []
        for k, (seen, nir) in enumerate(zip(colour[:8], infrared, strict=False)):
            beside = cv2.cvtColor(nir // 20 if dark else nir, cv2.COLOR_GRAY2BGR)
            frame = CameraFrame.from_pixels(
                np.hstack([seen, beside]), at_ms=FRAME_MS * k, number=k, nir="right"
            )
            look = gate.recogniser.look(frame, Interest.PASSAGE)
            if look is not None and look.sighting.pad is not None:
                pads.append(look.sighting.pad)
        assert pads[-1].res == res
        assert "+nir" in pads[-1].mech


async def test_a_folder_fed_with_scenes_is_a_live_camera(manifest: ModelManifest, tmp_path: Path) -> None:
    """Files, capture thread, slot, inference thread and loop as in the daemon, on the real clock."""

    def now_ms() -> int:
        return time.monotonic_ns() // 1_000_000

    # Slow enough for a busy machine to see three pictures of a hand that is held for three seconds.
    virtual = VirtualCamera(tmp_path, list(empty_scene(3, 2)), fps=8)
    slot, diary, states = FrameSlot(), Diary(), list[CameraState]()
    gate = Gate(manifest, open_embedder(manifest))
    for i in range(2):
        gate.templates.add(ref(i), "R", np.eye(512, dtype=np.float32)[i])
    capture = CaptureThread(
        lambda: open_camera(virtual.source, virtual.fps), slot, now_ms=now_ms, on_state=states.append
    )
    inference = InferenceThread(slot, gate.recogniser, asyncio.get_running_loop(), diary, now_ms=now_ms)
    inference.set_interest(Interest.PASSAGE, codes=True)
    inference.start()
    capture.start()
    try:
        async with asyncio.timeout(30):
            virtual.queue(show_qr("SVC1:ENR:shown", seed=1, n=12))
            await diary.code.wait()
            virtual.queue(passage(make_person(101), "R", seed=2, frames_held=24))
            await diary.left.wait()
    finally:
        assert await asyncio.to_thread(capture.stop)
        assert await asyncio.to_thread(inference.stop)
    assert diary.good >= 3
    assert diary.faults == []
    assert [str(state.condition) for state in states] == ["ok"]
