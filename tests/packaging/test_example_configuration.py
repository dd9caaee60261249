"""device.toml.example: every member of the configuration, each as the program takes it."""

import contextlib
import re
import tomllib
from pathlib import Path

import pytest

from device.config.config import MEMBERS, parse_config, toml_value
from device.errors import ConfigError
from tools.rig.packaging.deb import SOURCE

TEXT = (SOURCE / "tools/rig/packaging/debian/device.toml.example").read_text(encoding="utf-8")
ALL = re.sub(r"^#(?=[a-z\[])", "", TEXT, flags=re.MULTILINE)
"""The example with everything in it that is commented out."""


def test_it_shows_every_member_and_no_other() -> None:
    shown = {section: set(members) for section, members in tomllib.loads(ALL).items()}
    assert shown == {section: set(members) for section, members in MEMBERS.items()}


def test_what_is_commented_out_is_the_default_or_an_example_that_is_taken() -> None:
    parse_config(ALL.encode(), Path("/etc/palm-access/device.toml"))
    commented = tomllib.loads(ALL)
    for section, members in MEMBERS.items():
        for name, member in members.items():
            if (default := member.default_toml) is not None:
                value = commented[section][name]
                assert toml_value(tuple(value) if isinstance(value, list) else value) == default, name


@pytest.mark.parametrize(("least", "most"), re.findall(r"^.*# .*?(\d+) to (\d+)$", TEXT, re.MULTILINE))
def test_a_range_that_it_names_is_the_one_that_is_taken(least: str, most: str) -> None:
    (line,) = re.findall(rf"^#?(\w+ = ).*{least} to {most}$", TEXT, re.MULTILINE)
    for value, is_taken in ((int(least) - 1, False), (least, True), (most, True), (int(most) + 1, False)):
        text = re.sub(rf"^{line}.*$", f"{line}{value}", ALL, flags=re.MULTILINE)
        with contextlib.nullcontext() if is_taken else pytest.raises(ConfigError):
            parse_config(text.encode(), Path("/etc/palm-access/device.toml"))


def test_as_it_is_it_can_be_used() -> None:
    assert parse_config(TEXT.encode(), Path("/etc/palm-access/device.toml")).cloud is None
