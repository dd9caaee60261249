"""`palm-update` at work on what palmd has staged, as a program of its own that is recorded.

    python update_workload.py FOLDER CONFIG WITHIN_S [--broken HOW]

HOW leaves out what a power cut must bring to light: the test of the test.
"""

import argparse
import contextlib
import json
import os
import signal
from dataclasses import asdict
from pathlib import Path

import pytest

from device.config.config import load_config
from device.updates import versions
from device.updates.install import TrialSettings, install
from device.updates.versions import Versions

BROKEN = (
    "no way back",
    "way back after the switch",
    "links not synced",
    "files not synced",
    "noted too early",
)


def break_it(how: str) -> None:
    patch = pytest.MonkeyPatch()

    def after_the_switch(self: Versions, version: str) -> None:
        before = self.current
        self._link("current", version)
        self._link("back", before)

    real_note = Versions.note

    def note(self: Versions, installation: versions.Installation) -> None:
        real_note(self, versions.Installation(**{**asdict(installation), "trial": False}))

    match how:
        case "no way back":
            patch.setattr(Versions, "try_out", lambda self, version: self._link("current", version))
        case "way back after the switch":
            patch.setattr(Versions, "try_out", after_the_switch)
        case "links not synced":
            patch.setattr(versions, "sync_folder", lambda _folder: None)
        case "files not synced":
            patch.setattr("device.updates.archive.os.fsync", lambda _descriptor: None)
        case "noted too early":
            patch.setattr(Versions, "note", note)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("config", type=Path)
    parser.add_argument("within_s", type=float)
    parser.add_argument("--broken", choices=BROKEN)
    asked = parser.parse_args()
    if asked.broken:
        break_it(asked.broken)
    folder = asked.folder
    trial = TrialSettings(str(folder / "restart"), steady_s=0.5, within_s=asked.within_s)
    try:
        outcome = install(load_config(asked.config), asked.config, Versions(folder / "opt"), trial)
        assert outcome is not None
        with (folder / "marks").open("a") as marks:
            marks.write(json.dumps({"what": "settled", "code": outcome.code}) + "\n")
    finally:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((folder / "pid").read_text()), signal.SIGKILL)


if __name__ == "__main__":
    main()
