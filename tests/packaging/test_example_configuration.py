"""device.toml.example: every member of the configuration, each as the program takes it."""

import re
import tomllib
from pathlib import Path

from device.config.config import MEMBERS, parse_config, toml_value
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


def test_as_it_is_it_can_be_used() -> None:
    assert parse_config(TEXT.encode(), Path("/etc/palm-access/device.toml")).cloud is None
