"""What the playground's device sees: films of generated palms, read by the device's own recogniser."""

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from device.core.opening import Opened
from device.core.palmd import Palmd
from device.enrolment.captures import HandCaptures
from device.values.recognition import Sighting
from device.vision.recognition import Interest, Look, Recogniser
from link1.canonical import JsonObject
from models.crop_geometry import Handedness
from models.embedding import Embedder
from models.frames import CameraFrame
from models.manifest import ModelManifest
from models.synthesis.background import Pixels
from models.synthesis.person import SyntheticPerson
from models.synthesis.scene import empty_scene, passage
from tools.rig.simulation.machines import DeviceMachine
from tools.rig.simulation.service import captured_hand

FRAME_MS: Final = 100
_EMPTY_EVERY_S: Final = 1.0
"""How often a picture of the empty scene is reported."""
_LEAVES: Final = 3
"""Empty pictures that end a film: the hand is seen to have left."""
PLACE: Final = 7
"""Seed of the background: one gate."""
HANDS: Final[tuple[Handedness, ...]] = ("L", "R")


class FilmEyes:
    """A camera that plays films of generated palms, and the recogniser behind it. An empty scene is examined
    once; what was seen in it is reported again."""

    def __init__(self) -> None:
        self._film: deque[Pixels] = deque()
        self._shown = asyncio.Event()
        self._empty = next(iter(empty_scene(PLACE, 1, scene_seed=PLACE)))
        self.latest: tuple[CameraFrame, Look | None] = (CameraFrame.from_pixels(self._empty), None)
        """The newest picture, and what was seen in it."""

    def show(self, film: Iterable[Pixels]) -> None:
        """Play a film from the next frame on."""
        self._film.extend(film)
        self._film.extend([self._empty] * _LEAVES)
        self._shown.set()

    @property
    def hand_in_view(self) -> bool:
        """Whether a film is being played."""
        return bool(self._film)

    def opened(self, opened: Opened) -> Opened:
        return opened

    async def watch(self, machine: DeviceMachine, palmd: Palmd) -> None:
        opened = machine.opened
        if opened is None:
            return
        recogniser = Recogniser(
            opened.model.embedder,
            lambda: opened.gallery,
            lambda: opened.policy.thresholds,
            agree_cosine=opened.model.agree_cosine,
        )
        number = 0
        while True:
            number += 1
            at_ms = machine.clock.monotonic_ms()
            if self._film:
                frame = CameraFrame.from_pixels(self._film.popleft(), at_ms=at_ms, number=number)
                look = recogniser.look(frame, Interest.PASSAGE)
                self.latest = frame, look
                if look is not None:
                    # Stages are timed by this machine's clock, which no replay repeats.
                    palmd.core.on_look(replace(look, sighting=replace(look.sighting, stage_ms={})))
                await asyncio.sleep(FRAME_MS / 1000)
            else:
                self.latest = CameraFrame.from_pixels(self._empty, at_ms=at_ms, number=number), None
                palmd.core.on_look(Look(Interest.PASSAGE, number, Sighting(hand_present=False, at_ms=at_ms)))
                self._shown.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_EMPTY_EVERY_S):
                        await self._shown.wait()


def enrolled_hands(person: SyntheticPerson, manifest: ModelManifest, embedder: Embedder) -> list[JsonObject]:
    """Both hands of a person as an enrolment desk captures them, for ``POST /v1/enrollments``."""
    hands = []
    for hand in HANDS:
        recogniser = Recogniser(
            embedder,
            lambda: None,
            lambda: manifest.thresholds,
            agree_cosine=manifest.agree_q / 10_000,
        )
        captures = HandCaptures(manifest.agree_q / 10_000)
        film = passage(person, hand, _OCCASION, frames_in=1, frames_held=6, frames_out=0, scene_seed=PLACE)
        for number, pixels in enumerate(film):
            at_ms = number * FRAME_MS
            look = recogniser.look(CameraFrame.from_pixels(pixels, at_ms=at_ms), Interest.ENROLMENT)
            if look is not None and look.capture is not None:
                captures.add(look.capture)
        hands += [captured_hand(hand, one.vector, one.quality_q) for one in captures.held]
    return hands


_OCCASION: Final = 90_001
"""Seed of the enrolment's films; no passage is filmed with it."""
