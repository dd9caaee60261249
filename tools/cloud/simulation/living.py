"""Simulated gates between commands: they follow the gallery, report, and obey a revocation."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from cloud_client.contract import MAX_WAIT_S
from cloud_client.errors import CloudError
from device.errors import DeviceError
from gallery.errors import GalleryError
from link1.errors import Link1Error
from tools.cloud.simulation.errors import GateWiped, SimulationError
from tools.cloud.simulation.gate import SimulatedGate
from tools.palmctl.command_errors import in_words

FAULTS: Final = (CloudError, DeviceError, GalleryError, Link1Error, OSError, SimulationError)
"""What ends one attempt of a gate and not its life: the service, its answer, or the folder is at fault."""

_REPORT_EVERY_S = 60
_STATUS_EVERY_S = 5
"""A device asks once a minute; a developer waits for what a revocation does."""
_AFTER_FAILURE_S = 5
_POLL_AGAIN_S = 1
"""Another command of the same gate ends its long poll at once."""

Tell = Callable[[str, str, str], None]
"""Takes what a gate does: its device_id, a word for programs, and a line for people."""


async def live(gate: SimulatedGate, tell: Tell) -> None:
    """Let one gate live until its wipe; the words are `lives`, `gallery`, `failed` and `wiped`."""

    async def follow() -> None:
        before = gate.state.palms.seq
        await gate.follow(MAX_WAIT_S)
        palms = gate.state.palms
        if palms.seq != before:
            text = f"gallery at {palms.epoch}.{palms.seq}, {len(palms.templates)} palms"
            tell(gate.device_id, "gallery", text)

    async def every(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            begun = time.monotonic()
            try:
                await gate.unless_revoked(work())
            except GateWiped:
                raise
            except FAULTS as error:
                tell(gate.device_id, "failed", in_words(error))
                await asyncio.sleep(_AFTER_FAILURE_S)
            await asyncio.sleep(max(0.0, begun + seconds - time.monotonic()))

    async with gate:
        tell(gate.device_id, "lives", "lives")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(every(_POLL_AGAIN_S, follow))
                tasks.create_task(every(_REPORT_EVERY_S, gate.report))
                tasks.create_task(every(_STATUS_EVERY_S, gate.obey))
        except* GateWiped as wiped:
            tell(gate.device_id, "wiped", str(wiped.exceptions[0]))
