"""The playground's world: service, device, cable, validator and people in virtual time, from one seed.

The parts are the simulation's (`tools.rig.simulation`): the real programs over a cable and networks in
memory. The device here sees pictures. All chance comes from the seed, so that the same buttons at the same
times give the same events, byte for byte.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import httpx

from device.config.config import DeviceConfig, ModelSection
from device.core import self_description
from device.errors import DeviceError
from device.platform.ipc import Packet
from device.values.status import StatusAnswer
from gallery.records import Position
from link1.canonical import JsonObject
from link1.events import Down
from link1.validator.desk import DeskEvent, PassageReported, RequestEnded, RequestSent, VerdictAnswered
from link1.validator.events import DeviceProven
from models.manifest import load_manifest, open_embedder, shipped_model_dir
from models.synthesis.person import SyntheticPerson, make_person
from models.synthesis.scene import passage, poor_capture
from tools.rig.playground.events import EventLog
from tools.rig.playground.eyes import HANDS, PLACE, FilmEyes, enrolled_hands
from tools.rig.playground.run_file import ADVANCE_MS, PEOPLE, SLICE_MS, Button
from tools.rig.simulation.cable import Cable
from tools.rig.simulation.crash_disk import lay_out
from tools.rig.simulation.loop import SimulatedLoop, SimulatedProcess, called_in
from tools.rig.simulation.machines import DeviceMachine, ValidatorMachine, true_ms
from tools.rig.simulation.network import Network, NetworkTransport
from tools.rig.simulation.seeded import replaced, seeded
from tools.rig.simulation.service import (
    DECISION_MS,
    DEVICE_ID,
    PASSAGE_MS,
    PartnerOffice,
    Premises,
    Prepared,
    RunningService,
    config_of,
    copied,
    prepare,
)

_ASKS_FOR_MS: Final = 10_000
_HAND_AFTER_MS: Final = 300
_STATUS_EVERY: Final = 10
"""The device is asked for its status every so many slices."""
_ADVANCED_AT_ONCE_MS: Final = 60_000
STRANGERS: Final = 50
"""Numbers of strangers begin here; those of PEOPLE at 1."""


class KeptFolder:
    """A disk on which nothing fails."""

    def __init__(self, state: Path) -> None:
        self.state = state

    def killed(self) -> None:
        """What was written is there."""

    def power_cut(self, _chance: random.Random) -> None:
        """The same: all that was written had reached the disk."""

    def leave(self, closing: Sequence[Callable[[], None]]) -> None:
        for close in closing:
            with suppress(Exception):
                close()


def person_of(seed: int, number: int) -> SyntheticPerson:
    """The generated person with a number in the run with this seed."""
    return make_person(seed * 1_000 + 100 + number)


@contextmanager
def one_seed(seed: int) -> Iterator[None]:
    """Inside, this process draws from the seed, and what programs measure of the machine is always the same:
    nothing takes any time of its own, and there is room. They log nothing: what there is to read are the
    events."""
    measured: list[tuple[ModuleType, str, Any]] = [
        (time, "perf_counter", lambda: 0.0),
        (self_description, "hottest_c", lambda: 41),
        (self_description, "available_mib", lambda: 1_024),
        (self_description, "free_bytes", lambda _folder: 8 << 30),
    ]
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with replaced(measured), seeded(f"playground {seed}"):
            yield
    finally:
        logging.disable(disabled)


def _config(state: Path) -> DeviceConfig:
    return replace(config_of(state), model=ModelSection(shipped_model_dir()))


def _premises(seed: int) -> Premises:
    manifest = load_manifest(shipped_model_dir())
    embedder = open_embedder(manifest)
    return Premises(
        people=PEOPLE,
        enrolled=len(PEOPLE),
        hands=lambda number: enrolled_hands(person_of(seed, number + 1), manifest, embedder),
        model_id=manifest.model_id,
        settings={"decision_timeout_ms": DECISION_MS, "passage_timeout_ms": PASSAGE_MS},
        config=_config,
    )


class PlaygroundWorld:
    """Everything of one run. Made and used inside `one_seed`, by one thread."""

    def __init__(self, seed: int, folder: Path, log: EventLog) -> None:
        self.seed, self.log = seed, log
        (folder / "start").mkdir()
        beginning = SimulatedLoop(self._chance("beginning"))
        self._start: Prepared = beginning.run_until_complete(prepare(folder / "start", _premises(seed)))
        beginning.close()
        self._loop = SimulatedLoop(self._chance("loop"))
        asyncio.set_event_loop(self._loop)
        self._loop.after_step = self._after_step
        self._loop.set_exception_handler(self._unexpected)
        self._failure: BaseException | None = None
        self._cable = Cable(self._loop, self._chance("cable"), self._heard)
        self._gate_network = self._network("device")
        self._office_network = self._network("office")
        self._service = SimulatedProcess("service"), self._serve(copied(self._start, folder / "cloud"))
        self._loop.spawn(self._service[0], self._service[1].follow_changes())
        self.eyes = FilmEyes()
        self._device = DeviceMachine(
            self._loop,
            KeptFolder(_laid_out(self._start, folder / "device")),
            self._cable,
            self._gate_network,
            eyes=self.eyes,
            config=_config,
            chance=self._chance("device"),
            rate=1.0,
        )
        (folder / "validator").mkdir()
        self._validator = ValidatorMachine(
            self._loop,
            KeptFolder(folder / "validator"),
            self._cable,
            self._office_network,
            device_key=self._start.verdict_key.public,
            api_key=self._start.api_key,
            chance=self._chance("validator"),
            rate=1.0,
            on_event=self._desk_event,
        )
        self._validator.carries_mail = False
        self._films = self._chance("films")
        self._strangers = self._slices = 0
        self._advance_until_ms = 0
        self._gone: set[str] = set()
        self._awaited: dict[int, str] = {}
        """Positions of the gallery, and the person who is gone there."""
        self._known: tuple[object, object] = (None, None)
        self.stolen = self._wiped = False
        self._session = False
        self._turnstile = "closed"
        self._last: JsonObject | None = None
        self._status: JsonObject | None = None
        self.now_ms = 0
        """Virtual time since the start, a multiple of SLICE_MS."""
        self._device.power_on()
        self._validator.power_on()

    def _chance(self, name: str) -> random.Random:
        return random.Random(f"{name} {self.seed}")  # noqa: S311

    def _network(self, who: str) -> Network:
        def asked(request: httpx.Request) -> None:
            self.log.asked(self._at_ms, who, request, lost=network.troubles.down)

        network = Network(
            self._loop,
            self._chance(f"network of the {who}"),
            lambda: self._service,
            asked,
            lambda *answer: self.log.answered(self._at_ms, who, *answer),
        )
        return network

    def _serve(self, data: Path) -> RunningService:
        loop = self._loop
        return RunningService(data, lambda: true_ms(loop), lambda: loop.now_s)

    # Time

    @property
    def advancing(self) -> bool:
        """Whether hours pass at once."""
        return self.now_ms < self._advance_until_ms

    @property
    def _at_ms(self) -> int:
        return round(self._loop.now_s * 1000)

    def step(self) -> None:
        """Go on by SLICE_MS, or by a minute while hours pass at once."""
        self.now_ms += _ADVANCED_AT_ONCE_MS if self.advancing else SLICE_MS
        self._loop.run_until_complete(self._sleep_until(self.now_ms / 1000))
        self._note_device()
        self._slices += 1
        if self.advancing or self._slices % _STATUS_EVERY == 0:
            self._loop.run_until_complete(self._ask_status())
        for failure in (self._failure, self._device.failure, self._validator.failure):
            if failure is not None:
                raise failure

    def _unexpected(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A task failed, and no part of its program took its exception."""
        self._failure = self._failure or context.get("exception")

    async def _sleep_until(self, at_s: float) -> None:
        due = self._loop.create_future()
        self._loop.call_at(at_s, due.set_result, None)
        await due

    # Buttons

    def allows(self, button: Button, who: str = "") -> bool:
        """Whether the button does anything now."""
        free = not self.eyes.hand_in_view and not self.advancing
        return {
            Button.PALM: free and self._turnstile == "closed" and not self.stolen,
            Button.STRANGER: free and self._turnstile == "closed" and not self.stolen,
            Button.POOR: free and self._turnstile == "closed" and not self.stolen,
            Button.PULL_CABLE: self._cable.plugged,
            Button.PLUG_CABLE: not self._cable.plugged and not self.stolen,
            Button.CUT_NETWORK: not self._gate_network.troubles.down,
            Button.RESTORE_NETWORK: self._gate_network.troubles.down,
            Button.ADVANCE: free,
            Button.ERASE: who not in self._gone,
            Button.STEAL: not self.stolen,
        }[button]

    def press(self, button: Button, who: str) -> None:
        """Do what a button does that is allowed now."""
        self._loop.run_until_complete(self._do(button, who))

    async def _do(self, button: Button, who: str) -> None:
        match button:
            case Button.PALM | Button.POOR | Button.STRANGER:
                self._show(button, who)
            case Button.PULL_CABLE:
                self._cable.pull()
                self._say("cable", plugged=False)
            case Button.PLUG_CABLE:
                self._cable.plugged = True
                self._say("cable", plugged=True)
            case Button.CUT_NETWORK | Button.RESTORE_NETWORK:
                self._gate_network.troubles.down = button is Button.CUT_NETWORK
                self._say("network", up=button is Button.RESTORE_NETWORK)
            case Button.ADVANCE:
                self._advance_until_ms = self.now_ms + ADVANCE_MS
                self._say("advance", hours=ADVANCE_MS // 3_600_000)
            case Button.ERASE:
                self._gone.add(who)
                self._loop.create_task(self._erase(who))
            case Button.STEAL:
                self.stolen = True
                self._cable.pull()
                self._say("stolen")
                self._loop.create_task(self._revoke())

    def _show(self, button: Button, who: str) -> None:
        hand = self._films.choice(HANDS)
        if button is Button.STRANGER:
            person = person_of(self.seed, STRANGERS + self._strangers)
            self._strangers += 1
        else:
            person = person_of(self.seed, PEOPLE.index(who) + 1)
        occasion = self._films.randrange(1_000_000)
        shot, held = (poor_capture, 36) if button is Button.POOR else (passage, 16)
        film = shot(person, hand, occasion, frames_in=4, frames_held=held, frames_out=4, scene_seed=PLACE)
        self._say("shown", how=button.value, who=who, hand=hand)
        if self._session:
            self._validator.do(lambda desk: desk.arm(_ASKS_FOR_MS, self._validator.clock.monotonic_ms()))
        self._loop.call_later(_HAND_AFTER_MS / 1000, self.eyes.show, film)

    async def _erase(self, who: str) -> None:
        receipt = await self._office().delete(f"/v1/subjects/{self._start.subjects[PEOPLE.index(who)]}")
        seq = receipt["signed_receipt"]["receipt"]["gallery"]["seq"]
        self._awaited[seq] = who
        self._say("erased", who=who, receipt_id=receipt["receipt_id"], seq=seq)
        self._note_tombstones()

    async def _revoke(self) -> None:
        await self._office().post(f"/v1/devices/{DEVICE_ID}/revoke", {"reason": "stolen"})
        self._say("revoked")

    def _office(self) -> PartnerOffice:
        return PartnerOffice(NetworkTransport(self._office_network), self._start.api_key)

    # What is seen

    def _say(self, what: str, **facts: Any) -> None:
        self.log.add(self._at_ms, "story", **{"what": what, **facts})

    def _heard(self, side: str, data: bytes) -> None:
        self.log.heard(self._at_ms, side, data)

    def _desk_event(self, event: DeskEvent) -> None:
        match event:
            case DeviceProven(device_id, device_kid):
                self._session = True
                self._say("session", up=True, device_id=device_id, device_kid=device_kid)
            case Down(reason):
                if self._session:
                    self._say("session", up=False, reason=reason.value)
                self._session = False
            case RequestSent(request, again):
                self._turnstile = "asks"
                self._say("asks", txn_id=request.txn_id, again=again)
            case RequestEnded(txn_id, why):
                self._turnstile = "closed"
                self._say("request_ended", txn_id=txn_id, why=why)
            case VerdictAnswered(verdict, ref, choice, refused, _):
                self._turnstile = "open" if choice.actuated else "closed"
                self._last = {
                    "decision": verdict.decision.value,
                    "result": verdict.result.value,
                    "who": self._name_of(verdict.subject_ref),
                    "hand": verdict.hand,
                    "score_q": verdict.score_q,
                    "quality_q": verdict.quality_q,
                    "outcome": choice.outcome,
                    "reason": choice.reason,
                    "verdict_ref": ref,
                    "verdict_seq": verdict.verdict_seq,
                    "txn_id": verdict.txn_id,
                    "refused": refused,
                }
                self._say("verdict", **self._last)
            case PassageReported(_, ref, passed, cause):
                self._turnstile = "closed"
                self._say("passage", verdict_ref=ref, passed=passed, cause=cause)
            case _:
                pass

    def _name_of(self, subject_ref: str | None) -> str:
        return "" if subject_ref is None else PEOPLE[self._start.refs.index(subject_ref)]

    def _after_step(self, process: SimulatedProcess | None) -> None:
        if process is not None and process.name == "device":
            self._note_device()

    def _note_device(self) -> None:
        device = self._device
        wiping = device.wiped or (device.palmd is not None and device.palmd.wipe.begun)
        if wiping and not self._wiped and not any(_config(device.disk.state).keys_dir.glob("*")):
            # The core lives on for its farewell, without anything that it knew.
            self._wiped, self._status = True, None
            self._say("wiped", files=self.device_files)
        if device.wiped:
            device.kill_carrier()
        if device.palmd is None or device.opened is None:
            return
        words = device.palmd.health.words
        gallery = device.opened.gallery
        at = None if gallery is None or device.palmd.wipe.begun else gallery.position
        if (words, at) == self._known:
            return
        before, self._known = self._known, (words, at)
        if words != before[0]:
            self._say("health", words=list(words))
        if at is not None and at != before[1]:
            self._say("gallery", epoch=at.epoch, seq=at.seq, head16=at.head16)
            self._note_tombstones()

    def _note_tombstones(self) -> None:
        """Say who is gone from the device's gallery too; the service's answer may come after that."""
        at = self._known[1]
        for seq in list(self._awaited):
            if isinstance(at, Position) and at.seq >= seq:
                self._say("tombstone", who=self._awaited.pop(seq), seq=seq)

    @property
    def device_files(self) -> list[str]:
        """What is on the device's disk."""
        state = self._device.disk.state
        return sorted(str(path.relative_to(state)) for path in state.rglob("*") if path.is_file())

    async def _ask_status(self) -> None:
        """As `palmctl status` does."""
        core, palmd = self._device.core, self._device.palmd
        if core is None or palmd is None or palmd.wipe.begun:
            return
        with suppress(DeviceError):
            lost = DeviceError("the core ended")
            asked = Packet({"op": "status"})
            answer = await called_in(self._loop, core, lambda: palmd.technician(asked), lost)
            self._status = StatusAnswer.from_obj(answer.header).status.to_obj()

    def state(self) -> JsonObject:
        """What the page shows next to the events."""
        stream = self._service[1].state_of_stream(self._start.environment)
        return {
            "now_ms": self.now_ms,
            "advance_left_ms": max(0, self._advance_until_ms - self.now_ms),
            "seed": self.seed,
            "people": [{"name": name, "erased": name in self._gone} for name in PEOPLE],
            "cable": self._cable.plugged,
            "session": self._session,
            "network": not self._gate_network.troubles.down,
            "turnstile": self._turnstile,
            "stolen": self.stolen,
            "wiped": self._wiped,
            "files": self.device_files,
            "status": self._status,
            "service": {"epoch": stream.epoch, "seq": stream.seq},
            "last": self._last,
            "allowed": [
                button.value for button in Button if button is not Button.ERASE and self.allows(button)
            ],
            "events": self.log.count,
        }

    def close(self) -> None:
        """End every program."""
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        # Those of a program that died run no further; the rest end within the second.
        self._loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
        self._device.kill_core()
        self._service[1].store.close()
        self._loop.close()
        asyncio.set_event_loop(None)


def _laid_out(start: Prepared, state: Path) -> Path:
    state.mkdir(mode=0o700)
    lay_out(start.device, state)
    return state
