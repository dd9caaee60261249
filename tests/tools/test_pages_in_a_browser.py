"""Local pages in a real browser, over a core that is slow, refuses or has no picture, or is another one."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from device.enrolment.preview import draw
from device.errors import IpcRefused
from device.platform.ipc import Packet
from device.values.status import ConsentShown, EnrolmentShown
from models.frames import CameraFrame
from tests.device.status_makers import some_status
from tests.tools.test_totem_layouts import HANDS, Screen, step_is
from tests.until import until
from tools.palmctl.pages.core_pages import preview_routes, static_files, totem_routes
from tools.palmctl.pages.server import Answer, LocalPage
from tools.rig import playground
from tools.rig.browser import Tab, browsing, find_chromium

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

CONSENT: Final = EnrolmentShown("consent", consent=ConsentShown(HANDS, "v1", ("dataset_collection",)))


@contextmanager
def page_of(routes: dict[str, Answer]) -> Iterator[Tab]:
    assert CHROMIUM is not None
    with closing(LocalPage(routes)) as page, browsing(CHROMIUM) as tab:
        tab.show(width=1280, height=800)
        tab.open(page.url)
        yield tab


class SlowScreen(Screen):
    """Its terms come when they may, and what a person accepts is refused as long as `refuses` says so."""

    def __init__(self) -> None:
        super().__init__()
        self.terms_asked: list[str] = []
        self.terms_may_come = threading.Event()
        self.refuses = True
        self.accepted: list[dict[str, Any]] = []

    def __call__(self, op: str, *, timeout_s: float = 5.0, **members: Any) -> Packet:
        if op == "enrolment.terms":
            self.terms_asked.append(members["language"])
            assert self.terms_may_come.wait(20)
        elif op == "enrolment.accept":
            self.accepted.append(members)
            if self.refuses:
                raise IpcRefused("busy", "ask again")
        return super().__call__(op, timeout_s=timeout_s, **members)


def count(tab: Tab, selector: str) -> int:
    found: int = tab.value(f"document.querySelectorAll('{selector}').length")
    return found


def test_terms_are_shown_once_however_often_the_language_changes_meanwhile() -> None:
    screen = SlowScreen()
    with page_of(totem_routes(screen)) as tab:
        step_is(tab, "idle")
        screen.put(CONSENT)
        step_is(tab, "consent")
        tab.value("document.querySelector('#language').click()")
        until(lambda: sorted(screen.terms_asked) == ["en", "pt-BR"])
        screen.terms_may_come.set()
        until(lambda: tab.value("!document.querySelector('#accept').disabled"))
        assert tab.value("document.querySelector('#terms').lang") == "en"
        # What the terms before were asked for has been answered too: a request behind them has.
        assert tab.value("fetch('terms?version=v1&language=en').then((answer) => answer.status)") == 200
        shown = [count(tab, selector) for selector in ("#terms h3", "#purposes li", "#optional input")]
        assert shown == [1, 2, 1]


def test_what_was_refused_can_be_accepted_again() -> None:
    screen = SlowScreen()
    screen.terms_may_come.set()
    with page_of(totem_routes(screen)) as tab:
        step_is(tab, "idle")
        screen.put(CONSENT)
        step_is(tab, "consent")
        until(lambda: tab.value("!document.querySelector('#accept').disabled"))
        tab.value("document.querySelector('#accept').click()")
        until(lambda: len(screen.accepted) == 1)
        until(lambda: tab.value("!document.querySelector('#accept').disabled"))
        screen.refuses = False
        tab.value("document.querySelector('#accept').click()")
        until(lambda: len(screen.accepted) == 2)


def test_a_language_that_was_only_chosen_goes_with_the_person() -> None:
    with page_of(totem_routes(Screen())) as tab:
        step_is(tab, "idle")
        tab.value(
            "{ const wait = setTimeout; setTimeout = (does, ms) => wait(does, ms === 60000 ? 0 : ms); }"
        )
        tab.value("document.querySelector('#language').click()")
        until(lambda: tab.value("document.documentElement.lang === 'pt-BR'"))
        assert tab.value("document.querySelector('#language').textContent") == "English"


class Pictures:
    """A core that has `left` pictures, and then none: as while another tab is shown one, without waiting."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.asked = 0
        found, self._jpeg = draw(CameraFrame(np.zeros((48, 64, 3), np.uint8), 1_000, 1), None)
        self._picture = found | {"floors": {"quality_q": 40, "enrol_quality_q": 60, "pad_q": 5_000}}

    def __call__(self, op: str, *, timeout_s: float = 5.0, **members: Any) -> Packet:
        del timeout_s, members
        if op == "status":
            return Packet({"ok": True, "status": some_status().to_obj()})
        self.asked += 1
        if self.asked > self.left:
            return Packet({"ok": True, "picture": None})
        return Packet({"ok": True, "picture": self._picture}, self._jpeg)


def test_a_preview_without_pictures_says_so_and_does_not_flood_the_core() -> None:
    core = Pictures(left=5)
    with page_of(preview_routes(core)) as tab:
        begun_s = time.monotonic()
        until(lambda: tab.value("document.body.dataset.shown === '5'"))
        chip = "document.querySelector('#state').textContent"
        assert tab.value(chip) == "live"
        assert count(tab, ".frame.seen") == 1
        until(lambda: tab.value(chip) == "no picture from the camera")
        assert count(tab, ".frame.seen") == 0
        assert core.asked - 5 <= 20 * (time.monotonic() - begun_s) + 1
        core.left = core.asked + 1_000
        until(lambda: tab.value(chip) == "live")


def test_a_playground_at_an_address_that_is_no_longer_good_says_that_it_has_ended() -> None:
    """Another playground answers at its port, with another secret."""
    files = (
        Path(playground.__file__).parent / "static" / f"playground.{kind}" for kind in ("html", "css", "js")
    )
    with page_of(static_files(*files)) as tab:
        until(lambda: "has ended" in tab.value("document.querySelector('#notice').textContent"))
