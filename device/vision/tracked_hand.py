"""The hand in view, followed over the frames, with its vectors."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from models.embedding import EMBEDDING_SIZE
from models.frames import CameraFrame
from models.hand import Hand, PartialHand

GONE_MS: Final = 200
"""A hand not seen for so long has left; the finder may miss a frame or two before."""
PREVIOUS_MS: Final = 250
"""An older position of the hand is not used to judge its motion."""
PROBES: Final = 4

_JUMP = 1.0
"""A hand moves by less than the width of its palm from one frame to the next."""
_RESIZE = 1.6


class TrackedHand:
    """Distinguishes one hand from the next and keeps its best vectors, which another hand overwrites.

    Times are those of the frames, monotonic ms. Belongs to the inference thread.
    """

    def __init__(self) -> None:
        self.previous: Hand | None = None
        """The same hand a moment ago, for judging its motion."""
        self._where: Hand | None = None
        self._last_seen_ms: int | None = None
        self._missed = False
        self._frame_shape: tuple[int, ...] = ()
        self._vectors = np.zeros((PROBES, EMBEDDING_SIZE), np.float32)
        self._qualities: list[int] = []

    def see(self, seen: Hand | PartialHand | None, frame: CameraFrame) -> bool:
        """Update with the finder's result for `frame`. True: the previous hand is forgotten, because it has
        left or another hand is in its place."""
        if self.previous is not None and frame.at_ms - self.previous.at_ms > PREVIOUS_MS:
            self.previous = None
        unseen_ms = 0 if self._last_seen_ms is None else frame.at_ms - self._last_seen_ms
        # Time without a frame that lacks the hand is not absence: a slow board needs it for examining.
        gone = unseen_ms >= GONE_MS and (seen is None or self._missed)
        if seen is None and not gone:
            self._missed = True
            return False
        other = gone or (seen is not None and not self._could_be_same(seen, frame))
        if other:
            self.forget()
        if seen is not None:
            self._last_seen_ms, self._frame_shape = frame.at_ms, frame.pixels.shape
            self._missed = False
        return other

    @property
    def there(self) -> bool:
        """Whether the hand counts as in view, though the newest frame may not show it."""
        return self._last_seen_ms is not None

    @property
    def known(self) -> bool:
        """Whether a vector of the hand is held, with which the next ones are compared."""
        return bool(self._qualities)

    def judged(self, hand: Hand) -> None:
        """A frame was judged with `previous`; the next one is judged with `hand`."""
        self.previous = self._where = hand

    def hold(self, vector: npt.NDArray[np.float32], quality_q: int, agree_cosine: float) -> bool:
        """Keep a copy of `vector`, (512,) float32 of unit length, unless there are `PROBES` better ones.

        True: it is below `agree_cosine` with the mean of those held, which are forgotten: it is another
        hand's, or they were spoilt.
        """
        other = bool(self._qualities) and self._agreement(vector) < agree_cosine
        if other:
            self._forget_vectors()
        held = len(self._qualities)
        if held < PROBES:
            self._vectors[held] = vector
            self._qualities.append(quality_q)
            return other
        worst = min(range(PROBES), key=self._qualities.__getitem__)
        if quality_q >= self._qualities[worst]:
            self._vectors[worst] = vector
            self._qualities[worst] = quality_q
        return other

    def probe(self) -> npt.NDArray[np.float32]:
        """To search with: the normalised mean of the vectors held, at least one: (512,) float32."""
        total = self._vectors[: len(self._qualities)].sum(axis=0)
        mean: npt.NDArray[np.float32] = total / np.float32(np.linalg.norm(total))
        return mean

    def forget(self) -> None:
        """Forget the hand and overwrite its vectors."""
        self.previous = self._where = self._last_seen_ms = None
        self._missed = False
        self._forget_vectors()

    def _could_be_same(self, seen: Hand | PartialHand, frame: CameraFrame) -> bool:
        if self._last_seen_ms is not None and frame.pixels.shape != self._frame_shape:
            return False
        before = self._where
        if before is None:
            return True
        moved_px = float(np.hypot(*(seen.centre - before.centre)))
        if isinstance(seen, PartialHand):
            return moved_px < 2 * _JUMP * before.palm_width_px  # its centre is a coarse guess
        ratio = seen.palm_width_px / before.palm_width_px
        return moved_px < _JUMP * before.palm_width_px and 1 / _RESIZE < ratio < _RESIZE

    def _agreement(self, vector: npt.NDArray[np.float32]) -> float:
        """The cosine of `vector` with the mean of those held."""
        held = self._vectors[: len(self._qualities)]
        # One by one: the mean, or a product of matrices, would be a copy that is never overwritten.
        length = math.sqrt(sum(float(one @ other) for one in held for other in held))
        return sum(float(one @ vector) for one in held) / length

    def _forget_vectors(self) -> None:
        self._vectors.fill(0.0)
        self._qualities.clear()
