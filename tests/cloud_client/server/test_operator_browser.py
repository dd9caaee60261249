"""The operator's page in a real browser: with and without script, light and dark, wide and narrow."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud_client.reference_server.web.admin import operator_page
from tests.until import until
from tools.rig.browser import Tab
from tools.rig.pictures.screenshots import PAGES, sign_in, staged_server

STYLE = (Path(operator_page.__file__).parent / "static" / "admin.css").read_text()
WIDTHS = (1280, 768, 360)


@pytest.fixture(scope="module")
def staged() -> Iterator[tuple[str, str]]:
    with staged_server() as staged:
        yield staged


def text_of(tab: Tab, selector: str = "main") -> str:
    text: str = tab.value(f"document.querySelector('{selector}').innerText")
    return text


@pytest.mark.parametrize("script", [True, False])
def test_a_person_signs_in_looks_and_leaves(tab: Tab, staged: tuple[str, str], script: bool) -> None:
    url, api_key = staged
    tab.show(width=1280, height=900, script=script)
    tab.open(f"{url}/operator/verdicts")
    assert tab.value("location.pathname") == "/operator/sign-in"
    tab.type_into("#api_key", "svc_test_wrong")
    tab.submit("form")
    assert "This API key is not accepted." in text_of(tab)
    sign_in(tab, url, api_key)
    assert tab.value("location.pathname + location.search") == "/operator"
    assert tab.value("document.cookie") == ""
    overview = text_of(tab)
    assert overview.index("Conflicts") < overview.index("Devices that need a look") < overview.index("Latest")
    assert "a verdict before this one is missing" in overview
    tab.open(f"{url}/operator/devices")
    assert "1,876 behind" in text_of(tab)
    tab.submit("form.out")
    tab.open(f"{url}/operator/devices")
    assert tab.value("location.pathname") == "/operator/sign-in"


def test_every_page_fits_and_nothing_is_blocked(tab: Tab, staged: tuple[str, str]) -> None:
    url, api_key = staged
    tab.show(width=1280, height=900)
    sign_in(tab, url, api_key)
    for width in WIDTHS:
        tab.show(width=width, height=800)
        for path in PAGES.values():
            tab.open(url + path)
            assert tab.value("document.styleSheets.length") == 1
            assert tab.value("document.documentElement.scrollWidth") <= width, (path, width)
            assert tab.complaints() == [], path


LONGEST_NAMES = """
    const names = "h1, .name, td > .word, [data-label=Gate], .conflicts p + p";
    for (const name of document.querySelectorAll(names)) name.textContent = "W".repeat(64);
    for (const code of document.querySelectorAll("[data-label=Validator]")) code.textContent = "W".repeat(32);
    for (const code of document.querySelectorAll(".rows th > code"))
      code.textContent = "verdicts.abstain.GALLERY_EXPIRED";
    document.documentElement.scrollWidth
"""
"""Ids of devices and gates, and words of validators, may be so long; gives how wide the page is then."""


@pytest.mark.parametrize("width", [1280, 970, 768, 320])
def test_the_longest_names_fit(tab: Tab, staged: tuple[str, str], width: int) -> None:
    url, api_key = staged
    tab.show(width=width, height=800)
    sign_in(tab, url, api_key)
    for page in ("", "/devices", "/devices/palm-1047", "/verdicts", "/enrollment", "/erasures"):
        for language in ("en", "pt-BR"):
            tab.open(f"{url}/operator{page}?language={language}")
            assert tab.value(LONGEST_NAMES) <= width, (page, language)


def test_a_page_keeps_itself_current(tab: Tab, staged: tuple[str, str]) -> None:
    url, api_key = staged
    tab.show(width=1280, height=900)
    sign_in(tab, url, api_key)
    tab.value("document.querySelector('h1').textContent = 'old'")
    tab.value("refresh()")
    assert text_of(tab, "h1") == "Overview"
    assert tab.value("document.querySelectorAll('main').length") == 1
    tab.value("window.fetch = () => Promise.reject(new Error('away'))")
    tab.value("refresh()")
    assert "Not current" in tab.value(
        "getComputedStyle(document.querySelector('.fresh'), '::before').content"
    )


def test_a_page_that_is_not_there_is_current_all_the_same(tab: Tab, staged: tuple[str, str]) -> None:
    """The server answers: 404 where there is no such device, 403 where the key has no such scope."""
    url, api_key = staged
    tab.show(width=1280, height=900)
    sign_in(tab, url, api_key)
    tab.open(f"{url}/operator/devices/no-such-gate")
    tab.value("document.querySelector('h1').textContent = 'old'")
    tab.value("refresh()")
    assert tab.value("document.body.classList.contains('stale')") is False
    assert text_of(tab, "h1") == "No such device"


HANGS = """{
  window.asked = 0;
  window.fetch = (_, { signal }) => new Promise((_, fails) => {
    window.asked += 1;
    signal.addEventListener("abort", () => fails(signal.reason));
  });
  const whole = AbortSignal.timeout;
  AbortSignal.timeout = (ms) => whole(ms === 10000 ? window.shortened ?? ms : ms);
}"""
"""From now on nothing is answered, as behind a cable that was pulled somewhere on the way."""


def test_a_server_that_does_not_answer_makes_the_page_say_so(tab: Tab, staged: tuple[str, str]) -> None:
    url, api_key = staged
    tab.show(width=1280, height=900)
    sign_in(tab, url, api_key)
    tab.value(HANGS)
    tab.value("void refresh()")
    tab.value("void refresh()")
    assert tab.value("window.asked") == 1
    tab.open(f"{url}/operator")
    tab.value(HANGS)
    tab.value("window.shortened = 1; void refresh()")
    until(lambda: tab.value("document.body.classList.contains('stale')"))
    said = "getComputedStyle(document.querySelector('.fresh'), '::before').content"
    assert "Not current" in tab.value(said)
    assert "Desatualizado" in tab.value(f"document.documentElement.lang = 'pt-BR', {said}")


SIGN_IN_AGAIN = """(async () => {
  const send = (path, fields) => fetch(path, { method: "POST", body: new URLSearchParams(fields) });
  await send("/operator/sign-out", { form_token: document.querySelector("[name=form_token]").value });
  await send("/operator/sign-in", { api_key: %s });
})()"""
"""As in another tab of the same browser."""


def test_a_page_follows_a_new_visit_of_its_browser(tab: Tab, staged: tuple[str, str]) -> None:
    """The tenant, the key and the button that signs out are those of what is shown."""
    url, api_key = staged
    tab.show(width=1280, height=900)
    sign_in(tab, url, api_key)
    token = "document.querySelector('[name=form_token]')?.value"
    before = tab.value(token)
    tab.value(SIGN_IN_AGAIN % json.dumps(api_key))
    tab.value("void refresh()")
    until(lambda: tab.value(token) not in (None, before))
    tab.submit("form.out")
    assert tab.value("location.pathname") == "/operator/sign-in"


def test_dark_is_dark(tab: Tab, staged: tuple[str, str]) -> None:
    url, _ = staged
    grounds = []
    for dark in (False, True):
        tab.show(width=800, height=600, dark=dark)
        tab.open(f"{url}/docs")
        grounds.append(tab.value("getComputedStyle(document.body).backgroundColor"))
    light, night = (sum(int(part) for part in re.findall(r"\d+", ground)) for ground in grounds)
    assert light > 600 > 150 > night


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2) of ``#rrggbb``."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_text_can_be_read(scheme: int) -> None:
    block = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)[scheme]
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
    pairs = [(text, ground) for text in ("ink", "soft", "accent") for ground in ("ground", "panel")]
    pairs += [
        (tone, ground)
        for tone in ("good", "warn", "bad", "review", "quiet")
        for ground in (f"{tone}-ground", "panel")
    ]
    for text, ground in pairs:
        dark, light = sorted((luminance(colours[text]), luminance(colours[ground])))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


def test_portuguese_and_the_readers_own_zone(tab: Tab, staged: tuple[str, str]) -> None:
    url, api_key = staged
    tab.show(width=1280, height=900, script=True)
    sign_in(tab, url, api_key)
    tab.open(f"{url}/operator/devices?language=pt-BR")
    assert "1.876 atrás" in text_of(tab) and "Dispositivos" in text_of(tab, "h1")
    local = """
        const time = document.querySelector("time.clock");
        const options = { dateStyle: "short", timeStyle: "long" };
        time.textContent === new Date(time.dateTime).toLocaleString("pt-BR", options)
    """
    assert tab.value(f"(() => {{ {local.replace('time.textContent', 'return time.textContent')} }})()")
    tab.open(f"{url}/operator?language=en")
    assert "Devices that need a look" in text_of(tab)
