"""The totem's page in a real browser, over a running device: from the keypad to the end."""

import time
from collections.abc import Iterator
from functools import partial

import pytest

from device.platform.control import ask_core
from tests.device.enrolment.enrolment_setting import COMPLETED, SILENCE, Person, Service, make_kiosk, redeemed
from tests.device.whole_device import WITHIN_S
from tools.palmctl.pages.core_pages import totem_routes
from tools.palmctl.pages.server import LocalPage
from tools.rig.browser import Tab, browsing, find_chromium

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@pytest.fixture
def tab() -> Iterator[Tab]:
    assert CHROMIUM is not None
    with browsing(CHROMIUM) as made:
        made.show(width=1280, height=800)
        yield made


def until(tab: Tab, expression: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not tab.value(expression):
        assert time.monotonic() < deadline, (expression, tab.value("document.body.innerText"))
        time.sleep(0.05)


def step(tab: Tab, name: str) -> None:
    until(tab, f"document.body.dataset.step === '{name}'")


SCREENS = ((800, 480), (480, 800), (1024, 600), (1280, 800))
"""Small panels as totems have them, lying and standing, and a large one."""

CUT_OFF = """[...document.querySelectorAll('button:not([hidden])')].filter((button) => {
  const at = button.getBoundingClientRect();
  return at.top < 0 || at.left < 0 || at.bottom > innerHeight || at.right > innerWidth || at.height < 44
    || !button.contains(document.elementFromPoint(at.left + at.width / 2, at.top + at.height / 2));
}).map((button) => button.textContent)"""
SCROLLS = (
    "document.documentElement.scrollHeight > innerHeight || document.documentElement.scrollWidth > innerWidth"
)


def every_button_can_be_pressed(tab: Tab) -> None:
    """On every screen: whole, large enough for a finger, covered by nothing; the page never scrolls."""
    for width, height in SCREENS:
        tab.show(width=width, height=height)
        assert tab.value(CUT_OFF) == [], (width, height, tab.value("document.body.dataset.step"))
        assert tab.value(SCROLLS) is False, (width, height, tab.value("document.body.dataset.step"))


def test_a_person_enrols_at_the_totem(tmp_path_factory: pytest.TempPathFactory, tab: Tab) -> None:
    device = make_kiosk(tmp_path_factory.mktemp("totem"))
    with device.running(), Service(device.config.carrier_socket).running() as service:
        service.redeem = redeemed(hands_required=["R"], dataset_collection=True)
        service.enrol = SILENCE
        person = Person(device)
        person.waits_until_ready()
        page = LocalPage(totem_routes(partial(ask_core, device.config.totem_socket)))
        try:
            enrol_there(tab, page, person, service)
        finally:
            page.close()
    assert tab.complaints() == []


def enrol_there(tab: Tab, page: LocalPage, person: Person, service: Service) -> None:
    tab.open(page.url)
    step(tab, "idle")
    every_button_can_be_pressed(tab)
    assert tab.value("document.documentElement.lang") == "pt-BR"
    tab.value("document.querySelector('#language').click()")
    assert tab.value("document.querySelector('h1').textContent") == "Enroll your palm"

    tab.value("document.querySelector('[data-do=keypad]').click()")
    step(tab, "keypad")
    assert tab.value("document.activeElement.id") == "code"
    every_button_can_be_pressed(tab)
    for key in "4F7K9QRT":
        tab.value(
            f"[...document.querySelectorAll('#keys button')].find(b => b.textContent === '{key}').click()"
        )
    assert tab.value("document.querySelector('#code').value") == "4F7K-9QRT"
    good, service.redeem = service.redeem, (403, "enrollment_session_invalid", {})
    tab.value("document.querySelector('#code-form').requestSubmit()")
    step(tab, "failed")
    assert "type it again" in tab.value("document.querySelector('.lead').textContent")
    every_button_can_be_pressed(tab)
    tab.value("document.querySelector('#retype').click()")
    step(tab, "keypad")
    assert tab.value("document.querySelector('#code').value") == "4F7K-9QRT", (
        "what was typed can be corrected"
    )
    service.redeem = good
    tab.value("document.querySelector('#code-form').requestSubmit()")

    step(tab, "consent")
    until(tab, "!document.querySelector('#accept').disabled")
    assert "Biometric" in tab.value("document.querySelector('#terms').innerText").title()
    assert tab.value("document.querySelector('#optional input').checked") is False
    every_button_can_be_pressed(tab)
    tab.show(width=800, height=480)
    for part in ("#terms", ".scroll"):  # what does not fit can be read to its end
        tab.value(f"document.querySelector('{part}').scrollTo(0, 1e6)")
        assert tab.value(
            f"(() => {{ const box = document.querySelector('{part}'), end = box.lastElementChild;"
            " return end.getBoundingClientRect().bottom <= box.getBoundingClientRect().bottom + 1; })()"
        ), part
    tab.value("document.querySelector('#accept').click()")

    step(tab, "show_hand")
    until(tab, "document.querySelector('#said').textContent.includes('right palm')")
    every_button_can_be_pressed(tab)
    person.shows("R")
    step(tab, "sending")
    service.enrol = COMPLETED
    step(tab, "done")
    every_button_can_be_pressed(tab)
    assert tab.value("document.querySelector('#said').textContent").startswith("Done!")
    assert [item["purpose"] for item in service.bodies[-1]["consents"]] == ["enrollment", "identification"]
    tab.value("document.querySelector('[data-do=home]').click()")
    step(tab, "idle")
