"""What the hand finder's samples are put together from: drawn left hands and grounds, kept on disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.synthesis.background import Look, Pixels, background
from models.synthesis.clutter import clutter
from models.synthesis.palm import HAND_WINDOW
from models.synthesis.person import make_person
from models.synthesis.worn_hand import WornHand, open_hand, shut_hand, wide_posture

FIRST_PERSON: Final = 10_000_000
"""Training's people; those of tests and evaluation have other numbers."""
SHUT_SHARE: Final = 0.22
_DOMAIN: Final = 0x4A9D
GROUND_PX: Final = 320
_LOOKS: Final[tuple[Look, Look]] = ("rgb", "nir")


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Left hands at half the canvas's scale, and grounds; all grey."""

    hands: NDArray[np.uint8]
    """(n, 425, 235, 2): premultiplied grey, alpha."""
    points: NDArray[np.float64]
    """(n, 6, 2) in pixels of ``hands``."""
    widths: NDArray[np.float64]
    opened: NDArray[np.bool_]
    grounds: NDArray[np.uint8]
    """(m, 320, 320)."""

    def worn(self, i: int) -> WornHand:
        """The hand with this number."""
        return WornHand(self.hands[i], self.points[i], float(self.widths[i]), bool(self.opened[i]))


def draw_pool(folder: Path, *, hands: int, grounds: int) -> Pool:
    """Draw what is not there yet (about 0.1 s a hand) and open the pool."""
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / f"points-{hands}.npz"
    ground_file = folder / f"grounds-{grounds}.npy"
    if not ground_file.exists():
        np.save(ground_file, np.stack([_ground(i) for i in range(grounds)]))
    if not done.exists():
        _draw_hands(folder, done, hands)
    with np.load(done) as kept:
        points, widths, opened = kept["points"], kept["widths"], kept["opened"]
    pixels = np.load(folder / f"hands-{hands}.npy", mmap_mode="r")
    return Pool(pixels, points, widths, opened, np.load(ground_file))


def _draw_hands(folder: Path, done: Path, hands: int) -> None:
    shape = (hands, HAND_WINDOW.height // 2, HAND_WINDOW.width // 2, 2)
    file = folder / f"hands-{hands}.npy"
    pixels = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=shape)
    points, widths, opened = np.zeros((hands, 6, 2)), np.zeros(hands), np.zeros(hands, dtype=np.bool_)
    for i in range(hands):
        worn = _hand(i)
        pixels[i] = half(worn.pixels)
        points[i] = (worn.points + 0.5) / 2 - 0.5
        widths[i], opened[i] = worn.palm_width_px / 2, worn.is_open
    pixels.flush()
    np.savez(done, points=points, widths=widths, opened=opened)


def _hand(i: int) -> WornHand:
    """Every drawn skin is used twice, in both looks: drawing it is what takes the time."""
    rng = np.random.default_rng([_DOMAIN, i // 2])
    person, look = FIRST_PERSON + i // 2, _LOOKS[i % 2]
    if rng.random() < SHUT_SHARE:
        seed = int(rng.integers(1 << 31))
        return shut_hand(np.random.default_rng([_DOMAIN, seed]), person, "L", look)
    posture = wide_posture(rng)
    return open_hand(np.random.default_rng([_DOMAIN, i, 1]), make_person(person), "L", look, posture)


def half(pixels: Pixels) -> Pixels:
    """A canvas (H, W, 2 or 4) as grey and alpha at half its scale."""
    grey = cv2.cvtColor(pixels[:, :, :3], cv2.COLOR_BGR2GRAY) if pixels.shape[2] == 4 else pixels[:, :, 0]
    both = np.dstack([grey, pixels[:, :, -1]])
    size = (pixels.shape[1] // 2, pixels.shape[0] // 2)
    return np.asarray(cv2.resize(both, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def _ground(i: int) -> Pixels:
    seed = FIRST_PERSON + i
    size = (GROUND_PX, GROUND_PX)
    return background(seed, "nir", size) if i % 8 == 0 else _grey(clutter(seed, "rgb", size))


def _grey(pixels: Pixels) -> Pixels:
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY), dtype=np.uint8)
