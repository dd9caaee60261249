"""The captures of one hand that enrolment gathers, and which of them belong together."""

from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from link1.objects import Pad

HandName = Literal["L", "R"]

CAPTURES_WANTED: Final = 3
CAPTURES_NEEDED: Final = 2
"""Enough when the hand leaves before there are three. One alone could not be held against another."""
SPACING_MS: Final = 100
"""Captures closer together show one instant, not the same hand twice."""
CHOOSING_MS: Final = 500
"""Better captures still replace the three held for so long after the first."""
SAME_FRAME_COSINE: Final = 0.999_99


@dataclass(frozen=True, slots=True, eq=False)
class PalmCapture:
    """One embedded capture. `vector`: (512,) float32 of unit length, owned by whoever holds the capture."""

    hand: HandName
    vector: npt.NDArray[np.float32] = field(repr=False)
    quality_q: int
    pad: Pad
    at_ms: int


class HandCaptures:
    """At most three captures of one hand, from different moments, that agree with each other.

    `agree_cosine`: captures of one hand reach at least this cosine. The captures handed in belong to this
    object from then on; the vectors of those it does not keep are overwritten.
    """

    def __init__(self, agree_cosine: float) -> None:
        self._agree_cosine = agree_cosine
        self._first_ms = 0
        self._disagreed = False
        self.held: list[PalmCapture] = []

    def add(self, capture: PalmCapture) -> None:
        """Keeps `capture` where it adds something."""
        if not self.held:
            self.held, self._first_ms = [capture], capture.at_ms
            return
        cosines = [cosine(held, capture) for held in self.held]
        too_close = any(abs(held.at_ms - capture.at_ms) < SPACING_MS for held in self.held)
        if too_close or max(cosines) > SAME_FRAME_COSINE:
            erase(capture)
        elif min(cosines) < self._agree_cosine:
            self._disagree(capture)
        else:
            self._disagreed = False
            self.held.append(capture)
            if len(self.held) > CAPTURES_WANTED:
                worst = min(self.held, key=lambda held: held.quality_q)
                self.held = [held for held in self.held if held is not worst]
                erase(worst)

    def complete(self, now_ms: int) -> bool:
        """Three are there, and there was time to find better ones."""
        return len(self.held) == CAPTURES_WANTED and now_ms - self._first_ms >= CHOOSING_MS

    @property
    def enough(self) -> bool:
        """What is there will do when no more can come."""
        return len(self.held) >= CAPTURES_NEEDED

    def resemble(self, capture: PalmCapture) -> bool:
        """Whether `capture` shows the same hand as one of these."""
        return any(cosine(held, capture) >= self._agree_cosine for held in self.held)

    def erase(self) -> None:
        """Overwrites every vector and begins anew."""
        for capture in self.held:
            erase(capture)
        self.held = []
        self._disagreed = False

    def _disagree(self, capture: PalmCapture) -> None:
        """One capture that does not agree is let go; at the second in a row the first ones were wrong."""
        if self._disagreed:
            self.erase()
            self.held, self._first_ms = [capture], capture.at_ms
        else:
            self._disagreed = True
            erase(capture)


def cosine(one: PalmCapture, other: PalmCapture) -> float:
    """Of two unit vectors: -1..1."""
    return float(one.vector @ other.vector)


def erase(capture: PalmCapture) -> None:
    """Overwrites the vector in place."""
    capture.vector.fill(0.0)
