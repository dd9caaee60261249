"""The failures of a V4L2 camera, played by a capture that answers as OpenCV does."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from device.camera.source import CameraLost, CameraUnavailable, Pixels
from device.camera.v4l2 import V4L2Camera, open_v4l2

Picture = npt.NDArray[np.generic]
Answer = tuple[float, bool, Picture | None]


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0


class ScriptedCapture:
    """Answers (seconds waited, got, picture) one after the other."""

    def __init__(self, clock: Clock, answers: Sequence[Answer]) -> None:
        self.clock = clock
        self.answers = list(answers)
        self.released = False

    def read(self) -> tuple[bool, Picture | None]:
        waited_s, got, picture = self.answers.pop(0)
        self.clock.now_s += waited_s
        return got, picture

    def release(self) -> None:
        self.released = True


def camera(answers: Sequence[Answer], *, there: bool = True) -> tuple[V4L2Camera, ScriptedCapture]:
    clock = Clock()
    capture = ScriptedCapture(clock, answers)
    made = V4L2Camera(capture, "camera /dev/video0", node_is_there=lambda: there, now_s=lambda: clock.now_s)
    return made, capture


def picture(height: int = 480, width: int = 640, seed: int = 1) -> Pixels:
    return np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)


def same(found: Pixels | None, expected: Pixels) -> bool:
    return found is not None and np.array_equal(found, expected)


def test_a_good_frame_passes_unchanged() -> None:
    good = picture()
    made, _ = camera([(0.03, True, good)])
    assert same(made.read(), good)


def test_a_stall_is_none_and_not_the_end() -> None:
    made, _ = camera([(1.0, False, None), (0.03, True, picture())])
    assert made.read() is None
    assert made.read() is not None


def test_answers_of_false_at_once_mean_unplugged() -> None:
    made, _ = camera([(0.0, False, None)] * 5)
    with pytest.raises(CameraLost, match="unplugged"):
        made.read()


def test_empty_frames_that_were_waiting_are_skipped() -> None:
    good = picture()
    made, _ = camera(
        [(0.0, False, None)] * 4 + [(0.03, False, None)] + [(0.0, False, None)] * 4 + [(0.03, True, good)]
    )
    assert same(made.read(), good)
    assert made.skipped == 9


def test_an_empty_frame_that_opencv_was_to_decode_is_skipped() -> None:
    good = picture()
    made, capture = camera([(0.03, True, good)])
    answer = capture.read

    def fail_once() -> tuple[bool, Picture | None]:
        capture.read = answer  # type: ignore[method-assign]
        raise cv2.error("(-215:Assertion failed) !buf.empty()")

    capture.read = fail_once  # type: ignore[method-assign]
    assert same(made.read(), good)
    assert made.skipped == 1


def test_a_node_that_is_gone_means_unplugged_however_long_it_took() -> None:
    made, _ = camera([(1.0, False, None)], there=False)
    with pytest.raises(CameraLost):
        made.read()


def test_corrupt_frames_are_skipped_and_counted() -> None:
    good = picture()
    broken: list[Picture | None] = [
        None,
        np.zeros((0, 0, 3), np.uint8),
        np.zeros((480, 640, 3), np.uint8),
        picture(240, 320),
        np.zeros((480, 640, 3), np.float32),
    ]
    made, _ = camera(
        [(0.03, True, good), *((0.03, True, bad) for bad in broken), (0.03, True, good)],
    )
    assert made.read() is not None
    assert same(made.read(), good)
    assert made.skipped == len(broken)


def test_a_first_frame_of_another_size_does_not_make_the_camera_s_own_size_a_damage() -> None:
    """Some cameras give one more of the size that they had before."""
    good = picture()
    made, _ = camera([(0.03, True, frame) for frame in (picture(240, 320), good, good, good)])
    assert made.read() is not None
    assert same(made.read(), good)
    assert same(made.read(), good)
    assert made.skipped == 1


def test_a_camera_that_gives_only_corrupt_frames_is_a_stall() -> None:
    green = np.full((480, 640, 3), (0, 135, 0), np.uint8)  # YUYV of zeros
    made, _ = camera([(0.4, True, green)] * 6)
    assert made.read() is None
    assert made.read() is None
    assert made.skipped == 6


@pytest.mark.parametrize("level", [0, 16, 255])
@pytest.mark.parametrize("shape", [(480, 640, 3), (480, 640)])
def test_a_camera_that_sees_one_brightness_for_long_gives_it(level: int, shape: tuple[int, ...]) -> None:
    blinded = np.full(shape, level, np.uint8)
    lit = np.random.default_rng(1).integers(0, 255, shape, np.uint8)
    made, _ = camera([(0.25, True, one) for one in (lit, *[blinded] * 7, lit, blinded, lit)])
    assert same(made.read(), lit)
    assert same(made.read(), blinded)
    assert made.skipped == 4, "what lasts less than a second is no picture"
    assert same(made.read(), blinded)
    assert same(made.read(), blinded)
    assert same(made.read(), lit)
    assert same(made.read(), lit), "and another second begins"
    assert made.skipped == 5


def test_large_pictures_are_scaled_down() -> None:
    made, _ = camera([(0.03, True, picture(1080, 1920))])
    pixels = made.read()
    assert pixels is not None
    assert pixels.shape == (720, 1280, 3)


def test_close_frees_the_device() -> None:
    made, capture = camera([])
    made.close()
    assert capture.released


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "usermod -aG video"),
        (errno.EBUSY, "fuser -v"),
        (errno.ENODEV, "Plug the camera in"),
        (errno.EIO, "cannot be opened"),
    ],
)
def test_why_a_node_does_not_open_comes_with_what_to_do(
    number: int, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, "reason")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(CameraUnavailable, match=advice):
        open_v4l2(Path("/dev/null"), fps=15)
