"""`palmd` under a technician's eyes: pictures on request, a rehearsal, and the next real passage."""

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
import pytest

from device.enrolment.preview import EVERY_MS, Preview, draw
from device.platform.ipc import ask_core
from device.values.recognition import Sighting
from device.vision.recognition import Interest, Look
from models.frames import CameraFrame
from models.quality import COMPONENTS, Quality
from tests.device.whole_device import (
    WITHIN_S,
    Device,
    make_device,
    pictures,
    until,
    validator_at,
)
from tools.kit.pty_pair import PtyPair


@pytest.fixture(scope="module")
def pair() -> Iterator[PtyPair]:
    with PtyPair() as made:
        yield made


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory, pair: PtyPair) -> Iterator[Device]:
    made = make_device(tmp_path_factory.mktemp("watched"))
    (made.folder / "cable").symlink_to(pair.left)
    with made.running():
        asyncio.run(until(lambda: made.status().camera.condition == "ok"))
        # The last file that a device makes by itself.
        asyncio.run(until((made.folder / "state" / "journal.db.reserve").exists))
        yield made


def picture(device: Device) -> tuple[dict[str, Any], bytes] | None:
    answer = ask_core(device.control_socket, "preview.frame", wait_ms=1_000)
    told = answer.header["picture"]
    return None if told is None else (told, answer.payload)


def wait_until_the_hand_has_left(device: Device) -> None:
    """The rest of a film, of which the first pictures were enough."""
    unseen, deadline = 0, time.monotonic() + WITHIN_S
    while unseen < 4:
        assert time.monotonic() < deadline
        told, _ = picture(device) or ({"hand": True}, b"")
        unseen = 0 if told["hand"] else unseen + 1


def files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if "camera" not in path.parts}


def test_a_picture_shows_where_the_hand_is_and_how_good_it_is(device: Device) -> None:
    before = files(device.folder)
    told: dict[str, Any] = {}
    deadline = time.monotonic() + WITHIN_S
    with device.hand(pictures()):
        while not told.get("quality") and time.monotonic() < deadline:
            told, jpeg = picture(device) or ({}, b"")
    pixels = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    assert pixels is not None
    assert pixels.shape[:2] == (told["height"], told["width"])
    assert told["width"] <= 640
    hand = told["hand"]
    assert hand["side"] == "L"
    assert len(hand["outline"]) > 20
    assert len(hand["crop"]) == len(hand["valleys"]) == 4
    assert cv2.pointPolygonTest(np.array(hand["outline"]), [float(at) for at in hand["centre"]], False) > 0
    assert [name for name, _ in told["stages_us"]] == ["hand", "crop", "quality", "liveness"]
    assert told["pad"]["res"] in ("pass", "unknown")
    wait_until_the_hand_has_left(device)
    assert files(device.folder) == before


def test_what_lowers_the_quality_is_shown() -> None:
    parts: dict[str, float] = {name: 81.0 + at for at, name in enumerate(COMPONENTS)}
    quality = Quality(44, **parts, detail=12.4, hint=None)
    frame, seen = CameraFrame(np.zeros((48, 64, 3), np.uint8), 1_000, 1), Sighting(True, 1_000)
    told, _ = draw(frame, Look(Interest.PREVIEW, 1, seen, quality=quality))
    assert told["quality"] == {"quality_q": 44} | parts | {"sharpness": 12}


def test_pictures_come_eight_a_second_at_most(device: Device) -> None:
    begun_s, shown = time.monotonic(), 0
    while time.monotonic() - begun_s < 1.5:
        shown += picture(device) is not None
    took_s = time.monotonic() - begun_s
    assert 2 <= shown <= took_s * 8 + 1


async def test_frames_are_let_go_when_nobody_asks() -> None:
    now_ms, changes = [1_000], [0]

    def changed() -> None:
        changes[0] += 1

    preview = Preview(asyncio.get_running_loop(), lambda: now_ms[0], changed)
    frame = CameraFrame(np.zeros((48, 64, 3), np.uint8), 1_000, 1)
    watched = [preview.watched]
    preview.offer(frame, None)
    asking = asyncio.create_task(preview.picture(5.0))
    await asyncio.sleep(0)
    watched.append(preview.watched)
    assert changes == [1]
    assert await preview.picture(5.0) is None  # another is being shown one
    preview.offer(frame, None)
    told, jpeg = await asking or ({}, b"")
    assert (told["number"], told["hand"], jpeg[:2]) == (1, None, b"\xff\xd8")
    asking = asyncio.create_task(preview.picture(0.05))
    await asyncio.sleep(0)
    preview.offer(CameraFrame(frame.pixels, 1_000 + EVERY_MS - 1, 2), None)  # too soon after the first
    assert await asking is None
    now_ms[0] += 10_000
    watched.append(preview.watched)
    assert watched == [False, True, False]


def test_the_preview_ends_when_its_page_is_closed(device: Device) -> None:
    program = device.palmctl("preview", "--json", "--minutes", "2")
    assert program.stdout is not None
    told = json.loads(program.stdout.readline())
    assert told["lives_s"] == 120
    page = httpx.get(told["url"])
    assert "Camera preview" in page.text
    frame = httpx.get(told["url"] + "frame", timeout=WITHIN_S)
    assert (frame.status_code, frame.content[:2]) == (200, b"\xff\xd8")
    assert httpx.get(told["url"] + "status").json()["device_id"] == device.config.device.id
    assert httpx.post(told["url"] + "bye", json={}).status_code == 204
    assert program.wait(WITHIN_S) == 0


@pytest.mark.parametrize(("end", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_the_totem_s_address_is_in_a_file_of_its_user_s_while_it_runs(
    device: Device, tmp_path: Path, end: int, code: int
) -> None:
    url_file = tmp_path / "url"
    program = device.palmctl("totem", "--url-file", str(url_file))
    assert program.stdout is not None
    url = program.stdout.readline().strip()
    assert url_file.read_text() == url
    assert url_file.stat().st_mode & 0o777 == 0o600
    assert httpx.get(url + "state?after=0").json()["state"] == {"step": "idle"}
    program.send_signal(end)
    assert program.wait(WITHIN_S) == code
    assert not url_file.exists()


@pytest.mark.parametrize("command", [["preview"], ["pass"], ["enrol", "--accept-terms", "v1"]])
def test_without_a_daemon_the_next_step_is_told(tmp_path: Path, command: list[str]) -> None:
    absent = make_device(tmp_path)
    program = absent.palmctl(*command)
    said = program.communicate(timeout=WITHIN_S)[1]
    assert program.returncode == 3
    assert "systemctl start palmd" in said


def test_a_rehearsal_says_what_the_verdict_would_be_and_signs_nothing(device: Device) -> None:
    program = device.palmctl("pass", "--dry-run", "--json")
    assert program.stderr is not None
    assert "nothing is signed" in program.stderr.readline()
    with device.hand(pictures(occasion=9001)):
        said = json.loads(program.communicate(timeout=WITHIN_S)[0])
    assert (program.returncode, said["decision"], said["result"]) == (0, "accept", "MATCH")
    assert said["rehearsal"] is True
    assert said["score_q"] > 5_000
    names = [name for name, _ in said["stages_us"]]
    judged = ["hand", "crop", "quality", "vector", "match", "liveness"]
    assert names == ["to_recogniser", *judged, "to_loop"]
    assert device.status().verdict_seq == 0
    wait_until_the_hand_has_left(device)


def test_no_hand_is_told_with_the_next_step(device: Device) -> None:
    program = device.palmctl("pass", "--dry-run", "--wait-s", "1")
    said = program.communicate(timeout=WITHIN_S)
    assert (program.returncode, said[0]) == (1, "")
    assert "palmctl preview" in said[1]


async def test_with_a_validator_it_is_the_real_passage_with_its_times(
    device: Device, pair: PtyPair, tmp_path: Path
) -> None:
    trace = tmp_path / "passage.json"

    async with validator_at(pair.right, device.board) as validator:
        await validator.wait_serving()
        program = device.palmctl("pass", "--trace", str(trace))
        assert program.stderr is not None
        first = await asyncio.to_thread(program.stderr.readline)
        assert "validator" in first
        validator.arm(20_000)
        with device.hand(pictures(occasion=9002)):
            said, _ = await asyncio.to_thread(program.communicate, None, WITHIN_S)
    assert program.returncode == 0
    assert "accept MATCH" in said and "verdict 1" in said
    stages = [one for one in json.loads(trace.read_text())["traceEvents"] if one["ph"] == "X"]
    names = [one["name"] for one in stages]
    assert names[:2] == ["to_recogniser", "hand"]
    assert names[-4:] == ["to_loop", "to_journal", "sign_and_journal", "cable"]
    assert all(name in said for name in names)
    for one, following in pairwise(stages):
        assert one["ts"] + one["dur"] == following["ts"]
    assert len({one["tid"] for one in stages}) == 4
    assert device.status().verdict_seq == 1
