"""A playground: one world after another, in step with the clock on the wall.

What the page asks for takes effect between two slices, and what it is shown is made after one.
"""

import queue
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Final

from device import APP_PACKAGE
from device.vision.recognition import Look
from link1.canonical import JsonObject
from models.frames import CameraFrame
from tools.rig.playground.events import EventLog
from tools.rig.playground.run_file import (
    ADVANCE_MS,
    MOST_ADVANCES,
    MOST_PRESSES,
    MOST_WATCHED_MS,
    SLICE_MS,
    BadRunFile,
    Button,
    Press,
    RunFile,
)
from tools.rig.playground.world import PlaygroundWorld, one_seed

PACES: Final = (0, 1, 10)
"""Virtual seconds a second; 0 is a pause."""
_UNWATCHED_S: Final = 15.0
"""Without a page that asks for news, the run pauses."""
_SHOWN_EVERY_S: Final = 0.15
_EVENTS_AT_ONCE: Final = 600


@dataclass(frozen=True, slots=True)
class Beginning:
    """A run to begin: live, or `replayed`."""

    seed: int
    replayed: RunFile | None = None


@dataclass(slots=True)
class ShownRun:
    """What the page may see of the present run. `replay`: how far a replay has come, and whether it was the
    same."""

    log: EventLog
    camera: tuple[CameraFrame, Look | None] | None = None
    run: RunFile | None = None
    state: JsonObject = field(default_factory=dict)
    replay: JsonObject | None = None
    failed: str = ""
    number: int = 0


class OneRun:
    """One world and the buttons pressed in it. Made and used inside `one_seed`."""

    def __init__(self, seed: int, folder: Path, log: EventLog) -> None:
        self.world = PlaygroundWorld(seed, folder, log)
        self.presses: list[Press] = []

    def press(self, button: Button, who: str = "") -> bool:
        """Press a button now; it is part of the run from here on. False where it does nothing now."""
        if not self.world.allows(button, who) or not self._room_for(button):
            return False
        self.presses.append(Press(self.world.now_ms, button, who))
        self.world.press(button, who)
        return True

    def _room_for(self, button: Button) -> bool:
        advances = sum(press.button is Button.ADVANCE for press in self.presses)
        return len(self.presses) < MOST_PRESSES and (button is not Button.ADVANCE or advances < MOST_ADVANCES)

    @property
    def over(self) -> bool:
        """Whether the run is as long as one may be."""
        advances = sum(press.button is Button.ADVANCE for press in self.presses)
        return self.world.now_ms - advances * ADVANCE_MS >= MOST_WATCHED_MS

    def file(self) -> RunFile:
        """The run so far."""
        log, world = self.world.log, self.world
        return RunFile(
            version(APP_PACKAGE), world.seed, tuple(self.presses), world.now_ms, log.count, log.digest
        )


def replay(run: RunFile, line_written: Callable[[str], object]) -> RunFile:
    """Replay a whole run at once, every event to `line_written`; returns the run as it went this time.

    Raises BadRunFile for a button that does nothing at its time.
    """
    with tempfile.TemporaryDirectory(prefix="palm-playground-") as folder, one_seed(run.seed):
        log = EventLog()
        log.line_written = line_written
        again = OneRun(run.seed, Path(folder), log)
        try:
            left = list(run.presses)
            while again.world.now_ms < run.until_ms:
                _press_due(again, left)
                again.world.step()
            return again.file()
        finally:
            again.world.close()


def _press_due(run: OneRun, left: list[Press]) -> None:
    while left and left[0].at_ms == run.world.now_ms:
        press = left.pop(0)
        if not run.press(press.button, press.who):
            raise BadRunFile(f"{press.button.value} does nothing at {press.at_ms:,} ms of this run")


class Playground:
    """One run after another, and what the page asks of them."""

    def __init__(self, beginning: Beginning) -> None:
        self._asked: queue.SimpleQueue[tuple[Button, str]] = queue.SimpleQueue()
        self._next: Beginning | None = beginning
        self._ended = False
        """No Event: a signal that sets one while its own thread waits for it may never return."""
        self._asked_s = time.monotonic()
        self.pace = 1
        self.shown = ShownRun(EventLog())
        self.drawing = threading.Lock()
        """Held while a picture is drawn for the page, and for good once `live` has ended: a thread that is in
        OpenCV when the process ends would abort it."""

    def press(self, button: Button, who: str) -> None:
        """Press a button of the present run, from any thread."""
        self._asked.put((button, who))

    def begin(self, beginning: Beginning) -> None:
        """Give up the present run and begin another, from any thread."""
        self._next = beginning

    def watched(self) -> ShownRun:
        """What there is to see, from any thread; while this is called, time passes."""
        self._asked_s = time.monotonic()
        return self.shown

    def end(self) -> None:
        """Make `live` return."""
        self._ended = True

    def live(self) -> None:
        """Play what is begun, until the end. Meanwhile this process draws from the seed of the run: what must
        stay secret is drawn before."""
        while not self._ended:
            beginning, self._next = self._next, None
            if beginning is None:
                time.sleep(0.1)
                continue
            shown = ShownRun(EventLog(), number=self.shown.number + 1)
            if beginning.replayed is not None:
                shown.replay = {"until_ms": beginning.replayed.until_ms, "same": None}
            self.shown = shown
            try:
                self._play(beginning, shown)
            except Exception as error:  # noqa: BLE001 - a program that fails is what the page then shows
                shown.failed = f"{type(error).__name__}: {error}"
        self.drawing.acquire()

    def _play(self, beginning: Beginning, shown: ShownRun) -> None:
        while not self._asked.empty():
            self._asked.get()  # pressed in the run before
        recorded = beginning.replayed
        left = [] if recorded is None else list(recorded.presses)
        with (
            tempfile.TemporaryDirectory(prefix="palm-playground-") as folder,
            one_seed(beginning.seed),
        ):
            run = OneRun(beginning.seed, Path(folder), shown.log)
            try:
                due_s = shown_s = time.monotonic()
                while self._next is None and not self._ended:
                    if recorded is not None and run.world.now_ms >= recorded.until_ms:
                        now = run.file()
                        same = (now.events, now.digest) == (recorded.events, recorded.digest)
                        shown.replay = {"until_ms": recorded.until_ms, "same": same}
                        recorded = None
                    _press_due(run, left)
                    while not self._asked.empty():
                        button, who = self._asked.get()
                        if recorded is None:
                            run.press(button, who)
                    unwatched = time.monotonic() - self._asked_s > _UNWATCHED_S
                    if self.pace != 0 and not run.over and not unwatched:
                        run.world.step()
                    now_s = time.monotonic()
                    if now_s - shown_s >= _SHOWN_EVERY_S or not shown.state:
                        shown_s = now_s
                        shown.state = run.world.state()
                        if not run.world.advancing:  # no run ends between two hours
                            shown.run = run.file()
                    shown.camera = run.world.eyes.latest
                    due_s = max(due_s + SLICE_MS / 1000 / max(1, self.pace), now_s - 0.5)
                    if not run.world.advancing and due_s > now_s:
                        time.sleep(due_s - now_s)
            finally:
                run.world.close()
