"""The numbers of one picture, and what taking them leaves behind."""

import pytest

from device.doctor.measured_picture import measure
from models.frames import CameraFrame
from models.hand_landmarks import HandJoints, HandLandmarks, Spot, installed_landmarks
from models.synthesis.background import Pixels
from models.synthesis.hand_scenes import hand_scene
from tests.hand_weights import needs_hand_weights


@needs_hand_weights
def test_a_picture_that_is_measured_leaves_no_hand_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    landmarks = installed_landmarks()
    assert landmarks is not None
    left: list[str] = []
    joints, forget = HandLandmarks.joints, HandLandmarks.forget

    def joints_of(networks: HandLandmarks, pixels: Pixels, spot: Spot) -> HandJoints | None:
        left.append("hand")
        return joints(networks, pixels, spot)

    def forgets(networks: HandLandmarks) -> None:
        left.clear()
        forget(networks)

    monkeypatch.setattr(HandLandmarks, "joints", joints_of)
    monkeypatch.setattr(HandLandmarks, "forget", forgets)
    measured = measure(
        CameraFrame.from_pixels(
            hand_scene(71_000_003, "clean", "rgb", person=71_000_003, handedness="R").pixels
        ),
        landmarks,
    )
    assert measured.sharpness is not None
    assert left == []
