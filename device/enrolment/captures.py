"""The captures of one hand that enrolment gathers, and which of them belong together."""

from typing import Final

import numpy as np

from device.values.recognition import PalmCapture
from models.template_choice import MOST_TEMPLATES, choose_templates

CAPTURES_NEEDED: Final = 2
"""Enough when the hand leaves before there are three. One alone could not be held against another."""
SPACING_MS: Final = 100
"""Captures closer together show one instant, not the same hand twice."""
CHOOSING_MS: Final = 500
"""So long after the first capture the templates are still chosen anew with each that comes."""
CANDIDATES: Final = 6
"""Captures that are chosen from, as many as `CHOOSING_MS` gives; then the oldest not chosen is let go."""
SAME_FRAME_COSINE: Final = 0.999_99


class HandCaptures:
    """The captures of one hand, from different moments, and those of them that make its templates (`held`).

    `agree_cosine`: captures of one hand reach at least this cosine. The captures handed in belong to this
    object from then on; the vectors of those it lets go are overwritten.
    """

    def __init__(self, agree_cosine: float) -> None:
        self._agree_cosine = agree_cosine
        self._candidates: list[PalmCapture] = []
        self._first_ms = 0
        self.held: list[PalmCapture] = []

    def add(self, capture: PalmCapture) -> bool:
        """Takes `capture` among the candidates and chooses anew; False when it contradicts those held."""
        if not self._candidates:
            self._first_ms = capture.at_ms
        if any(
            abs(one.at_ms - capture.at_ms) < SPACING_MS or cosine(one, capture) > SAME_FRAME_COSINE
            for one in self._candidates
        ):
            erase(capture)
            return True
        self._candidates.append(capture)
        chosen = choose_templates(
            # One by one: a matrix of the vectors would be a copy that nobody overwrites.
            np.array([[cosine(a, b) for b in self._candidates] for a in self._candidates], np.float32),
            [one.quality_q for one in self._candidates],
            agree_cosine=self._agree_cosine,
            most=MOST_TEMPLATES,
        )
        self.held = [self._candidates[i] for i in chosen]
        agrees = not self._contradicts(capture)
        if len(self._candidates) > CANDIDATES:
            self._let_go(next(one for one in self._candidates if one not in self.held))
        return agrees

    def complete(self, now_ms: int) -> bool:
        """Three are there that nearly all agree with, and there was time to find better ones."""
        full = len(self.held) == MOST_TEMPLATES and self._contradictions() <= 1
        return full and now_ms - self._first_ms >= CHOOSING_MS

    @property
    def enough(self) -> bool:
        """What is there will do when no more can come."""
        spare = len(self.held) - CAPTURES_NEEDED
        return spare >= 0 and self._contradictions() <= spare

    def resemble(self, capture: PalmCapture) -> bool:
        """Whether `capture` shows the same hand as one of these."""
        return any(cosine(held, capture) >= self._agree_cosine for held in self.held)

    def settle(self) -> None:
        """The choice is made: the other candidates are let go."""
        for capture in [one for one in self._candidates if one not in self.held]:
            self._let_go(capture)

    def erase(self) -> None:
        """Overwrites every vector and begins anew."""
        for capture in self._candidates:
            erase(capture)
        self._candidates, self.held = [], []

    def _contradicts(self, capture: PalmCapture) -> bool:
        return any(one is not capture and cosine(one, capture) < self._agree_cosine for one in self.held)

    def _contradictions(self) -> int:
        """Candidates of another hand, or whose crop failed: more captures must say which side is right."""
        return sum(self._contradicts(one) for one in self._candidates)

    def _let_go(self, capture: PalmCapture) -> None:
        self._candidates = [one for one in self._candidates if one is not capture]
        erase(capture)


def cosine(one: PalmCapture, other: PalmCapture) -> float:
    """Of two unit vectors: -1..1."""
    return float(one.vector @ other.vector)


def erase(capture: PalmCapture) -> None:
    """Overwrites the vector in place."""
    capture.vector.fill(0.0)
