from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from device.camera.recordings import ImageFolder, PacedCamera
from device.camera.source import open_camera
from tools.rig.virtual_camera import EMPTY_AFTER, READER_LAG_S, VirtualCamera

FPS = 20.0


class Time:
    def __init__(self) -> None:
        self.now_s = 100.0

    def sleep(self, seconds: float) -> None:
        self.now_s += max(0.0, seconds)


def picture(value: int) -> npt.NDArray[np.uint8]:
    made = np.full((96, 128, 3), value, np.uint8)
    made[:8, :8] = 255 - value
    return made


def value_of(pixels: npt.NDArray[np.uint8]) -> int:
    return round(float(np.median(pixels)))


def camera(folder: Path, time: Time, *, lossless: bool = True) -> VirtualCamera:
    return VirtualCamera(
        folder, [picture(0)], fps=FPS, lossless=lossless, now_s=lambda: time.now_s, sleep=time.sleep
    )


def test_a_scene_is_seen_whole_and_in_order_by_a_folder_camera(tmp_path: Path) -> None:
    time = Time()
    virtual = camera(tmp_path, time)
    reader = PacedCamera(ImageFolder(tmp_path, loop=False), FPS, now_s=lambda: time.now_s, sleep=time.sleep)

    def seen(count: int) -> list[int]:
        values = []
        for _ in range(count):
            pixels = reader.read()
            assert pixels is not None
            values.append(value_of(pixels))
        return values

    assert seen(5) == [0] * 5
    virtual.queue([picture(10 * i) for i in range(1, 6)])
    assert seen(12) == [10, 20, 30, 40, 50] + [0] * 7


def test_show_returns_when_the_scene_has_been_played(tmp_path: Path) -> None:
    time = Time()
    virtual = camera(tmp_path, time)
    time.now_s += 1.0
    began_s = time.now_s
    virtual.show(picture(i) for i in range(40))
    assert time.now_s - began_s == pytest.approx((40 + EMPTY_AFTER) / FPS + READER_LAG_S)


def test_scenes_queued_together_are_played_one_after_the_other(tmp_path: Path) -> None:
    time = Time()
    virtual = camera(tmp_path, time)
    time.now_s += 1.0
    first_s = virtual.queue([picture(1)] * 20)
    second_s = virtual.queue([picture(2)] * 20)
    assert second_s - first_s == pytest.approx((20 + EMPTY_AFTER) / FPS)


def test_what_was_played_long_ago_is_removed_but_never_the_last(tmp_path: Path) -> None:
    time = Time()
    virtual = camera(tmp_path, time)
    for _ in range(30):
        virtual.show([picture(9)] * 20)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) < (10 + 3) * FPS
    time.now_s += 1000
    virtual.queue([picture(3)])
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left[0] == names[-1]
    assert len(left) == 1 + 1 + EMPTY_AFTER


def test_a_folder_in_use_is_continued(tmp_path: Path) -> None:
    time = Time()
    camera(tmp_path, time).queue([picture(5)] * 3)
    before = sorted(path.name for path in tmp_path.iterdir())
    camera(tmp_path, time)
    after = sorted(path.name for path in tmp_path.iterdir())
    assert after[: len(before)] == before
    assert len(after) == len(before) + 1


def test_jpeg_is_near_the_picture(tmp_path: Path) -> None:
    camera(tmp_path, Time(), lossless=False).queue([picture(77)])
    newest = sorted(tmp_path.glob("*.jpg"))[1]
    assert value_of(np.asarray(cv2.imread(str(newest)), np.uint8)) == pytest.approx(77, abs=2)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_its_source_opens_as_a_camera(tmp_path: Path) -> None:
    virtual = VirtualCamera(tmp_path, [picture(0)], fps=60.0)
    opened = open_camera(virtual.source, fps=virtual.fps, loop=False)
    assert opened.read() is not None
    opened.close()


def test_an_empty_scene_is_required(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one"):
        VirtualCamera(tmp_path, [])
