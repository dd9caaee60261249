"""A cable between two simulated machines: bytes take their time, and may be lost, changed, repeated or
late."""

import contextvars
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from link1.errors import TransportError
from tools.rig.simulation.loop import SimulatedLoop

BYTES_A_SECOND: Final = 92_160
"""921600 baud, 8N1."""
PORT_HOLDS: Final = 4_096
_WORLD: Final = contextvars.Context()
"""Of no process: bytes that have left arrive, also when their sender dies."""


@dataclass
class CableTroubles:
    """Chances, for each piece that is written, in 0..1; `late_s` is the most that a piece is late."""

    lose: float = 0.0
    change: float = 0.0
    repeat: float = 0.0
    cut_short: float = 0.0
    late_s: float = 0.0
    gather_s: float = 0.0
    """Programs look so seldom that what has come meanwhile comes in one read."""
    silent: bool = False
    """Nothing arrives, and neither end notices anything, as on a UART."""
    one_way: bool = False
    """What the validator says is lost, as with one broken wire."""


@dataclass
class Cable:
    """`heard` is called with what an end writes, before anything happens to it, `reached` with what an end
    reads, and with nothing when it has opened its port."""

    loop: SimulatedLoop
    chance: random.Random
    heard: Callable[[str, bytes], None]
    reached: Callable[[str, bytes], None] = lambda _side, _data: None
    troubles: CableTroubles = field(default_factory=CableTroubles)
    plugged: bool = True
    _ends: "dict[str, SimulatedPort]" = field(default_factory=dict)
    _ports: int = 1_000

    def open(self, side: str) -> "SimulatedPort":
        """A program opens the port of its side, `device` or `validator`. Raises TransportError when
        unplugged."""
        if not self.plugged:
            raise TransportError("the simulated cable is not plugged in")
        self._ports += 1
        port = self._ends[side] = SimulatedPort(self, side, self._ports)
        self.reached(side, b"")
        return port

    def pull(self) -> None:
        """Both ports go away."""
        self.plugged = False
        for port in self._ends.values():
            port.hang_up()

    def carry(self, side: str, data: bytes, at_s: float) -> None:
        """Bytes leave `side` at a time; what arrives of them is decided now."""
        troubles, chance = self.troubles, self.chance
        if troubles.silent or (troubles.one_way and side == "validator") or chance.random() < troubles.lose:
            return
        if chance.random() < troubles.cut_short:
            data = data[: chance.randrange(len(data))]
        if chance.random() < troubles.change:
            changed = bytearray(data)
            for _ in range(chance.randint(1, 3)):
                if changed:
                    changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
            data = bytes(changed)
        at_s += 0.0005 + chance.random() * troubles.late_s
        if troubles.gather_s:
            at_s = math.ceil(at_s / troubles.gather_s) * troubles.gather_s
        other = "validator" if side == "device" else "device"
        for _ in range(2 if chance.random() < troubles.repeat else 1):
            self._arrive(other, data, at_s)
            at_s += chance.random() * 0.5

    def _arrive(self, side: str, data: bytes, at_s: float) -> None:
        def arrive() -> None:
            port = self._ends.get(side)
            if port is not None and not self.troubles.silent:
                port.take_in(data)

        self.loop.call_at(at_s, arrive, context=_WORLD)


class SimulatedPort:
    """What `link1.transport.pump` drives."""

    def __init__(self, cable: Cable, side: str, number: int) -> None:
        self._cable, self._side, self._number = cable, side, number
        self._came: deque[bytes] = deque()
        self._left_at_s = 0.0
        self._gone = False

    def fileno(self) -> int:
        return self._number

    def read(self, max_bytes: int) -> bytes:
        self._check()
        data = b"".join(self._came)
        self._came.clear()
        if len(data) > max_bytes:
            self._came.append(data[max_bytes:])
            self._cable.loop.readable(self._number)
        data = data[:max_bytes]
        if data:
            self._cable.reached(self._side, data)
        return data

    def write(self, data: bytes) -> int:
        self._check()
        loop = self._cable.loop
        taken = data[: max(0, PORT_HOLDS - self.unsent())]
        if taken:
            self._cable.heard(self._side, taken)
            self._left_at_s = max(self._left_at_s, loop.now_s) + len(taken) / BYTES_A_SECOND
            self._cable.carry(self._side, taken, self._left_at_s)
        if len(taken) < len(data):
            loop.call_at(self._left_at_s, loop.writable, self._number, context=_WORLD)
        return len(taken)

    def unsent(self) -> int:
        self._check()
        return max(0, round((self._left_at_s - self._cable.loop.now_s) * BYTES_A_SECOND))

    def close(self) -> None:
        self._gone = True

    def take_in(self, data: bytes) -> None:
        """Bytes arrive."""
        if not self._gone:
            self._came.append(data)
            self._cable.loop.readable(self._number)

    def hang_up(self) -> None:
        """The port is not there any more."""
        if not self._gone:
            self._gone = True
            self._cable.loop.readable(self._number)

    def _check(self) -> None:
        if self._gone:
            raise TransportError("the simulated port is gone")
