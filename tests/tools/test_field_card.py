"""docs/howto/FIELD.md agrees with the program: checks, commands."""

import re

from device.doctor.examine import CHECKS
from tests import REPOSITORY
from tools.palmctl.main import ADDED_COMMANDS, COMMANDS

CARD = (REPOSITORY / "docs" / "howto" / "FIELD.md").read_text(encoding="utf-8")


def test_the_doctor_is_shown_with_every_check() -> None:
    shown = re.findall(r"^[✓!✗·] (\w+) ", CARD, re.MULTILINE)
    assert shown == list(CHECKS)


def test_every_command_that_is_named_exists() -> None:
    named = set(re.findall(r"palmctl ([a-z][a-z-]+)", CARD))
    assert named <= COMMANDS.keys() | ADDED_COMMANDS.keys()
