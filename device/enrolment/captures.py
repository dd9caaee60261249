"""The captures of one hand during enrolment, and the choice of its templates."""

from typing import Final

import numpy as np

from device.values.recognition import PalmCapture
from models.template_choice import MOST_TEMPLATES, choose_templates

CAPTURES_NEEDED: Final = 2
"""Enough when the hand leaves, or its minute ends, before there are three. A single one could not be
compared with another."""
SPACING_MS: Final = 100
"""Captures closer together show the same instant."""
CHOOSING_MS: Final = 500
"""For so long after the first capture, each further one may change the choice of templates."""
CANDIDATES: Final = 6
"""Captures to choose from, as many as fit into `CHOOSING_MS`; beyond that the oldest unchosen one is
dropped."""
SAME_FRAME_COSINE: Final = 0.999_99


class HandCaptures:
    """The captures of one hand at different moments, and those chosen as its templates (`held`).

    `agree_cosine`: captures of one hand reach at least this cosine. The object owns the captures passed in;
    the vectors of dropped ones are overwritten.
    """

    def __init__(self, agree_cosine: float) -> None:
        self._agree_cosine = agree_cosine
        self._candidates: list[PalmCapture] = []
        self._first_ms = 0
        self.held: list[PalmCapture] = []

    def add(self, capture: PalmCapture) -> bool:
        """Add `capture` to the candidates and choose again; False when it contradicts those held."""
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
            # One by one: a matrix of the vectors would be a copy that is never overwritten.
            np.array([[cosine(a, b) for b in self._candidates] for a in self._candidates], np.float32),
            [one.quality_q for one in self._candidates],
            agree_cosine=self._agree_cosine,
        )
        self.held = [self._candidates[i] for i in chosen]
        agrees = not self._contradicts(capture)
        if len(self._candidates) > CANDIDATES:
            self._drop(next(one for one in self._candidates if one not in self.held))
        return agrees

    def complete(self, now_ms: int) -> bool:
        """Three are held with which nearly all candidates agree, and there was time to find better ones."""
        full = len(self.held) == MOST_TEMPLATES and self._contradictions() <= 1
        return full and now_ms - self._first_ms >= CHOOSING_MS

    @property
    def enough(self) -> bool:
        """The held captures suffice when no more can follow."""
        spare = len(self.held) - CAPTURES_NEEDED
        return spare >= 0 and self._contradictions() <= spare

    def resemble(self, capture: PalmCapture) -> bool:
        """Whether `capture` shows the same hand as one of these."""
        return any(cosine(held, capture) >= self._agree_cosine for held in self.held)

    def settle(self) -> None:
        """The choice is final: drop the other candidates."""
        for capture in [one for one in self._candidates if one not in self.held]:
            self._drop(capture)

    def erase(self) -> None:
        for capture in self._candidates:
            erase(capture)
        self._candidates, self.held = [], []

    def _contradicts(self, capture: PalmCapture) -> bool:
        return any(one is not capture and cosine(one, capture) < self._agree_cosine for one in self.held)

    def _contradictions(self) -> int:
        """The number of candidates of another hand or with a failed crop; more captures must decide."""
        return sum(self._contradicts(one) for one in self._candidates)

    def _drop(self, capture: PalmCapture) -> None:
        self._candidates = [one for one in self._candidates if one is not capture]
        erase(capture)


def cosine(one: PalmCapture, other: PalmCapture) -> float:
    """Of two unit vectors: -1..1."""
    return float(one.vector @ other.vector)


def erase(capture: PalmCapture) -> None:
    capture.vector.fill(0.0)
