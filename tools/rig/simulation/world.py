"""One run: both machines, the cable, the networks and the service, from a plan to its end, under all
invariants."""

import asyncio
import gc
import logging
import math
import random
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import httpx

from cloud_client.reference_server.domain.gallery import snapshots
from cloud_client.reference_server.domain.mail import gallery as mailed_gallery
from device.core import housekeeping, self_description
from device.core.self_description import SILENT_MS
from device.health import HealthWord
from device.journal import reserve
from device.mail import outbox
from link1.transport import pump
from link1.validator import mail
from tools.kit.simulate import mail_carrier
from tools.rig.simulation.attacker import Attacker
from tools.rig.simulation.cable import Cable, CableTroubles
from tools.rig.simulation.disk import TMPFS, Disks, free_bytes
from tools.rig.simulation.history import History
from tools.rig.simulation.invariants import Checks, Violation
from tools.rig.simulation.loop import SimulatedLoop, SimulatedProcess, StuckSimulation
from tools.rig.simulation.machines import DeviceMachine, DrawnEyes, ValidatorMachine
from tools.rig.simulation.network import Network, NetworkTroubles
from tools.rig.simulation.onlooker import Onlooker, journal_refs
from tools.rig.simulation.operators import Operators
from tools.rig.simulation.people import People
from tools.rig.simulation.plan import TROUBLES, WITNESS_FAULTS, Act, Plan, PlannedAct
from tools.rig.simulation.remembered import remembered
from tools.rig.simulation.seeded import replaced, seeded
from tools.rig.simulation.service import (
    DRAWN,
    Prepared,
    RunningService,
    prepare,
)

REST_MOST_S: Final = 240.0
"""How long after the last trouble everything must have settled: a backoff is at most 60 s, a report 30 s."""
FRESH_FOR_MS: Final = 30_000
"""Longer than the first two tries last. The next head comes within 55 s, and gives 90 s."""
_FAILS_LATER_S: Final = 5.0
"""How long after a disk's trouble a program may still fail by it, or write what it could not."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run found. `hands`: that came to the gate; `checks`: how often an invariant was held against a
    fact."""

    plan: Plan
    violation: Violation | None
    log: tuple[str, ...]
    steps: int
    simulated_s: float
    hands: int
    verdicts: int
    actuated: int
    checks: int

    @property
    def faults(self) -> int:
        """Troubles that began while it ran."""
        return sum(act.act in TROUBLES for act in self.plan.acts)


_prepared: list[tuple[Prepared, Any]] = []


def prepared() -> Prepared:
    """What every run begins with, made once a process."""
    if not _prepared:
        folder = tempfile.TemporaryDirectory(dir=TMPFS, prefix="palm-sim-start-")
        loop = SimulatedLoop(random.Random(0))  # noqa: S311
        with seeded("start"):
            made = loop.run_until_complete(prepare(Path(folder.name)))
        loop.close()
        # What is there now stays: the collection after a run looks at that run's own objects alone.
        gc.collect()
        gc.freeze()
        _prepared.append((made, folder))
    return _prepared[0][0]


_SURROUNDINGS: Final[list[tuple[ModuleType, str, Any]]] = [
    (self_description, "hottest_c", lambda: 41),
    (self_description, "available_mib", lambda: 1_024),
    *((owner, "free_bytes", free_bytes) for owner in (self_description, housekeeping, reserve)),
    (reserve, "RESERVE_BYTES", 512 << 10),
    (reserve, "GIVEN_UP_BELOW_BYTES", 64 << 10),
    (housekeeping, "hottest_c", lambda: 41),
    (mail_carrier, "POLL_S", 6.0),
    (mail, "PULL_EVERY_MS", 2_500),
    (pump, "DRAIN_POLL_MS", 6),
    (outbox, "MAX_UNSETTLED", 12),
]
"""What programs measure of the machine at hand is always the same here; who has nothing to do asks less
often, and fewer records than 256 fill an outbox."""


def _pages(entries: int | None) -> list[tuple[ModuleType, str, Any]]:
    """With few entries in a page a snapshot of eight people has several, by network and by mail."""
    if entries is None:
        return []
    page = partial(snapshots.snapshot_page, page_size=entries)
    return [(snapshots, "snapshot_page", page), (mailed_gallery, "PAGE", entries)]


def run(plan: Plan, *, stride_s: float = math.inf) -> RunResult:
    """Carry out a plan. The same plan gives the same run, step for step, whether idle time is leapt over or
    walked through in strides."""
    start = prepared()
    gc.disable()
    try:
        with (
            tempfile.TemporaryDirectory(dir=TMPFS, prefix="palm-sim-") as folder,
            seeded(plan.seed),
            replaced([*_SURROUNDINGS, *_pages(plan.page_entries), *remembered()]),
        ):
            world = SimulatedWorld(plan, start, Path(folder))
            world.loop.stride_s = stride_s
            try:
                return world.run()
            finally:
                world.close()
                del world
    finally:
        # What dead programs left is thrown away here: their last words are nobody's.
        sys.unraisablehook, before = lambda _unraisable: None, sys.unraisablehook
        gc.enable()
        gc.collect()
        sys.unraisablehook = before


class SimulatedWorld:
    """The parts of one run and what happens to them."""

    def __init__(self, plan: Plan, start: Prepared, folder: Path) -> None:
        self.plan, self.start, self.folder = plan, start, folder
        self.history = History()
        self.checks = Checks(self.history)
        self.onlooker = Onlooker(self)
        self.loop = loop = SimulatedLoop(self._chance("loop"))
        asyncio.set_event_loop(loop)
        loop.after_step = self._after_step
        loop.on_kill = self._killed
        loop.work_s = self._work_s
        loop.set_exception_handler(self._unexpected)
        self.disk_chance = self._chance("disk")
        self.slow_disk_s = 0.0
        self.disks = Disks(folder, self.disk_chance)
        self.cable = Cable(loop, self._chance("cable"), self.onlooker.heard, self.onlooker.reached)
        self.operators = Operators(self)
        self.network = self._network("network", self.onlooker.device_asks, self.onlooker.device_gets)
        self.office_network = self._network("office", lambda _request: None, self.onlooker.office_gets)
        rates, chance = plan.rates, self._chance("device")
        eyes, self.device_disk = DrawnEyes(chance), self.disks.disk("device", start.device)
        self.people, self.attacker = People(self, eyes), Attacker(self)
        self.device = DeviceMachine(
            loop,
            self.device_disk,
            self.cable,
            self.network,
            eyes=eyes,
            config=DRAWN.config,
            chance=chance,
            rate=rates[0],
        )
        self.device.clock_kept = plan.clock_kept
        self.device.started = self.onlooker.core_started
        self.device.may_fail = lambda: self.disk_trouble or self.loop.now_s < self._witness_troubled_until_s
        self.validator = ValidatorMachine(
            loop,
            self.disks.disk("validator", {}),
            self.cable,
            self.office_network,
            device_key=start.verdict_key.public,
            api_key=start.api_key,
            chance=self._chance("validator"),
            rate=rates[1],
            on_event=self.onlooker.desk_event,
        )
        self.validator.carries_mail = plan.carries_mail
        self.validator.started = self.onlooker.validator_started
        self._disk_troubled_until_s = self._witness_troubled_until_s = 0.0
        self._reset_due = False
        self._ends_s: dict[Act, float] = {}
        self._planned_kill: dict[SimulatedProcess, Callable[[], None]] = {}

    @property
    def server(self) -> tuple[SimulatedProcess, RunningService] | None:
        """The service's process and program; None while it is down."""
        return self.operators.server

    def _chance(self, name: str) -> random.Random:
        luck = f" {self.plan.luck}" if self.plan.luck else ""
        return random.Random(f"{name} {self.plan.seed}{luck}")  # noqa: S311

    def _good_network(self) -> NetworkTroubles:
        return NetworkTroubles(down=self.plan.offline, late_s=self.plan.latency_s)

    def _network(self, name: str, asked: Callable[[httpx.Request], None], got: Any) -> Network:
        return Network(self.loop, self._chance(name), lambda: self.server, asked, got)

    # ---- the run

    def run(self) -> RunResult:
        try:
            self.loop.run_until_complete(self._live())
        except StuckSimulation as error:
            self.checks.broken("the simulation goes on", "Nothing waits for ever.", str(error))
        except _Stopped:
            pass
        except RuntimeError:
            if self.checks.violation is None:
                raise
        history = self.history
        return RunResult(
            self.plan,
            self.checks.violation,
            tuple(history.log),
            self.loop.steps,
            self.loop.now_s,
            history.visit,
            history.durable_last,
            len(history.actuated),
            self.checks.counted,
        )

    def close(self) -> None:
        """Let go of everything."""
        self.disks.follower.fail(None)
        for slot in range(2):
            self.disks.follower.watch(slot, None)
        self.device.kill_carrier()
        self.device.kill_core()
        self.validator.kill()
        if self.server is not None:
            self.server[0].kill()
            self.server[1].store.close()
        for slot in range(2):
            self.disks.follower.watch(slot, None)
        self.disks.follower.take()
        asyncio.set_event_loop(None)

    async def _live(self) -> None:
        self.operators.start_server()
        self.onlooker.note_stream()
        self.network.troubles = self._good_network()
        self.device.power_on()
        self.validator.power_on()
        if self.plan.backup_at_s is not None:
            self.loop.call_at(self.plan.backup_at_s, self.operators.back_up)
        if self.plan.carrier_ends_at_s is not None:
            self.loop.call_at(self.plan.carrier_ends_at_s, self._end_carrier)
        for act in self.plan.acts:
            await self.sleep_until(act.at_s)
            self.history.say("WORLD", str(act))
            self._do(act)
        await self.sleep_until(self.plan.until_s)
        self._heal()
        await asyncio.gather(*self.people.under_way)
        await self._rest()
        if self.operators.backed_up and self._settled() and not self.history.revoked:
            await self.operators.restore()
            await self._rest()
        if self.plan.rotates_key and self._settled() and not self.history.revoked:
            await self.operators.rotate_key()
            await self._rest()
        await self.people.last_passage()
        await self._rest()
        self.onlooker.judge_end()

    @property
    def lives_on_mail(self) -> bool:
        """Whether this device reaches the service through the validator alone."""
        return self.plan.offline or self.device.carrier_ended

    def _end_carrier(self) -> None:
        self.history.say("WORLD", "the carrier is dead for good")
        self.device.end_carrier()

    async def sleep_until(self, at_s: float) -> None:
        if at_s > self.loop.now_s:
            await asyncio.sleep(at_s - self.loop.now_s)

    def _heal(self) -> None:
        """Every trouble is over; whatever is down is started again."""
        self.history.say("WORLD", "every trouble is over")
        self.cable.troubles = CableTroubles()
        self.cable.plugged = True
        self.network.troubles = self._good_network()
        self.office_network.troubles = NetworkTroubles()
        self.slow_disk_s = 0.0
        self._mend_disk()
        self._mend_witness()
        for process in (self.device.core, self.device.carrier, self.validator.process):
            if process is not None:
                process.kill_at_step = None
        if self.server is not None:
            self.server[0].kill_at_step = None
        self.device.clock.wall_off_ms = self.validator.clock.wall_off_ms = 0
        self.operators.start_server()
        if self.device.opened is not None and self.device.opened.gallery is None:
            # A gallery that could not be opened is not tried again: a technician starts the device.
            self.device.kill_core()
        self.device.power_on()
        self.validator.power_on()

    async def _rest(self) -> None:
        """Wait until everything has settled, at most REST_MOST_S."""
        until_s = self.loop.now_s + REST_MOST_S + (SILENT_MS / 1000 if self.device.carrier_ended else 0.0)
        while self.loop.now_s < until_s:  # looked at from outside
            if self._settled():
                await asyncio.sleep(2.0)
                if self._settled():  # else the time for a passage that never comes was over meanwhile
                    return
            await asyncio.sleep(1.0)

    def _settled(self) -> bool:
        if self.loop.works_until_s > self.loop.now_s + self.history.slow_s / 10:
            return False  # what a slow disk was asked for before it was mended
        if self.history.revoked:
            return self.device.wiped is not None and (self.lives_on_mail or self.onlooker.wipe_is_known())
        opened, palmd, desk = self.device.opened, self.device.palmd, self.validator.desk
        if opened is None or opened.gallery is None or palmd is None or desk is None or self.server is None:
            return False
        if desk.open_txn_id is not None or palmd.gate.validator_kid is None:
            return False
        at, state = opened.gallery.position, self.server[1].state_of_stream(self.start.environment)
        in_step = (at.epoch, at.seq) == (state.epoch, state.seq)
        fresh = palmd.core.gallery.freshness()
        if not in_step or fresh is None or fresh.left_ms < FRESH_FOR_MS or opened.journal.pending_uploads():
            return False
        asked = opened.journal.unacknowledged(after_seq=0, upto_seq=2**31, limit=64)
        # A passage that a validator's restart took with it never comes.
        made = {one.verdict_ref for one in asked}.intersection(self.history.decisions)
        return not made or made <= journal_refs(opened, self.history.asked)[1].keys()

    # ---- acts

    def _do(self, act: PlannedAct) -> None:  # noqa: C901, PLR0912, PLR0915 - one line an act
        cable, net, device = self.cable.troubles, self.network.troubles, self.device
        match act.act:
            case Act.PASSAGE | Act.HAND_FIRST | Act.CANCELLED | Act.REPLACED:
                self.people.come(act)
            case Act.ENROL:
                self.loop.create_task(self.operators.enrol(act.extra))
            case Act.ERASE | Act.BLOCK | Act.UNBLOCK | Act.EPOCH | Act.REVOKE:
                self.loop.create_task(self.operators.operate(act))
            case Act.CABLE_NOISE:
                self._for(
                    act,
                    lambda on: setattr_all(cable, on, lose=act.size, change=act.size, cut_short=act.size / 2),
                )
            case Act.CABLE_REPEATS:
                self._for(act, lambda on: setattr_all(cable, on, repeat=act.size))
            case Act.CABLE_LATE:
                self._for(act, lambda on: setattr_all(cable, on, late_s=act.size))
            case Act.CABLE_GATHERS:
                self._for(act, lambda on: setattr_all(cable, on, gather_s=act.size))
                self._reset_due = True
            case Act.CABLE_SILENT:
                self._for(act, lambda on: setattr(cable, "silent", on))
            case Act.CABLE_ONE_WAY:
                self._for(act, lambda on: setattr(cable, "one_way", on))
            case Act.CABLE_PULLED:
                self._for(act, self._pull_cable)
            case Act.RESET:
                self.validator.reset()
            case Act.CORE_KILLED:
                self._kill_after(device.core, act, device.kill_core, device.start_core)
            case Act.POWER_CUT:
                self._kill_after(device.core, act, self._cut_device, device.power_on)
            case Act.CARRIER_KILLED:
                self._kill_after(device.carrier, act, device.kill_carrier, device.start_carrier)
            case Act.VALIDATOR_KILLED:
                self._kill_after(self.validator.process, act, self.validator.kill, self.validator.power_on)
            case Act.VALIDATOR_POWER_CUT:
                cut = lambda: self.validator.cut_power(self.disk_chance)  # noqa: E731
                self._kill_after(self.validator.process, act, cut, self.validator.power_on)
            case Act.SERVER_DOWN:
                service = self.server and self.server[0]
                self._kill_after(service, act, self.operators.stop_server, self.operators.start_server)
            case Act.NETWORK_DOWN:
                self._for(act, lambda on: setattr(net, "down", on or self.plan.offline))
            case Act.NETWORK_FLAKY:
                half = act.size / 2
                self._for(
                    act, lambda on: setattr_all(net, on, lose_request=half, lose_answer=half, refuse=half)
                )
            case Act.NETWORK_SLOW:
                self._for(act, lambda on: setattr(net, "late_s", act.size if on else self.plan.latency_s))
            case Act.OFFICE_DOWN:
                self._for(act, lambda on: setattr(self.office_network.troubles, "down", on))
            case Act.GALLERY_WITHHELD:
                self._for(act, lambda on: setattr(net, "withhold", on))
            case Act.GALLERY_STRIPPED:
                self._for(act, lambda on: setattr(net, "strip", on))
            case Act.GALLERY_REPLAYED:
                self._for(act, lambda on: setattr_all(net, on, replay=act.size))
            case Act.WALL_CLOCK:
                device.clock.wall_off_ms += round(act.size)
                self.history.clock_was_wrong = True
                self.onlooker.wall_ahead_s = max(self.onlooker.wall_ahead_s, device.clock.wall_off_ms / 1000)
            case Act.VALIDATOR_WALL_CLOCK:
                self.validator.clock.wall_off_ms += round(act.size)
            case Act.FORGED_CANCELS | Act.FORGED_DECISIONS:
                self.people.under_way.append(self.loop.create_task(self.attacker.flood(act)))
            case Act.DISK_FULL | Act.SYNC_FAILS:
                self._for(act, lambda on: self._trouble_disk(act.act) if on else self._mend_disk())
            case Act.DISK_FILLS:
                self._for(act, lambda on: self._fill_disk(act.extra) if on else self._mend_disk())
            case Act.WITNESS_FAILS:
                self._for(act, lambda on: self._break_witness(act.extra) if on else self._mend_witness())
            case Act.DISK_SLOW:
                self.history.slow_s = max(self.history.slow_s, act.size)
                self._for(act, lambda on: setattr(self, "slow_disk_s", act.size if on else 0.0))

    def decided(self) -> None:
        """The validator has a decision to say."""
        if self._reset_due:
            self._reset_due = False
            self.loop.call_later(self.disk_chance.random() * 0.02, self.validator.reset)

    def _for(self, act: PlannedAct, switch: Callable[[bool], object]) -> None:
        """The longest of those of one kind decides when it is over."""
        ends_s = self._ends_s[act.act] = max(self._ends_s.get(act.act, 0.0), self.loop.now_s + act.for_s)

        def over() -> None:
            if self._ends_s[act.act] <= ends_s:
                switch(False)

        switch(True)
        self.loop.call_later(act.for_s, over)

    def _pull_cable(self, on: bool) -> None:
        if on:
            self.cable.pull()
        else:
            self.cable.plugged = True

    def _trouble_disk(self, act: Act) -> None:
        self._disk_troubled_until_s = math.inf
        self.device_disk.break_writes(sync_only=act is Act.SYNC_FAILS)

    def _fill_disk(self, left: int) -> None:
        self._disk_troubled_until_s = math.inf
        self.device_disk.fill(left)

    @property
    def disk_trouble(self) -> bool:
        """Whether the device's disk refuses what programs write, or did a moment ago."""
        return self.loop.now_s < self._disk_troubled_until_s

    def _break_witness(self, fault: int) -> None:
        self.device_disk.break_one_write(WITNESS_FAULTS[fault])
        self._witness_troubled_until_s = math.inf
        self.history.witness_failures += WITNESS_FAULTS[fault].name.startswith("journal")

    def _mend_witness(self) -> None:
        self.device_disk.break_one_write(None)
        self._witness_troubled_until_s = self.loop.now_s + _FAILS_LATER_S

    def _mend_disk(self) -> None:
        self.device_disk.mend()
        # A program that failed by it may fail a moment later, when it is read.
        self._disk_troubled_until_s = self.loop.now_s + _FAILS_LATER_S
        self.loop.call_later(_FAILS_LATER_S, self._journal_is_back)

    def _journal_is_back(self) -> None:
        """What this core could not keep is on the disk, some time after that was mended."""
        history, palmd = self.history, self.device.palmd
        fault = palmd is None or HealthWord.STORE_FAULT in palmd.health.words
        if self.disk_trouble or fault or history.slow_s:
            return
        for txn_id in [one for one, life in history.ended_unkept.items() if life == history.incarnation]:
            del history.ended_unkept[txn_id]

    def _kill_after(
        self,
        process: SimulatedProcess | None,
        act: PlannedAct,
        end: Callable[[], object],
        begin: Callable[[], object],
    ) -> None:
        """At the process's so-manieth step from now; whatever it was about to do."""
        if process is None or process.kill_at_step is not None:
            return
        process.kill_at_step = process.steps + act.extra

        def die() -> None:
            self.history.say("WORLD", f"{act.act}, at step {process.steps} of {process.name}")
            end()
            self.loop.call_later(max(0.05, act.for_s), begin)

        self._planned_kill[process] = die

    def _killed(self, process: SimulatedProcess) -> None:
        self.loop.within_world(self._planned_kill.pop(process))

    def _cut_device(self) -> None:
        self.device.cut_power(self.disk_chance)
        if not self.plan.clock_kept:
            # It begins again at the time that a file holds.
            self.device.clock.wall_off_ms -= self.disk_chance.randrange(3_600_000)
            self.history.clock_was_wrong = True

    def _work_s(self, process: SimulatedProcess | None) -> float:
        if process is None or process.name != "device":
            return 0.0
        return self.disk_chance.uniform(0.0002, 0.004) + self.disk_chance.random() * self.slow_disk_s

    # ---- what is seen

    def _after_step(self, process: SimulatedProcess | None) -> None:
        self.history.now_s = self.loop.now_s
        if process is not None and process.name == "device":
            self.onlooker.note_device()
        self.people.look()
        if self.server is not None and self.server[1].store.written:
            self.server[1].store.written = False
            self.onlooker.note_stream()
        failure = self.device.failure or self.validator.failure
        if failure is not None:
            self.checks.broken(
                "no program ends by itself",
                "A missing cable, an unreachable server … is a degraded state, never a restart loop.",
                repr(failure),
            )
        if self.checks.violation is not None:
            raise _Stopped

    def _unexpected(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, _Stopped):
            raise error
        if error is not None:
            self.checks.broken(
                "no exception is unexpected", "No task of a program fails unseen.", repr(error)
            )


class _Stopped(Exception):
    """The run is over: something does not hold."""


def setattr_all(target: object, on: bool, **values: float) -> None:
    """Set members, or set them to 0 again."""
    for name, value in values.items():
        setattr(target, name, value if on else 0.0)


def quiet() -> None:
    """No program's log: the simulation's own is the one to read."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
