"""A virtual cable that damages what it carries, and that can be cut and unplugged."""

import random
from pathlib import Path

from tools.kit.pty_pair import PtyPair

DAMAGED_SHARE = 0.01
"""Of all pieces read from one end: about one LINK/1 frame each while passages go on."""
BURST_BYTES = 64


class BadCable:
    """Two ports whose paths, `device` and `validator`, stay the same when the cable is pulled out."""

    def __init__(self, device: Path, validator: Path, seed: int) -> None:
        self.device = device
        self.validator = validator
        self.damaged = 0
        self.cut = False
        self.noisy = False
        self._chance = random.Random(seed)  # noqa: S311 - the same noise in every run
        self._pair: PtyPair | None = None
        self.plug()

    def plug(self) -> None:
        """Put the cable in; nothing when it is in."""
        if self._pair is None:
            self._pair = PtyPair(carry=self.carry)
            self.device.symlink_to(self._pair.left)
            self.validator.symlink_to(self._pair.right)

    def unplug(self) -> None:
        """Pull it out: both ends see their ports go."""
        if self._pair is not None:
            self.device.unlink()
            self.validator.unlink()
            self._pair.close()
            self._pair = None

    def carry(self, data: bytes) -> bytes:
        """What arrives of bytes that are sent now."""
        if self.cut:
            return b""
        if not data or not self.noisy or self._chance.random() >= DAMAGED_SHARE:
            return data
        self.damaged += 1
        start = self._chance.randrange(len(data))
        length = self._chance.choice((1, 1, 1, BURST_BYTES))
        burst = self._chance.randbytes(min(length, len(data) - start))
        return data[:start] + burst + data[start + len(burst) :]
