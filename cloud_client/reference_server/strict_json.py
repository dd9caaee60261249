"""Bodies of requests: one reading only (I-JSON, RFC 7493), or 400 ``malformed_json``.

A number is an integer when its value is, however it is written (300, 300.0, 3e2), as in JSON Schema and
RFC 8785; others are floats, which the schema refuses with 422: they are valid JSON. Everything that two
parsers could read differently is refused here.
"""

import json
import re
from typing import Any, NoReturn

from cloud_client.contract import ProblemCode
from cloud_client.reference_server.problems import Problem

MAX_DEPTH = 16


def read_body(data: bytes) -> object:
    """The one JSON value in ``data``. Problem 400 for anything else."""
    try:
        text = data.decode("utf-8")
        if text.startswith("\ufeff") or _too_deep(text):
            raise _malformed()
        value = _decoder.decode(text)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise _malformed() from None
    if "\\u" in text and _has_surrogate(value):
        raise _malformed()
    return value


def _malformed() -> Problem:
    return Problem(ProblemCode.MALFORMED_JSON)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _malformed()
    return members


def _integer(text: str) -> int | float:
    # An integer that JSON readers do not agree on is never one of the contract's; as a float it is refused.
    if len(text) > 16 and abs(float(text)) > 2**53 - 1:
        return float(text)
    return int(text)


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() and abs(value) <= 2**53 - 1 else value


def _no_constant(_text: str) -> NoReturn:
    raise _malformed()


_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)


def _too_deep(text: str) -> bool:
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return False
    depth = 0
    for found in _STRING_OR_BRACKET.finditer(text):
        if found[0] in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif found[0] in "}]":
            depth -= 1
    return False


def _has_surrogate(value: object) -> bool:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            if any("\ud800" <= character <= "\udfff" for character in item):
                return True
        elif isinstance(item, dict):
            pending += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            pending += item
    return False


_decoder = json.JSONDecoder(
    object_pairs_hook=_members, parse_int=_integer, parse_float=_number, parse_constant=_no_constant
)
