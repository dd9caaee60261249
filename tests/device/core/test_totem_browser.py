"""The totem's page in a real browser, over a running device: from the keypad to the end."""

import time
from contextlib import closing
from functools import partial

import pytest

from device.platform.ipc import ask_core
from tests.device.enrolment.enrolment_setting import COMPLETED, SILENCE, Person, Service, make_kiosk, redeemed
from tests.device.whole_device import WITHIN_S
from tools.palmctl.pages.core_pages import totem_routes
from tools.palmctl.pages.server import LocalPage
from tools.rig.browser import Tab


def until(tab: Tab, expression: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not tab.value(expression):
        assert time.monotonic() < deadline, (expression, tab.value("document.body.innerText"))
        time.sleep(0.05)


def step(tab: Tab, name: str) -> None:
    until(tab, f"document.body.dataset.step === '{name}'")


LISTEN = """(() => {
  window.heard = [];
  const said = document.querySelector('#said');
  new MutationObserver(() => heard.push(said.textContent)).observe(said, { childList: true });
  return [said.getAttribute('aria-live'), said.checkVisibility()];
})()"""
"""From now on every announcement goes into `heard`, in the order in which a screen reader says them."""


def go_to(tab: Tab, role: str, name: str) -> None:
    """Tab from element to element until the focus is where it is wanted."""
    passed = [tab.focused()]
    while passed[-1] != (role, name):
        assert len(passed) < 50, passed
        tab.press("Tab")
        passed.append(tab.focused())


def hears(tab: Tab, words: str) -> None:
    until(tab, f"heard.some((said) => said.includes({words!r}))")
    tab.value("heard.splice(0)")


def test_a_person_enrols_with_a_keyboard_and_a_screen_reader(
    tmp_path_factory: pytest.TempPathFactory, tab: Tab
) -> None:
    """Only keys are pressed, and nothing is read but focus, roles, names and announcements."""
    device = make_kiosk(tmp_path_factory.mktemp("totem"))
    with device.running(), Service(device.config.carrier_socket).running() as service:
        service.redeem = 403, "enrollment_session_invalid", {}
        service.enrol = SILENCE
        person = Person(device)
        person.waits_until_ready()
        with closing(LocalPage(totem_routes(partial(ask_core, device.config.totem_socket)))) as page:
            enrol_there(tab, page, person, service)
    assert tab.complaints() == []


def enrol_there(tab: Tab, page: LocalPage, person: Person, service: Service) -> None:
    tab.show(width=1280, height=800)
    tab.open(page.url)
    step(tab, "idle")
    assert tab.value(LISTEN) == ["polite", True]
    assert tab.value("document.documentElement.lang") == "pt-BR"
    go_to(tab, "button", "English")
    tab.press("Enter")
    hears(tab, "Enroll your palm")
    assert tab.value("document.documentElement.lang") == "en"

    go_to(tab, "button", "Type a code")
    tab.press("Enter")
    hears(tab, "Type the code. It has 8 letters and digits")
    assert tab.focused() == ("textbox", "Type the code")
    for key in "4F7K-9QRS":
        tab.press(key)
    tab.press("Enter")
    hears(tab, "Check the code. This code was not accepted.")
    assert tab.focused() == ("textbox", "Type the code")
    assert tab.value("document.activeElement.getAttribute('aria-invalid')") == "true"
    assert tab.value("document.querySelector('h1').textContent") == "Check the code"

    service.redeem = redeemed(hands_required=["R"], dataset_collection=True)
    tab.press("Backspace")
    assert tab.value("document.activeElement.getAttribute('aria-invalid')") is None
    go_to(tab, "button", "T")  # of the keypad on the screen, as a finger would
    tab.press(" ")
    assert tab.value("document.querySelector('#code').value") == "4F7K-9QRT"
    go_to(tab, "button", "Continue")
    tab.press("Enter")

    hears(tab, "Before we begin")
    step(tab, "consent")
    until(tab, "!document.querySelector('#accept').disabled")
    go_to(tab, "checkbox", "I also agree that my captures help to train the system (optional).")
    assert tab.value("document.activeElement.checked") is False
    go_to(tab, "article", tab.value("document.querySelector('#terms-title').textContent"))
    assert "biometric" in tab.value("document.activeElement.innerText").lower()
    for _ in range(20):
        tab.press("PageDown")
    until(tab, "!document.activeElement.classList.contains('more')")  # the terms can be read to their end
    go_to(tab, "button", "I accept")
    tab.press("Enter")

    hears(tab, "Show your right palm. Hand open, fingers apart")
    assert tab.value("document.body.dataset.hand") == "R"
    go_to(tab, "button", "Cancel")  # it can be reached; it is not pressed
    person.shows("R")
    hears(tab, "Sending")
    service.enrol = COMPLETED
    hears(tab, "Done! Your palm is now recognized at the gates.")
    assert service.codes == ["4F7K-9QRS", "4F7K-9QRT"]
    assert [item["purpose"] for item in service.bodies[-1]["consents"]] == ["enrollment", "identification"]
    go_to(tab, "button", "Back to the start")
    tab.press("Enter")
    hears(tab, "Enroll your palm")
    step(tab, "idle")
