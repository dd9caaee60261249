"""The playground: every button in a real browser, and a run that is saved, refused and replayed."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import REPOSITORY
from tests.palmctl import PALMCTL
from tests.until import until
from tools.rig.browser import Tab
from tools.rig.playground.run_file import (
    ABOUT_SOMEONE,
    ADVANCE_MS,
    MOST_ADVANCES,
    MOST_BYTES,
    PEOPLE,
    SLICE_MS,
    BadRunFile,
    Button,
    Press,
    RunFile,
    read_run,
    write_run,
)

DIGEST = "0" * 64
WITHIN_S = 120.0


def palmctl(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [*PALMCTL, "playground", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def run_of(*presses: Press, until_ms: int) -> RunFile:
    return RunFile("0.1.0", 1, presses, until_ms, 1, DIGEST)


# The file


@st.composite
def runs(draw: st.DrawFn) -> RunFile:
    at_ms, presses = 0, []
    for button in draw(st.lists(st.sampled_from(Button), max_size=6)):
        at_ms += SLICE_MS * draw(st.integers(0, 400))
        who = draw(st.sampled_from(PEOPLE)) if button in ABOUT_SOMEONE else ""
        presses.append(Press(at_ms, button, who))
        at_ms += ADVANCE_MS if button is Button.ADVANCE else 0
    return RunFile(
        "0.1.0", draw(st.integers(0, 2**32 - 1)), tuple(presses), at_ms, draw(st.integers(0, 9)), DIGEST
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(runs())
def test_a_file_is_read_as_it_was_written(run: RunFile) -> None:
    assert read_run(write_run(run)) == run


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": "something"}, "no run of the playground"),
        ({"version": 2}, "version 2; this palmctl replays 1"),
        ({"seed": -1}, '"seed" must be a whole number'),
        ({"seed": True}, '"seed" must be a whole number'),
        ({"presses": {}}, '"presses" must be a list'),
        ({"presses": ["palm"]}, "press 1 is not an object"),
        ({"presses": [{"at_ms": 0, "button": "fly"}]}, "unknown button, 'fly'"),
        ({"presses": [{"at_ms": 0, "button": "palm", "who": "Zoe"}]}, "about one of Ana"),
        ({"presses": [{"at_ms": 0, "button": "palm", "who": ["Ana"]}]}, "about one of Ana"),
        ({"presses": [{"at_ms": 0, "button": "steal", "who": "Ana"}]}, "about no person"),
        ({"presses": [{"at_ms": 7, "button": "steal"}]}, "no multiple of 50"),
        ({"presses": [{"at_ms": 100, "button": "steal"}], "until_ms": 50}, "not in order"),
        ({"presses": [{"at_ms": 0, "button": "advance"}], "until_ms": 50}, "not in order"),
        ({"until_ms": 3 * 3_600_000}, "longer than two hours"),
        ({"until_ms": 10**15}, '"until_ms" must be a whole number'),
        ({"sha256": "0" * 65}, '"sha256" must be a text of at most 64'),
    ],
)
def test_another_file_is_refused(change: dict[str, Any], why: str) -> None:
    obj = json.loads(write_run(run_of(until_ms=1_000))) | change
    with pytest.raises(BadRunFile, match=why):
        read_run(json.dumps(obj))


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, "null", "7", '"palm"', "\0"])
def test_garbage_is_refused(text: str) -> None:
    with pytest.raises(BadRunFile, match=r"not JSON|no run of the playground"):
        read_run(text)


def test_the_cost_of_a_file_is_bounded() -> None:
    with pytest.raises(BadRunFile, match="a run has at most"):
        read_run(" " * (MOST_BYTES + 1))
    often = [Press(ADVANCE_MS * number, Button.ADVANCE) for number in range(MOST_ADVANCES + 1)]
    with pytest.raises(BadRunFile, match=f"at most {MOST_ADVANCES} are replayed"):
        read_run(write_run(run_of(*often, until_ms=ADVANCE_MS * MOST_ADVANCES)))


def test_the_command_says_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    done = palmctl(str(tmp_path / "run.json"))
    assert done.returncode == 1
    assert "run.json: the file is no run of the playground" in done.stderr


@pytest.mark.long
def test_a_replay_that_differs_says_so(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(write_run(run_of(until_ms=SLICE_MS)))
    done = palmctl(str(tmp_path / "run.json"), "--json")
    assert done.returncode == 1
    assert "events that differ from the file's 1" in done.stderr
    assert json.loads(done.stdout.splitlines()[0])["n"] == 1


@pytest.mark.long
def test_a_button_that_does_nothing_at_its_time_is_refused(tmp_path: Path) -> None:
    twice = [Press(at_ms, Button.PULL_CABLE) for at_ms in (0, SLICE_MS)]
    (tmp_path / "run.json").write_text(write_run(run_of(*twice, until_ms=SLICE_MS * 3)))
    done = palmctl(str(tmp_path / "run.json"), "--json")
    assert done.returncode == 1
    assert "pull_cable does nothing at 50 ms of this run" in done.stderr


# The page


@contextmanager
def page() -> Iterator[str]:
    """A playground and its address; it ends well."""
    command = [*PALMCTL, "playground", "--json", "--port", "0"]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


class Player:
    """A person at the page: presses what can be pressed, and reads."""

    def __init__(self, tab: Tab, url: str) -> None:
        self.tab = tab
        tab.show(width=1440, height=900)
        tab.open(url)
        self.sees("session", "up")

    def text(self, element: str) -> str:
        found: str = self.tab.value(f"document.getElementById({json.dumps(element)}).textContent")
        return found

    def sees(self, element: str, text: str) -> None:
        until(lambda: text in self.text(element), WITHIN_S)

    def hears(self, text: str) -> None:
        """Among the events there is a line with this text."""
        until(lambda: text in self.tab.value("document.getElementById('events').innerText"), WITHIN_S)

    def press(self, button: str, who: str | None = None) -> None:
        selector = f"[data-button={button}]" + ("" if who is None else f"[data-who='{who}']")
        self.press_on(selector)

    def press_on(self, selector: str) -> None:
        found = f"document.querySelector({json.dumps(selector)})"
        until(lambda: not self.tab.value(f"{found}.disabled"), WITHIN_S)
        self.tab.value(f"{found}.click()")

    def passage(self, button: str, who: str, said: str, outcome: str) -> None:
        """Show a hand; the next verdict is `said`."""
        before = self.text("last-seq")
        self.press(button, who)
        until(lambda: self.text("last-seq") != before, WITHIN_S)
        self.sees("proof", said)
        self.sees("outcome", outcome)

    def saved(self) -> str:
        run: str = self.tab.value("fetch('run.json').then((answer) => answer.text())")
        return run

    def replay(self, text: str) -> None:
        """Choose a file, as the button does."""
        self.tab.value(
            "(() => { const held = new DataTransfer(); const input = document.getElementById('file');"
            f" held.items.add(new File([{json.dumps(text)}], 'run.json')); input.files = held.files;"
            " input.dispatchEvent(new Event('change')); })()"
        )


@pytest.mark.long
@pytest.mark.timeout(400)
def test_every_button_but_the_clocks(tab: Tab, tmp_path: Path) -> None:
    with page() as url:
        player = Player(tab, url)
        player.press_on("[data-pace='10']")
        player.passage("palm", "Ana", "accept MATCH", "LIBERAR")
        assert player.text("why").startswith("Ana, ")
        player.hears("device → validator verdict #1 MATCH")
        player.hears("validator → device decision LIBERAR ok")
        player.hears("device → service POST /v1/verdicts/batch")
        player.passage("stranger", "", "reject NO_MATCH", "BLOQUEAR")
        player.passage("poor", "Clara", "abstain POOR_CAPTURE", "BLOQUEAR")
        player.press("erase", "Bento")
        player.hears("Bento is erased at the service; receipt")
        player.hears("Bento is gone from the device's gallery")
        player.sees("service-people", "3")
        player.passage("palm", "Bento", "reject NO_MATCH", "BLOQUEAR")
        player.press_on("[data-toggle=cable]")
        player.sees("session", "down")
        player.sees("health", "LINK_DOWN")
        player.press_on("[data-toggle=cable]")
        player.sees("session", "up")
        player.press_on("[data-toggle=network]")
        player.sees("health", "OFFLINE")
        player.passage("palm", "Davi", "accept MATCH", "LIBERAR")
        until(lambda: int(player.text("device-uploads")) > 0, 30)
        player.press("erase", "Clara")
        player.sees("service-gallery", "1 / 26")
        player.sees("device-gallery", "1 / 25")
        player.press_on("[data-toggle=network]")
        player.hears("Clara is gone from the device's gallery")
        until(lambda: player.text("device-uploads") == "0", 30)
        # One event is opened, and decoded.
        tab.value("document.querySelector('#events .from-validator summary').click()")
        assert '"sig_b64"' in tab.value("document.querySelector('#events pre').textContent")
        player.press("steal")
        player.sees("wiped", "On its disk is left: wipe.json")
        player.sees("device-state", "wiped")
        run = player.saved()
        player.press_on("[data-pace='0']")
        player.replay(run.replace('"button": "poor"', '"button": "fly"'))
        player.sees("notice", "press 3 is of an unknown button, 'fly'")
        tab.value("document.getElementById('seed').value = '2'")
        player.press_on("[data-pace='10']")
        tab.value("document.getElementById('begin').requestSubmit()")
        until(lambda: json.loads(player.saved() or '{"seed": 1}')["seed"] == 2, WITHIN_S)
        assert tab.complaints() == [
            "Failed to load resource: the server responded with a status of 400 (Bad Request)"
        ]
    # The file is the run: elsewhere, and at once, it gives the same events.
    (tmp_path / "run.json").write_text(run)
    done = palmctl(str(tmp_path / "run.json"), "--json")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == json.loads(run)["events"]
    assert sum('"what":"verdict"' in line for line in lines) == 5
    assert json.loads(lines[-1])["n"] == len(lines)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_six_hours_without_the_network_and_a_thief_without_one(tab: Tab) -> None:
    with page() as url:
        player = Player(tab, url)
        player.press_on("[data-toggle=network]")
        player.press("advance")
        player.sees("device-fresh", "expired")
        player.sees("health", "GALLERY_STALE")
        player.passage("palm", "Ana", "abstain GALLERY_EXPIRED", "BLOQUEAR")
        player.press("steal")
        player.sees("wiped", "it has no contact yet")
        player.press_on("[data-toggle=network]")
        player.sees("wiped", "On its disk is left: wipe.json")
        player.replay(player.saved())
        until(lambda: "byte for byte" in player.text("notice"), 300)
        player.sees("wiped", "On its disk is left: wipe.json")


CUT_OFF: Final = """
    [...document.querySelectorAll("button, .button, .node h2")]
      .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.innerText)
"""


def fits(tab: Tab) -> None:
    for width in (1440, 1280, 1000, 768, 320):
        for dark in (False, True):
            tab.show(width=width, height=800, dark=dark)
            assert tab.value("document.documentElement.scrollWidth") <= width, width
            assert tab.value(CUT_OFF) == [], width


def test_the_page_fits_is_quick_and_speaks_portuguese(tab: Tab) -> None:
    began_s = time.monotonic()
    with page() as url:
        player = Player(tab, url)
        fits(tab)
        assert tab.value("document.styleSheets.length") == 1
        palm = "document.querySelector('[data-who=Ana][data-button=palm]')"
        until(lambda: not tab.value(f"{palm}.disabled"), 10)
        tab.value(f"{palm}.focus()")
        assert tab.focused() == ("button", "Show palm: Ana")
        tab.press("Enter")
        player.hears("accept MATCH · Ana → LIBERAR")
        assert time.monotonic() - began_s < 60, "from the command to the first signed verdict"
        agent = tab.value("navigator.userAgent")
        tab.call("Emulation.setUserAgentOverride", userAgent=agent, acceptLanguage="pt-BR")
        try:
            tab.open(url)
            player.hears("A pessoa passou pela catraca")
            player.sees("why", "Reconhecimento confirmado")
            english = [
                text
                for text in json.loads(tab.value("JSON.stringify(Object.keys(PORTUGUESE))"))
                if len(text) > 5 and tab.value(f"document.body.innerText.includes({json.dumps(text)})")
            ]
            # Words of the contract stay as they are.
            assert [text for text in english if text not in ("passed", "verdict")] == []
            fits(tab)
        finally:
            tab.call("Emulation.setUserAgentOverride", userAgent=agent, acceptLanguage="en")
        assert tab.complaints() == []
