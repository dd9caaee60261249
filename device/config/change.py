"""Changes one member of the configuration file in place; comments, order and everything else are kept."""

import contextlib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from device.config.config import (
    MEMBERS,
    DeviceConfig,
    Locations,
    lines_of,
    parse_config,
    read_toml,
    toml_value,
)
from device.config.values import WrongValue, nearest
from device.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Changed:
    """The text of the file after the change, its configuration, and the member's previous value, if any."""

    text: str
    config: DeviceConfig
    before: str | None
    after: str


def change_member(text: str, path: Path, name: str, value: str) -> Changed:
    """`text` with SECTION.MEMBER `name` set to `value`, which is TOML or a bare string or path.

    Raises ConfigError: an unknown name, a value that the member does not accept, a file that becomes invalid,
    or a spelling of the member that cannot be changed safely.
    """
    section, _, member = name.partition(".")
    toml = toml_value(_typed(name, value, path))
    expected = read_toml(text.encode("utf-8"), path)[1]
    table = expected.setdefault(section, {})
    if not isinstance(table, dict):
        raise ConfigError((f"{path}: {section} is not a table; correct it with an editor",))
    before = table.get(member)
    changed = _put(text, section, member, toml)
    table[member] = tomllib.loads(f"v = {toml}")["v"]
    if not _says(changed, expected, path):
        what = f"{path}: [{section}] {member} is written in a form that cannot be changed automatically"
        raise ConfigError((f"{what}; use an editor, then run: palmctl config check",))
    config = parse_config(changed.encode("utf-8"), path)
    return Changed(changed, config, None if before is None else _shown(before), toml)


def _says(text: str, expected: dict[str, Any], path: Path) -> bool:
    """Whether `text` is TOML, and this document."""
    try:
        return read_toml(text.encode("utf-8"), path)[1] == expected
    except ConfigError:
        return False


def _typed(name: str, value: str, path: Path) -> object:
    """The TOML value denoted by `value`, if the member accepts it."""
    section, _, member = name.partition(".")
    if member not in MEMBERS.get(section, {}):
        names = [f"{table}.{of}" for table, members in MEMBERS.items() for of in members]
        what = f"{name} is not a member of the configuration{nearest(name, names)}"
        raise ConfigError((f"{what}; see: palmctl config show --defaults",))
    parser = MEMBERS[section][member].parse
    readings: list[object] = [value]
    with contextlib.suppress(ValueError, RecursionError):  # most bare strings are not TOML
        readings.insert(0, tomllib.loads(f"v = {value}")["v"])
    problem = ""
    for reading in readings:
        try:
            parser(reading, path.parent)
        except WrongValue as error:
            problem = problem or str(error)
        else:
            return tuple(reading) if isinstance(reading, list) else reading
    raise ConfigError((f"{name}: expected {parser.expected}, found {problem}",))


def _put(text: str, section: str, member: str, toml: str) -> str:
    """Replace the member's line, or add a line at the end of its section, or add a section."""
    end = "\r\n" if "\r\n" in text else "\n"
    lines = lines_of(text)
    locations = Locations(text)
    start = locations.line_of(section, None)
    if start is None or locations.line_of("", section) == start:
        return end.join([*lines, *([""] if lines else []), f"[{section}]", f"{member} = {toml}", ""])
    number = locations.line_of(section, member)
    if number is not None and number != start:
        lines[number - 1] = _replaced(lines[number - 1], member, toml)
    else:
        last = start
        for index in range(start, len(lines)):
            if lines[index].lstrip().startswith("["):
                break
            if lines[index].strip():
                last = index + 1
        lines.insert(last, f"{member} = {toml}")
    return end.join([*lines, ""])


def _replaced(line: str, member: str, toml: str) -> str:
    """The line with another value; indentation and comment are kept."""
    head = re.match(rf"""\s*["']?{re.escape(member)}["']?\s*=\s*""", line)
    if head is None:
        return line
    rest = line[head.end() :]
    for index in (*(place for place, letter in enumerate(rest) if letter == "#"), len(rest)):
        value = rest[:index]
        try:
            tomllib.loads(f"v = {value}")
        except ValueError:
            continue  # this # is inside a string
        gap = value[len(value.rstrip()) :]
        return f"{line[: head.end()]}{toml}{gap}{rest[index:]}"
    return line


def _shown(value: object) -> str:
    try:
        return toml_value(tuple(value) if isinstance(value, list) else value)
    except ValueError:  # the limit of digits holds for writing decimal, not for reading hexadecimal
        return "a number with too many digits"
