"""What becomes of a look that nobody takes."""

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from device.core.core import Core
from device.values.recognition import PalmCapture, Sighting
from device.vision.recognition import Interest, Look
from link1.objects import Pad


@pytest.mark.parametrize("lingers", [True, False])
def test_the_vector_of_a_capture_that_comes_after_its_enrolment_is_overwritten(lingers: bool) -> None:
    parts: dict[str, Any] = {name: Mock() for name in Core.__dataclass_fields__ if not name.startswith("_")}
    core = Core(**parts)
    parts["enrolment"].capturing, parts["enrolment"].hand_lingers = False, lingers
    vector = np.ones(512, np.float32)
    capture = PalmCapture("L", vector, 90, Pad("pass", "x", 9000), 5)
    core.on_look(Look(Interest.ENROLMENT, 1, Sighting(True, 5), "L", capture))
    assert not vector.any()
