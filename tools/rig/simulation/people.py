"""The people at the gate: when their hands come and go, and what the validator asks meanwhile."""

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Final

from tools.rig.simulation.machines import DrawnEyes, Visitor
from tools.rig.simulation.plan import Act, PlannedAct
from tools.rig.simulation.service import PEOPLE

if TYPE_CHECKING:
    from tools.rig.simulation.world import SimulatedWorld

LAST_TRIES: Final = 4
AGAIN_S: Final = 10.0
"""Someone the gate does not know yet tries again: a carrier's pauses last up to half a minute."""
_APART_S: Final = 0.4
"""Between two hands; until then a verdict is about the one before."""
_IN_LINE: Final = 0.85
"""The share of people who wait until the one before has gone; the others' requests replace each other."""
_PATIENCE_S: Final = 3.0


class People:
    """Everyone who comes in a run. `opened_last`: whether the gate opened with nothing wrong, at the end."""

    def __init__(self, world: "SimulatedWorld", eyes: DrawnEyes) -> None:
        self._world, self._history, self._eyes = world, world.history, eyes
        self._visits = 0
        self._left_at_s = 0.0
        self.under_way: list[asyncio.Task[None]] = []
        self.opened_last: bool | None = None
        self._undecided: list[asyncio.Future[None]] = []
        """Of passages that wait until the device has decided."""

    def come(self, act: PlannedAct) -> None:
        """A planned passage begins."""
        before = self.under_way[-1:]
        self.under_way.append(self._world.loop.create_task(self._passage(act, before)))

    def look(self) -> None:
        """After a step: those who wait for a decision go on when there is one."""
        if self._undecided and not self._waits_for_hand():
            for waiting in self._undecided:
                if not waiting.done():
                    waiting.set_result(None)
            self._undecided.clear()

    async def _passage(self, act: PlannedAct, before: list[asyncio.Task[None]]) -> None:
        chance = random.Random(f"passage {act.at_s}")  # noqa: S311
        person = None if act.extra < 0 else act.extra
        if before and chance.random() < _IN_LINE:
            await asyncio.wait(before, timeout=_PATIENCE_S)
        if act.act is Act.HAND_FIRST:
            if not await self._show(person, chance):
                return
            await asyncio.sleep(chance.uniform(0.05, 0.8))
            self._arm(act)
        else:
            self._arm(act)
            await asyncio.sleep(min(chance.choice((0.05, 0.5, 0.5, act.size / 1000)), 3.0) * chance.random())
            if act.act is Act.CANCELLED and chance.random() < 0.2:
                self._world.validator.do(lambda desk: desk.cancel())
            if not await self._show(person, chance):
                return
        visit = self._visits
        if act.act in (Act.CANCELLED, Act.REPLACED) and chance.random() < 0.7:
            await self._wait_for_outcome(act.for_s)
        else:
            await asyncio.sleep(act.for_s * chance.random())
        if act.act is Act.CANCELLED:
            self._world.validator.do(lambda desk: desk.cancel())
        if act.act is Act.REPLACED:
            self._arm(act)
        await asyncio.sleep(act.for_s * chance.random() ** 3)  # most go at once, some stay
        if self._history.visit == visit:
            self._eyes.visitor, self._left_at_s = None, self._world.loop.now_s

    def _waits_for_hand(self) -> bool:
        palmd = self._world.device.palmd
        return palmd is not None and palmd.gate.open_txn_id is not None

    async def _wait_for_outcome(self, most_s: float) -> None:
        """Until the device has decided and no one knows: then a cancel crosses the verdict."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                self._undecided.append(self._world.loop.create_future())
                await self._undecided[-1]

    async def _show(self, person: int | None, chance: random.Random) -> bool:
        """A hand comes, some time after the last one left; False where another one is there."""
        await self._world.sleep_until(self._left_at_s + _APART_S)
        if self._eyes.visitor is not None:
            return False
        self._visits += 1
        self._history.visit = self._visits
        self._history.say(
            "HAND", f"visit {self._visits}: " + ("a stranger" if person is None else f"person {person}")
        )
        self._eyes.visitor = Visitor(self._visits, person, chance.choice((0, 0, 0, 0, 2, 2, 30)))
        return True

    def _arm(self, act: PlannedAct) -> None:
        ttl_ms, clock = int(act.size), self._world.validator.clock
        self._world.validator.do(lambda desk: desk.arm(ttl_ms, clock.monotonic_ms()))

    async def last_passage(self) -> None:
        """With nothing wrong: a person of the gallery passes."""
        live = self._history.steps[-1].live
        person = next((one for one in range(PEOPLE) if self._world.start.refs[one] in live), None)
        self._eyes.visitor = None
        await asyncio.sleep(1.0)
        if person is None or self._history.revoked:
            return
        self.opened_last = False
        before, clock = len(self._history.actuated), self._world.validator.clock
        for _ in range(LAST_TRIES):
            self._history.say("WORLD", f"person {person} passes with nothing wrong")
            self._visits += 1
            self._history.visit = self._visits
            self._world.validator.do(lambda desk: desk.arm(10_000, clock.monotonic_ms()))
            self._eyes.visitor = Visitor(self._visits, person, 0)
            await asyncio.sleep(4.0)
            self._eyes.visitor = None
            self.opened_last = len(self._history.actuated) > before
            if self.opened_last:
                return
            await asyncio.sleep(AGAIN_S)
