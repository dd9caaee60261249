"""Someone in the cable, who can say what carries no signature, or a wrong one: as much of it as there is room
for."""

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any, Final

from link1.canonical import JsonObject, b64_encode
from link1.keys import SIGNATURE_BYTES
from tools.rig.simulation.plan import Act, PlannedAct

if TYPE_CHECKING:
    from tools.rig.simulation.world import SimulatedWorld

FORGED_SIGNATURE: Final = b64_encode(bytes(SIGNATURE_BYTES))
_APART_S: Final = 0.002


class Attacker:
    """In one run. What it says goes through the validator's link, as of a machine before it."""

    def __init__(self, world: "SimulatedWorld") -> None:
        self._world, self._history = world, world.history

    async def flood(self, act: PlannedAct) -> None:
        """So many forged messages, each another one."""
        chance = random.Random(f"forged {act.at_s}")  # noqa: S311
        until_s, said = self._world.loop.now_s + act.for_s, 0
        while self._world.loop.now_s < until_s and said < act.size:
            said += self._say(act, chance)
            await asyncio.sleep(_APART_S)

    def _say(self, act: PlannedAct, chance: random.Random) -> int:
        end, said = self._world.validator.end, 0
        if end is None:
            return 0
        if act.act is Act.FORGED_CANCELS:
            while end.send_cancel(chance.randbytes(16).hex()):
                said += 1
        elif self._history.decisions:
            while end.send_decision(self._forged_decision(chance, act.extra)):
                said += 1
        self._world.validator.do(lambda _desk: [])
        return said

    def _forged_decision(self, chance: random.Random, depth: int) -> JsonObject:
        """On a verdict that has one, under a key that counts, nested this much deeper than a good one."""
        good = self._history.decisions[chance.choice(list(self._history.decisions))]
        forged: JsonObject = json.loads(json.dumps(good))
        nested: Any = chance.randrange(2**31)
        for _ in range(depth):
            nested = [nested]
        forged["decision_obj"]["reason"] = nested
        return forged | {"sig_b64": FORGED_SIGNATURE}
