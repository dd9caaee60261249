"""`palm-syncd`, the carrier: the only process of the device that uses the network.

Of the device's secrets it has only the http key. The core hands it the key at its start, and the carrier
never writes it, so that a change of the key needs only a restart. Tasks (`device.syncd.tasks`) run
concurrently; each survives the loss of the core and of the service, and continues where it was. Data in
transit when the process ends is still in the core: in the journal, the enrolment outbox, the gallery's
position.
"""

import argparse
import asyncio
import logging
import random
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from cloud_client.client import CloudClient, ServerAddress
from cloud_client.errors import CloudError, ServerAddressError
from cloud_client.retry import Backoff, Random
from device.config.config import config_path, load_config
from device.errors import ConfigError, IpcError, IpcRefused
from device.platform import sd_notify
from device.platform.clock import Clock, SystemClock
from device.platform.logs import log_to_stderr
from device.platform.memory import guard_memory
from device.platform.streams import open_closed_streams
from device.syncd import tasks
from device.syncd.fleet_tasks import ReportTask, UpdatesTask
from device.values.carrier import WIPED_CODE, CloudState
from link1.keys import SigningKey

CORE_FIRST_RETRY_S: Final = 0.2
CORE_LONGEST_RETRY_S: Final = 5.0
"""The core is on this machine: frequent retries cost nothing, and a restarted core gets its gallery at
once."""

_log = logging.getLogger(__name__)


async def carry(
    cloud: CloudClient,
    connect: Callable[[], tasks.CoreLine],
    clock: Clock,
    chance: Random,
    tell: Callable[[str], object],
) -> None:
    """Run every task until cancelled, or until a wipe is over. `connect` makes the line of one task to the
    core; `tell` gets one line for people whenever the state of the link changes."""

    def on_link_change(state: CloudState) -> None:
        _log.info("service: %s", state.detail)
        tell(f"service {'reachable' if state.online else 'unreachable'}: {state.detail}")

    context = tasks.SyncContext(cloud, clock, chance, on_link_change)
    carried: list[tasks.SyncTask] = [
        tasks.GalleryTask(context),
        tasks.VerdictTask(context),
        tasks.EnrolmentTask(context),
        tasks.RedeemTask(context),
        tasks.StatusTask(context),
        tasks.KeysTask(context),
        tasks.LinkStateTask(context),
        ReportTask(context),
        UpdatesTask(context),
    ]
    try:
        async with asyncio.TaskGroup() as group:
            for task in carried:
                group.create_task(_run(task, context, connect()), name=task.name)
    except* tasks.DeviceWiped:
        # The end of the process removes the http key and every page it carried from memory.
        _log.info("this device is wiped: nothing is left to carry")
        tell("wiped: nothing is left to carry")


async def _run(task: tasks.SyncTask, context: tasks.SyncContext, core: tasks.CoreLine) -> None:
    backoff = Backoff(context.random, CORE_FIRST_RETRY_S, CORE_LONGEST_RETRY_S)
    with closing(core):
        while True:
            try:
                delay_s = await task.step(core)
            except CloudError as error:
                delay_s = task.backoff.failed(error.retry_after_s)
            except IpcError as error:
                if backoff.failures == 0:
                    _log.warning("%s: %s", task.name, error)
                core.close()
                task.core_lost()
                # A restarted core does not know yet whether the service is reachable.
                context.link_news.set()
                await asyncio.sleep(backoff.failed())
                continue
            backoff.succeeded()
            if delay_s > 0:
                await context.pause(delay_s)


async def http_key_of(core: tasks.CoreLine, chance: Random) -> SigningKey:
    """The key with which this device signs its requests, from the core; waits for a core.

    Raises IpcRefused when the key is destroyed.
    """
    backoff = Backoff(chance, CORE_FIRST_RETRY_S, CORE_LONGEST_RETRY_S)
    with closing(core):
        while True:
            try:
                return SigningKey.from_seed((await core.call("http_key")).payload)
            except IpcError as error:
                if isinstance(error, IpcRefused) and error.code == WIPED_CODE:
                    raise
                if backoff.failures == 0:
                    _log.warning("%s", error)
                await asyncio.sleep(backoff.failed())


async def _serve(address: ServerAddress, core_socket: Path) -> None:
    """Carry until SIGTERM or SIGINT. Raises IpcRefused when the core has no http key."""
    carrying = asyncio.create_task(_carry_with_key(address, core_socket))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, carrying.cancel)
    watched = asyncio.create_task(_feed_watchdog())
    sd_notify.ready(f"waits for palmd at {core_socket}")
    try:
        await carrying
    except asyncio.CancelledError:
        _log.info("stopped by a signal")
    finally:
        sd_notify.stopping()
        watched.cancel()


async def _carry_with_key(address: ServerAddress, core_socket: Path) -> None:
    clock = SystemClock()
    http_key = await http_key_of(tasks.CoreLine(core_socket), random.random)
    sd_notify.status(f"carrying between {core_socket} and {address.origin}")
    async with CloudClient(address, http_key, clock.wall_ms) as cloud:
        await carry(cloud, lambda: tasks.CoreLine(core_socket), clock, random.random, sd_notify.status)


async def _feed_watchdog() -> None:
    """A blocked loop stops feeding; an unreachable service or core does not."""
    interval_s = sd_notify.watchdog_interval_s()
    while interval_s is not None:
        sd_notify.watchdog()
        await asyncio.sleep(interval_s)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="palm-syncd", description="The network carrier of a palm access device."
    )
    options.add_argument(
        "--config",
        type=Path,
        help="configuration file (default: PALM_ACCESS_CONFIG, or /etc/palm-access/device.toml)",
    )
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The program. Exit status: 0 by a signal or after a wipe, 1 failed, 2 wrong usage, 3 no http key."""
    open_closed_streams()
    given = parser().parse_args(arguments)
    log_to_stderr()
    # A line with the whole address of every request does not belong into the journal.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("httpcore").setLevel(logging.WARNING)
    guard_memory()
    try:
        config = load_config(config_path(given.config))
        if config.cloud is None:
            _log.info("no [cloud] in the configuration: this device lives on mail, there is nothing to carry")
            # Otherwise systemd would take the end for a failed start, and retry for ever.
            sd_notify.ready("nothing to carry: this device lives on mail")
            return 0
        address = ServerAddress.parse(config.cloud.url, config.cloud.ca_file)
        address.tls_context()
        asyncio.run(_serve(address, config.carrier_socket))
    except IpcRefused as error:
        print(f"palm-syncd: {error}", file=sys.stderr)
        return 3
    except (ConfigError, ServerAddressError) as error:
        print(f"palm-syncd: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
