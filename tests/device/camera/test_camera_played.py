"""The real OpenCV before a V4L2 camera that is played: MJPEG frames that are empty, cut, or none at all."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import cv2
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")

SOURCE: Final = Path(__file__).with_name("played_v4l2.c")
READER: Final = """
import json, sys
from pathlib import Path
import cv2
import numpy as np
from device.camera.v4l2 import open_v4l2

good = cv2.imread(sys.argv[1], cv2.IMREAD_COLOR)
camera = open_v4l2(Path("/dev/null"), 30.0)
read = [camera.read() for _ in range(int(sys.argv[2]))]
print(json.dumps([
    ["none" if one is None else "good" if np.array_equal(one, good) else "other" for one in read],
    camera.skipped,
]))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("played") / "played_v4l2.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-o", made, SOURCE, "-ldl"], check=True)
    return made


def read(library: Path, frames: str, reads: int, *, grey: bool = False) -> tuple[list[str], int]:
    """What so many reads of a camera that gives `frames` come to, and the number skipped."""
    coarse = np.random.default_rng(0).integers(0, 255, (60, 80) if grey else (60, 80, 3), np.uint8)
    jpeg = library.with_name("picture.jpg")
    cv2.imwrite(str(jpeg), cv2.resize(coarse, (640, 480)))
    played = {"LD_PRELOAD": str(library), "PLAYED_JPEG": str(jpeg), "PLAYED_FRAMES": frames}
    command = [sys.executable, "-c", READER, str(jpeg), str(reads)]
    done = subprocess.run(
        command, env=os.environ | played, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    pictures, skipped = json.loads(done.stdout)
    return pictures, skipped


@pytest.mark.parametrize("grey", [False, True])
def test_pictures_come_as_opencv_decodes_them(library: Path, grey: bool) -> None:
    assert read(library, "g", 4, grey=grey) == (["good"] * 4, 0)


@pytest.mark.parametrize("broken", "sxz")
def test_a_broken_frame_is_skipped(library: Path, broken: str) -> None:
    assert read(library, f"gg{broken}g{broken}{broken}g", 6) == (["good"] * 6, 3)


@pytest.mark.parametrize("broken", "sxz")
def test_a_stream_that_breaks_for_good_is_a_stall_and_no_frozen_picture(library: Path, broken: str) -> None:
    pictures, skipped = read(library, f"gggg{broken}", 5)  # opening takes one
    assert pictures == ["good"] * 3 + ["none"] * 2
    assert skipped > 20
