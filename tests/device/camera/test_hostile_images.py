"""Pictures that say they are gigabytes, that end early, or that are damaged: a word, and no memory."""

import io
import json
import os
import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest

from device.camera.pixels import Unreadable, decode_image
from device.camera.recordings import ImageFolder, VideoFile
from device.camera.source import CameraUnavailable
from tests import REPOSITORY

SIDE = 6_000

DECODE = """
import json, resource, sys
from pathlib import Path
from device.camera.pixels import Unreadable, decode_image
def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, said = peak_mib(), {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        decode_image(path.read_bytes())
        said[path.name] = "decoded"
    except Unreadable as reason:
        said[path.name] = str(reason)
print(json.dumps([said, peak_mib() - before]))
"""


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(side: int) -> bytes:
    """A whole, black PNG: 105 KB for 6,000 pixels a side, 103 MiB when decoded."""
    packer, body = zlib.compressobj(9), io.BytesIO()
    for _ in range(side):
        body.write(packer.compress(bytes(1 + 3 * side)))
    body.write(packer.flush())
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body.getvalue()) + chunk(b"IEND", b"")
    )


def small(suffix: str) -> bytes:
    picture = np.random.default_rng(1).integers(0, 256, (96, 128, 3), np.uint8)
    done, data = cv2.imencode(suffix, picture)
    assert done
    return data.tobytes()


def enlarged() -> dict[str, bytes]:
    """Small pictures whose headers say SIDE × SIDE."""
    jpeg, bmp, tiff = bytearray(small(".jpg")), bytearray(small(".bmp")), bytearray(small(".tiff"))
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", SIDE, SIDE)
    bmp[18:26] = struct.pack("<ii", SIDE, SIDE)
    start = int.from_bytes(tiff[4:8], "little")
    for at in range(start + 2, start + 2 + 12 * int.from_bytes(tiff[start : start + 2], "little"), 12):
        if int.from_bytes(tiff[at : at + 2], "little") in (256, 257):
            tiff[at + 2 : at + 12] = struct.pack("<HIHxx", 3, 1, SIDE)
    return {
        "a.png": png(SIDE),
        "b.jpg": bytes(jpeg),
        "c.bmp": bytes(bmp),
        "d.tif": bytes(tiff),
        "e.pgm": f"P5 {SIDE} {SIDE} 255\n".encode(),
        "f.webp": b"RIFF" + struct.pack("<I", 30) + b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4)
        + (SIDE - 1).to_bytes(3, "little") * 2 + b"VP8 " + bytes(8),
    }  # fmt: skip


def decoded_apart(files: dict[str, bytes], folder: Path) -> tuple[dict[str, str], float]:
    """What is said of each file, and by how many MiB the process grew: OpenCV takes its limit when it is
    loaded."""
    for name, data in files.items():
        (folder / name).write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", DECODE, str(folder)],
        capture_output=True,
        check=True,
        text=True,
        cwd=REPOSITORY,
        timeout=60,
    )
    said, grew_mib = json.loads(done.stdout)
    return said, grew_mib


def test_a_picture_that_says_it_is_huge_is_refused_by_its_header(tmp_path: Path) -> None:
    said, grew_mib = decoded_apart(enlarged(), tmp_path)
    assert said == dict.fromkeys(said, "more than 25 megapixels; scale it down")
    assert grew_mib < 32, "one of them whole is 103 MiB"


def test_a_chunk_that_says_it_is_huge_costs_no_memory(tmp_path: Path) -> None:
    whole = small(".png")
    at = whole.index(b"IDAT") - 4
    announced = (0x6000_0000).to_bytes(4, "big")
    files = {
        "a.png": whole[:at] + announced + whole[at + 4 :],
        "b.png": whole[:at],
        "c.png": whole[:12],
        "d.png": whole[:-12] + announced + whole[-8:],
    }
    said, grew_mib = decoded_apart(files, tmp_path)
    assert said == dict.fromkeys(files, "a PNG without its end")
    assert grew_mib < 32, "the chunk is said to be 1.5 GiB"


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".webp", ".tiff", ".ppm"])
def test_what_ends_early_or_is_damaged_is_a_picture_or_a_word(suffix: str) -> None:
    whole, rng = small(suffix), random.Random(suffix)
    damaged = [whole[: rng.randrange(len(whole))] for _ in range(30)]
    for _ in range(60):
        changed = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(min(len(changed), 200))] = rng.randrange(256)
        damaged.append(bytes(changed))
    for data in damaged:
        try:
            pixels, _, _ = decode_image(data)
        except Unreadable:
            continue
        assert pixels.dtype == np.uint8
        assert max(pixels.shape[:2]) <= 1280


@pytest.mark.parametrize("depth", [np.uint8, np.uint16])
def test_a_transparent_picture_is_scaled_before_it_is_blended(depth: type[np.unsignedinteger]) -> None:
    most = np.iinfo(depth).max
    picture = np.zeros((700, 1400, 4), depth)
    picture[:, :700] = most // 2, most // 4, most, most
    done, data = cv2.imencode(".png", picture)
    assert done
    pixels, _, scaled = decode_image(data.tobytes())
    assert scaled
    assert pixels.shape == (640, 1280, 3)
    assert pixels[320, 320].tolist() == pytest.approx([127, 63, 255], abs=1)
    assert pixels[320, 960].tolist() == [128, 128, 128]


def test_a_pipe_under_the_name_of_a_picture_holds_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(small(".png"))
    folder = ImageFolder(tmp_path, loop=False)
    assert folder.next() is not None
    assert folder.skipped == 1
    with pytest.raises(CameraUnavailable, match="no plain file"):
        VideoFile(tmp_path / "a.png", loop=False)


def test_a_video_of_too_large_pictures_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("device.camera.recordings.MOST_PIXELS", 200 * 100)
    path = tmp_path / "a.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10.0, (320, 240))
    for _ in range(3):
        writer.write(np.full((240, 320, 3), 90, np.uint8))
    writer.release()
    with pytest.raises(CameraUnavailable, match=r"320 × 240.*scale the video down"):
        VideoFile(path, loop=False)
