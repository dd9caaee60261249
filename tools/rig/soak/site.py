"""Everything that runs during a soak: cloud, device, cable, validator; and what can happen to them."""

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from models.synthesis.person import make_person
from models.synthesis.scene import empty_scene
from tools.rig.demo.back_office import BackOffice
from tools.rig.demo.narrator import Narrator
from tools.rig.demo.programs import RunningPrograms, module
from tools.rig.demo.setting import (
    CAMERA_FPS,
    DBD_ID,
    Cloud,
    DemoDevice,
    Site,
    answers,
    provision,
    start_cloud,
)
from tools.rig.demo.story import PLACE, DemoPerson, Scene
from tools.rig.demo.waiting import wait_until
from tools.rig.soak.bad_cable import BadCable
from tools.rig.soak.chaos import TimedFault
from tools.rig.soak.crowd import Crowd
from tools.rig.soak.small_disk import SmallDisk
from tools.rig.soak.supervised import Supervised
from tools.rig.soak.wall_clock import WallClock, make_wall_clock
from tools.rig.virtual_camera import VirtualCamera

DEVICE_ID: Final = "palm-soak-1"
ENROLLED: Final = (101, 102, 103)
"""Seeds of the enrolled people."""


@dataclass(frozen=True)
class World:
    """What runs, and where it keeps things."""

    folder: Path
    cloud: Cloud
    office: BackOffice
    device: DemoDevice
    cable: BadCable
    server: Supervised
    palmd: Supervised
    syncd: Supervised
    validator: Supervised
    disk: SmallDisk | None
    clock: WallClock | None

    @property
    def journal(self) -> Path:
        return self.folder / f"{DEVICE_ID}.state" / "journal.db"

    @property
    def supervised(self) -> tuple[Supervised, ...]:
        return (self.server, self.palmd, self.syncd, self.validator)


class Teller(Narrator):
    """Prints the acts of the set-up, and leaves out their steps."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(as_json=False)
        self._tell = tell

    def act(self, title: str) -> None:
        self._tell(title)

    def say(self, event: str, text: str, *, good: bool | None = True, **facts: Any) -> None:
        """Not told."""


def camera_folder(folder: Path) -> Path:
    return folder / "camera"


def build(narrator: Narrator, folder: Path, seed: int, ending: ExitStack) -> World:
    """Set the gate up and enrol people; nothing has gone wrong yet. `ending` gets what must be undone."""
    logs = folder / "logs"
    logs.mkdir(parents=True)
    with RunningPrograms(logs) as stage:
        camera = VirtualCamera(camera_folder(folder), empty_scene(PLACE, 3, scene_seed=PLACE), fps=CAMERA_FPS)
        cloud = start_cloud(narrator, folder, stage)
    data = cloud.place[cloud.place.index("--data") + 1]
    port = cloud.url.rsplit(":", 1)[1]
    server = Supervised(
        "cloud", module("tools.palmctl.main", "cloud", "serve", "--data", data, "--port", port), logs, {}
    )
    ending.callback(server.stop)
    office = ending.enter_context(BackOffice(cloud.url, cloud.api_key))
    wait_until("the reference server", 20, lambda: answers(cloud.url))

    narrator.act("The device")
    site = Site(DEVICE_ID, "gate-1", folder, camera.source)
    disk = SmallDisk(folder / f"{DEVICE_ID}.state") if os.geteuid() == 0 else None
    if disk is not None:
        ending.callback(disk.unmount)
    key = provision(narrator, site, cloud)
    cable = BadCable(site.cable, folder / "validator.port", seed)
    clock = make_wall_clock(folder)
    environment = {} if clock is None else clock.environment
    config = str(site.config)
    palmd = Supervised("palmd", module("device.core.main", "--config", config), logs, environment)
    syncd = Supervised("palm-syncd", module("device.syncd.main", "--config", config), logs, environment)
    ending.callback(palmd.stop)
    ending.callback(syncd.stop)
    device = DemoDevice(site, key, site.control_socket, str(cable.validator))
    validator = Supervised(
        "validator",
        module(
            "tools.palmctl.main", "dbd", "simulate", "--port", str(cable.validator), "--dbd-id", DBD_ID,
            "--gate-id", site.gate_id, "--key-file", str(folder / "validator.key"),
            "--device-pub-b64", key.b64, "--passage-sensor", "--json",
        ),
        logs,
        {},
    )  # fmt: skip
    ending.callback(validator.stop)
    wait_until("palmd to answer", 30, device.control_socket.exists)
    scene = Scene(narrator=narrator, device=device, office=office, camera=camera)
    for number, person in enumerate(ENROLLED, 1):
        scene.enrol(DemoPerson(f"person-{number}", make_person(person)))
    return World(folder, cloud, office, device, cable, server, palmd, syncd, validator, disk, clock)


def faults(world: World, crowd: Crowd) -> list[TimedFault]:
    """Everything that may happen to this world."""
    nothing = _nothing
    cable, folder = world.cable, camera_folder(world.folder)
    away = folder.with_name("camera.away")

    def cut(value: bool) -> None:
        cable.cut = value

    def pull_camera() -> None:
        crowd.stalled = True
        folder.rename(away)

    def put_camera_back() -> None:
        away.rename(folder)
        crowd.stalled = False

    all_faults = [
        TimedFault("cable cut", lambda: cut(True), lambda: cut(False), 0.1, 12.0),
        TimedFault("cable unplugged", cable.unplug, cable.plug, 0.5, 8.0),
        TimedFault("camera unplugged", pull_camera, put_camera_back, 1.0, 8.0),
        TimedFault(
            "server down",
            lambda: world.server.kill(stay_down_s=10.0),
            nothing,
            12.0,
            15.0,
            deadly=True,
        ),
        TimedFault(
            "server hangs",
            lambda: world.server.program.signal(signal.SIGSTOP),
            lambda: world.server.program.signal(signal.SIGCONT),
            3.0,
            12.0,
        ),
        TimedFault("palmd killed", world.palmd.kill, nothing, 0.0, 0.0, deadly=True),
        TimedFault(
            "palmd restarted", lambda: world.palmd.kill(signal.SIGTERM), nothing, 0.0, 0.0, deadly=True
        ),
        TimedFault("palm-syncd killed", world.syncd.kill, nothing, 0.0, 0.0, deadly=True),
        TimedFault(
            "validator restarted",
            lambda: world.validator.kill(signal.SIGTERM),
            nothing,
            0.0,
            0.0,
            deadly=True,
        ),
    ]
    if world.clock is not None:
        clock = world.clock
        all_faults += [
            TimedFault("clock 8 h ahead", lambda: clock.move(8 * 3600), lambda: clock.move(0), 5.0, 12.0),
            TimedFault(
                "clock 3 days back", lambda: clock.move(-3 * 86_400), lambda: clock.move(0), 5.0, 12.0
            ),
        ]
    if world.disk is not None:
        all_faults.append(TimedFault("disk full", world.disk.fill, world.disk.free, 5.0, 12.0))
    return all_faults


def _nothing() -> None:
    """What repairs itself needs no repair."""
