"""The registrations of docs/tutorials/INSTALL.md, online and over a stick, in a folder of this machine.

The whole page is run by tests/docs/trees, on a Debian that is booted for it.
"""

import re
from pathlib import Path

import pytest

from device.config.config import load_config
from link1.keys import PublicKey
from tests.docs.first_hour import Learned, Place, serve_cloud, told_apart
from tests.docs.page_commands import DOCS, Command, blocks_of, check_shown
from tools.rig.demo.programs import RunningPrograms

PAGE = DOCS / "tutorials/INSTALL.md"


def places(folder: Path) -> str:
    """Options that keep a device's files in a folder."""
    return f"--config {folder}/device.toml --state-dir {folder}/state --runtime-dir {folder}/run"


def test_both_boards_become_devices(tmp_path: Path) -> None:
    learned, stage = Learned(FOLDER=str(tmp_path / "here")), RunningPrograms(tmp_path)
    service = Place(tmp_path / "here", learned)
    online = Place(tmp_path / "online", learned, places(tmp_path / "online"))
    bare = Place(tmp_path / "here", Learned(), places(tmp_path / "here"))

    def type_in(place: str, command: Command) -> str:
        if place == "service":
            return service.run(command)
        if place == "board":
            (online.folder / "string.txt").write_text(learned["STRING"])
            return online.run(command)
        bare.learned["ROOT_KID"] = learned.get("ROOT_KID", "")
        printed = bare.run(command)
        learned["FINGERPRINT"] = bare.learned["FINGERPRINT"]
        return printed

    done = 0
    with stage:
        serve_cloud(stage, service.folder, learned)
        for block in blocks_of(PAGE):
            for command in block.commands:
                if block.place == "service" or "palmctl provision" in command.text:
                    printed = type_in(block.place, command)
                    # Where its files are is another place here; all else is as the page shows it.
                    shown = [
                        line for line in command.shown if "/palm-access" not in line and "/root/" not in line
                    ]
                    check_shown(shown, told_apart(learned, printed))
                    done += "provision" in command.text
    assert done == 3
    first, second = (load_config(tmp_path / name / "device.toml") for name in ("online", "here"))
    assert first.cloud is not None and first.device.id == "gate-7-left"
    assert second.cloud is None and second.device.id == "gate-8-left"


@pytest.mark.parametrize("name", ["tutorials/INSTALL.md", "pt-BR/INSTALL.md"])
def test_the_status_shows_the_key_of_the_board_that_the_doctor_looked_at(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    key, kid = (
        re.search(line, text, re.MULTILINE)
        for line in (r"^  (?:key|chave) +(\S+=) \(", r"^✓ provisioned .* ([0-9a-f]{32}), ")
    )
    assert key is not None and kid is not None
    assert PublicKey.from_b64(key[1]).kid == kid[1]
