"""Several probes from one capture: what a search is repeated with when one did not settle it.

Comparing two vectors does not search over shifts, as comparing two line codes does. So the crop is cut again
at eight places well away from its own. The neighbours of the probe that is nearest to an enrolled palm,
turned and enlarged ones among them, are tried next, and so on towards the nearest palm."""

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


STILL: Final = Slip()
_AROUND: Final = [(x, y) for y in (-1, 0, 1) for x in (-1, 0, 1) if (x, y) != (0, 0)]
_FAR: Final = [Slip(3 * x, 3 * y) for x, y in _AROUND]
"""15 pixels: near enough that a palm in between is seen from one of them, and far enough for crops that
slipped badly (docs/lab/SCORES.md)."""
_STEPS: Final = [
    *(Slip(x, y) for x, y in _AROUND),
    *(Slip(turn=-1), Slip(turn=1), Slip(growth=-1), Slip(growth=1)),
]
MOST_PROBES: Final = 32
"""What one picture may cost: the far shifts, and two rounds of steps. A search that nothing settles takes 30
on average."""


def next_slips(tried: Sequence[Slip], nearest: int) -> list[Slip]:
    """What to try after ``tried``, of which the probe at ``nearest`` came nearest to an enrolled palm.

    After STILL alone eight far shifts; then what is one step from the nearest and was not tried. Nothing
    more once nothing comes nearer, and never more than MOST_PROBES in all.
    """
    if len(tried) == 1:
        return list(_FAR)
    fresh = [near for step in _STEPS if (near := tried[nearest] + step) not in tried]
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
