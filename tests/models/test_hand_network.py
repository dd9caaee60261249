"""The learnt hand finder: hands before clutter at any angle, its files proved, no answer trusted blindly."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models.hand_network as hand_network
from models.crop_geometry import Handedness
from models.errors import ManifestError, ModelFileError
from models.frames import CameraFrame
from models.hand import Hand, HandFinder
from models.hand_network import (
    COARSE_PX,
    FINE_PALM_WIDTHS,
    FINE_PX,
    HandNetwork,
    fitted,
    open_network,
    shipped_network,
    straighten,
)
from models.synthesis.hand_scenes import HandScene, hand_scene

SHIPPED = Path(hand_network.__file__).parent / "shipped_hand"
SIDES: tuple[Handedness, Handedness] = ("L", "R")


def scene(kind: str, i: int) -> HandScene:
    look = ("rgb", "nir")[i // 2 % 2]
    return hand_scene(80_000_000 + i, kind, look, person=80_000_000 + i, handedness=SIDES[i % 2])  # type: ignore[arg-type]  # a literal


def network() -> HandNetwork:
    return shipped_network()


def test_hands_are_found_before_clutter_at_any_angle() -> None:
    errors, sides = [], 0
    for i in range(12):
        shown = scene("clutter", i)
        hand = HandFinder(landmarks=None).find(CameraFrame.from_pixels(shown.pixels))
        if hand is None or shown.points is None:
            continue
        away = np.hypot(*(hand.valleys[1:] - shown.points[1:4]).T).max() / shown.palm_width_px
        errors.append(away)
        sides += hand.handedness == shown.handedness
        x, y = (int(v * hand.mask_scale) for v in shown.points[5])
        assert hand.mask[y, x] == 255
        assert hand.mask.mean() < 200
    assert len(errors) >= 11
    assert sides >= 11
    assert np.median(errors) < 0.05


def test_clutter_and_closed_hands_are_no_open_hands() -> None:
    seen = [
        HandFinder(landmarks=None).find(CameraFrame.from_pixels(scene("empty", i).pixels)) for i in range(8)
    ]
    seen += [
        HandFinder(landmarks=None).find(CameraFrame.from_pixels(scene("shut", i).pixels)) for i in range(8)
    ]
    assert sum(hand is not None for hand in seen) <= 1


def test_the_files_are_small_and_proved() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.glob("*.onnx")) < 1_500_000
    assert open_network(SHIPPED).answer().shape == (14,)


@pytest.mark.parametrize("which", ["hand-coarse.onnx", "hand-fine.onnx"])
def test_another_file_than_the_manifests_is_refused(tmp_path: Path, which: str) -> None:
    folder = shutil.copytree(SHIPPED, tmp_path / "copy")
    (folder / which).write_bytes((folder / which).read_bytes()[:-1] + b"x")
    with pytest.raises(ModelFileError, match=which):
        open_network(folder)
    (folder / which).unlink()
    with pytest.raises(ModelFileError, match=which):
        open_network(folder)


def test_another_answer_than_the_manifests_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(SHIPPED, tmp_path / "copy")
    manifest = json.loads((folder / "manifest.json").read_text())
    for points in ([x + 1.0 for x in manifest["self_test"]["points"]], []):
        (folder / "manifest.json").write_text(json.dumps({**manifest, "self_test": {"points": points}}))
        with pytest.raises(ModelFileError, match="self test"):
            open_network(folder)


@pytest.mark.parametrize("wrong", ["three", "0.5", None, True, [[1.0]], {}, math.nan, math.inf, 10**400])
def test_a_known_answer_that_is_no_number_is_named(tmp_path: Path, wrong: object) -> None:
    folder = shutil.copytree(SHIPPED, tmp_path / "copy")
    manifest = json.loads((folder / "manifest.json").read_text())
    for points in ([*manifest["self_test"]["points"][1:], wrong], wrong):
        (folder / "manifest.json").write_text(json.dumps({**manifest, "self_test": {"points": points}}))
        with pytest.raises(ManifestError, match=r"self_test\.points must be a list of numbers .* install"):
            open_network(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"v": 1, "files": [{}, {}], "self_test": {"points": []}}'])
def test_a_wrong_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ManifestError):
        open_network(tmp_path)


class Broken:
    """A network whose numbers are none."""

    def run(self, _names: None, asked: dict[str, Any]) -> list[Any]:
        if "piece" in asked:
            return [np.full((1, 5, 2), np.nan, np.float32), np.full((1, 2), np.nan, np.float32)]
        return [np.full((1, 8, 14, 14), np.nan, np.float32), np.full((1, 28, 28), np.nan, np.float32)]


@pytest.mark.parametrize("which", ["_coarse", "_fine"])
def test_without_numbers_the_shape_is_asked(which: str) -> None:
    broken = HandNetwork(SHIPPED / "hand-coarse.onnx", SHIPPED / "hand-fine.onnx")
    setattr(broken, which, Broken())
    shown = scene("clean", 3)
    seen = HandFinder(landmarks=None, network=broken).look(CameraFrame.from_pixels(shown.pixels))
    assert isinstance(seen, Hand)
    assert shown.points is not None
    assert np.hypot(*(seen.valleys[1:] - shown.points[1:4]).T).max() < 0.06 * shown.palm_width_px


@pytest.mark.parametrize("shape", [(480, 640), (640, 480), (100, 100), (1, 320), (240, 320)])
def test_a_frame_is_fitted_whole_into_the_square(shape: tuple[int, int]) -> None:
    square, (scale, left, top) = fitted(np.full(shape, 200, np.uint8))
    assert square.shape == (COARSE_PX, COARSE_PX)
    rows, columns = np.nonzero(square)
    assert (rows.min(), columns.min()) == (top, left)
    assert abs((columns.max() + 1 - left) - shape[1] * scale) <= 1
    assert max(rows.max() + 1 - top, columns.max() + 1 - left) == COARSE_PX


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("angle", [0.0, 30.0, -100.0, 180.0])
def test_a_hand_is_straightened_fingers_up_thumb_left(angle: float, right: bool) -> None:
    turn = math.radians(angle)
    up = (math.sin(turn), -math.cos(turn))
    across = (math.cos(turn), math.sin(turn))
    thumb = -1.0 if not right else 1.0
    matrix = straighten(200.0, 150.0, 90.0, up, right=right)
    tip = np.array([200.0 + 45.0 * up[0], 150.0 + 45.0 * up[1], 1.0])
    side = np.array([200.0 + 45.0 * thumb * across[0], 150.0 + 45.0 * thumb * across[1], 1.0])
    middle, half = (FINE_PX - 1) / 2, FINE_PX / FINE_PALM_WIDTHS / 2
    assert matrix @ tip == pytest.approx([middle, middle - half])
    assert matrix @ side == pytest.approx([middle - half, middle])
