"""Puts the updates of a core together."""

import contextlib
from collections.abc import Sequence

from device.clock import Clock
from device.control import Operation
from device.core import Core
from device.housekeeping import Stage
from device.updates.control import update_operations
from device.updates.watch import UpdateWatch, install_prefix


async def begin_updates(
    core: Core, clock: Clock, stages: Sequence[Stage], stack: contextlib.AsyncExitStack
) -> tuple[UpdateWatch, dict[str, Operation]]:
    """Take up what the last program left; gives the watch, to be run, and what a technician may ask.

    `stack` ends the work on updates.
    """
    desk = core.opened.updates
    stack.push_async_callback(desk.finish)
    core.wiping.stop_updates = desk.abandon
    await desk.start()
    watch = UpdateWatch(core, desk, clock, stages, prefix=install_prefix())
    return watch, update_operations(desk, watch.facts)
