"""Several probes from one capture: what a search is repeated with when one did not settle it.

Comparing two vectors does not search over shifts, as comparing two line codes does. So the crop is cut again
at neighbouring places. Where one of these probes is nearest to an enrolled palm, its own neighbours, turned
and enlarged ones among them, are tried next, and so on towards the nearest palm."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import CROP_SIZE
from models.errors import PixelsError

SHIFT_PX: Final = 5
TURN_DEG: Final = 6.0
GROWTH: Final = 1.07

Crops = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Slip:
    """How the cutter's crop may have slipped, in steps that a probe makes good."""

    across: int = 0
    """Steps of SHIFT_PX crop pixels to the right."""
    down: int = 0
    turn: int = 0
    """Steps of TURN_DEG degrees, anticlockwise."""
    growth: int = 0
    """The palm is larger by GROWTH to this power."""

    def __add__(self, other: "Slip") -> "Slip":
        return Slip(
            self.across + other.across,
            self.down + other.down,
            self.turn + other.turn,
            self.growth + other.growth,
        )

    def steps(self) -> int:
        """How far from the crop as it was cut; aslant is one step."""
        return max(abs(self.across), abs(self.down)) + abs(self.turn) + abs(self.growth)


STILL: Final = Slip()
_SHIFTS: Final = [Slip(x, y) for y in (-1, 0, 1) for x in (-1, 0, 1) if (x, y) != (0, 0)]
_STEPS: Final = [*_SHIFTS, Slip(turn=-1), Slip(turn=1), Slip(growth=-1), Slip(growth=1)]
_REACH: Final = 3
"""So many steps away it goes no further: a fourth step hardly helped (docs/lab/SCORES.md)."""
MOST_PROBES: Final = 48
"""What one picture may cost. Where nothing settles a search it takes 16 to 24 on average."""


def next_slips(tried: Sequence[Slip], nearest: int) -> list[Slip]:
    """What to try after ``tried``, of which the probe at ``nearest`` came nearest to an enrolled palm.

    After STILL alone its eight shifts; then what is one step from the nearest and was not tried. Nothing
    more once nothing comes nearer, and never more than MOST_PROBES in all.
    """
    steps = _SHIFTS if len(tried) == 1 else _STEPS
    if tried[nearest].steps() >= _REACH:
        return []
    fresh = [near for step in steps if (near := tried[nearest] + step) not in tried]
    return fresh[: MOST_PROBES - len(tried)]


def probe_crops(crop: Crops, slips: Sequence[Slip]) -> Crops:
    """The crop (112, 112) slipped in each of n ways, (n, 112, 112); what lies outside it is mirrored."""
    if crop.shape != (CROP_SIZE, CROP_SIZE) or crop.dtype != np.uint8:
        raise PixelsError(f"a palm crop is uint8 {(CROP_SIZE, CROP_SIZE)}, found {crop.dtype} {crop.shape}")
    return np.stack([_slipped(crop, slip) for slip in slips])


def _slipped(crop: Crops, slip: Slip) -> Crops:
    middle = (CROP_SIZE - 1) / 2.0
    to_probe = cv2.getRotationMatrix2D((middle, middle), TURN_DEG * slip.turn, GROWTH**slip.growth)
    to_probe[:, 2] += (SHIFT_PX * slip.across, SHIFT_PX * slip.down)
    probe = cv2.warpAffine(
        crop, to_probe, crop.shape, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101
    )
    return np.asarray(probe, dtype=np.uint8)
