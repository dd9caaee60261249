"""The inference thread between a frame slot and a real loop, with doubles for model and gallery."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from device.vision.capture import FrameSlot
from device.vision.inference import UNDELIVERED_MOST, InferenceThread, RecognitionFault
from device.vision.recognition import Interest, Look, Recogniser
from gallery.index import Match
from gallery.records import Position
from models.embedding import EMBEDDING_SIZE
from models.frames import CameraFrame
from models.hand import Hand, HandFinder, PartialHand
from models.second_core import second_core
from models.synthesis.person import make_person
from models.synthesis.scene import empty_scene, passage, show_qr
from models.thresholds import Thresholds
from tests.until import until_async

Pixels = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]
THRESHOLDS = Thresholds("t1", accept_q=5000, margin_q=500, quality_q=30, pad_q=0, enrol_quality_q=40)
DEADLINE_S = 10.0


class Model:
    def __init__(self) -> None:
        self.broken = False
        self.made: list[Vectors] = []
        self.then: Callable[[], None] = lambda: None
        self.cores: list[set[int]] = []
        """Of each vector's thread, and of a helper that it starts."""

    def embed(self, crops: Pixels) -> Vectors:
        with second_core("helper") as helper:
            self.cores += [os.sched_getaffinity(0), helper.submit(os.sched_getaffinity, 0).result()]
        if self.broken:
            raise RuntimeError("session failed")
        vectors = np.zeros((len(crops), EMBEDDING_SIZE), np.float32)
        vectors[:, 0] = crops.any()
        self.made.append(vectors)
        self.then()
        return vectors


class Nobody:
    def search(self, probes: Vectors) -> Match:
        return Match(None, 0.0, None, Position("s", 1, 0, bytes(32)))


class Ears:
    """Gathers what the loop is told."""

    def __init__(self) -> None:
        self.looks: list[Look] = []
        self.codes: list[str] = []
        self.faults: list[RecognitionFault] = []
        self.told = asyncio.Event()

    def on_look(self, look: Look) -> None:
        self.looks.append(look)
        self.told.set()

    def on_code(self, payload: str) -> None:
        self.codes.append(payload)
        self.told.set()

    def on_fault(self, fault: RecognitionFault) -> None:
        self.faults.append(fault)
        self.told.set()

    async def hear(self, enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not enough():
                self.told.clear()
                await self.told.wait()


class Bench:
    def __init__(self, takes_ms: int = 0, finder: HandFinder | None = None) -> None:
        """`takes_ms`: how long the board examines each frame."""
        self.now_ms = 10_000
        self._takes_ms = takes_ms
        self.number = 0
        self.slot = FrameSlot()
        self.model = Model()
        self.ears = Ears()
        self.recogniser = Recogniser(self.model, Nobody, lambda: THRESHOLDS, agree_cosine=0.5, finder=finder)
        self.thread = InferenceThread(
            self.slot,
            self.recogniser,
            asyncio.get_running_loop(),
            self.ears,
            now_ms=lambda: self.now_ms,
            examining=self._slow,
        )

    @contextmanager
    def _slow(self) -> Iterator[None]:
        yield
        self.now_ms += self._takes_ms

    async def __aenter__(self) -> Self:
        self.thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert await asyncio.to_thread(self.thread.stop)

    def show(self, pixels: Pixels, *, after_ms: int = 250) -> None:
        self.now_ms += after_ms
        self.number += 1
        self.slot.put(CameraFrame(pixels, self.now_ms, self.number))


@pytest.fixture(scope="module")
def held() -> list[Pixels]:
    return list(passage(make_person(11), "R", seed=1))[9:16]


@pytest.fixture(scope="module")
def ground() -> Pixels:
    return next(empty_scene(1, 1))


async def test_looks_arrive_on_the_loop_in_order(held: list[Pixels]) -> None:
    async with Bench() as bench:
        bench.thread.set_interest(Interest.PASSAGE, codes=False)
        for i, pixels in enumerate(held):
            bench.show(pixels, after_ms=33)
            await bench.ears.hear(lambda i=i: len(bench.ears.looks) == i + 1)  # type: ignore[misc]
        assert [look.frame_number for look in bench.ears.looks] == list(range(1, len(held) + 1))
        assert any(look.sighting.good for look in bench.ears.looks)
        assert bench.thread.examined == len(held)
        assert bench.thread.heartbeat_ms > 10_000


async def test_a_hand_is_recognised_on_one_core_and_its_helpers_keep_off_it(held: list[Pixels]) -> None:
    whole = os.sched_getaffinity(0)
    if len(whole) < 2:
        pytest.skip("one core")
    async with Bench() as bench:
        bench.thread.set_interest(Interest.PASSAGE, codes=False)
        bench.show(held[0])
        await bench.ears.hear(lambda: bool(bench.ears.looks))
        assert bench.model.cores == [{max(whole)}, whole - {max(whole)}]
        assert os.sched_getaffinity(0) == whole, "of the loop's thread"


@pytest.mark.parametrize(("takes_ms", "after_ms", "second"), [(3_000, 50, "pass"), (0, 1_050, "unknown")])
async def test_a_slow_examination_is_no_time_without_frames(
    held: list[Pixels], takes_ms: int, after_ms: int, second: str
) -> None:
    """The hand is the same for a board that examined it for long, not after a second without pictures."""
    async with Bench(takes_ms) as bench:
        bench.thread.set_interest(Interest.PASSAGE, codes=False)
        for number, pixels in enumerate(held[:2], start=1):
            bench.show(pixels, after_ms=after_ms)
            await bench.ears.hear(lambda count=number: len(bench.ears.looks) == count)  # type: ignore[misc]
        pads = [look.sighting.pad for look in bench.ears.looks]
        assert [pad and pad.res for pad in pads] == ["unknown", second]


async def test_a_frame_that_fails_is_told_and_the_next_one_is_looked_at(held: list[Pixels]) -> None:
    async with Bench() as bench:
        bench.thread.set_interest(Interest.PASSAGE, codes=False)
        bench.model.broken = True
        for i in (1, 2):
            bench.show(held[i], after_ms=33)
            await bench.ears.hear(lambda i=i: len(bench.ears.faults) == i)  # type: ignore[misc]
        assert [fault.consecutive for fault in bench.ears.faults] == [1, 2]
        assert bench.ears.faults[0].error == "RuntimeError"
        bench.model.broken = False
        bench.show(held[3], after_ms=33)
        await bench.ears.hear(lambda: len(bench.ears.looks) == 1)
        bench.model.broken = True
        bench.show(held[4], after_ms=33)
        await bench.ears.hear(lambda: len(bench.ears.faults) == 3)
        assert bench.ears.faults[2].consecutive == 1
        assert bench.thread.faults == 3


async def test_frames_that_are_left_out_do_not_make_good_those_that_fail(ground: Pixels) -> None:
    """An idle gate examines one frame in three, and is to know that it can see nothing."""

    class Blind(HandFinder):
        def look(self, frame: CameraFrame) -> Hand | PartialHand | None:
            raise RuntimeError("session failed")

    async with Bench(finder=Blind()) as bench:
        for _ in range(20):
            bench.show(ground, after_ms=33)
            await until_async(lambda: bench.slot.empty)
        await bench.ears.hear(lambda: len(bench.ears.faults) >= 5)
        assert [fault.consecutive for fault in bench.ears.faults][:5] == [1, 2, 3, 4, 5]


async def test_codes_are_read_only_when_they_are_awaited() -> None:
    card = next(show_qr("SVC1:ENR:x", seed=4, n=1))
    async with Bench() as bench:
        bench.thread.set_interest(Interest.IDLE, codes=False)
        bench.show(card)
        await bench.ears.hear(lambda: bool(bench.ears.looks))
        bench.thread.set_interest(Interest.IDLE, codes=True)
        bench.show(card)
        await bench.ears.hear(lambda: bool(bench.ears.codes))
        assert bench.ears.codes == ["SVC1:ENR:x"]


async def test_a_code_on_an_open_palm_is_read_while_no_one_waits_for_a_verdict(held: list[Pixels]) -> None:
    code = np.asarray(cv2.QRCodeEncoder.create().encode("SVC1:ENR:x"), np.uint8)
    card = cv2.copyMakeBorder(code, 2, 2, 2, 2, cv2.BORDER_CONSTANT, value=(255.0,))
    small = cv2.resize(card, (120, 120), interpolation=cv2.INTER_NEAREST)
    hand = HandFinder().find(CameraFrame(held[0], 0, 0))
    assert isinstance(hand, Hand)
    left, top = (round(float(side)) - 60 for side in hand.centre)
    palm = held[0].copy()
    palm[top : top + 120, left : left + 120] = small[..., np.newaxis]
    async with Bench() as bench:
        bench.thread.set_interest(Interest.PASSAGE, codes=True)
        bench.show(palm)
        await bench.ears.hear(lambda: len(bench.ears.looks) == 1)
        bench.thread.set_interest(Interest.IDLE, codes=True)
        bench.show(palm)
        await bench.ears.hear(lambda: bool(bench.ears.codes))
        assert [look.hand is not None for look in bench.ears.looks] == [True, True]
        assert bench.ears.codes == ["SVC1:ENR:x"]


async def test_idle_looks_at_some_frames_only(ground: Pixels) -> None:
    async with Bench() as bench:
        for _ in range(20):
            bench.show(ground, after_ms=30)
            # Taken by the thread before the next is put: nothing is dropped in the slot.
            await until_async(lambda: bench.slot.empty)
        bench.show(ground)
        await bench.ears.hear(lambda: [look.frame_number for look in bench.ears.looks][-1:] == [21])
        assert bench.thread.examined == 5 + 1


def examine_while_the_loop_waits(bench: Bench, picture: Pixels, frames: int) -> None:
    """The loop is held up on purpose, so it takes no result."""
    for _ in range(frames):
        examined = bench.thread.examined
        bench.show(picture, after_ms=33)
        while bench.thread.examined == examined:
            pass


async def test_a_loop_that_does_not_listen_gets_no_pile_of_results(held: list[Pixels]) -> None:
    async with Bench() as bench:
        bench.thread.set_interest(Interest.PASSAGE, codes=False)
        examine_while_the_loop_waits(bench, held[0], UNDELIVERED_MOST + 4)
        assert bench.thread.undelivered >= 3
        await bench.ears.hear(lambda: len(bench.ears.looks) >= UNDELIVERED_MOST)
        assert len(bench.ears.looks) == UNDELIVERED_MOST


async def test_a_hand_is_forgotten_while_no_frames_come(held: list[Pixels]) -> None:
    async with Bench() as bench:
        bench.thread.set_interest(Interest.ENROLMENT, codes=False)
        bench.show(held[0])
        await bench.ears.hear(lambda: len(bench.ears.looks) == 1)
        loop, forgotten = asyncio.get_running_loop(), asyncio.Event()

        def forget() -> None:
            loop.call_soon_threadsafe(forgotten.set)

        bench.recogniser.forget = forget  # type: ignore[method-assign]
        bench.now_ms += 1_500
        async with asyncio.timeout(DEADLINE_S):
            await forgotten.wait()


async def test_the_vector_of_a_capture_that_comes_after_its_enrolment_is_overwritten(
    held: list[Pixels], ground: Pixels
) -> None:
    async with Bench() as bench:
        bench.thread.set_interest(Interest.ENROLMENT, codes=False)
        bench.model.then = lambda: bench.thread.set_interest(Interest.IDLE, codes=False)
        bench.show(held[0])
        while bench.thread.examined == 0:
            pass  # examined, but not yet taken by the loop
        assert bench.model.made[0].any()
        bench.show(ground)
        await bench.ears.hear(lambda: bool(bench.ears.looks))
        assert [look.interest for look in bench.ears.looks] == [Interest.IDLE]
        assert not any(vectors.any() for vectors in bench.model.made)


async def test_the_vector_of_a_capture_that_the_loop_is_too_slow_for_is_overwritten(
    held: list[Pixels],
) -> None:
    async with Bench() as bench:
        bench.thread.set_interest(Interest.ENROLMENT, codes=False)
        examine_while_the_loop_waits(bench, held[0], UNDELIVERED_MOST + 2)
        while bench.thread.undelivered < 2:
            pass
        captured = [vectors for vectors in bench.model.made if vectors.any()]
        assert len(captured) == UNDELIVERED_MOST


async def test_an_answer_to_a_question_nobody_asks_any_more_is_let_go(held: list[Pixels]) -> None:
    async with Bench() as bench:
        bench.thread.set_interest(Interest.PASSAGE, codes=False)
        bench.show(held[0])
        while bench.thread.examined == 0:
            pass  # examined, but not yet taken by the loop
        bench.thread.set_interest(Interest.IDLE, codes=False)
        bench.show(held[1])
        await bench.ears.hear(lambda: bool(bench.ears.looks))
        assert {look.interest for look in bench.ears.looks} == {Interest.IDLE}


def test_the_thread_ends_when_the_loop_is_closed(held: list[Pixels]) -> None:
    async def begin() -> Bench:
        bench = Bench()
        bench.thread.start()
        return bench

    bench = asyncio.run(begin())
    bench.thread.set_interest(Interest.PASSAGE, codes=False)
    bench.show(held[0])
    for thread in threading.enumerate():
        if thread.name == "inference":
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
