"""Folders of images and video files, played as a camera."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from device.camera.pixels import Unreadable, decode_image
from device.camera.recordings import ImageFolder, PacedCamera, Pictures, VideoFile
from device.camera.source import CameraUnavailable, Pixels, open_camera


def grey(value: int, height: int = 96, width: int = 128) -> Pixels:
    """A picture told apart by its value, not flat."""
    made = np.full((height, width, 3), value, np.uint8)
    made[:8, :8] = 255 - value
    return made


def save(folder: Path, name: str, picture: npt.NDArray[Any], params: Sequence[int] = ()) -> None:
    hidden = folder / f".{name}"
    done, data = cv2.imencode(Path(name).suffix, picture, list(params))
    assert done
    hidden.write_bytes(data.tobytes())
    hidden.rename(folder / name)


def value_of(pixels: Pixels | None) -> int:
    assert pixels is not None
    return round(float(np.median(pixels)))


class Time:
    """A monotonic clock that sleeping moves on."""

    def __init__(self) -> None:
        self.now_s = 50.0

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds


def paced(pictures: Pictures, fps: float, time: Time, *, slides: bool = False) -> PacedCamera:
    return PacedCamera(pictures, fps, slides=slides, now_s=lambda: time.now_s, sleep=time.sleep)


def test_a_folder_plays_in_the_order_of_names_and_holds_the_last(tmp_path: Path) -> None:
    for name, value in (("b.png", 20), ("a.png", 10), ("c.jpg", 30)):
        save(tmp_path, name, grey(value))
    camera = paced(ImageFolder(tmp_path, loop=False), 20, Time())
    assert [value_of(camera.read()) for _ in range(5)] == [10, 20, 30, 30, 30]


def test_a_camera_asked_often_gives_each_picture_once(tmp_path: Path) -> None:
    save(tmp_path, "1.png", grey(10))
    time = Time()
    camera = paced(ImageFolder(tmp_path, loop=False), 240, time)
    begun_s = time.now_s
    assert [value_of(camera.read()) for _ in range(3)] == [10, 10, 10]
    assert time.now_s - begun_s == pytest.approx(2 / 20)
    save(tmp_path, "2.png", grey(20))
    assert value_of(camera.read()) == 20
    assert time.now_s - begun_s == pytest.approx(2 / 20 + 1 / 240)


def test_a_folder_that_loops_starts_anew(tmp_path: Path) -> None:
    for i in range(3):
        save(tmp_path, f"{i}.png", grey(10 + i))
    camera = paced(ImageFolder(tmp_path, loop=True), 20, Time())
    assert [value_of(camera.read()) for _ in range(7)] == [10, 11, 12, 10, 11, 12, 10]


def test_images_added_later_are_followed(tmp_path: Path) -> None:
    save(tmp_path, "1.png", grey(10))
    camera = paced(ImageFolder(tmp_path, loop=False), 20, Time())
    assert value_of(camera.read()) == 10
    assert value_of(camera.read()) == 10
    save(tmp_path, "3.png", grey(30))
    assert value_of(camera.read()) == 30
    save(tmp_path, "2.png", grey(20))  # comes too late: 3 has been shown
    (tmp_path / ".4.png").write_bytes(b"half written")
    assert value_of(camera.read()) == 30
    assert camera.skipped == 0


def test_the_folder_is_listed_only_when_the_known_names_are_used_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings = []
    real = os.scandir

    def listed(path: Path) -> Any:
        listings.append(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", listed)
    for i in range(5):
        save(tmp_path, f"{i}.png", grey(i))
    folder = ImageFolder(tmp_path, loop=False)
    for _ in range(5):
        assert folder.next() is not None
    assert len(listings) == 2
    assert folder.next() is None
    assert len(listings) == 3


def test_bad_files_are_skipped_and_counted(tmp_path: Path) -> None:
    save(tmp_path, "0.jpg", grey(10), (cv2.IMWRITE_JPEG_QUALITY, 95))
    whole = (tmp_path / "0.jpg").read_bytes()
    (tmp_path / "1.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "2.png").write_bytes(b"")
    (tmp_path / "3.png").write_bytes(b"not an image")
    (tmp_path / "4.jpg").mkdir()
    save(tmp_path, "5.png", grey(1, 8, 8))  # too small to hold a hand
    (tmp_path / "6.png").symlink_to(tmp_path / "gone.png")
    (tmp_path / "notes.txt").write_text("not counted: no image by its name")
    save(tmp_path, "9.png", grey(90))
    folder = ImageFolder(tmp_path, loop=False)
    assert value_of(folder.next()) == 10
    assert value_of(folder.next()) == 90
    assert folder.skipped == 6


def test_a_file_gone_before_its_turn_is_skipped(tmp_path: Path) -> None:
    for i in range(3):
        save(tmp_path, f"{i}.png", grey(10 + i))
    folder = ImageFolder(tmp_path, loop=False)
    (tmp_path / "0.png").unlink()
    (tmp_path / "1.png").unlink()
    assert value_of(folder.next()) == 12
    assert folder.skipped == 2


def test_an_empty_folder_gives_nothing_within_a_second_then_what_is_added(tmp_path: Path) -> None:
    time = Time()
    camera = paced(ImageFolder(tmp_path, loop=True), 5, time)
    started_s = time.now_s
    assert camera.read() is None
    assert 0.9 < time.now_s - started_s < 1.3
    save(tmp_path, "1.png", grey(10))
    assert value_of(camera.read()) == 10


def test_a_folder_that_disappears_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    pictures = ImageFolder(folder, loop=False)
    folder.rmdir()
    with pytest.raises(CameraUnavailable, match="cannot be listed"):
        pictures.next()


def test_pace_is_kept_on_the_clock_however_long_the_reader_takes(tmp_path: Path) -> None:
    for i in range(40):
        save(tmp_path, f"{i:02}.png", grey(i))
    time = Time()
    camera = paced(ImageFolder(tmp_path, loop=False), 20, time)
    started_s = time.now_s
    for i in range(20):
        camera.read()
        time.now_s += 0.001 * (i % 40)
    assert time.now_s - started_s == pytest.approx(19 / 20, abs=0.06)
    time.now_s += 30.0  # a suspended machine does not play half a minute in a burst
    before_s = time.now_s
    for _ in range(10):
        camera.read()
    assert time.now_s - before_s == pytest.approx(9 / 20, abs=0.06)


def test_slow_shows_repeat_each_picture_as_a_live_camera_would(tmp_path: Path) -> None:
    for i in range(2):
        save(tmp_path, f"{i}.png", grey(10 + i))
    time = Time()
    camera = paced(ImageFolder(tmp_path, loop=True), 4, time)
    started_s = time.now_s
    values = [value_of(camera.read()) for _ in range(7)]
    assert values == [10] * 3 + [11] * 3 + [10]
    assert time.now_s - started_s == pytest.approx(0.5)


def test_photographs_shown_slowly_leave_before_the_next_comes(tmp_path: Path) -> None:
    for i in range(2):
        save(tmp_path, f"{i}.png", grey(10 + i))
    camera = paced(ImageFolder(tmp_path, loop=False), 2, Time(), slides=True)
    values = [value_of(camera.read()) for _ in range(25)]
    assert values == [128] * 8 + [10] * 2 + [128] * 8 + [11] * 7


def test_sixteen_bit_grey_and_transparent_images_are_normalised() -> None:
    def encoded(picture: npt.NDArray[Any], suffix: str = ".png") -> bytes:
        return cv2.imencode(suffix, picture)[1].tobytes()

    twelve_bits = np.full((96, 128), 0x0800, np.uint16)
    twelve_bits[0, 0] = 0x0FFF
    pixels, depth_bits, _ = decode_image(encoded(twelve_bits))
    assert (pixels.shape, depth_bits) == ((96, 128), 12)
    assert pixels.dtype == np.uint8
    assert value_of(pixels) == 128
    # A darker picture of the same series keeps the depth found before.
    pixels, depth_bits, _ = decode_image(encoded(twelve_bits // 8), depth_bits=12)
    assert (value_of(pixels), depth_bits) == (16, 12)

    clear = np.dstack([np.full((96, 128, 3), 200, np.uint8), np.zeros((96, 128), np.uint8)])
    clear[:48, :, 3] = 255
    pixels, _, _ = decode_image(encoded(clear))
    assert pixels.shape == (96, 128, 3)
    assert (pixels[0, 0] == 200).all()
    assert (pixels[-1, 0] == 128).all()

    deep_colour = np.full((96, 128, 3), 0x4000, np.uint16)
    deep_colour[0, 0] = 0xFFFF
    assert value_of(decode_image(encoded(deep_colour))[0]) == 0x40

    pixels, _, _ = decode_image(encoded(np.full((96, 128), 70, np.uint8), ".jpg"))
    assert (pixels.ndim, value_of(pixels)) == (2, 70)

    with pytest.raises(Unreadable, match="float"):
        decode_image(encoded(np.ones((96, 128), np.float32), ".tiff"))


def test_photographs_are_turned_upright_and_scaled_down() -> None:
    lying = np.full((1500, 2000, 3), 90, np.uint8)
    lying[:, :100] = 250
    jpeg = cv2.imencode(".jpg", lying)[1].tobytes()
    # An EXIF block that says: turn by 90 degrees clockwise (orientation 6).
    tiff = b"MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00\x00\x00\x00\x00"
    body = b"Exif\x00\x00" + tiff
    turned = jpeg[:2] + b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body + jpeg[2:]
    pixels, _, scaled = decode_image(turned)
    assert scaled
    assert pixels.shape == (1280, 960, 3)
    assert (pixels[10] > 200).all()
    assert (pixels[-10] < 120).all()


def test_any_bytes_are_a_picture_or_unreadable() -> None:
    rng = np.random.default_rng(5)
    whole = cv2.imencode(".png", grey(50))[1].tobytes()
    for i in range(60):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole), 1 + i % 8):
            damaged[at] = int(rng.integers(0, 256))
        try:
            pixels, _, _ = decode_image(bytes(damaged))
        except Unreadable:
            continue
        assert pixels.dtype == np.uint8


@pytest.fixture
def video(tmp_path: Path) -> Path:
    path = tmp_path / "hands.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 12.0, (128, 96))
    assert writer.isOpened()
    for i in range(4):
        writer.write(grey(40 * i + 20))
    writer.release()
    return path


def test_a_video_plays_and_holds_its_last_picture(video: Path) -> None:
    pictures = VideoFile(video, loop=False)
    assert pictures.own_fps == pytest.approx(12.0)
    camera = paced(pictures, pictures.own_fps, Time())
    values = [value_of(camera.read()) for _ in range(6)]
    assert values == pytest.approx([20, 60, 100, 140, 140, 140], abs=4)
    camera.close()


def test_a_video_that_loops_starts_anew(video: Path) -> None:
    camera = paced(VideoFile(video, loop=True), 20, Time())
    values = [value_of(camera.read()) for _ in range(9)]
    assert values == pytest.approx([20, 60, 100, 140, 20, 60, 100, 140, 20], abs=4)
    camera.close()


def test_a_file_that_is_no_video_says_what_was_expected(tmp_path: Path) -> None:
    (tmp_path / "x.mp4").write_bytes(b"\x00" * 4096)
    with pytest.raises(CameraUnavailable, match="not a video"):
        open_camera(f"file:{tmp_path}/x.mp4")
    save(tmp_path, "photo.png", grey(3))


def test_open_camera_names_what_it_opened(video: Path, tmp_path: Path) -> None:
    of_video = open_camera(f"file:{video}")
    assert "hands.avi at 12 pictures" in of_video.description
    of_video.close()
    of_folder = open_camera(f"file:{tmp_path}", fps=7)
    assert "at 7 pictures" in of_folder.description


def test_a_folder_fed_by_another_thread_loses_nothing(tmp_path: Path) -> None:
    """Files appear while the folder is read, and every one is shown, in order."""
    save(tmp_path, "000.png", grey(0))
    folder = ImageFolder(tmp_path, loop=False)

    def feed() -> None:
        for i in range(1, 60):
            save(tmp_path, f"{i:03}.png", grey(i))

    feeder = threading.Thread(target=feed)
    feeder.start()
    seen: list[int] = []
    while not seen or seen[-1] < 59:
        pixels = folder.next()
        if pixels is not None:
            seen.append(value_of(pixels))
    feeder.join()
    assert seen == list(range(60))
