"""Watches updates while the core runs: judges a model on trial, reports failures, and decides when to restart
because another model belongs to the gallery."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from device.core.housekeeping import WatchedThread
from device.core.served_gallery import ServedGallery
from device.errors import StateError, UpdateRefused
from device.health import Health, HealthWord
from device.platform.clock import Clock
from device.trust.trust import Trust
from device.updates.desk import UpdateDesk
from device.updates.versions import Versions
from gallery.errors import GalleryError

EVERY_S: Final = 1.0
STEADY_MS: Final = 5_000
"""How long a model on trial must serve to prove itself."""
TRIAL_MS: Final = 60_000
"""The limit after which it gives way."""
QUIET_MS: Final = 10_000
"""How long a restart waits for a passage to end."""
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class UpdateWatch:
    """`run` ends when the program is to restart.

    `wiped`: a wipe has begun. `idle`: no request waits for a hand. `trust`: what is pinned now. `prefix`:
    where the software is installed, and palm-update.service writes its outcome.
    """

    desk: UpdateDesk
    gallery: ServedGallery
    health: Health
    clock: Clock
    stages: Sequence[WatchedThread]
    wiped: Callable[[], bool]
    idle: Callable[[], bool]
    trust: Callable[[], Trust]
    prefix: Path
    _wanted_ms: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._model = self.desk.state.model if self.desk.state is not None else None
        self._began_ms = self._ill_ms = self.clock.monotonic_ms()

    async def run(self) -> None:
        while True:
            if not self.wiped():
                try:
                    if await self._new_start_due():
                        return
                except (StateError, UpdateRefused, GalleryError) as error:
                    _log.error("updates: %s", error)
            await asyncio.sleep(EVERY_S)

    async def _new_start_due(self) -> bool:
        desk = self.desk
        await desk.save_again()
        await self._settle_app()
        if desk.state is not None and desk.state.trial is not None:
            await self._judge_trial()
        self._report_failure()
        state, facts = desk.state, await self.gallery.facts()
        await desk.keep_shipped(facts)
        if state is None or (state.model == self._model and not desk.wants_other_model(facts)):
            self._wanted_ms = None
            return False
        return self._is_quiet()

    def _report_failure(self) -> None:
        state, failed, unsaved = self.desk.state, None, self.desk.unsaved
        detail = self.desk.fault
        if unsaved:
            detail = f"the model in force stays until the state of updates can be saved: {unsaved}"
        elif state is not None and (failed := state.failed) is not None:
            detail = (
                f"release {failed.release_seq} ({failed.kind} {failed.version}) is not in force: "
                f"{failed.code}; the previous one serves until a release with a higher release_seq arrives"
            )
        self.health.put(
            HealthWord.UPDATE_FAILED, state is None or failed is not None or unsaved != "", detail
        )

    def _is_quiet(self) -> bool:
        """Whether a restart interrupts no passage, or has waited long enough."""
        now_ms = self.clock.monotonic_ms()
        if self._wanted_ms is None:
            self._wanted_ms = now_ms
            _log.info("another model is due; the program restarts as soon as no passage is open")
        useless = HealthWord.MODEL_MISMATCH in self.health.words
        waited = now_ms - self._wanted_ms >= QUIET_MS
        return useless or waited or self.idle()

    async def _judge_trial(self) -> None:
        now_ms = self.clock.monotonic_ms()
        silent = any(now_ms - stage.heartbeat_ms() > stage.within_ms for stage in self.stages)
        if silent or HealthWord.MODEL_FAULT in self.health.words:
            self._ill_ms = now_ms
        if now_ms - self._ill_ms >= STEADY_MS:
            await self.desk.prove()
            _log.info("the new model has proved itself")
        elif now_ms - self._began_ms >= TRIAL_MS:
            await self.desk.give_way("unhealthy")
            _log.error("the new model does not serve; the previous one returns")

    async def _settle_app(self) -> None:
        """Read the outcome that palm-update.service wrote for the waiting software."""
        desk, state = self.desk, self.desk.state
        if state is None or state.app is None:
            return
        seq = state.app.release_seq
        versions = Versions(self.prefix)
        try:
            outcome = await asyncio.to_thread(versions.newest)
        except OSError:
            return
        except UpdateRefused as refused:  # the installer installs nothing then, and can note nothing
            _log.error("release %d is given up: %s", seq, refused)
            await desk.app_outcome(seq, refused.code)
            return
        if outcome is None or outcome.release_seq < seq:
            # Nothing was installed yet.
            await desk.give_up_untrusted_app(lambda: versions.vouched_roots(self.trust()))
        elif outcome.trial:
            return  # it is running, and may be taken back
        elif outcome.release_seq == seq:
            await desk.app_outcome(seq, outcome.code[:32])
        else:
            # Installed for another environment of the service, say: the installer takes nothing older.
            await desk.app_outcome(seq, "release_rollback")
