"""One spelling for every object: RFC 8785 bytes out, a strict reader in, and strict base64.

Invariants
1. `canonical_bytes(x)` depends on the value of `x` alone, so a signature over it can be checked by
   anyone who holds the same value.
2. `read_strict` never lets two readers see different objects in the same bytes: duplicate members,
   NaN, fractions, exponents, negative zero, integers beyond ±(2^53 − 1), lone surrogates and invalid
   UTF-8 are all refused (the I-JSON profile of RFC 7493, narrowed to integers).
3. `b64_decode` accepts exactly one spelling of any bytes: standard alphabet, padding, no spaces, no
   stray trailing bits (RFC 4648 §3.5).

>>> canonical_bytes({"b": 1, "a": "é"})
b'{"a":"\\xc3\\xa9","b":1}'
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

import rfc8785

from link1.errors import FormatError

JsonObject = dict[str, Any]
"""A JSON object as the standard reader gives it; the caller checks its members."""

MAX_INTEGER = 2**53 - 1
"""Largest magnitude of an integer that every JSON reader holds exactly (RFC 7493 §2.2)."""

MAX_DEPTH = 16
"""Nesting that any object of the contract stays far below; the outermost object counts as 1."""

CARRYING_DEPTH = MAX_DEPTH + 3
"""Nesting of a sealed batch of wrappers. A wrapper is the second level of its message (the body), and the
fifth of a record: around it are the record's object and body, the items and the item."""


def canonical_bytes(value: Mapping[str, Any]) -> bytes:
    """Return the RFC 8785 bytes of `value`. Raises FormatError for what JSON cannot carry exactly."""
    return _canonical(value, fractions=True)


def canonical_integers(value: Mapping[str, Any]) -> bytes:
    """`canonical_bytes` of an object that is signed, which holds no fraction (LINK/1 §2)."""
    return _canonical(value, fractions=False)


def _canonical(value: Mapping[str, Any], *, fractions: bool) -> bytes:
    try:
        if _is_plain(value, MAX_DEPTH):
            return _ENCODER.encode(value).encode("utf-8")
        if not fractions and _has_fraction(value):
            refuse_number("")
        return rfc8785.dumps(dict(value))
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError, TypeError) as error:
        raise FormatError(f"object has no canonical form: {type(error).__name__}") from None


def _has_fraction(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_fraction, value.values()))
    return any(map(_has_fraction, value)) if isinstance(value, list) else isinstance(value, float)


_ENCODER = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":")
)
"""Escapes strings as RFC 8785 §3.2.2.2 does; the rest of its rules are what `_is_plain` asks for."""


def _is_plain(value: object, depth: int) -> bool:
    """True when the standard library's encoder gives the RFC 8785 bytes, five times as fast as a general one:
    integers that I-JSON holds, no fractions, and member names whose order is the same in UTF-16."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return -MAX_INTEGER <= value <= MAX_INTEGER  # type: ignore[operator]
    if depth == 0:
        return False
    if kind is dict:
        for name, item in value.items():  # type: ignore[attr-defined]
            if type(name) is not str or not name.isascii() or not _is_plain(item, depth - 1):
                return False
        return True
    return kind is list and all(_is_plain(item, depth - 1) for item in value)  # type: ignore[attr-defined]


def nesting(value: object) -> int:
    """How deep a JSON value is nested, as MAX_DEPTH counts; the caller bounds it."""
    if isinstance(value, dict):
        return 1 + max(map(nesting, value.values()), default=0)
    return 1 + max(map(nesting, value), default=0) if isinstance(value, list) else 0


def read_strict(data: bytes, *, max_bytes: int, max_depth: int = MAX_DEPTH) -> JsonObject:
    """Parse one JSON object from `data`, refusing everything that two readers could see differently.

    `max_bytes` and `max_depth` are checked before anything is parsed. Raises FormatError; its message names
    the fault and repeats nothing that was received.
    """
    return _read_object(data, _INTEGERS, max_bytes, max_depth)


def read_with_fractions(data: bytes, *, max_bytes: int) -> JsonObject:
    """Parse an answer of the service: as `read_strict`, but with any number that JSON has.

    A later service may put a fraction into a member that this version does not know, and such members are
    ignored. The members that it knows are integers, which their readers check; so are all of a signed object
    (`canonical_integers`). Raises FormatError.
    """
    return _read_object(data, _NUMBERS, max_bytes, MAX_DEPTH)


def _read_object(data: bytes, decoder: json.JSONDecoder, max_bytes: int, max_depth: int) -> JsonObject:
    if len(data) > max_bytes:
        raise FormatError(f"message has {len(data)} bytes, at most {max_bytes} are read")
    value = read_value(data, decoder, max_depth)
    if not isinstance(value, dict):
        raise FormatError("message is not a JSON object")
    return value


def read_value(data: bytes, decoder: json.JSONDecoder, max_depth: int = MAX_DEPTH) -> object:
    """Parse one JSON value as strictly as `read_strict`, with the numbers that `decoder` takes. The caller
    bounds the size of `data`. Raises FormatError."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise FormatError("message is not UTF-8") from None
    _check_depth(data, max_depth)
    try:
        value: object = decoder.decode(text)
    except (json.JSONDecodeError, RecursionError):
        raise FormatError("message is not one JSON value") from None
    # A lone surrogate can only come from an escape, so text without a backslash-u has none.
    if "\\u" in text:
        _refuse_surrogates(value)
    return value


# The closing quote is optional. If it were required, a string that never ends would be tried again from each
# of its quotes, in quadratic time. Possessive runs never step back.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))


def _check_depth(data: bytes, max_depth: int) -> None:
    """Refuse nesting beyond `max_depth` before the recursive parser sees it, in time linear in `data`."""
    if data.count(b"{") + data.count(b"[") <= max_depth:
        return
    brackets = _STRINGS.sub(b"", data).translate(_ONE_KIND, _NO_BRACKETS)
    for _ in range(max_depth):
        brackets = brackets.replace(b"[]", b"")  # the innermost level
    if brackets:
        raise FormatError(f"message is nested deeper than {max_depth}, or its brackets do not match")


def object_without_duplicates(pairs: list[tuple[str, Any]]) -> JsonObject:
    """For a decoder: an object whose members all have different names. Raises FormatError."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise FormatError("an object has the same member twice")
    return members


def _integer(text: str) -> int:
    # Python's own limit on digits would raise; sixteen digits and a sign hold every allowed integer.
    if len(text) > 17 or text == "-0":
        raise FormatError("an integer is outside ±(2^53 − 1) or is negative zero")
    value = int(text)
    if abs(value) > MAX_INTEGER:
        raise FormatError("an integer is outside ±(2^53 − 1)")
    return value


def refuse_number(_text: str) -> NoReturn:
    """For a decoder: raises FormatError for a number of a kind that is not taken."""
    raise FormatError("a number is not a plain integer")


_INTEGERS = json.JSONDecoder(
    object_pairs_hook=object_without_duplicates,
    parse_int=_integer,
    parse_float=refuse_number,
    parse_constant=refuse_number,
)


def _number(text: str) -> int | float:
    # As other readers hold it; and Python's own limit on digits would raise.
    return int(text) if len(text) <= 16 else float(text)


_NUMBERS = json.JSONDecoder(
    object_pairs_hook=object_without_duplicates, parse_int=_number, parse_constant=refuse_number
)


def _refuse_surrogates(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise FormatError("a string holds a lone surrogate") from None


def b64_encode(data: bytes) -> str:
    """Standard base64 with padding (RFC 4648 §4)."""
    return base64.b64encode(data).decode("ascii")


def b64_decode(text: object, *, length: int | None = None, max_length: int | None = None) -> bytes:
    """Decode the one valid spelling of some bytes; `length` and `max_length` count decoded bytes.

    Raises FormatError for another type, alphabet, padding, spelling or length.
    """
    if not isinstance(text, str) or not text.isascii():
        raise FormatError("base64 text expected")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise FormatError("not standard base64 with padding") from None
    # The alphabet and the padding have been checked; what is left are stray bits in the last quantum.
    tail = base64.b64encode(data[len(data) - (len(data) - 1) % 3 - 1 :]) if data else b""
    if len(text) != 4 * -(-len(data) // 3) or not text.endswith(tail.decode("ascii")):
        raise FormatError("not the one valid base64 spelling of its bytes")
    if length is not None and len(data) != length:
        raise FormatError(f"{length} bytes of base64 expected, found {len(data)}")
    if max_length is not None and len(data) > max_length:
        raise FormatError(f"at most {max_length} bytes of base64 expected, found {len(data)}")
    return data
