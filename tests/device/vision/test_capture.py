"""The capture thread over scripted cameras: real threads, a clock that the script moves."""

import threading

import numpy as np
import pytest

from device.camera.source import CameraLost, CameraUnavailable, Pixels
from device.vision.capture import CameraCondition, CameraState, CaptureThread, FrameSlot
from models.frames import CameraFrame

PICTURE = np.zeros((48, 64, 3), np.uint8)
DEADLINE_S = 10.0


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1000

    def __call__(self) -> int:
        return self.now_ms


class Script:
    """A camera that does what each step says; after the last it tells `done` and stalls."""

    def __init__(self, clock: Clock, steps: list[Pixels | Exception | int]) -> None:
        self.description = "scripted camera"
        self.skipped = self.damaged_a_read = 0
        self.closed = False
        self.done = threading.Event()
        self._clock = clock
        self._steps = steps

    def read(self) -> Pixels | None:
        self.skipped += self.damaged_a_read
        if not self._steps:
            self.done.set()
            self.done.wait(0.01)
            return None
        step = self._steps.pop(0)
        if isinstance(step, Exception):
            raise step
        if isinstance(step, int):
            self._clock.now_ms += step  # a stall of so many ms
            return None
        self._clock.now_ms += 33
        return step

    def close(self) -> None:
        self.closed = True


class Bench:
    def __init__(self, openings: list[Script | Exception], clock: Clock) -> None:
        self.clock = clock
        self.tried_at_ms: list[int] = []
        self.slot = FrameSlot()
        self.states: list[CameraState] = []
        self.waited_s: list[float] = []
        self.openings = openings
        self.thread = CaptureThread(
            self.open, self.slot, now_ms=clock, on_state=self.states.append, wait=self.wait
        )

    def open(self) -> Script:
        self.tried_at_ms.append(self.clock.now_ms)
        opening = self.openings.pop(0)
        if isinstance(opening, Exception):
            raise opening
        return opening

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """The time that the thread would have slept passes at once."""
        if stop.is_set():
            return True
        self.waited_s.append(seconds)
        self.clock.now_ms += round(seconds * 1000)
        return False

    def run_until(self, last: Script) -> None:
        """Run the thread until this camera's steps are done."""
        self.thread.start()
        assert last.done.wait(DEADLINE_S)
        assert self.thread.stop()

    def conditions(self) -> list[CameraCondition]:
        return [state.condition for state in self.states]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_slot_keeps_only_the_latest_frame_and_counts_the_rest() -> None:
    slot = FrameSlot()
    assert slot.take(0.0) is None
    for number in (1, 2, 3):
        slot.put(CameraFrame(PICTURE, number, number))
    taken = slot.take(0.0)
    assert taken is not None
    assert taken.number == 3
    assert slot.dropped == 2
    assert slot.take(0.0) is None
    slot.put(CameraFrame(PICTURE, 4, 4))
    slot.clear()
    assert slot.take(0.0) is None


def test_a_waiting_reader_is_woken_by_a_frame() -> None:
    slot = FrameSlot()
    taken: list[CameraFrame | None] = []
    reader = threading.Thread(target=lambda: taken.append(slot.take(DEADLINE_S)))
    reader.start()
    slot.put(CameraFrame(PICTURE, 1, 1))
    reader.join(DEADLINE_S)
    assert taken
    assert taken[0] is not None


def test_a_module_with_two_sensors_gives_colour_and_near_infrared_in_one_frame(clock: Clock) -> None:
    both = np.hstack([np.full((48, 64, 3), 9, np.uint8), np.full((48, 64, 3), 90, np.uint8)])
    camera = Script(clock, [both])
    slot = FrameSlot()
    thread = CaptureThread(lambda: camera, slot, now_ms=clock, on_state=lambda _: None, nir="right")
    thread.start()
    frame = slot.take(DEADLINE_S)
    thread.stop()
    assert frame is not None
    assert (frame.width, int(frame.pixels.max())) == (64, 9)
    assert frame.nir is not None
    assert frame.nir.shape == (48, 64)
    assert int(frame.nir.min()) == 90


def test_a_camera_that_sees_no_colour_gives_grey_frames_whatever_its_driver_gives(clock: Clock) -> None:
    camera = Script(clock, [np.full((48, 64, 3), 90, np.uint8)])
    slot = FrameSlot()
    thread = CaptureThread(lambda: camera, slot, now_ms=clock, on_state=lambda _: None, grey=True)
    thread.start()
    frame = slot.take(DEADLINE_S)
    thread.stop()
    assert frame is not None
    assert frame.pixels.shape == (48, 64)
    assert (frame.pixels == 90).all()


def test_frames_are_numbered_stamped_and_counted(clock: Clock) -> None:
    camera = Script(clock, [PICTURE] * 5)
    bench = Bench([camera], clock)
    bench.run_until(camera)
    assert camera.closed
    assert (bench.thread.frames, bench.thread.opened) == (5, 1)
    assert bench.slot.dropped == 4
    assert bench.conditions() == [CameraCondition.OK]
    assert bench.thread.heartbeat_ms == clock.now_ms


def test_a_stall_is_told_and_so_is_its_end(clock: Clock) -> None:
    camera = Script(clock, [PICTURE, 1000, 1000, PICTURE])
    bench = Bench([camera], clock)
    bench.run_until(camera)
    assert bench.conditions() == [CameraCondition.OK, CameraCondition.STALLED, CameraCondition.OK]
    assert "gives no picture; it is closed and opened again: check its cable" in bench.states[1].message


def test_a_stall_takes_the_frame_from_before_out_of_view(clock: Clock) -> None:
    camera = Script(clock, [PICTURE, 2000])
    bench = Bench([camera], clock)
    bench.run_until(camera)
    assert bench.slot.take(0.0) is None


def test_a_lost_camera_is_opened_again_and_numbers_go_on(clock: Clock) -> None:
    first = Script(clock, [PICTURE, CameraLost("camera unplugged; check its cable")])
    second = Script(clock, [PICTURE])
    bench = Bench([first, second], clock)
    bench.run_until(second)
    assert first.closed
    assert bench.conditions() == [CameraCondition.OK, CameraCondition.ABSENT, CameraCondition.OK]
    assert bench.states[1].message == "camera unplugged; check its cable"
    taken = bench.slot.take(0.0)
    assert taken is None  # the thread clears what it held when it ends
    assert bench.thread.frames == 2


def test_openings_that_fail_are_tried_again_with_growing_pauses(clock: Clock) -> None:
    camera = Script(clock, [PICTURE])
    openings: list[Script | Exception] = [CameraUnavailable(f"absent {i}") for i in range(7)]
    bench = Bench([*openings, camera], clock)
    bench.run_until(camera)
    pauses_ms = np.diff(bench.tried_at_ms)
    assert (pauses_ms[1:] >= pauses_ms[:-1]).all()
    assert pauses_ms[1] > pauses_ms[0]
    assert pauses_ms[-1] > 9_000
    assert max(bench.waited_s) < 1.0  # alive to the watchdog meanwhile
    assert [s.condition for s in bench.states][-1] is CameraCondition.OK


def test_a_camera_that_hangs_while_it_is_opened_or_closed_is_no_thread_that_hangs(clock: Clock) -> None:
    """The watchdog would start the whole gate again and again; reading is another matter."""
    silent_ms: dict[str, int] = {}

    class Hanging(Script):
        def read(self) -> Pixels | None:
            clock.now_ms += 9_000
            silent_ms["read"] = clock.now_ms - bench.thread.heartbeat_ms
            raise CameraLost("gone")

        def close(self) -> None:
            clock.now_ms += 90_000
            silent_ms["close"] = clock.now_ms - bench.thread.heartbeat_ms
            self.done.set()

    def open_slowly() -> Script:
        clock.now_ms += 90_000
        silent_ms["open"] = clock.now_ms - bench.thread.heartbeat_ms
        return camera

    camera = Hanging(clock, [])
    bench = Bench([], clock)
    bench.thread = CaptureThread(open_slowly, bench.slot, now_ms=clock, on_state=bench.states.append)
    bench.run_until(camera)
    assert silent_ms["read"] == 9_000
    assert max(silent_ms["open"], silent_ms["close"]) <= 0


def test_a_camera_stalled_for_long_is_closed_and_opened_anew(clock: Clock) -> None:
    first = Script(clock, [PICTURE, 6000])
    second = Script(clock, [PICTURE])
    bench = Bench([first, second], clock)
    bench.run_until(second)
    assert first.closed
    assert "closed and opened again" in bench.states[1].message


def test_a_camera_that_gives_only_damaged_pictures_is_not_said_to_give_none(clock: Clock) -> None:
    first, second = Script(clock, [2000, 4000]), Script(clock, [PICTURE])
    first.damaged_a_read = 1
    bench = Bench([first, second], clock)
    bench.run_until(second)
    stalled, absent, _ = bench.states
    assert "gives only damaged pictures; it is closed and opened again: try" in stalled.message
    assert stalled.message == absent.message


def test_an_unexpected_failure_does_not_end_the_thread(clock: Clock) -> None:
    first = Script(clock, [MemoryError("codec")])
    second = Script(clock, [PICTURE])
    bench = Bench([first, second], clock)
    bench.run_until(second)
    assert "MemoryError" in bench.states[0].message


def test_skipped_pictures_are_counted_over_all_openings(clock: Clock) -> None:
    first = Script(clock, [PICTURE, CameraLost("gone")])
    first.skipped = 3
    second = Script(clock, [PICTURE])
    second.skipped = 2
    bench = Bench([first, second], clock)
    bench.run_until(second)
    assert bench.thread.skipped == 5
