"""Query parameters: each with its parser and its schema; everything else in a query is refused."""

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from cloud_client.contract import CURSOR
from cloud_client.reference_server.contract.problems import FieldError, Problem, ProblemCode
from cloud_client.reference_server.contract.times import parse_rfc3339
from cloud_client.reference_server.contract.words import EXTERNAL_REF, UUID

_DIGITS = re.compile(r"0|[1-9][0-9]{0,15}")
_MAX_PARAMETERS = 32


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter; ``parse`` returns None for a value outside its format."""

    name: str
    parse: Callable[[str], Any]
    schema: dict[str, Any]
    default: Any = None
    required: bool = field(default=False)
    refused_with: ProblemCode = ProblemCode.INVALID_REQUEST
    """The code for a value outside its format (the inbox has another)."""


def read_query(raw: bytes, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Values by name, defaults filled in. Problem 400 ``invalid_request``."""
    values = {parameter.name: parameter.default for parameter in parameters if not parameter.required}
    if not raw and len(values) == len(parameters):
        return values
    known = {parameter.name: parameter for parameter in parameters}
    seen: set[str] = set()
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(raw),
            errors="strict",
            max_num_fields=_MAX_PARAMETERS,
        )
    except ValueError:
        raise Problem(ProblemCode.INVALID_REQUEST, "The query string cannot be read") from None
    for name, text in pairs:
        if name not in known:
            raise Problem(ProblemCode.INVALID_REQUEST, "A query parameter is not one of this route")
        if name in seen:
            raise _wrong(name, "repeated")
        seen.add(name)
        value = known[name].parse(text)
        if value is None:
            raise _wrong(name, "format", known[name].refused_with)
        values[name] = value
    for parameter in parameters:
        if parameter.required and parameter.name not in seen:
            raise _wrong(parameter.name, "required")
    return values


def _wrong(name: str, code: str, problem: ProblemCode = ProblemCode.INVALID_REQUEST) -> Problem:
    return Problem(problem, errors=[FieldError(f"/{name}", code)])


def integer(
    name: str, low: int, high: int, default: int | None = None, *, required: bool = False
) -> Parameter:
    """A plain decimal integer from ``low`` to ``high``."""

    def parse(text: str) -> int | None:
        value = int(text) if _DIGITS.fullmatch(text) else -1
        return value if low <= value <= high else None

    schema: dict[str, Any] = {"type": "integer", "minimum": low, "maximum": high}
    if default is not None:
        schema["default"] = default
    return Parameter(name, parse, schema, default, required)


def matching(name: str, pattern: re.Pattern[str]) -> Parameter:
    """A string that ``pattern`` matches from end to end."""
    return Parameter(
        name,
        lambda text: text if pattern.fullmatch(text) else None,
        {"type": "string", "pattern": f"^{pattern.pattern}$"},
    )


def one_of(name: str, words: Sequence[str], default: str | None = None) -> Parameter:
    """One word of a closed set."""
    schema: dict[str, Any] = {"type": "string", "enum": list(words)}
    if default is not None:
        schema["default"] = default
    return Parameter(name, lambda text: text if text in words else None, schema, default)


def uuid(name: str) -> Parameter:
    """A hyphenated UUID in any case, given on in lower case."""
    return Parameter(
        name,
        lambda text: text.lower() if UUID.fullmatch(text) else None,
        {"type": "string", "format": "uuid"},
    )


def date_time(name: str) -> Parameter:
    """An RFC 3339 date-time with a zone, given on as epoch milliseconds."""
    return Parameter(name, parse_rfc3339, {"type": "string", "format": "date-time"})


LIMIT = integer("limit", 1, 200, 50)
CURSOR_PARAMETER = Parameter(
    # Whatever is wrong with a cursor is ``invalid_cursor``, which its list finds out.
    "cursor",
    lambda text: text,
    {"type": "string", "maxLength": 512, "pattern": f"^{CURSOR.pattern}$"},
)
EXTERNAL_REF_PARAMETER = matching("external_ref", EXTERNAL_REF)


def cursor_bytes(text: str) -> bytes:
    """What a cursor spells, in its one spelling. Problem 400 ``invalid_cursor``."""
    if CURSOR.fullmatch(text):
        try:
            raw = base64.b64decode(text, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        if base64.urlsafe_b64encode(raw).decode() == text:
            return raw
    raise Problem(ProblemCode.INVALID_CURSOR)
