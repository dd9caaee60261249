import cv2
import numpy as np
import pytest

from models.crop_geometry import CROP_SIZE, Handedness, similarity_from_valleys
from models.synthesis.background import Look
from models.synthesis.person import make_person
from models.synthesis.render import FRAME_SIZE, Pose, Setting, render_frame, render_frame_with_truth
from models.synthesis.scene import (
    empty_scene,
    passage,
    poor_capture,
    random_pose,
    random_setting,
    show_qr,
)
from models.training.canvases import draw_palm

SIDES: tuple[Handedness, Handedness] = ("L", "R")


@pytest.mark.parametrize(("look", "channels"), [("rgb", (3,)), ("nir", ())])
def test_frames_have_the_shape_of_their_look(look: Look, channels: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for person in (make_person(1), None):
        frame = render_frame(person, "L", Pose(), look, rng)
        assert frame.shape == (*FRAME_SIZE, *channels)
        assert frame.dtype == np.uint8


def test_the_same_seed_is_the_same_film() -> None:
    films = [
        list(passage(make_person(3), "R", 11, frames_in=1, frames_held=2, frames_out=1)) for _ in range(2)
    ]
    for a, b in zip(*films, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("side", SIDES)
def test_nothing_is_mirrored_fingers_up_a_right_palm_has_its_thumb_on_the_right(side: Handedness) -> None:
    frame, truth = render_frame_with_truth(
        make_person(4), side, Pose(), "rgb", np.random.default_rng(0), setting=Setting(noise=0.0)
    )
    assert truth is not None
    assert truth.handedness == side
    outward = -1.0 if side == "L" else 1.0
    assert ((truth.valleys[0, 0] - truth.valleys[1:, 0]) * outward > 0).all()
    # Skin on the thumb's side of the palm, ground on the other, at the height of the thumb's valley.
    row = frame[int(truth.valleys[0, 1]) - 25].astype(int).sum(axis=1)
    skin = np.flatnonzero(row > 250)
    reach = np.array([truth.centre[0] - skin.min(), skin.max() - truth.centre[0]])
    assert int(np.argmax(reach)) == (0 if side == "L" else 1)


def test_the_truth_turns_with_the_hand() -> None:
    rng = np.random.default_rng(0)
    pose = Pose(angle_deg=20.0)
    truth = render_frame_with_truth(make_person(4), "L", pose, "nir", rng)[1]
    straight = render_frame_with_truth(make_person(4), "L", Pose(), "nir", rng)[1]
    assert truth is not None
    assert straight is not None
    a, b = truth.valleys[3] - truth.valleys[1], straight.valleys[3] - straight.valleys[1]
    turned = np.rad2deg(np.arctan2(a[1], a[0]) - np.arctan2(b[1], b[0]))
    assert turned == pytest.approx(20.0, abs=0.01)


@pytest.mark.parametrize("side", SIDES)
def test_training_palms_are_what_the_cutter_sees(side: Handedness) -> None:
    """A crop cut from a frame at the true valleys shows the drawn palm that training crops come from."""
    person = make_person(21)
    frame, truth = render_frame_with_truth(
        person, side, Pose(angle_deg=8.0), "nir", np.random.default_rng(0), setting=Setting(noise=1.0)
    )
    assert truth is not None
    cut = cv2.warpAffine(frame, similarity_from_valleys(truth.valleys, side), (CROP_SIZE, CROP_SIZE))
    planes, to_canvas = draw_palm(person, side)
    drawn = cv2.warpAffine(
        np.ascontiguousarray(planes[:, :, 1]),
        to_canvas,
        (CROP_SIZE, CROP_SIZE),
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
    )

    def lines(image: object) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        plane = np.asarray(image, dtype=np.float32)
        detail = cv2.GaussianBlur(plane, (0, 0), 1.5) - cv2.GaussianBlur(plane, (0, 0), 6.0)
        return np.asarray(detail, dtype=np.float32)[10:-10, 10:-10].ravel()

    assert np.corrcoef(lines(cut), lines(drawn))[0, 1] > 0.8


def test_a_passage_comes_in_stays_and_leaves() -> None:
    film = list(passage(make_person(2), "L", 5, look="nir", frames_in=4, frames_held=3, frames_out=4))
    assert len(film) == 11
    lit = [float((frame > 90).mean()) for frame in film]
    assert lit[0] < 0.05 < 0.15 < min(lit[4:7])
    assert lit[-1] < 0.05
    steady = [np.abs(film[i].astype(int) - film[i + 1].astype(int)).mean() for i in (4, 5)]
    moving = np.abs(film[1].astype(int) - film[2].astype(int)).mean()
    assert max(steady) < moving / 2


def test_one_place_keeps_its_ground() -> None:
    shown = [next(empty_scene(seed, 1, scene_seed=9)).astype(int).mean(axis=(0, 1)) for seed in (1, 2)]
    elsewhere = next(empty_scene(1, 1, scene_seed=10)).astype(int).mean(axis=(0, 1))
    assert np.abs(shown[0] - shown[1]).max() < np.abs(shown[0] - elsewhere).max()


@pytest.mark.parametrize("look", ["rgb", "nir"])
def test_a_shown_code_can_be_read(look: Look) -> None:
    payload = "palm-enrol:1:" + "Ab3-_x" * 16
    frames = list(show_qr(payload, 3, 2, look=look))
    assert [cv2.QRCodeDetector().detectAndDecode(frame)[0] for frame in frames] == [payload] * 2


def test_a_poor_capture_is_dark_and_without_detail() -> None:
    def detail(frame: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> float:
        plane = frame.astype(np.float32)
        band = cv2.GaussianBlur(plane, (0, 0), 2.0) - cv2.GaussianBlur(plane, (0, 0), 5.0)
        return float(np.asarray(band)[240:340, 270:370].std())

    good = list(passage(make_person(6), "R", 8, look="nir", frames_in=0, frames_held=1, frames_out=0))
    poor = list(poor_capture(make_person(6), "R", 8, look="nir", frames_in=0, frames_held=1, frames_out=0))
    assert detail(poor[0]) < detail(good[0]) / 3
    assert poor[0].mean() < good[0].mean() * 0.8


def test_random_poses_keep_the_palm_in_the_frame() -> None:
    rng = np.random.default_rng(12)
    for seed in range(10):
        pose = random_pose(rng)
        setting = random_setting(rng, seed)
        truth = render_frame_with_truth(make_person(seed), "L", pose, "nir", rng, setting=setting)[1]
        assert truth is not None
        assert (truth.valleys > 8).all()
        assert (truth.valleys < (FRAME_SIZE[1] - 8, FRAME_SIZE[0] - 8)).all()
        assert 180 <= truth.palm_width_px <= 260
