"""The page of simulated gates as its picture shows it: palms, a stranger, a late decision, a revoked gate."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tools.rig.browser import Tab, save
from tools.rig.demo.back_office import BackOffice
from tools.rig.demo.programs import RunningPrograms, module, palmctl
from tools.rig.demo.setting import start_cloud
from tools.rig.demo.waiting import wait_until
from tools.rig.pictures.device_stage import Quiet

_SIZE: Final = (1180, 1130)
_WITHIN_S: Final = 60.0
_GATES: Final = (("gate-7", "g1"), ("gate-8", "g1"), ("gate-9", "g2", "--passage-sensor"))


@contextmanager
def _staged(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The page's address, and the short codes of two people's sessions."""
    with RunningPrograms(folder) as stage:
        cloud = start_cloud(Quiet(), folder, stage)
        of = [*cloud.place, "--url", cloud.url, "--folder", str(folder / "sim")]
        for device_id, gate_id, *more in _GATES:
            gate = ("--device-id", device_id, "--gate-id", gate_id, *more)
            palmctl("cloud", "simulate", "gate", *of, *gate)
        with BackOffice(cloud.url, cloud.api_key) as office:
            people = [office.create_person(f"account-{number}", f"card:{number}") for number in (17, 18, 19)]
            codes = [office.open_enrolment(person["subject_id"])["short_code"] for person in people[:2]]
        words = ("cloud", "simulate", "page", *of, "--port", "0", "--json")
        page = stage.start("page", module("tools.palmctl.main", *words))
        yield page.wait_line(lambda line: "url" in line, _WITHIN_S)["url"], codes


def photograph_gates(tab: Tab, folder: Path) -> None:
    """Press some buttons, and write `simulated-gates.png`."""
    with tempfile.TemporaryDirectory(prefix="palm-gates-") as place, _staged(Path(place)) as (url, codes):
        tab.show(width=_SIZE[0], height=_SIZE[1])
        tab.open(url)
        _wait(tab, "document.querySelectorAll('#gates .good').length >= 3")
        for code in codes:
            _choose(tab, "code", code)
            _press(tab, "#enrol button", "completed")
        _choose(tab, "code", "")
        _choose(tab, "gate", "gate-9")
        _press(tab, "[aria-label='Show palm: account-17']", "LIBERAR")
        _press(tab, "[aria-label='Passed: gate-9']", "passed")
        _press(tab, "[aria-label='Revoke: gate-8']", "revoked")
        _wait(tab, "document.querySelector('#gates tr.bad') !== null")
        _choose(tab, "gate", "gate-7")
        _press(tab, "[data-result=stranger]", "reject NO_MATCH")
        _choose(tab, "decision", "late_s=30")
        _press(tab, "[aria-label='Show palm: account-18']", "under way")
        _choose(tab, "decision", "")
        gates = "document.querySelector('#gates').innerText"
        _wait(tab, f"{gates}.includes('no decision') && !{gates}.includes('waiting uploads')")
        save(tab.photograph(), folder / "simulated-gates.png")


def _choose(tab: Tab, field: str, value: str) -> None:
    tab.value(f"document.getElementById('{field}').value = {json.dumps(value)}")


def _press(tab: Tab, button: str, said: str) -> None:
    """Press a button and wait until the newest command's event says this."""
    event = "document.querySelector('#events li:has(.gist + code)')"
    before = tab.value(f"{event}?.dataset.key ?? ''")
    tab.value(f"document.querySelector({json.dumps(button)}).click()")
    _wait(tab, f"{event} !== null && {event}.dataset.key !== {json.dumps(before)}")
    _wait(tab, f"{event}.innerText.includes({json.dumps(said)})")


def _wait(tab: Tab, shown: str) -> None:
    wait_until(f"the page of simulated gates to show {shown}", _WITHIN_S, lambda: bool(tab.value(shown)))
