"""People who put their palms before the camera, one after the other, without end."""

import random
import threading
import time
from collections.abc import Sequence

from models.synthesis.person import make_person
from models.synthesis.scene import empty_scene, passage
from tools.palmctl.bench.verdict_latency import FolderWriter, encode

FPS = 15
FRAMES_HELD = 12
PAUSE_S = 0.5
STRANGERS = (901, 902)


def films(seeds: Sequence[int], place: int) -> list[tuple[bytes, ...]]:
    """Both palms of each person, on two occasions."""
    return [
        encode(list(passage(make_person(seed), hand, occasion, frames_held=FRAMES_HELD, scene_seed=place)))
        for seed in seeds
        for hand in ("L", "R")
        for occasion in (7001 + seed, 8001 + seed)
    ]


class Crowd:
    """Shows one film after the other on its own thread until stopped."""

    def __init__(
        self, writer: FolderWriter, played: Sequence[tuple[bytes, ...]], place: int, seed: int
    ) -> None:
        self.shown = 0
        self.stalled = False
        """While it is true no picture comes: the camera's driver hangs."""
        self._writer = writer
        self._films = played
        self._empty = encode(list(empty_scene(place, 1, scene_seed=place)))[0]
        self._chance = random.Random(seed)  # noqa: S311 - the same order in every run
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="crowd", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            for picture in (*self._chance.choice(self._films), self._empty, self._empty):
                if self._stop.is_set():
                    return
                self._put(picture)
                self._stop.wait(1 / FPS)
            self.shown += 1
            end_s = time.monotonic() + PAUSE_S  # until the camera has seen the empty scene
            while time.monotonic() < end_s and not self._stop.is_set():
                self._put(self._empty)
                self._stop.wait(1 / FPS)

    def _put(self, picture: bytes) -> None:
        if not self.stalled:
            try:
                self._writer.put(picture)
            except OSError:
                return  # the camera has just been pulled
