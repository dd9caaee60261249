"""Checks that the core runs every second: its stages, the gallery's age, the disk, and the watchdog.

The watchdog is fed only while every stage is active; an idle stage counts as active.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from device.core.served_gallery import ServedGallery
from device.core.store_watch import StoreWatch
from device.health import NOT_SERVING, Health, HealthWord
from device.platform import sd_notify
from device.platform.clock import Clock
from device.platform.heat import hottest_c, too_hot

EVERY_S: Final = 1.0
STORE_WITHIN_S: Final = 5.0
"""A large page of the gallery occupies the store for a fraction of this."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WatchedThread:
    """A thread, when it was last active (monotonic ms), and how long it may be silent."""

    name: str
    heartbeat_ms: Callable[[], int]
    within_ms: int


@dataclass(eq=False)
class Housekeeping:
    """Runs until cancelled."""

    store: StoreWatch
    gallery: ServedGallery
    health: Health
    clock: Clock
    stages: Sequence[WatchedThread]
    _status_line: str = field(default="", init=False)

    async def run(self) -> None:
        while True:
            silent = self._silent_stages()
            try:
                async with asyncio.timeout(STORE_WITHIN_S):
                    await self.store.look()
            except TimeoutError:
                silent.append("store")
            self._check_heat()
            self.gallery.look()
            self._update_status_line()
            if silent:
                _log.error("no sign of activity from: %s; the watchdog is not fed", ", ".join(silent))
            else:
                sd_notify.watchdog()
            await self.store.maintain()
            await asyncio.sleep(EVERY_S)

    def _silent_stages(self) -> list[str]:
        now_ms = self.clock.monotonic_ms()
        return [stage.name for stage in self.stages if now_ms - stage.heartbeat_ms() > stage.within_ms]

    def _check_heat(self) -> None:
        temperature_c = hottest_c()
        self.health.put(
            HealthWord.TEMPERATURE,
            too_hot(temperature_c, before=HealthWord.TEMPERATURE in self.health.words),
            f"the board is at {temperature_c} °C and throttles itself; shade it, clear its air way",
        )

    def _update_status_line(self) -> None:
        """Send the line that `systemctl status` shows, when it has changed."""
        words = [str(word) for word in self.health.words if word in NOT_SERVING]
        line = f"not serving: {', '.join(words)}" if words else "serving"
        if line != self._status_line:
            self._status_line = line
            sd_notify.status(line)
