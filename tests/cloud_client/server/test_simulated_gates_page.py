"""The page of simulated gates in a real browser, against a server in another process."""

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from tests.cloud_client.server.server_process import new_account, post
from tests.cloud_client.server.simulated_site import SimulatedSite
from tests.palmctl import PALMCTL
from tests.until import until
from tools.palmctl.main import main
from tools.rig.browser import Tab

CPF = "52998224725"
WITHIN_S = 30.0


@contextmanager
def served(site: SimulatedSite) -> Iterator[str]:
    """A running page's address; it ends with Ctrl-C."""
    command = [*PALMCTL, "cloud", "simulate", "page", "--port", "0", "--json"]
    of = ["--tenant", site.tenant, "--mode", "test", "--url", site.running.url, "--folder", str(site.folder)]
    process = subprocess.Popen([*command, *site.running.where, *of], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    finally:
        process.kill()
        process.communicate()


class Developer:
    """A person at the page: presses, chooses, types and reads."""

    def __init__(self, tab: Tab, url: str) -> None:
        self.tab = tab
        tab.show(width=1280, height=900)
        tab.open(url)
        self.sees("#gates", "gate-1")

    def sees(self, selector: str, text: str) -> None:
        until(lambda: text in self.text(selector), WITHIN_S, every_s=0.03)

    def text(self, selector: str) -> str:
        text: str = self.tab.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        return text

    def press(self, selector: str, said: str) -> dict[str, Any]:
        """Press a button; the newest command's event ends with `said`, and has this result."""
        before = self.newest()
        found = f"document.querySelector({json.dumps(selector)})"
        until(lambda: self.tab.value(f"{found} !== null && !{found}.disabled"), WITHIN_S, every_s=0.03)
        self.tab.value(f"{found}.click()")
        until(lambda: self.newest() > before, WITHIN_S, every_s=0.03)
        event = "#events li:has(.gist + code)"
        self.sees(f"{event} .gist", said)
        result = f"document.querySelector('{event} pre')?.textContent ?? '{{}}'"
        printed: dict[str, Any] = json.loads(self.tab.value(result))
        return printed

    def newest(self) -> int:
        """The number of the newest command's event."""
        number = "Number(document.querySelector('#events li:has(.gist + code)')?.dataset.key ?? 0)"
        return int(self.tab.value(number))

    def at(self, device_id: str, verb: str, said: str) -> dict[str, Any]:
        return self.press(f"#gates button[aria-label='{verb}: {device_id}']", said)

    def choose(self, **choices: str) -> None:
        for name, value in choices.items():
            self.tab.value(f"document.getElementById('{name}').value = {json.dumps(value)}")

    def news(self) -> str:
        news: str = self.tab.value("fetch('news').then((answer) => answer.text())")
        return news

    def posts(self, body: dict[str, Any]) -> int:
        """The status of a press that no button of the page makes."""
        init = {"method": "POST", "headers": {"Content-Type": "application/json"}, "body": json.dumps(body)}
        status: int = self.tab.value(f"fetch('press', {json.dumps(init)}).then((answer) => answer.status)")
        return status


def test_every_button_does_what_its_command_does(site: SimulatedSite, tab: Tab) -> None:
    person = post(site.office, "/v1/subjects", {"external_ref": new_account(), "cpf": CPF}).json()
    first, second = site.session(person["subject_id"]), site.session()
    with served(site) as url:
        developer = Developer(tab, url)
        # Another gate, by the keyboard.
        tab.type_into("#device_id", "gate-9")
        tab.type_into("#gate_id", "g2")
        tab.value("document.getElementById('passage_sensor').focus()")
        tab.press(" ")
        tab.press("Tab")
        assert tab.focused() == ("button", "Make the gate")
        tab.press("Enter")
        developer.sees("#gates tr[data-key='gate-9']", "lives")
        assert site.device("gate-9")["gate_id"] == "g2"

        developer.choose(code="0000-0000")
        developer.press("#enrol button", "enrollment_session_invalid")
        developer.choose(code=first["short_code"], seed="7")
        developer.press("#enrol button", "enrolment: completed")
        developer.choose(code=second["qr_payload"], seed="")
        developer.press("#fail", "enrolment: failed")
        developer.sees(f"#people li[data-key='{person['subject_id']}']", "active")

        developer.choose(gate="gate-1")
        palm = f"#people li[data-key='{person['subject_id']}'] button"
        accepted = developer.press(palm, "accept MATCH → LIBERAR")
        assert site.record(accepted["verdict_id"])["subject_id"] == person["subject_id"]
        developer.sees("#gates tr[data-key='gate-1']", f"accept MATCH · {person['external_ref']}")
        command = developer.text("#events li:has(.gist + code) code")
        assert command.endswith(
            f"pass --folder {site.folder} --device-id gate-1 --subject-id {person['subject_id']}"
        )
        developer.choose(decision="outcome=BLOQUEAR")
        developer.press(palm, "accept MATCH → BLOQUEAR")
        developer.choose(decision="", ago="3600")
        old = site.record(developer.press("[data-result=poor_capture]", "abstain POOR_CAPTURE")["verdict_id"])
        assert old["decided_at"] < site.record(accepted["verdict_id"])["decided_at"]
        # A late decision is about its own verdict, also when another person came meanwhile.
        tab.value("document.querySelector('#decision [value^=late]').value = 'late_s=1'")
        developer.choose(decision="late_s=1", ago="")
        developer.press("[data-result=stranger]", "under way")
        developer.choose(decision="lost_decision")
        lost = developer.press("[data-result=spoof]", "reject SPOOF → the decision is lost")
        assert site.record(lost["verdict_id"])["reconciliation"] == "outcome_unknown"
        until(lambda: "under way" not in developer.text("#events"), WITHIN_S, every_s=0.03)
        changes = site.office.get("/v1/verdict-changes").json()["data"]
        assert {each["reconciliation"] for each in changes} == {"complete", "outcome_unknown"}
        assert len(changes) == 5

        developer.choose(gate="gate-9", decision="outcome=LIBERAR")
        for verb, seen, cause in (("Passed", "passed", True), ("Did not pass", "did not pass", False)):
            turned = developer.press("[data-result=stranger]", "reject NO_MATCH → LIBERAR")
            developer.at("gate-9", verb, f"gate-9: {seen}")
            assert site.proof(turned["verdict_id"])["signed_passage"]["passage"]["passed"] is cause
            developer.sees("#gates tr[data-key='gate-9']", f"LIBERAR, {seen}")
        record = developer.at("gate-1", "Mail", "a record for the outbox")
        assert post(site.office, "/v1/devices/gate-1/outbox", record).json()["accepted"] == [1]
        developer.at("gate-1", "Sync", "gallery 1.2, 2 palms")

        keys_reach_every_button(tab)
        shown = developer.news()
        assert CPF not in shown and "vector" not in shown and person["external_ref"] in shown
        for verb, options in (("run", {}), ("pass", {"spoof": "x"}), ("pass", {"fly": True})):
            assert developer.posts({"verb": verb, "options": {"device_id": "gate-1"} | options}) == 400
        elsewhere = {"device_id": "gate-1", "folder": "/elsewhere"}
        assert developer.posts({"verb": "sync", "options": elsewhere}) == 202
        assert "/elsewhere" not in developer.news()

        developer.at("gate-1", "Revoke", "gate-1: revoked")
        tab.value("document.querySelector(\"#gates [aria-label='Sync: gate-1']\").click()")
        developer.sees("#gates tr[data-key='gate-1']", "wiped")
        developer.sees("#events", "gate-1 was revoked")  # said by the gate itself, whichever command wiped it
        assert site.device("gate-1")["status"] == "wiped"
        assert tab.value("document.querySelectorAll('#gates tr[data-key=gate-1] button:enabled').length") == 0
        assert tab.value("document.getElementById('gate').value") == "gate-9"
        tab.value(f"notice({json.dumps('x' * 200)}, 'bad')")
        for width in (1280, 768, 360):
            tab.show(width=width, height=800)
            assert tab.value("document.documentElement.scrollWidth") <= width, width
        refused = "Failed to load resource: the server responded with a status of 400 (Bad Request)"
        assert tab.complaints() == [refused] * 3


def test_the_page_says_that_it_lists_the_newest_people_only(site: SimulatedSite, tab: Tab) -> None:
    people, note = "document.querySelectorAll('#people li').length", "document.getElementById('older-people')"
    with served(site) as url, site.running.partner(site.tenant) as another:
        developer = Developer(tab, url)
        developer.sees("#no-people", "No person is on file")
        for office, count in ((site.office, 25), (another, 25)):  # a key may write 40 at once
            for _ in range(count):
                assert post(office, "/v1/subjects", {"external_ref": new_account()}).status_code == 201
        until(lambda: tab.value(people) == 50, WITHIN_S, every_s=0.03)
        assert tab.value(f"{note}.checkVisibility()") is False
        post(another, "/v1/subjects", {"external_ref": new_account()})
        until(lambda: tab.value(f"{note}.checkVisibility()"), WITHIN_S, every_s=0.03)
        assert tab.value(people) == 50


def test_a_gate_that_is_still_being_copied_lives_once_it_is_whole(site: SimulatedSite, tab: Tab) -> None:
    whole = site.folder / "gate-1.gate"
    copied = site.folder / "gate-2.gate"
    with served(site) as url:
        developer = Developer(tab, url)
        copied.mkdir()
        developer.sees("#events", "does not exist")
        shutil.copytree(whole, copied, dirs_exist_ok=True)
        until(lambda: developer.news().count('"state": "lives"') == 2, WITHIN_S, every_s=0.03)


def keys_reach_every_button(tab: Tab) -> None:
    """Tab alone leads to each control that can be used, in the order of the page."""
    controls = (
        "[...document.querySelectorAll('button, input, select, summary')].filter((one) => !one.disabled)"
    )
    tab.value(f"window.controls = {controls}; document.getElementById('main').focus()")
    reached = []
    for _ in range(tab.value("window.controls.length")):
        tab.press("Tab")
        reached.append(tab.value("window.controls.indexOf(document.activeElement)"))
    assert reached == list(range(len(reached)))


def test_the_page_is_refused_for_live_and_without_a_tenant(tmp_path: Path) -> None:
    where = ["--data", str(tmp_path / "data"), "--folder", str(tmp_path), "--url", "http://127.0.0.1:8710"]

    def tried(command: str, mode: str, *more: str) -> Result:
        words = ["cloud", "simulate", command, *where, "--tenant", "acme", "--mode", mode, *more]
        return CliRunner().invoke(main, words)

    refused = (tried("page", "live"), tried("gate", "live", "--device-id", "gate-1", "--gate-id", "g1"))
    assert [each.exit_code for each in refused] == [2, 2]
    for each in refused:
        assert "--mode: gates are simulated in test mode only; expected test, found live" in each.stderr
    unknown = tried("page", "test")
    assert unknown.exit_code == 1 and "no such tenant" in unknown.stderr
