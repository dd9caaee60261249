"""A bad cable in simulated time: what arrives over it, and how soon after a cut it serves again.

Two real ends in one process, bytes carried by hand, and time moved from deadline to deadline: a silence of
five minutes takes no time, and the same seed spoils the same pieces.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from link1.canonical import JsonObject
from link1.device_end import DeviceEnd
from link1.events import DecisionReceived, Proven
from link1.objects import PREV_REF_OF_FIRST, Request
from link1.signed import object_ref
from link1.validator.desk import ValidatorDesk, VerdictAnswered, accept_all
from link1.validator.memory import DeskMemory
from tools.palmctl.bench.daemon import BenchFailed
from tools.rig.bench.link_peer import answer, new_device_end, new_validator_end, signed_verdict

PASSAGES = 200
TTL_MS = 15_000
CUTS_S = (0.1, 1.0, 12.0, 300.0)
BURST_BYTES = 64
_PATIENCE_MS = 3_600_000
"""An hour of the simulated clock; anything later counts as lost."""

Spoil = Callable[[bytes, random.Random], list[bytes]]


def _flip(frame: bytes, rng: random.Random) -> list[bytes]:
    spoilt = bytearray(frame)
    spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
    return [bytes(spoilt)]


def _burst(frame: bytes, rng: random.Random) -> list[bytes]:
    start = rng.randrange(len(frame))
    end = min(len(frame), start + BURST_BYTES)
    return [frame[:start] + rng.randbytes(end - start) + frame[end:]]


def _lose_or_double(frame: bytes, rng: random.Random) -> list[bytes]:
    cut = rng.randrange(len(frame))
    return rng.choice([[], [frame, frame], [frame[:cut]], [frame[cut:]], [frame, frame[cut:]]])


FAULTS: tuple[tuple[str, float, Spoil], ...] = (
    ("1 % damaged", 0.01, _flip),
    ("bursts of 64", 0.05, _burst),
    ("lost and doubled", 0.05, _lose_or_double),
)


class FaultyLink:
    """A device that recognises every palm, a validator's desk, and the cable between them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 — the same faults in every run
        self.now_ms = 1_000
        self.share = 0.0
        self.spoil: Spoil = _flip
        self.cut = False
        self.damaged = 0
        self.answered: Counter[str] = Counter()
        self.device: DeviceEnd = new_device_end()
        self._stored: dict[str, JsonObject] = {}
        self._open: set[str] = set()
        self._last_ref = PREV_REF_OF_FIRST
        self.desk = ValidatorDesk(
            new_validator_end(self.rng.randbytes),
            decide=accept_all,
            memory=DeskMemory(),
            save=lambda _memory: None,
            wall_ms=lambda: self.now_ms,
            random=self.rng.randbytes,
            turn_after_ms=None,
        )
        self._from_device(self.device.port_opened(self.now_ms))
        self._from_desk(self.desk.port_opened(self.now_ms))

    def _sign(self, request: Request, _request_ref: str) -> JsonObject:
        """The stored verdict for a request that comes again, byte for byte."""
        if request.txn_id not in self._stored:
            wrapper = signed_verdict(request, len(self._stored) + 1, self._last_ref)
            self._stored[request.txn_id] = wrapper
            self._last_ref = object_ref(wrapper)
            self._open.add(self._last_ref)
        return self._stored[request.txn_id]

    @property
    def verdicts(self) -> int:
        return len(self._stored)

    @property
    def all_decided(self) -> bool:
        return not self._open

    def _from_device(self, events: list[Any]) -> None:
        for event in events:
            answer(self.device, event, self._sign)
            match event:
                case Proven() if self._open:
                    self.device.send_resolve(sorted(self._open)[:32])
                case DecisionReceived(decision):
                    self._open.discard(decision.verdict_ref)
                case _:
                    pass

    def _from_desk(self, events: list[Any]) -> None:
        for event in events:
            if isinstance(event, VerdictAnswered) and event.refused is None:
                self.answered[event.verdict_ref] += event.choice.actuated

    def _carry(self) -> None:
        """Everything that either end has to say."""
        while self._carry_once():
            pass

    def _carry_once(self) -> bool:
        moved = False
        for source, said, sink, heard in (
            (self.device, self._from_device, self.desk, self._from_desk),
            (self.desk, self._from_desk, self.device, self._from_device),
        ):
            data = source.data_to_send(self.now_ms)
            if not data:
                continue
            moved = True
            said(list(source.sent(len(data), self.now_ms)))
            for frame in data.split(b"\x00")[:-1]:
                for piece in self._spoilt(frame + b"\x00"):
                    heard(list(sink.receive(piece, self.now_ms)))
        return moved

    def _spoilt(self, frame: bytes) -> list[bytes]:
        if self.cut:
            return []
        if self.rng.random() >= self.share:
            return [frame]
        self.damaged += 1
        return self.spoil(frame, self.rng)

    def run(self, until: Callable[[], bool]) -> None:
        """Let time pass until `until` holds; raises BenchFailed when it never does."""
        end_ms = self.now_ms + _PATIENCE_MS
        self._carry()
        while not until():
            if self.now_ms >= end_ms:
                raise BenchFailed("a verdict never arrived over the simulated cable")
            self._go_on(end_ms)
            self._carry()

    def pass_time(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        while self.now_ms < end_ms:
            self._carry()
            self._go_on(end_ms)

    def _go_on(self, end_ms: int) -> None:
        """To the next deadline of either end, or to `end_ms`."""
        deadlines = (self.device.next_deadline_ms(), self.desk.next_deadline_ms(), end_ms)
        next_ms = min(deadline for deadline in deadlines if deadline is not None)
        self.now_ms = min(end_ms, max(self.now_ms + 1, next_ms))
        self._from_device(self.device.tick(self.now_ms))
        self._from_desk(list(self.desk.tick(self.now_ms)))

    def ask(self) -> None:
        """Open a request; it goes out when it can."""
        self._from_desk(self.desk.arm(TTL_MS, self.now_ms))

    def decide(self, number: int) -> None:
        """Go on until `number` verdicts have been made and answered, and the device knows."""
        self.run(lambda: self.verdicts >= number and self.all_decided and self.desk.open_txn_id is None)

    def passage(self) -> None:
        self.ask()
        self.decide(self.verdicts + 1)

    def decided_once(self) -> int:
        """Verdicts for which the gate was opened exactly once."""
        return sum(count == 1 for count in self.answered.values())


def measure_faults() -> list[dict[str, Any]]:
    """Passages over each kind of bad cable."""
    figures = []
    for seed, (name, share, spoil) in enumerate(FAULTS):
        rig = FaultyLink(seed)
        rig.share, rig.spoil = share, spoil
        for _ in range(PASSAGES):
            rig.passage()
        figures.append(
            {
                "name": name,
                "share": share,
                "damaged": rig.damaged,
                "verdicts": rig.verdicts,
                "decided_once": rig.decided_once(),
            }
        )
    return figures


def measure_cuts() -> list[dict[str, Any]]:
    """A request is open when the cable is cut; the clock starts when bytes flow again."""
    figures = []
    for seed, cut_s in enumerate(CUTS_S):
        rig = FaultyLink(100 + seed)
        rig.passage()
        rig.pass_time(137)  # so that no timer happens to be due when bytes flow again
        rig.ask()
        rig.cut = True
        rig.pass_time(int(cut_s * 1000))
        mended_ms = rig.now_ms
        rig.cut = False
        if rig.desk.open_txn_id is None:
            rig.ask()  # the one from before the cut has ended by its ttl
        rig.decide(rig.verdicts if rig.verdicts > 1 else 2)
        figures.append(
            {
                "cut_s": cut_s,
                "served_after_ms": rig.now_ms - mended_ms,
                "lost": rig.verdicts - len(rig.answered),
                "doubled": sum(count > 1 for count in rig.answered.values()),
            }
        )
    return figures
