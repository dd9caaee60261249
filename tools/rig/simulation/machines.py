"""The simulated machines: the device with its core and carrier, and the validator with its back office.

Each machine has a disk and a clock. Its programs are put together by their own composition roots or as those
do it (`device.core.palmd.Palmd`, `device.syncd.main.carry`, `link1.validator`), over a simulated cable and
network. A device sees with its `Eyes`; those here have no camera and no model, and begin with the search of
the real gallery.
"""

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, cast

import numpy as np

from cloud_client.client import CloudClient, ServerAddress
from device.config.config import DeviceConfig
from device.core.opening import Opened, open_device
from device.core.palmd import Palmd
from device.core.wiped_device import WipedDevice
from device.errors import DeviceError, IpcRefused, IpcUnreachable
from device.platform.ipc import Packet
from device.platform.memory import MemoryGuard
from device.platform.threads import BulkTurn, StoreThread
from device.syncd.main import carry, http_key_of
from device.syncd.tasks import CoreLine
from device.values.recognition import MatchedPerson, Sighting
from device.vision.capture import CameraCondition, CameraState
from device.vision.recognition import Interest, Look
from device.wipe.wipe import finish_wipe
from gallery.errors import StoreError
from gallery.gallery import Gallery
from gallery.index import Match
from gallery.records import Position
from link1.keys import PublicKey
from link1.link_states import DownReason
from link1.objects import GalleryMark, Pad
from link1.transport.pump import CablePump
from link1.validator.desk import DeskEvent, ValidatorDesk, accept_all
from link1.validator.end import ValidatorEnd
from link1.validator.events import DeviceProven
from link1.validator.mail import InboxSettled, MailUnsupported, OutboxCollected, ValidatorMail
from link1.validator.memory import DeskMemory
from link1.wire import WireObject
from models.embedding import Embedder
from tools.kit.simulate.files import load_memory, save_memory
from tools.kit.simulate.mail_carrier import MailCarrier, OfficeAccess
from tools.rig.simulation.cable import Cable
from tools.rig.simulation.loop import SimulatedLoop, SimulatedProcess, called_in
from tools.rig.simulation.network import Network, NetworkTransport
from tools.rig.simulation.service import DBD_ID, DBD_KEY, GATE_ID, ORIGIN, START_MS, palm

FRAME_S: Final = 0.1
_EMPTY_S: Final = 1.0
LOOK_S: Final = 0.05
TURN_MS: Final = 1_200
_LIVE: Final = Pad("pass", "texture", 9_000)
_STARTS_AGAIN_S: Final = 1.0
"""What systemd waits before it starts a program that failed."""


class MachineClock:
    """The clocks of one machine (`device.platform.clock.Clock`). `wall_off_ms`: how wrong its wall clock
    is."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._since_s = 0.0
        self.slept_ms = 0
        self.wall_off_ms = 0

    def power_on(self) -> None:
        """The machine starts: its monotonic clocks begin again."""
        self._since_s, self.slept_ms = self._loop.now_s, 0

    def monotonic_ms(self) -> int:
        return round(self._loop.time() * 1000)

    def boottime_ms(self) -> int:
        return round((self._loop.now_s - self._since_s) * 1000) + self.slept_ms

    def wall_ms(self) -> int:
        return true_ms(self._loop) + self.wall_off_ms


def true_ms(loop: SimulatedLoop) -> int:
    """The right time (epoch)."""
    return START_MS + round(loop.now_s * 1000)


class MachineDisk(Protocol):
    """What a machine has its files on."""

    state: Path
    """The folder that its programs use now."""

    def killed(self) -> None:
        """Its programs died."""

    def power_cut(self, chance: random.Random) -> None:
        """The power went."""

    def leave(self, closing: Sequence[Callable[[], None]]) -> None:
        """Close the files of programs that died."""


class SimulatedLine(CoreLine):
    """A task's line to the core of the same machine: its handler, called in the core's process."""

    def __init__(self, machine: "DeviceMachine") -> None:
        super().__init__(Path("/simulated"))
        self._machine = machine

    async def call(
        self,
        op: str,
        request: WireObject | None = None,
        payload: bytes = b"",
        *,
        timeout_s: float = 60.0,
    ) -> Packet:
        await asyncio.sleep(0.001)
        core, answer = self._machine.core, self._machine.carriers_socket
        if core is None or answer is None:
            raise IpcUnreachable("no simulated core listens")
        packet = Packet({"op": op, **({} if request is None else request.to_obj())}, payload)
        try:
            async with asyncio.timeout(timeout_s):
                lost = IpcUnreachable("the simulated core died")
                return await called_in(self._machine.loop, core, lambda: answer(packet), lost)
        except TimeoutError as error:
            raise IpcUnreachable("the simulated core did not answer in time") from error
        except OSError as error:
            raise IpcUnreachable(f"the simulated core closed the connection: {error}") from error

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class Visitor:
    """The hand in view. `person` None: a stranger's, another one for each `number`."""

    number: int
    person: int | None
    poor_frames: int
    """Frames at first that are not good enough."""


class Eyes(Protocol):
    """From the camera to a `Look`."""

    def opened(self, opened: Opened) -> Opened:
        """The durable parts as the core is to have them."""

    async def watch(self, machine: "DeviceMachine", palmd: Palmd) -> None:
        """Report what is seen, for ever."""


class DrawnEyes:
    """No picture and no model: a hand in view is a vector, which the real gallery is searched for."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._visitor: Visitor | None = None
        self._searched: tuple[tuple[Gallery, Position, int], Match] | None = None
        self._next: Callable[[float], None] = lambda _delay_s: None

    @property
    def visitor(self) -> Visitor | None:
        """The hand in view; setting it changes what the next frame sees."""
        return self._visitor

    @visitor.setter
    def visitor(self, visitor: Visitor | None) -> None:
        self._visitor = visitor
        self._next(FRAME_S * self._chance.random())

    def opened(self, opened: Opened) -> Opened:
        """With a model, which nothing asks."""
        return replace(opened, model=replace(opened.model, embedder=cast("Embedder", object()), fault=""))

    async def watch(self, machine: "DeviceMachine", palmd: Palmd) -> None:
        """A frame each FRAME_S; while nothing is in view one a second, which is all that is looked at."""
        loop, context, number = machine.loop, contextvars.copy_context(), 0
        timer: asyncio.TimerHandle | None = None
        done_s = 0.0

        def frame() -> None:
            nonlocal number, done_s
            number += 1
            look = self._look(machine, self._visitor, number)
            done_s = max(done_s, loop.time() + LOOK_S * (0.5 + self._chance.random()))  # one after the other
            loop.call_at(done_s, palmd.core.on_look, look)
            after(FRAME_S if self._visitor is not None else _EMPTY_S)

        def after(delay_s: float) -> None:
            nonlocal timer
            if timer is not None:
                timer.cancel()
            timer = loop.call_later(delay_s, frame, context=context)

        self._next = after
        after(0.0)
        await asyncio.Event().wait()

    def _look(self, machine: "DeviceMachine", visitor: Visitor | None, number: int) -> Look:
        """One frame, as `Recogniser.look` would put it."""
        at_ms = machine.clock.monotonic_ms()
        gallery = None if machine.opened is None else machine.opened.gallery
        if visitor is None or gallery is None:
            return Look(Interest.PASSAGE, number, Sighting(visitor is not None, at_ms))
        if visitor.poor_frames > 0:
            visitor.poor_frames -= 1
            return Look(Interest.PASSAGE, number, Sighting(hand_present=True, at_ms=at_ms, quality_q=10))
        whose = 10_000 + visitor.number if visitor.person is None else visitor.person
        try:
            match = self._search(gallery, whose)
        except StoreError as error:
            return Look(Interest.PASSAGE, number, Sighting(True, at_ms, quality_q=90), store_fault=str(error))
        best, at = match.best, match.position
        sighting = Sighting(
            hand_present=True,
            at_ms=at_ms,
            quality_q=90,
            pad=_LIVE,
            score=match.score if best else None,
            margin=match.margin,
            candidate=MatchedPerson(best.subject_ref, best.hand, best.onboard_ref) if best else None,
            good=True,
            gallery=GalleryMark(at.stream, at.epoch, at.seq, at.head16),
        )
        return Look(Interest.PASSAGE, number, sighting)

    def _search(self, gallery: Gallery, whose: int) -> Match:
        """The search of the real gallery. A hand that stays before a gallery that stays is searched once."""
        asked = gallery, gallery.position, whose
        if self._searched is None or self._searched[0] != asked:
            self._searched = asked, gallery.search(palm(whose)[np.newaxis])
        return self._searched[1]


class DeviceMachine:
    """The device: core, carrier, disk, clocks, camera."""

    def __init__(
        self,
        loop: SimulatedLoop,
        disk: MachineDisk,
        cable: Cable,
        network: Network,
        *,
        eyes: Eyes,
        config: Callable[[Path], DeviceConfig],
        chance: random.Random,
        rate: float,
    ) -> None:
        self.loop, self.disk, self.cable, self.network = loop, disk, cable, network
        self._eyes, self._config, self._chance, self._rate = eyes, config, chance, rate
        self.clock = MachineClock(loop)
        self.clock_kept = True
        self.boots = 0
        self._powered = False
        self.incarnation = 0
        self.core: SimulatedProcess | None = None
        self.carrier: SimulatedProcess | None = None
        self.palmd: Palmd | None = None
        self.opened: Opened | None = None
        self.wiped: WipedDevice | None = None
        """What runs instead of a core once everything is destroyed."""
        self.carrier_ended = False
        """Whether it is dead for good."""
        self.failure: BaseException | None = None
        """Why the core or the carrier ended by itself, when that was not to be."""
        self.started: Callable[[], None] = lambda: None
        self.may_fail: Callable[[], bool] = lambda: False

    # ---- power and programs

    def power_on(self) -> None:
        """The machine boots, unless it runs; then its programs are started that do not."""
        if not self._powered:
            self._powered = True
            self.boots += 1
            self.clock.power_on()
        self.start_core()
        self.start_carrier()

    def start_core(self) -> None:
        if self._powered and self.core is None:
            self.incarnation += 1
            self.core = SimulatedProcess("device", self._rate)
            self.loop.spawn(self.core, self._live())

    def start_carrier(self) -> None:
        if self._powered and self.carrier is None and not self.carrier_ended:
            self.carrier = SimulatedProcess("carrier", self._rate)
            self.loop.spawn(self.carrier, self._carry_on())

    def kill_core(self) -> None:
        """SIGKILL; what it wrote is in the kernel."""
        if self.core is not None:
            self._end_core()
            self.disk.killed()

    def kill_carrier(self) -> None:
        if self.carrier is not None:
            self.carrier.kill()
            self.carrier = None

    def end_carrier(self) -> None:
        """It dies, and nothing starts it again."""
        self.carrier_ended = True
        self.kill_carrier()

    def cut_power(self, chance: random.Random) -> None:
        self._powered = False
        self._end_core()
        self.kill_carrier()
        self.disk.power_cut(chance)

    def _end_core(self) -> None:
        opened, core = self.opened, self.core
        self.opened = self.palmd = self.core = self.wiped = None
        if core is not None:
            core.kill()
        if opened is not None:
            # The folder is left behind: nothing that closing writes there is seen again.
            closing = [opened.journal.close]
            if opened.gallery is not None:
                closing.append(opened.gallery.close)
            self.disk.leave(closing)

    async def _live(self) -> None:
        try:
            wipe = finish_wipe(self.disk.state)
            if wipe is not None:
                self.wiped = WipedDevice(self._config(self.disk.state), wipe)
                await asyncio.Event().wait()
            ended = await self._serve()
        except Exception as error:  # noqa: BLE001 - a program's end, judged below
            ended = False
            if not (isinstance(error, DeviceError | OSError) and self.may_fail()):
                self.failure = error
        self.loop.within_world(lambda: self.loop.call_soon(self._core_ended, ended))

    def _core_ended(self, at_once: bool) -> None:
        self._end_core()
        self.disk.killed()
        self.loop.call_later(0.0 if at_once else _STARTS_AGAIN_S, self.start_core)

    async def _serve(self) -> bool:
        """As `device.core.palmd.serve`, without sockets, signals, camera and the watch over updates."""
        journal_thread, gallery_thread = StoreThread("journal"), StoreThread("gallery")
        opened = await open_device(
            self._config(self.disk.state),
            self.clock,
            journal_thread,
            gallery_thread,
            boot_id=f"boot-{self.boots}",
            clock_kept=self.clock_kept,
            bulk_turn=BulkTurn(longest_wait_s=0.0),
        )
        self.opened = opened = self._eyes.opened(opened)
        palmd = Palmd(
            opened,
            journal_thread,
            gallery_thread,
            self.clock,
            MemoryGuard(dumps_off=True, locked=True, problem=""),
            open_cable=lambda: self.cable.open("device"),
        )
        palmd.hardware.on_camera(CameraState(CameraCondition.OK, "simulated", ""))
        await palmd.store_watch.start()
        await palmd.core.start()
        await opened.updates.start()
        self.palmd = palmd
        self.started()
        tasks = [
            asyncio.create_task(work)
            for work in (palmd.pump.run(), palmd.housekeeping.run(), self._eyes.watch(self, palmd))
        ]
        ends: list[asyncio.Future[Any]] = [*tasks, palmd.broken, palmd.wipe.over]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        if palmd.broken.done():
            palmd.broken.result()
        return True

    # ---- the carrier

    @property
    def carriers_socket(self) -> Callable[[Packet], Awaitable[Packet]] | None:
        """What answers the carrier; None while nothing does."""
        if self.wiped is not None:
            return self.wiped.answer_carrier
        return None if self.palmd is None else self.palmd.carrier.handle

    async def _carry_on(self) -> None:
        try:
            await self._carry()
        except Exception as error:  # noqa: BLE001 - a program's end, judged by who watches it
            self.failure = error

    async def _carry(self) -> None:
        """As `device.syncd.main._carry_with_key`."""
        chance = random.Random(self._chance.random())  # noqa: S311 - a simulation's
        try:
            http_key = await http_key_of(SimulatedLine(self), chance.random)
        except IpcRefused:
            return
        transport = NetworkTransport(self.network)
        client = CloudClient(ServerAddress.parse(ORIGIN), http_key, self.clock.wall_ms, transport=transport)
        await carry(client, lambda: SimulatedLine(self), self.clock, chance.random, lambda _text: None)


class ValidatorMachine:
    """The validator: end, desk, mail and memory, and the back office's side of the mail."""

    def __init__(
        self,
        loop: SimulatedLoop,
        disk: MachineDisk,
        cable: Cable,
        network: Network,
        *,
        device_key: PublicKey,
        api_key: str,
        chance: random.Random,
        rate: float,
        on_event: Callable[[DeskEvent], None],
    ) -> None:
        self.loop, self.disk, self.cable, self.network = loop, disk, cable, network
        self._device_key, self._api_key, self._chance, self._rate = device_key, api_key, chance, rate
        self._on_event = on_event
        self.clock = MachineClock(loop)
        self.key = DBD_KEY
        """What its next start takes. Its counters go on: it is the same validator."""
        self.process: SimulatedProcess | None = None
        self.desk: ValidatorDesk | None = None
        self.end: ValidatorEnd | None = None
        self.pump: CablePump[DeskEvent] | None = None
        self.carries_mail = True
        self.started: Callable[[DeskMemory], None] = lambda _memory: None
        self.failure: BaseException | None = None

    def power_on(self) -> None:
        if self.process is None:
            self.clock.power_on()
            self.process = SimulatedProcess("validator", self._rate)
            self.loop.spawn(self.process, self._live())

    def kill(self) -> None:
        self._end()
        self.disk.killed()

    def cut_power(self, chance: random.Random) -> None:
        self._end()
        self.disk.power_cut(chance)

    def _end(self) -> None:
        if self.process is not None:
            self.process.kill()
        self.process = self.desk = self.end = self.pump = None

    def do(self, command: Callable[[ValidatorDesk], list[DeskEvent]]) -> None:
        """A command to the desk, in its process; nothing while that is down."""
        desk, pump, process = self.desk, self.pump, self.process
        if desk is None or pump is None or process is None:
            return

        def act() -> None:
            for event in command(desk):
                self._on_event(event)
            pump.kick()

        self.loop.within(process, act)

    def reset(self) -> None:
        """The validator begins the session again."""
        end, process = self.end, self.process
        if end is not None and process is not None:
            self.do(lambda _desk: [*end.reset(self._now_ms(), DownReason.SILENT)])

    def _now_ms(self) -> int:
        return self.clock.monotonic_ms()

    async def _live(self) -> None:
        try:
            await self._serve()
        except Exception as error:  # noqa: BLE001 - a program's end
            self.failure = error

    async def _serve(self) -> None:
        path = self.disk.state / "dbd.key.state.json"
        memory = load_memory(path, DBD_KEY.public)
        chance = random.Random(self._chance.random())  # noqa: S311 - a simulation's
        end = ValidatorEnd(
            dbd_id=DBD_ID,
            gate_id=GATE_ID,
            key=self.key,
            device_keys=lambda kid, _at_ms: self._device_key if kid == self._device_key.kid else None,
            passage_sensor=True,
            random=chance.randbytes,
        )
        mail = ValidatorMail(end) if self.carries_mail else None
        desk = ValidatorDesk(
            end,
            decide=accept_all,
            memory=memory,
            save=lambda kept: save_memory(path, DBD_KEY.kid, kept),
            wall_ms=self.clock.wall_ms,
            random=chance.randbytes,
            turn_after_ms=TURN_MS,
            mail=mail,
        )
        pump: CablePump[DeskEvent] = CablePump(
            desk,
            lambda: self.cable.open("validator"),
            on_event=self._follow,
            clock_ms=self._now_ms,
        )
        self._office = None
        if mail is not None:
            access, transport = OfficeAccess(ORIGIN, self._api_key), NetworkTransport(self.network)
            self._office = MailCarrier(access, mail, report=_nothing, kick=pump.kick, transport=transport)
        self.end, self.desk, self.pump = end, desk, pump
        self.started(memory)
        work = [pump.run()] if self._office is None else [pump.run(), self._office.run()]
        await asyncio.gather(*work)

    def _follow(self, event: DeskEvent) -> None:
        self._on_event(event)
        office = self._office
        if office is None:
            return
        if isinstance(event, DeviceProven):
            office.device_met(event.device_id)
        if isinstance(event, InboxSettled | OutboxCollected | MailUnsupported):
            office.follow(event)


def _nothing(_line: Any) -> None:
    """The office's report is not read."""
