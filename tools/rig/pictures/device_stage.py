"""A device to be photographed: a server, its daemons, a camera of generated palms, and both of its pages."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from device.platform.ipc import ask_core
from models.synthesis.person import make_person
from models.synthesis.scene import empty_scene, passage
from tools.palmctl.pages.core_pages import preview_routes, totem_routes
from tools.palmctl.pages.server import LocalPage
from tools.rig.browser import Tab, save
from tools.rig.demo.back_office import BackOffice
from tools.rig.demo.narrator import Narrator
from tools.rig.demo.programs import RunningPrograms, module, palmctl
from tools.rig.demo.setting import CAMERA_FPS, Site, provision, start_cloud
from tools.rig.demo.waiting import wait_until
from tools.rig.virtual_camera import VirtualCamera

_PLACE: Final = 7
_SIZE: Final = (1280, 800)
_WITHIN_S: Final = 30.0


class Quiet(Narrator):
    """Tells nothing."""

    def __init__(self) -> None:
        super().__init__(as_json=True)

    def act(self, title: str) -> None:
        pass

    def say(self, event: str, text: str, *, good: bool | None = True, **facts: Any) -> None:
        pass


@dataclass(frozen=True)
class StagedDevice:
    """The pages, the camera, and a back office that opens sessions."""

    totem: LocalPage
    preview: LocalPage
    camera: VirtualCamera
    office: BackOffice

    def short_code(self) -> str:
        """Of a new session of a new person."""
        person = self.office.create_person("account-17", onboard_ref="card:17")
        return str(self.office.open_enrolment(person["subject_id"])["short_code"])


@contextmanager
def staged_device(folder: Path) -> Iterator[StagedDevice]:
    """Everything runs in `folder` until the end."""
    quiet, logs = Quiet(), folder / "logs"
    logs.mkdir(parents=True)
    with ExitStack() as stack:
        stage = stack.enter_context(RunningPrograms(logs))
        camera = VirtualCamera(folder / "camera", empty_scene(_PLACE, 3, scene_seed=_PLACE), fps=CAMERA_FPS)
        cloud = start_cloud(quiet, folder, stage)
        site = Site("totem-central-1", "central-1", folder, camera.source)
        provision(quiet, site, cloud)
        palmctl("config", "set", "enrolment.consent", "screen", "--config", str(site.config))
        for name, program in (("palmd", "device.core.main"), ("palm-syncd", "device.syncd.main")):
            stage.start_daemon(name, module(program, "--config", str(site.config)), _WITHIN_S)
        ask = partial(ask_core, site.control_socket)
        wait_until(
            "the device to be ready",
            _WITHIN_S,
            lambda: not ask("enrolment.state", after=0, wait_ms=0).header["unready"],
        )
        totem, preview = LocalPage(totem_routes(ask)), LocalPage(preview_routes(ask))
        stack.callback(preview.close)
        stack.callback(totem.close)
        office = stack.enter_context(BackOffice(cloud.url, cloud.api_key))
        yield StagedDevice(totem, preview, camera, office)


def photograph_device(tab: Tab, staged: StagedDevice, folder: Path) -> None:
    """The pages as a person and a technician see them, into `folder`."""
    tab.show(width=_SIZE[0], height=_SIZE[1])
    _photograph_totem(tab, staged, folder)
    tab.open(staged.preview.url)
    _wait(lambda: tab.value("document.body.dataset.shown > 2"))
    staged.camera.queue(passage(make_person(41), "L", 3, frames_held=90, scene_seed=_PLACE))
    _wait(lambda: tab.value("document.querySelector('#quality').textContent.includes('of')"))
    _wait(lambda: tab.value("document.querySelector('#pad').textContent.includes('pass')"))
    (folder / "preview.png").write_bytes(tab.photograph())  # a camera's picture, in all its colours


def _photograph_totem(tab: Tab, staged: StagedDevice, folder: Path) -> None:
    tab.open(staged.totem.url)
    _wait(partial(_stands_at, tab, "idle"))
    save(tab.photograph(), folder / "totem-welcome.png")
    tab.value("document.querySelector('[data-do=keypad]').click()")
    tab.type_into("#code", staged.short_code())
    tab.value("document.querySelector('#code-form').requestSubmit()")
    _wait(lambda: _stands_at(tab, "consent") and tab.value("!document.querySelector('#accept').disabled"))
    save(tab.photograph(), folder / "totem-consent.png")
    tab.value("document.querySelector('#accept').click()")
    _wait(partial(_stands_at, tab, "show_hand"))
    save(tab.photograph(), folder / "totem-hand.png")
    tab.value("document.querySelector('[data-do=cancel]').click()")
    _wait(partial(_stands_at, tab, "failed"))


def _stands_at(tab: Tab, step: str) -> bool:
    return bool(tab.value(f"document.body.dataset.step === '{step}'"))


def _wait(shown: Callable[[], Any]) -> None:
    wait_until("the page to show it", _WITHIN_S, lambda: bool(shown()))
    time.sleep(0.5)  # until a transition has ended
