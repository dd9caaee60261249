"""docs/tutorials/VALIDATOR.md agrees with the tools: options, faults, tables of the vectors, ids of rules."""

import json
import re

import click

from link1.envelope import Role
from tests import REPOSITORY
from tools.kit.commands.dbd import conform, simulate
from tools.kit.commands.link import monitor
from tools.kit.conform.runner import rules_for
from tools.kit.golden.vectors import FILE
from tools.kit.simulate.faults import Fault

PAGE = REPOSITORY / "docs" / "tutorials" / "VALIDATOR.md"
TEXT = PAGE.read_text(encoding="utf-8")


def options_of(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts if name.startswith("--")}


def test_every_option_on_the_page_is_one() -> None:
    known = options_of(conform) | options_of(simulate) | options_of(monitor) | {"--show-close", "--generate"}
    assert set(re.findall(r"--[a-z][a-z0-9-]+", TEXT)) <= known


def test_every_fault_is_on_the_page_and_no_other() -> None:
    section = TEXT.split("## 6.")[1].split("## 7.")[0]
    assert re.findall(r"^\| `([a-z-]+)`", section, re.MULTILINE) == [fault.value for fault in Fault]


def test_the_tables_of_the_vectors_are_named() -> None:
    section = TEXT.split("## 2.")[1].split("## 3.")[0]
    tables = set(json.loads(FILE.read_text(encoding="utf-8"))) - {"about", "keys", "tags"}
    assert set(re.findall(r"^\| `([a-z_]+)`", section, re.MULTILINE)) == tables


def test_the_rules_on_the_page_exist() -> None:
    ids = {rule.id for role in Role for rule in rules_for(role)}
    shown = re.findall(r"(?:PASS|FAIL|NOT TRIED) +([a-z]+\.[a-z_]+)", TEXT)
    assert shown
    assert set(shown) <= ids
    for path in re.findall(r"tools/kit/wireshark/[a-z0-9.]+", TEXT):
        assert (REPOSITORY / path).exists()
