"""Hands found with the published weights, and what a device does without them or with damaged ones."""

import contextlib
import json
import math
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from models import hand_landmarks
from models.crop_geometry import Handedness, similarity_from_valleys
from models.errors import ManifestError, ModelFileError
from models.frames import CameraFrame
from models.hand import Hand, HandFinder, PartialHand
from models.hand_landmarks import (
    HandJoints,
    HandLandmarks,
    Spot,
    installed_landmarks,
    open_landmarks,
    spot_of,
    weights_folder,
)
from models.onnx_session import open_session
from models.synthesis.background import Pixels
from models.synthesis.hand_scenes import HandScene, hand_scene
from models.training.hand_bench import drifting, scenes
from tests.hand_weights import needs_hand_weights
from tests.shares import share_of

SIDES: tuple[Handedness, Handedness] = ("L", "R")
CORNERS = np.array([[0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0]]) - 0.5


@pytest.fixture
def landmarks() -> HandLandmarks:
    landmarks = installed_landmarks()
    assert landmarks is not None
    return landmarks


def scene(kind: str, i: int, side: Handedness | None = None) -> HandScene:
    return hand_scene(71_000_000 + i, kind, "rgb", person=71_000_000 + i, handedness=side or SIDES[i % 2])


class Counting:
    """The weights, and how often their detector searched a whole picture."""

    def __init__(self, landmarks: HandLandmarks) -> None:
        self._landmarks, self.searches, self.readings = landmarks, 0, 0
        self.blind = False

    def spots(self, pixels: Pixels, least: float = 0.5) -> list[Spot]:
        self.searches += 1
        return self._landmarks.spots(pixels, least)

    def forget(self) -> None:
        self._landmarks.forget()

    def joints(self, pixels: Pixels, spot: Spot) -> HandJoints | None:
        self.readings += 1
        return None if self.blind else self._landmarks.joints(pixels, spot)


@needs_hand_weights
@pytest.mark.parametrize("kind", ["clean", "turned", "clutter"])
@share_of("hands", 6, 16)
def test_open_hands_are_found_with_their_side_and_exact_valleys(
    kind: str, landmarks: HandLandmarks, hands: int
) -> None:
    errors = []
    for i in range(hands):
        shown = scene(kind, i)
        assert shown.points is not None
        hand = HandFinder(landmarks=landmarks).find(CameraFrame.from_pixels(shown.pixels))
        if hand is None:
            continue
        assert hand.handedness == shown.handedness
        errors.append(float(np.hypot(*(hand.valleys[1:] - shown.points[1:4]).T).max()) / shown.palm_width_px)
    assert len(errors) >= hands - (hands // 8 if kind == "clutter" else 0)
    assert np.median(errors) < 0.03


@needs_hand_weights
def test_a_hand_is_the_same_hand_at_every_turn(landmarks: HandLandmarks) -> None:
    shown = scene("clean", 3)
    for turn in (cv2.ROTATE_90_CLOCKWISE, cv2.ROTATE_180, cv2.ROTATE_90_COUNTERCLOCKWISE):
        hand = HandFinder(landmarks=landmarks).find(
            CameraFrame.from_pixels(np.ascontiguousarray(cv2.rotate(shown.pixels, turn)))
        )
        assert hand is not None and hand.handedness == shown.handedness


@needs_hand_weights
@share_of("hands", 8, 16)
def test_a_leaning_hand_has_the_crop_of_the_upright_one(landmarks: HandLandmarks, hands: int) -> None:
    """Nearly: hands that the picture shows at 0.7 of their length; the distance of the worst corner."""
    as_it_leans: list[float] = []
    as_if_upright: list[float] = []
    upright: list[float] = []
    for i in range(hands):
        shown = scene("clean", i)
        assert shown.points is not None
        true = similarity_from_valleys(shown.points[:4], shown.handedness, 1)
        turn = true[:, :2] / np.hypot(*true[0, :2])
        shorter = turn.T @ np.diag([1.0, 0.7]) @ turn
        middle = shown.points[1:4].mean(axis=0)
        leans = np.hstack([shorter, (middle - shorter @ middle)[:, None]])
        size = shown.pixels.shape[1::-1]
        pixels = cv2.warpAffine(shown.pixels, leans, size, borderMode=cv2.BORDER_REPLICATE)
        finder = HandFinder(landmarks=landmarks)
        before = finder.find(CameraFrame.from_pixels(shown.pixels))
        hand = finder.find(CameraFrame.from_pixels(np.asarray(pixels, np.uint8)))
        if before is None or hand is None or hand.handedness != shown.handedness:
            continue
        upright.append(before.leaning)
        for found, errors in ((hand, as_it_leans), (replace(hand, leaning=1.0), as_if_upright)):
            matrix = found.to_crop(1)
            in_leaning = np.linalg.solve(matrix[:, :2], CORNERS - matrix[:, 2:])
            in_upright = np.linalg.solve(leans[:, :2], in_leaning - leans[:, 2:])
            away = true[:, :2] @ in_upright + true[:, 2:] - CORNERS
            errors.append(float(np.hypot(*away).max()))
    assert len(as_it_leans) >= hands - hands // 8
    assert np.median(upright) == 1.0
    assert np.median(as_it_leans) < 0.8 * np.median(as_if_upright)


class Waiting:
    """A network whose runs wait for a second one at the same time."""

    def __init__(self) -> None:
        self.both = threading.Barrier(2, timeout=0.3)
        self.pictures: list[float] = []

    def run(self, _outputs: None, given: dict[str, NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        with contextlib.suppress(threading.BrokenBarrierError):
            self.both.wait()
        self.pictures.append(float(given["picture"].max()))
        return [np.zeros((1, length), np.float32) for length in (63, 1, 1, 63)]


def test_threads_take_turns_so_that_one_black_picture_overwrites_every_hand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The doctor has a picture measured with the weights that recognition uses at the same time."""
    network = Waiting()
    monkeypatch.setattr(hand_landmarks, "open_session", lambda *_path, **_options: network)
    landmarks, picture = HandLandmarks(tmp_path, tmp_path), np.full((224, 224, 3), 255, np.uint8)
    spot = Spot(112.0, 112.0, 224.0, (0.0, -1.0))
    threads = [threading.Thread(target=landmarks.joints, args=(picture, spot)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert network.both.broken  # never two at once
    landmarks.forget()
    assert network.pictures == [1.0, 1.0, 0.0]


def test_a_palm_is_not_said_to_lean_whose_wrist_is_at_the_edge() -> None:
    points = np.zeros((21, 2))
    points[[0, 5, 9, 13, 17]] = [(100, 200), (50, 120), (80, 110), (120, 110), (150, 120)]
    joints = HandJoints(points, 1.0, 1.0)
    assert joints.leaning(200, 300) == pytest.approx(1.1 * 100 / 85)
    assert joints.leaning(200, 241) > 1.0
    for width, height in ((200, 239), (200, 200), (139, 300)):
        assert joints.leaning(width, height) == 1.0


@needs_hand_weights
def test_a_hand_once_found_is_followed_and_not_searched_again(landmarks: HandLandmarks) -> None:
    counting, shown = Counting(landmarks), scene("clean", 5)
    finder = HandFinder(landmarks=counting)  # type: ignore[arg-type]
    for k in range(10):
        moved = np.roll(shown.pixels, (2 * k, -3 * k), (0, 1))
        assert isinstance(finder.look(CameraFrame(moved, 33 * k, k)), Hand)
    assert counting.searches == 1 and counting.readings == 1
    assert isinstance(finder.look(CameraFrame(moved, 330, 10)), Hand)
    assert counting.searches == 1 and counting.readings == 2


@needs_hand_weights
def test_the_valleys_of_a_hand_that_is_followed_are_where_reading_its_joints_finds_them(
    landmarks: HandLandmarks,
) -> None:
    """In the same pictures, which drift, turn and come nearer; the distance in palm widths."""
    apart = []
    for i in range(6):
        finder, shown = HandFinder(landmarks=landmarks), scene("clean", 20 + i)
        assert shown.points is not None
        palm = (float(shown.points[1:4, 0].mean()), float(shown.points[1:4, 1].mean()))
        for k in range(8):
            turned = cv2.getRotationMatrix2D(palm, 1.5 * k, 1.01**k) + np.array(
                [[0, 0, 3 * k], [0, 0, -2 * k]]
            )
            pixels = cv2.warpAffine(shown.pixels, turned, (640, 480), borderMode=cv2.BORDER_REPLICATE)
            frame = CameraFrame(np.asarray(pixels, np.uint8), 33 * k, k)
            followed, read = finder.look(frame), HandFinder(landmarks=landmarks).look(frame)
            assert isinstance(followed, Hand) == isinstance(read, Hand)
            if isinstance(followed, Hand) and isinstance(read, Hand):
                assert (followed.handedness, followed.hint) == (read.handedness, read.hint)
                away = np.hypot(*(followed.valleys - read.valleys).T).max()
                apart.append(float(away) / read.palm_width_px)
    assert len(apart) >= 40
    assert np.median(apart) < 0.02 and max(apart) < 0.08


@needs_hand_weights
def test_a_hand_that_only_the_joints_see_is_read_in_every_picture(landmarks: HandLandmarks) -> None:
    """The fine network denies that fingers held together are an open hand."""
    counting, shown = Counting(landmarks), scene("together", 1)
    finder = HandFinder(landmarks=counting)  # type: ignore[arg-type]
    seen = [finder.look(CameraFrame(shown.pixels, 33 * k, k)) for k in range(4)]
    assert all(isinstance(hand, Hand) for hand in seen) and counting.readings == 4


@needs_hand_weights
def test_another_hand_in_the_place_of_one_that_was_followed_is_read(landmarks: HandLandmarks) -> None:
    """Its side above all: a left hand's picture over that of the right one, mirrored."""
    counting, shown = Counting(landmarks), scene("clean", 5)
    finder = HandFinder(landmarks=counting)  # type: ignore[arg-type]
    assert shown.points is not None
    middle = round(float(shown.points[1:4, 0].mean()))
    mirrored = np.roll(shown.pixels[:, ::-1], 2 * middle - shown.pixels.shape[1] + 1, 1)
    before = [finder.look(CameraFrame(shown.pixels, 33 * k, k)) for k in range(3)]
    after = finder.look(CameraFrame(np.ascontiguousarray(mirrored), 99, 3))
    assert counting.readings > 1
    assert all(isinstance(hand, Hand) and hand.handedness == shown.handedness for hand in before)
    assert isinstance(after, Hand) and after.handedness != shown.handedness


@needs_hand_weights
def test_a_hand_in_view_does_not_change_its_side(landmarks: HandLandmarks) -> None:
    """Read where it was, this one's joints are a left hand's from the fifth picture on."""
    finder, shown = HandFinder(landmarks=landmarks), list(scenes("together", "rgb", 4))[7]
    for k, picture in enumerate(drifting(shown, 7)):
        hand = finder.look(CameraFrame(picture.pixels, 33 * k, k))
        assert isinstance(hand, Hand) and hand.handedness == shown.handedness == "R"


@needs_hand_weights
def test_a_room_without_a_hand_is_searched_now_and_then(landmarks: HandLandmarks) -> None:
    counting, empty = Counting(landmarks), scene("empty", 7)
    finder = HandFinder(landmarks=counting)  # type: ignore[arg-type]
    for k in range(30):
        assert not isinstance(finder.look(CameraFrame(empty.pixels, 66 * k, k)), Hand)
    assert 5 <= counting.searches <= 15


@needs_hand_weights
def test_near_infrared_is_left_to_own_means(landmarks: HandLandmarks) -> None:
    counting = Counting(landmarks)
    shown = hand_scene(72_000_000, "clean", "nir", person=72_000_000, handedness="L")
    for pixels in (shown.pixels, cv2.cvtColor(shown.pixels, cv2.COLOR_GRAY2BGR)):
        finder = HandFinder(landmarks=counting)  # type: ignore[arg-type]
        assert finder.find(CameraFrame.from_pixels(pixels)) is not None
    assert counting.searches == counting.readings == 0


@needs_hand_weights
def test_what_own_means_take_for_open_counts_only_if_the_joints_agree(landmarks: HandLandmarks) -> None:
    counting = Counting(landmarks)
    frame = CameraFrame.from_pixels(scene("clean", 9).pixels)
    counting.blind = True
    seen = HandFinder(landmarks=counting).look(frame)  # type: ignore[arg-type]
    assert isinstance(seen, PartialHand) and seen.hint == "open_hand" and counting.readings > 0
    assert isinstance(HandFinder(landmarks=None).look(frame), Hand)


def joints_of(landmarks: HandLandmarks, shown: HandScene) -> HandJoints:
    found = [landmarks.joints(shown.pixels, spot) for spot in landmarks.spots(shown.pixels)]
    return next(joints for joints in found if joints is not None)


@needs_hand_weights
def test_fingers_together_are_open_and_folded_ones_are_not(landmarks: HandLandmarks) -> None:
    joints = joints_of(landmarks, scene("clean", 1))
    assert joints.is_open
    together, folded, crossing = joints.points.copy(), joints.points.copy(), joints.points.copy()
    for first in (5, 13, 17):  # every finger as the middle one, from its own knuckle
        together[first + 1 : first + 4] = joints.points[10:13] - joints.points[9] + joints.points[first]
    assert replace(joints, points=together).is_open
    folded[18:21] = folded[17] + 0.2 * (folded[0] - folded[17])
    assert not replace(joints, points=folded).is_open
    crossing[3:5] = joints.points[[9, 13]]
    assert not replace(joints, points=crossing).is_open


@needs_hand_weights
def test_the_back_of_a_hand_is_no_palm(landmarks: HandLandmarks) -> None:
    joints = joints_of(landmarks, scene("clean", 2, "L"))
    assert joints.handedness == "L" and not replace(joints, right_chance=0.1).shows_back
    assert replace(joints, right_chance=0.97).shows_back
    mirrored = replace(joints, points=joints.points * (-1, 1), right_chance=0.03)
    assert mirrored.handedness == "R" and mirrored.shows_back


@needs_hand_weights
def test_where_joints_are_read_is_the_same_however_it_is_known(
    landmarks: HandLandmarks,
) -> None:
    shown = scene("clean", 4)
    (first, *_), joints = landmarks.spots(shown.pixels), joints_of(landmarks, shown)
    for other in (joints.spot, spot_of(joints.valleys, joints.handedness)):
        assert math.dist((first.x, first.y), (other.x, other.y)) < 0.15 * first.side
        assert 0.75 < other.side / first.side < 1.33
        assert first.up[0] * other.up[0] + first.up[1] * other.up[1] > 0.94


@needs_hand_weights
@pytest.mark.parametrize("shape", [(1, 1, 3), (3, 700, 3), (480, 2, 3), (2000, 3000, 3)])
def test_strange_frames_raise_nothing(shape: tuple[int, ...], landmarks: HandLandmarks) -> None:
    noise = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    assert not isinstance(HandFinder(landmarks=landmarks).look(CameraFrame.from_pixels(noise)), Hand)
    for spot in (Spot(0.0, 0.0, 1e9, (0.0, -1.0)), Spot(-5e3, 4e3, 50.0, (1.0, 0.0))):
        assert landmarks.joints(noise, spot) is None


@needs_hand_weights
def test_a_hand_that_leaves_the_picture_is_asked_to_the_middle(landmarks: HandLandmarks) -> None:
    shown = scene("clean", 6)
    right_half = np.ascontiguousarray(shown.pixels[:, 330:])
    seen = HandFinder(landmarks=landmarks).look(CameraFrame.from_pixels(right_half))
    assert seen is None or isinstance(seen, PartialHand)


@needs_hand_weights
def test_other_files_than_the_manifest_names_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    shutil.copytree(weights_folder(), folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    wrong = manifest | {"self_test": [n + 1.0 for n in manifest["self_test"]]}
    (folder / "manifest.json").write_text(json.dumps(wrong))
    with pytest.raises(ModelFileError, match="failed their self test"):
        open_landmarks(folder)
    (folder / "manifest.json").write_text(json.dumps(manifest | {"self_test": ["three"]}))
    with pytest.raises(ManifestError, match=r"self_test must be a list of numbers .*, found 'three'"):
        open_landmarks(folder)
    (folder / "manifest.json").write_text(json.dumps(manifest | {"files": manifest["files"][:1]}))
    with pytest.raises(ManifestError, match="two files"):
        open_landmarks(folder)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    damaged = bytearray((folder / "hand-landmarks.onnx").read_bytes())
    damaged[100_000] ^= 1
    (folder / "hand-landmarks.onnx").write_bytes(damaged)
    with pytest.raises(ModelFileError):
        open_landmarks(folder)


@needs_hand_weights
def test_of_a_hand_that_has_left_nothing_stays_in_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network of the joints keeps its memory; when no hand is there, it is that of a black picture."""
    seen: dict[str, list[bool]] = {}

    class Watched:
        def __init__(self, path: Path, **given: bool) -> None:
            self._session, self._name = open_session(path, **given), path.stem

        def run(self, names: None, feed: dict[str, Any]) -> list[Any]:
            seen.setdefault(self._name, []).append(bool(feed["picture"].any()))
            outputs: list[Any] = self._session.run(names, feed)
            return outputs

    monkeypatch.setattr(hand_landmarks, "open_session", Watched)
    finder = HandFinder(open_landmarks(weights_folder()))
    shown = scene("open", 0).pixels
    wall, by_night = np.full((480, 640, 3), (90, 120, 150), np.uint8), np.full((480, 640, 3), 90, np.uint8)
    for empty in (wall, by_night):
        seen.clear()
        for number, pixels in enumerate((shown, shown, empty, empty, empty)):
            finder.look(CameraFrame(pixels, number * 1_000, number))
        assert seen["hand-landmarks"] == [True, True, False]
