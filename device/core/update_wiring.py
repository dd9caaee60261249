"""Puts the updates of a core together."""

import contextlib
from collections.abc import Sequence

from device.core.core import Core
from device.core.housekeeping import Stage
from device.core.update_control import update_operations
from device.core.update_watch import UpdateWatch, install_prefix
from device.platform.clock import Clock
from device.platform.control import Operation


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
