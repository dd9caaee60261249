"""A rehearsal promises no more than a passage would keep."""

import asyncio
from unittest.mock import Mock

import pytest

from device.core.people_operations import people_operations
from device.enrolment.trial_pass import TrialPasses
from device.errors import IpcRefused
from device.health import NOT_SERVING, Health, HealthWord
from device.passage.engine import CAPTURE_WINDOW_MS
from device.platform.ipc import Packet
from device.values.control import PassAnswer, TrialPassage
from device.values.recognition import MatchedPerson, Sighting
from link1.objects import Pad
from models.thresholds import Thresholds

POLICY = Mock(
    thresholds=Thresholds("t1", accept_q=5000, margin_q=500, quality_q=40, pad_q=0, enrol_quality_q=60),
    attempts=3,
)


class Desk:
    """The operation with everything but a camera."""

    def __init__(self) -> None:
        self.health = Health(lambda _words: None)
        self.enrolment = Mock(capturing=False)
        self.passes = TrialPasses(lambda: POLICY, lambda: None)
        self._operations = people_operations(
            self.enrolment,
            Mock(),
            self.passes,
            Mock(),
            has_network=True,
            online=lambda: True,
            health=self.health,
            thresholds=lambda: POLICY.thresholds,
        )

    async def rehearse(self, *sightings: Sighting, then: HealthWord | None = None) -> TrialPassage | None:
        asked = asyncio.ensure_future(self._operations["pass.rehearse"](Packet({"wait_ms": 100})))
        await asyncio.sleep(0)
        for sighting in sightings:
            self.passes.sighted(sighting)
        if then is not None:
            self.health.report(then)
        return PassAnswer.from_obj((await asked).header).passage


def good(at_ms: int = 0) -> Sighting:
    person, live = MatchedPerson("ab" * 16, "L"), Pad("pass", "x", 9000)
    return Sighting(True, at_ms, quality_q=90, pad=live, score=0.8, margin=0.3, candidate=person, good=True)


def poor(at_ms: int) -> Sighting:
    return Sighting(True, at_ms, quality_q=5)


@pytest.mark.parametrize("word", sorted(NOT_SERVING))
async def test_while_every_verdict_abstains_it_is_refused_with_the_reason(word: HealthWord) -> None:
    desk = Desk()
    desk.health.report(word, "why, and what to do")
    with pytest.raises(IpcRefused, match="why, and what to do"):
        await desk.rehearse(good())
    desk.health.report(HealthWord.OFFLINE, "no network")
    desk.health.clear(word)
    passage = await desk.rehearse(good())
    assert passage is not None
    assert passage.result == "MATCH"


async def test_what_comes_up_while_it_waits_for_the_hand_counts() -> None:
    with pytest.raises(IpcRefused, match="GALLERY_STALE"):
        await Desk().rehearse(good(), then=HealthWord.GALLERY_STALE)


async def test_all_who_wait_for_a_hand_see_it() -> None:
    desk = Desk()
    first = asyncio.ensure_future(desk.rehearse())
    await asyncio.sleep(0)
    both = await asyncio.gather(first, desk.rehearse(good()))
    assert [one and one.result for one in both] == ["MATCH", "MATCH"]


@pytest.mark.parametrize("seen", [[], [poor(0)]])
@pytest.mark.parametrize("begins", ["before", "meanwhile"])
async def test_while_an_enrolment_has_the_camera_it_is_refused(begins: str, seen: list[Sighting]) -> None:
    desk = Desk()

    with pytest.raises(IpcRefused, match="an enrolment is using the camera"):
        desk.enrolment.capturing = begins == "before"
        asked = asyncio.ensure_future(desk.rehearse(*seen))
        for _ in range(5):  # it waits for a hand by then
            await asyncio.sleep(0)
        assert desk.passes.rehearsing is (begins == "meanwhile")
        desk.enrolment.capturing = True
        await asked


@pytest.mark.parametrize(("good_ms", "result"), [(-1, "MATCH"), (1, "POOR_CAPTURE")])
async def test_it_concludes_when_a_passage_does(good_ms: int, result: str) -> None:
    sightings = [poor(0), poor(CAPTURE_WINDOW_MS), good(CAPTURE_WINDOW_MS + good_ms)]
    passage = await Desk().rehearse(*sorted(sightings, key=lambda one: one.at_ms))
    assert passage is not None
    assert passage.result == result
