"""docs/howto/FIELD.md agrees with the program: health words, checks, commands, defaults."""

import re

from device.config.doc import defaults_text
from device.doctor.examine import CHECKS
from device.health import NOT_SERVING, HealthWord
from tests import REPOSITORY
from tools.palmctl.main import ADDED_COMMANDS, COMMANDS

CARD = (REPOSITORY / "docs" / "howto" / "FIELD.md").read_text(encoding="utf-8")


def test_every_health_word_has_a_row_and_bold_ones_stop_recognition() -> None:
    found = {word: bool(bold) for bold, word in re.findall(r"^\| (\**)`([A-Z_]+)`", CARD, re.MULTILINE)}
    assert found == {str(word): word in NOT_SERVING for word in HealthWord}


def test_the_doctor_is_shown_with_every_check() -> None:
    shown = re.findall(r"^[✓!✗·] (\w+) ", CARD, re.MULTILINE)
    assert shown == list(CHECKS)


def test_every_command_that_is_named_exists() -> None:
    named = set(re.findall(r"palmctl ([a-z][a-z-]+)", CARD))
    assert named <= COMMANDS.keys() | ADDED_COMMANDS.keys()


def test_the_defaults_are_those_of_the_program() -> None:
    assert defaults_text() in CARD
