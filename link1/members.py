"""Readers for the members of a JSON object that `read_strict` has let through.

Each takes the object and the name of a member, returns the typed value, and raises FormatError naming
the member (never its value). `True` is not 1 here.
"""

import re
from collections.abc import Mapping
from typing import Any

from link1.canonical import MAX_INTEGER, JsonObject
from link1.errors import FormatError

NAME = re.compile(r"[A-Za-z0-9._:-]{1,64}")
"""device_id, gate_id, dbd_id, stream, model_id and thr_id."""
WORD = re.compile(r"[A-Za-z0-9_]{1,32}")
"""The extensible words: outcome, reason, cause, health, error codes."""
ONBOARD_REF = re.compile(r"[A-Za-z0-9._:+/=-]{1,128}")
HEX16 = re.compile(r"[0-9a-f]{16}")
HEX32 = re.compile(r"[0-9a-f]{32}")
HEX64 = re.compile(r"[0-9a-f]{64}")


def member(obj: Mapping[str, Any], name: str) -> Any:
    """The value of a required member, of whatever type."""
    if name not in obj:
        raise FormatError(f"member {name} is missing")
    return obj[name]


def text(obj: Mapping[str, Any], name: str, pattern: re.Pattern[str]) -> str:
    """A required string that `pattern` matches from end to end."""
    value = member(obj, name)
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise FormatError(f"member {name} is not a string of the form {pattern.pattern}")
    return value


def optional_text(obj: Mapping[str, Any], name: str, pattern: re.Pattern[str]) -> str | None:
    """A string that may be absent; null is not absent."""
    return text(obj, name, pattern) if name in obj else None


def integer(obj: Mapping[str, Any], name: str, low: int = 0, high: int = MAX_INTEGER) -> int:
    """A required integer from `low` to `high`, both included."""
    value = member(obj, name)
    if type(value) is not int or not low <= value <= high:
        raise FormatError(f"member {name} is not an integer from {low} to {high}")
    return value


def boolean(obj: Mapping[str, Any], name: str) -> bool:
    """A required true or false."""
    value = member(obj, name)
    if not isinstance(value, bool):
        raise FormatError(f"member {name} is not true or false")
    return value


def nested(obj: Mapping[str, Any], name: str) -> JsonObject:
    """A required object."""
    value = member(obj, name)
    if not isinstance(value, dict):
        raise FormatError(f"member {name} is not an object")
    return value


def array(obj: Mapping[str, Any], name: str, low: int, high: int) -> list[Any]:
    """A required array of `low` to `high` items, both included."""
    value = member(obj, name)
    if not isinstance(value, list) or not low <= len(value) <= high:
        raise FormatError(f"member {name} is not an array of {low} to {high} items")
    return value


def one_of(obj: Mapping[str, Any], name: str, words: frozenset[str]) -> str:
    """A required string out of a closed set."""
    value = member(obj, name)
    if not isinstance(value, str) or value not in words:
        raise FormatError(f"member {name} is not one of {', '.join(sorted(words))}")
    return value


def version_1(obj: Mapping[str, Any]) -> None:
    """The `v` that every signed object carries."""
    integer(obj, "v", 1, 1)
