"""Every screen of the totem on every panel: photographed, each button in view, no text cut."""

import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from device.enrolment.consent import TermsFolder, shipped_terms_dir
from device.enrolment.effects import CaptureHint
from device.platform.ipc import Packet
from device.values.control import ScreenAnswer, TermsAnswer
from device.values.status import CaptureShown, ConsentShown, EnrolmentShown
from link1.objects import GuideHint
from models.crop_geometry import Handedness
from models.synthesis.person import make_person
from models.synthesis.render import Pose, Setting, render_frame
from tests.until import until
from tools.palmctl.pages import WORDS
from tools.palmctl.pages.core_pages import totem_routes
from tools.palmctl.pages.server import LocalPage
from tools.rig.browser import Tab, browsing, find_chromium

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

PANELS: Final = ((800, 480), (1024, 600), (1280, 800), (720, 1280), (1080, 1920), (480, 800))
HANDS: Final = ("L", "R")


def capturing(step: str, hint: str | None = None, captured: int = 1) -> EnrolmentShown:
    return EnrolmentShown(step, capture=CaptureShown(HANDS, "R", hint, captured, 3))


def longest_hint(language: str) -> str:
    hints = [str(hint) for hint in (*GuideHint, *CaptureHint)]
    return max(hints, key=lambda hint: len(WORDS[language].get(f"hint_{hint}", "")))


def longest_reason(language: str) -> str:
    """The code of the longest reason that is shown on a screen of its own."""
    others = {"why_typed_code", "why_not_a_code"}
    reasons = [name for name in WORDS[language] if name.startswith("why_") and name not in others]
    return max(reasons, key=lambda name: len(WORDS[language][name])).removeprefix("why_")


class Screen:
    """A core whose enrolment is in the step that the test puts on the screen."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._answer = ScreenAnswer(1, EnrolmentShown("idle"), online=True, unready="")

    def put(self, state: EnrolmentShown, *, online: bool = True, unready: str = "") -> None:
        with self._changed:
            self._answer = ScreenAnswer(self._answer.seq + 1, state, online, unready)
            self._changed.notify_all()

    def __call__(self, op: str, *, timeout_s: float = 5.0, **members: Any) -> Packet:
        match op:
            case "enrolment.state":
                with self._changed:
                    self._changed.wait_for(lambda: self._answer.seq != members["after"], timeout_s)
                    return Packet({"ok": True} | self._answer.to_obj())
            case "enrolment.terms":
                terms = TermsFolder(shipped_terms_dir(), "v1").read("v1", members["language"])
                assert terms is not None
                return Packet({"ok": True} | TermsAnswer(terms, ("enrollment", "identification")).to_obj())
            case "enrolment.begin":
                self.put(EnrolmentShown("failed", "enrollment_session_invalid"))
                return Packet({"ok": True})
            case _:
                return Packet({"ok": True})


@pytest.fixture
def screen() -> Screen:
    return Screen()


@pytest.fixture
def tab(screen: Screen) -> Iterator[Tab]:
    assert CHROMIUM is not None
    with closing(LocalPage(totem_routes(screen))) as page, browsing(CHROMIUM) as made:
        made.show(width=PANELS[0][0], height=PANELS[0][1])
        made.open(page.url)
        yield made


FAULTS: Final = (Path(__file__).parent / "totem_faults.js").read_text(encoding="utf-8")

BUTTONS: Final = """[...document.querySelectorAll('button:not(:disabled)')]
  .filter((one) => one.checkVisibility()).map((one) => one.getBoundingClientRect())
  .map((at) => [at.left, at.top, at.right, at.bottom])"""


def contrast(pixels: NDArray[Any]) -> float:
    """WCAG's ratio of the lightest to the darkest colour of a BGR picture, from 1 to 21."""
    share = pixels.reshape(-1, 3).astype(np.float64) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    light = linear @ np.array([0.0722, 0.7152, 0.2126])
    return float((light.max() + 0.05) / (light.min() + 0.05))


def look(tab: Tab, what: str, album: Path) -> None:
    """Look at the present screen on every panel; the photographs go into `album`."""
    for width, height in PANELS:
        tab.show(width=width, height=height)
        # A frame later the page has reacted to its new size.
        tab.value("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        assert tab.value(FAULTS) == [], (what, width, height)
        png = tab.photograph()
        (album / f"{what}-{width}x{height}.png").write_bytes(png)
        photograph = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR)
        assert photograph is not None and photograph.shape == (height, width, 3)
        for left, top, right, bottom in tab.value(BUTTONS):
            drawn = photograph[int(top) + 4 : int(bottom) - 4, int(left) + 4 : int(right) - 4]
            assert contrast(drawn) >= 4.5, (what, width, height, "a button is not readable")


def step_is(tab: Tab, step: str) -> None:
    until(lambda: tab.value(f"document.body.dataset.step === '{step}'"))


@pytest.mark.parametrize("language", ["pt-BR", pytest.param("en", marks=pytest.mark.long)])
def test_every_screen_fits_every_panel(screen: Screen, tab: Tab, language: str, tmp_path: Path) -> None:
    step_is(tab, "idle")
    if tab.value("document.documentElement.lang") != language:
        tab.value("document.querySelector('#language').click()")
    assert tab.value("document.documentElement.lang") == language
    look(tab, "idle", tmp_path)

    tab.value("document.querySelector('[data-do=keypad]').click()")
    step_is(tab, "keypad")
    look(tab, "keypad", tmp_path)
    tab.type_into("#code", "4F7K9QRT")
    tab.value("document.querySelector('#code-form').requestSubmit()")
    until(lambda: tab.value("document.querySelector('#code').getAttribute('aria-invalid') === 'true'"))
    look(tab, "mistyped", tmp_path)

    for name, state, online in (
        ("checking_code", capturing("checking_code"), True),
        ("show_hand", capturing("show_hand", longest_hint(language)), True),
        ("remove_hand", capturing("remove_hand", captured=3), True),
        ("sending", capturing("sending"), False),
        ("done", EnrolmentShown("done"), True),
        ("review", EnrolmentShown("review"), True),
        ("failed", EnrolmentShown("failed", longest_reason(language)), True),
    ):
        screen.put(state, online=online)
        step_is(tab, state.step)
        look(tab, name, tmp_path)

    screen.put(EnrolmentShown("consent", consent=ConsentShown(HANDS, "v1", ("dataset_collection",))))
    step_is(tab, "consent")
    until(lambda: tab.value("!document.querySelector('#accept').disabled"))
    look(tab, "consent", tmp_path)
    for state in (capturing("show_hand"), EnrolmentShown("idle")):
        screen.put(EnrolmentShown("done"))
        step_is(tab, "done")
        screen.put(state, unready="the camera is away")
        step_is(tab, "unready")
    look(tab, "unready", tmp_path)


def held_up(seed: int, hand: Handedness) -> NDArray[np.bool_]:
    """The outline of a generated hand in the camera's picture."""
    setting, rng = Setting(noise=0.0), np.random.default_rng(seed)
    with_hand = render_frame(make_person(seed), hand, Pose(), "rgb", rng, setting=setting)
    without = render_frame(None, None, Pose(), "rgb", rng, setting=setting)
    changed: NDArray[np.bool_] = np.abs(with_hand.astype(np.int16) - without).max(axis=2) > 25
    return changed


def overlap(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    """Intersection over union of two outlines, each stretched to the same box from finger tips to wrist."""
    boxes = []
    for mask in (first, second):
        left, top, width, height = cv2.boundingRect(mask.astype(np.uint8))
        cut = mask[top : top + height, left : left + width].astype(np.uint8)
        boxes.append(cv2.resize(cut, (128, 128), interpolation=cv2.INTER_NEAREST) > 0)
    return float((boxes[0] & boxes[1]).sum() / (boxes[0] | boxes[1]).sum())


DRAWN: Final = """(() => {
  const skin = document.querySelector('#skin'), at = skin.getBoundingClientRect();
  const back = skin.getScreenCTM().inverse();
  const shares = Array.from({ length: 128 }, (_, number) => (number + .5) / 128);
  const place = (x, y) => new DOMPoint(at.left + x * at.width, at.top + y * at.height).matrixTransform(back);
  return shares.map((y) => shares.map((x) => skin.isPointInFill(place(x, y))));
})()"""
"""The drawn palm as it is on the screen, 128 points a side."""


def test_the_drawn_palm_is_the_mirror_image_of_the_hand_that_is_asked_for(screen: Screen, tab: Tab) -> None:
    """A person who holds it up sees the same outline; the camera, on the other side, sees it reversed."""
    tab.show(width=1280, height=800)
    hands: tuple[Handedness, ...] = ("L", "R")
    for hand in hands:
        screen.put(EnrolmentShown("show_hand", capture=CaptureShown(HANDS, hand, None, 0, 3)))
        until(partial(tab.value, f"document.body.dataset.hand === '{hand}'"))
        drawn = np.array(tab.value(DRAWN))
        for seed in range(41, 46):
            seen = held_up(seed, hand)
            assert overlap(drawn, np.fliplr(seen)) > 0.75 > 0.6 > overlap(drawn, seen), (hand, seed)
