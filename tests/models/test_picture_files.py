import os
import struct
from pathlib import Path

import cv2
import numpy as np
import pytest

from models.picture_files import ends_as_it_says, read_picture

GREY = np.random.default_rng(1).integers(0, 256, (64, 80), np.uint8)


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tiff", ".pgm", ".webp"])
def test_a_picture_is_read_as_opencv_reads_it(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    cv2.imwrite(str(path), GREY, [cv2.IMWRITE_WEBP_QUALITY, 101])  # above 100: without loss
    np.testing.assert_array_equal(read_picture(path, cv2.IMREAD_GRAYSCALE), GREY)


@pytest.mark.parametrize("how", [cv2.IMREAD_GRAYSCALE, cv2.IMREAD_COLOR], ids=["grey", "colour"])
@pytest.mark.parametrize("suffix", [".png", ".tiff", ".pgm"])
def test_a_deep_picture_is_as_bright_as_the_camera_saw_it(suffix: str, how: int, tmp_path: Path) -> None:
    """Of twelve bits, as a device has it, which does not divide by 256 whatever the depth."""
    path = tmp_path / f"a{suffix}"
    cv2.imwrite(str(path), np.where(GREY.max() == GREY, 0x0FFF, GREY.astype(np.uint16) * 16))
    picture = read_picture(path, how)
    assert picture is not None
    np.testing.assert_array_equal(picture if picture.ndim == 2 else picture[..., 2], GREY)


def test_samples_that_are_no_brightness_are_not_read(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.tiff"), GREY.astype(np.float32))
    assert read_picture(tmp_path / "a.tiff", cv2.IMREAD_GRAYSCALE) is None


@pytest.mark.parametrize("data", [b"", b"no picture", b"\x89PNG\r\n\x1a\n"])
def test_what_is_no_picture_is_none(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(data)
    assert read_picture(path, cv2.IMREAD_GRAYSCALE) is None
    assert read_picture(tmp_path, cv2.IMREAD_GRAYSCALE) is None


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    assert read_picture(tmp_path / "a.png", cv2.IMREAD_GRAYSCALE) is None


@pytest.mark.parametrize("suffix", [".gif", ".jp2", ".ras"])
def test_what_no_camera_writes_is_not_read(suffix: str, tmp_path: Path) -> None:
    done, data = cv2.imencode(suffix, np.dstack([GREY] * 3))
    assert done
    (tmp_path / "a.png").write_bytes(data.tobytes())
    assert read_picture(tmp_path / "a.png", cv2.IMREAD_GRAYSCALE) is None


def test_a_jpeg_has_its_end_after_its_pixels_and_may_have_more_after_that() -> None:
    """Telephones put a film there, cameras fill frames up; a thumbnail's end is none of the picture's."""
    whole = cv2.imencode(".jpg", GREY)[1].tobytes()
    thumbnail = b"\xff\xe1" + struct.pack(">H", 2 + len(whole)) + whole
    filled = whole[:2] + b"\xff\xff" + whole[2:]
    for good in (whole, filled, whole[:2] + thumbnail + whole[2:]):
        for more in (b"", bytes(10_000), whole[2:-2] * 3):
            assert ends_as_it_says(good + more)
        for cut in (1, 2, 500):
            assert not ends_as_it_says(good[:-cut])
    assert not ends_as_it_says(whole[:2] + b"\xff" * 10_000)


@pytest.mark.parametrize("announced", [1, 0x6000_0000, 0xFFFF_FFFF])
def test_a_last_chunk_that_says_it_is_huge_is_not_believed(announced: int, tmp_path: Path) -> None:
    whole = cv2.imencode(".png", GREY)[1].tobytes()
    assert ends_as_it_says(whole)
    changed = whole[:-12] + struct.pack(">I", announced) + whole[-8:]
    assert not ends_as_it_says(changed)  # what it would cost: tests/device/camera/test_hostile_images.py
    (tmp_path / "a.png").write_bytes(changed)
    assert read_picture(tmp_path / "a.png", cv2.IMREAD_GRAYSCALE) is None
