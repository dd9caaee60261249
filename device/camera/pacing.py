"""Recorded pictures played as a live camera would give them: at a rate, on the monotonic clock."""

import math
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from device.camera.source import READ_LIMIT_S, Pixels

LIVE_RATE_HZ = 10.0
"""Each picture of a slower film is repeated at this rate or more, as a camera filming it would do."""
SLIDES_RATE_HZ = 20.0
STILL_RATE_HZ = 20.0
"""A picture that nothing follows is repeated at about this rate, however often the next one is looked for:
a camera gives each picture once."""

SLIDES_UP_TO_FPS = 2.0
"""A folder played at this rate or less is a series of photographs, not a film."""
BLANK_S = 0.4
"""Between two photographs the view is empty long enough for the previous hand to count as gone."""

CATCH_UP_S = 0.5
"""A reader that is later than this skips the missed time instead of catching up."""


class Pictures(Protocol):
    """The pictures to play."""

    @property
    def description(self) -> str:
        """Shown to people."""

    @property
    def skipped(self) -> int:
        """Number of pictures that could not be read."""

    def next(self) -> Pixels | None:
        """The next picture; None when there is none at present (the previous one stays in view)."""

    def close(self) -> None:
        """Free the resources."""


class PacedCamera:
    """A `Camera` that plays `pictures` at `fps`; the last one stays in view while nothing follows it.

    With `slides`, each picture is a separate scene: the first `BLANK_S` of its time show an empty grey.
    """

    def __init__(
        self,
        pictures: Pictures,
        fps: float,
        *,
        slides: bool = False,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._pictures = pictures
        self._shows = max(1, math.ceil((SLIDES_RATE_HZ if slides else LIVE_RATE_HZ) / fps))
        self._period_s = 1.0 / (fps * self._shows)
        self._repeat_ticks = max(1, int(fps * self._shows // STILL_RATE_HZ))
        self._ticks = 0  # since a picture was given
        self._blanks = math.ceil(BLANK_S / self._period_s) if slides else 0
        self._now_s = now_s
        self._sleep = sleep
        self._due_s = now_s()
        self._shown = 0
        self._current: Pixels | None = None
        self.description = f"{pictures.description} at {fps:g} pictures a second"

    @property
    def skipped(self) -> int:
        """See Camera."""
        return self._pictures.skipped

    def read(self) -> Pixels | None:
        """See Camera; a recording is never lost, so this raises nothing."""
        give_up_s = self._now_s() + READ_LIMIT_S
        while True:
            self._wait_for_tick()
            self._ticks += 1
            if self._current is None or self._shown >= self._shows:
                following = self._pictures.next()
                if following is not None:
                    self._current, self._shown = following, 0
            due = self._shown < self._shows or self._ticks >= self._repeat_ticks
            if self._current is not None and due:
                self._shown, self._ticks = self._shown + 1, 0
                return self._current if self._shown > self._blanks else np.full_like(self._current, 128)
            if self._now_s() >= give_up_s:
                return None

    def close(self) -> None:
        """See Camera."""
        self._pictures.close()

    def _wait_for_tick(self) -> None:
        now_s = self._now_s()
        if now_s < self._due_s:
            self._sleep(self._due_s - now_s)
        elif now_s - self._due_s > CATCH_UP_S:
            self._due_s = now_s
        self._due_s += self._period_s
