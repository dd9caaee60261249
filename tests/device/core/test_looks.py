"""What is done with a look first, and with an undelivered one; and deadlines."""

import asyncio
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from device.core.core import Core
from device.health import HealthWord
from device.values.recognition import PalmCapture, Sighting
from device.vision.recognition import Interest, Look
from link1.objects import Pad


@pytest.fixture
def parts() -> dict[str, Any]:
    return {name: Mock() for name in Core.__dataclass_fields__ if not name.startswith("_")}


def test_a_frame_is_judged_by_how_old_the_gallery_is_then(parts: dict[str, Any]) -> None:
    """The check of every second waits for the stores: with a slow disk it may come seconds late."""
    told = Mock()
    parts["gallery"].look, parts["gate"].sighted = told.age, told.sighted
    parts["enrolment"].capturing = False
    Core(**parts).on_look(Look(Interest.PASSAGE, 1, Sighting(True, 5)))
    assert [name for name, _, _ in told.mock_calls] == ["age", "sighted"]


@pytest.mark.parametrize("capturing", [True, False])
def test_a_frame_that_is_examined_ends_the_fault(parts: dict[str, Any], capturing: bool) -> None:
    parts["enrolment"].capturing = capturing
    Core(**parts).on_look(Look(Interest.ENROLMENT if capturing else Interest.IDLE, 1, Sighting(False, 5)))
    parts["health"].clear.assert_called_once_with(HealthWord.MODEL_FAULT)


def test_while_an_enrolment_has_the_camera_the_gate_has_no_hand(parts: dict[str, Any]) -> None:
    core = Core(**parts)
    parts["gate"].next_deadline_ms.return_value = parts["enrolment"].next_deadline_ms = None
    for capturing in (False, True):
        parts["enrolment"].capturing = capturing
        core.choose_interest()
        assert parts["gate"].hand_enrols.called is capturing


async def test_a_deadline_that_is_due_is_not_put_off_by_messages(parts: dict[str, Any]) -> None:
    """Every message of a flood ends with a look at the deadlines, in each turn of the loop."""
    parts["clock"].monotonic_ms.return_value = 1_000
    parts["gate"].next_deadline_ms.return_value = 999
    parts["enrolment"].next_deadline_ms = None
    core = Core(**parts)
    for _ in range(100):
        core.kick_cable()
        await asyncio.sleep(0)
    assert parts["gate"].tick.called


async def test_a_deadline_that_comes_nearer_is_kept(parts: dict[str, Any]) -> None:
    parts["clock"].monotonic_ms.return_value = 1_000
    parts["enrolment"].next_deadline_ms = None
    core, ticked = Core(**parts), asyncio.Event()
    parts["gate"].tick = ticked.set
    for at_ms in (60_000_000, 1_000):
        parts["gate"].next_deadline_ms.return_value = at_ms
        core.kick_cable()
    async with asyncio.timeout(20):
        await ticked.wait()


def test_the_vector_of_a_capture_that_comes_after_its_enrolment_is_overwritten(
    parts: dict[str, Any],
) -> None:
    core = Core(**parts)
    parts["enrolment"].capturing = False
    vector = np.ones(512, np.float32)
    capture = PalmCapture("L", vector, 90, Pad("pass", "x", 9000), 5)
    core.on_look(Look(Interest.ENROLMENT, 1, Sighting(True, 5), "L", capture))
    assert not vector.any()
