"""docs/tutorials/BACKOFFICE.md is typed from an empty directory: every answer shown is what comes back."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import REPOSITORY
from tests.docs.first_hour import Learned, Place, serve_cloud
from tests.docs.page_commands import Command, commands_in
from tests.until import until
from tools.rig.demo.programs import RunningPrograms, module

PAGE = REPOSITORY / "docs" / "tutorials" / "BACKOFFICE.md"
STEP = re.compile(
    r"^```console\n(.*?)```|^```sh\n(.*?)```(?:\n\n```json\n(.*?)```)?", re.MULTILINE | re.DOTALL
)
# What is another value with every run; everything else must be as it is shown.
CHANGING = re.compile(
    r".*_at(_ms)?|.*_b64|kid|signer_kid|instance|token|qr_payload|short_code|subject_ref|verdict_ref|txn_id"
    r"|next_cursor|since|head16|use|(consent|subject|session|enrollment|receipt|verdict|tenant)_id|stream|not_before|rid|wipe_id|api_key|created_ms|ct_.*"
)


class Reader:
    """Types the page from an empty directory, and takes the page's own values for those of its answers."""

    def __init__(self, place: Place, stage: RunningPrograms) -> None:
        self._place, self._stage = place, stage
        self._own: dict[str, str] = {}
        self.served = self.shown = False

    def type(self, command: str) -> None:
        """A command whose output is not shown: the server's start, values of answers, a file."""
        if command.startswith("palmctl cloud serve"):
            assert command == "palmctl cloud serve --data ./cloud"
            serve_cloud(self._stage, self._place.folder, self._place.learned)
            self._own["http://127.0.0.1:8710"] = self._place.learned["SERVER"]
            self.served = True
        elif command.startswith("palmctl cloud simulate page"):
            self._open_page(command)
        elif command.startswith("export "):
            for assigned in command.split()[1:]:
                name, _, shown = assigned.partition("=")
                assert shown in self._own, f"{name} is in no answer above: {shown}"
                self._place.learned[name] = self._own[shown]
        else:
            self._place.run(Command(command, ()))

    def _open_page(self, command: str) -> None:
        """The page of simulated gates, on a free port: it shows the gates of the folder."""
        replaced = {
            "./cloud": f"{self._place.folder}/cloud",
            "--folder sim": f"--folder {self._place.folder}/sim",
        }
        for name in ("TENANT", "BASE"):
            replaced[f"${name}"] = self._place.learned[name]
        for shown, own in replaced.items():
            command = command.replace(shown, own)
        words = [*command.split()[1:], "--port", "0", "--json"]
        page = self._stage.start("page", module("tools.palmctl.main", *words))
        url = page.wait_line(lambda line: "url" in line, 60)["url"]

        def states() -> dict[str, str]:
            news = httpx.get(f"{url}news", trust_env=False).raise_for_status().json()
            return {gate["device_id"]: gate["state"] for gate in news["gates"]}

        until(lambda: states() == {"gate-7": "lives", "gate-8": "wiped", "gate-9": "lives"})
        self.shown = True

    def ask(self, script: str, shown: str) -> None:
        """A command whose answer is shown."""
        check(json.loads(shown), json.loads(self._place.run(Command(script, ()))), script, self._own)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_page_tells_the_truth(tmp_path: Path) -> None:
    with RunningPrograms(tmp_path) as stage:
        reader = Reader(Place(tmp_path, Learned()), stage)
        for typed, script, shown in STEP.findall(PAGE.read_text(encoding="utf-8")):
            for command in commands_in(typed):
                reader.type(command.text)
            if script:
                assert shown, f"no answer is shown for {script}"
                reader.ask(script, shown)
    assert reader.served and reader.shown


def check(shown: Any, given: Any, where: str, own: dict[str, str], name: str = "") -> None:
    """``given`` has everything that is shown, with the same values but for those that change.

    ``own`` learns what each changing text of the page is in this run.
    """
    if isinstance(shown, dict):
        assert isinstance(given, dict), where
        for member, value in shown.items():
            assert member in given, f"{where}: no {member} in {sorted(given)}"
            check(value, given[member], where, own, member)
    elif isinstance(shown, list):
        assert len(shown) <= len(given), where
        for one, other in zip(shown, given, strict=False):
            check(one, other, where, own, name)
    elif CHANGING.fullmatch(name):
        assert type(shown) is type(given), f"{where}: {name}"
        if isinstance(shown, str):
            own[shown] = given
    else:
        assert shown == given, f"{where}: {name}"
