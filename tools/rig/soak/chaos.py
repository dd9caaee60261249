"""What goes wrong at the gate, when, and how it is put right again.

Faults come one after the other with a pause between them, in an order drawn for each round, so that
a run of any length meets every kind. Daemons are killed in the first half of a run only.
Noise on the cable and people at the gate never pause.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

PAUSE_S: Final = 4.0
"""Between two faults: long enough to be served again, which the bounds of LINK/1 want within 2 s."""


@dataclass(frozen=True)
class TimedFault:
    """Something that is done, and undone after between `shortest_s` and `longest_s` seconds."""

    name: str
    begin: Callable[[], None]
    end: Callable[[], None]
    shortest_s: float
    longest_s: float
    deadly: bool = False
    """It ends a daemon: growth over time can only be seen while there are none of these."""


class Chaos:
    """Commits the faults; `look` is called again and again."""

    def __init__(self, faults: Sequence[TimedFault], seed: int, tell: Callable[[str], None]) -> None:
        self.done: Counter[str] = Counter()
        self.spare_lives = False
        """While it is true only faults that the daemons must live through are committed."""
        self._faults = faults
        self._chance = random.Random(seed)  # noqa: S311 - the same faults in every run
        self._tell = tell
        self._round: list[TimedFault] = []
        self._standing: TimedFault | None = None
        self._next_s = time.monotonic() + PAUSE_S

    @property
    def standing(self) -> str:
        """The fault in effect, or nothing."""
        return "" if self._standing is None else self._standing.name

    def look(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        if self._standing is not None:
            self.calm()
            return
        if self.spare_lives:
            self._round = [fault for fault in self._round if not fault.deadly]
        if not self._round:
            those = [fault for fault in self._faults if not (self.spare_lives and fault.deadly)]
            self._round = self._chance.sample(those, len(those))
        fault = self._standing = self._round.pop()
        lasts_s = self._chance.uniform(fault.shortest_s, fault.longest_s)
        self._tell(f"{fault.name}, for {lasts_s:.1f} s" if lasts_s else fault.name)
        fault.begin()
        self.done[fault.name] += 1
        self._next_s = now_s + lasts_s

    def calm(self) -> None:
        """Undo the fault in effect."""
        if self._standing is not None:
            self._standing.end()
            self._standing = None
        self._next_s = time.monotonic() + PAUSE_S
