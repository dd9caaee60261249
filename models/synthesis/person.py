"""Invented people: who they are, as numbers from which both hands can be drawn again and again."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import Handedness
from models.synthesis.creases import PalmLines, draw_palm_lines

_PERSON_DOMAIN: Final = 0x9A17
_BETWEEN_HANDS: Final = 0.6
"""Correlation of the main creases of a person's two hands."""


@dataclass(frozen=True, slots=True)
class HandShape:
    """Proportions of one hand, in hand coordinates."""

    finger_lengths: tuple[float, float, float, float]
    """Index, middle, ring, little, from the valley line to the tip."""
    finger_width: float
    valley_shift: tuple[tuple[float, float], tuple[float, float], tuple[float, float]]
    """How the feet of the fingers differ from the average hand."""
    palm_stretch: tuple[float, float]
    """Width and length of the palm relative to the average hand."""


@dataclass(frozen=True, slots=True, eq=False)
class HandIdentity:
    """One hand of one person: everything about it that lasts."""

    seed: tuple[int, int, int]
    """Feeds the generators of skin texture and posture."""
    shape: HandShape
    lines: PalmLines


@dataclass(frozen=True, slots=True)
class SyntheticPerson:
    """An invented person; equal seeds are the same person."""

    seed: int

    @property
    def tone(self) -> float:
        """Skin from 0 (light) to 1 (dark)."""
        return float(np.random.default_rng([_PERSON_DOMAIN, self.seed, 3]).uniform(0.0, 1.0))

    def hand(self, handedness: Handedness) -> HandIdentity:
        """The lasting appearance of the left or right hand."""
        return _hand(self.seed, handedness)


def make_person(seed: int) -> SyntheticPerson:
    """The person with this number, the same in every process and for ever; ``seed`` is not negative."""
    if seed < 0:
        raise ValueError(f"a person's seed is a number from 0, found {seed}")
    return SyntheticPerson(seed)


@lru_cache(maxsize=256)
def _hand(seed: int, handedness: Handedness) -> HandIdentity:
    side = 1 if handedness == "L" else 2
    shared = np.random.default_rng([_PERSON_DOMAIN, seed, 0])
    own = np.random.default_rng([_PERSON_DOMAIN, seed, side])
    common = shared.standard_normal(16)
    coefficients: NDArray[np.float64] = np.sqrt(_BETWEEN_HANDS) * common + np.sqrt(
        1.0 - _BETWEEN_HANDS
    ) * own.standard_normal(16)
    shape = _shape(shared)
    return HandIdentity(
        (_PERSON_DOMAIN, seed, side),
        shape,
        draw_palm_lines(own, np.clip(coefficients, -2.3, 2.3)),
    )


def _shape(rng: np.random.Generator) -> HandShape:
    overall = rng.normal(1.0, 0.06)
    lengths = np.array([0.86, 0.96, 0.88, 0.70]) * overall * rng.normal(1.0, 0.025, 4)
    shift = rng.normal(0.0, (0.016, 0.018), (3, 2))
    return HandShape(
        (float(lengths[0]), float(lengths[1]), float(lengths[2]), float(lengths[3])),
        float(rng.normal(0.118, 0.005)),
        (
            (float(shift[0, 0]), float(shift[0, 1])),
            (float(shift[1, 0]), float(shift[1, 1])),
            (float(shift[2, 0]), float(shift[2, 1])),
        ),
        (float(rng.normal(1.0, 0.03)), float(rng.normal(1.0, 0.04))),
    )
