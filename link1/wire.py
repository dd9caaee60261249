"""JSON objects that cross the cable or a socket, each defined by one dataclass.

    class WipeConfirmed(WireObject):
        wipe_id: Annotated[str, WIPE_ID]

    WipeConfirmed("w-1").to_obj()                   # {"wipe_id": "w-1"}
    WipeConfirmed.from_obj({"wipe_id": "w-1"})      # FormatError where a member is missing or of another type

A field is the member of the same name, or of the name in its metadata (`member`). Its type says what is read:
int, str, bool, a StrEnum, a JSON object, another WireObject, a tuple of one type, a mapping from names to one
type; each of these or None. Rules narrow a type: `Annotated[int, Between(1, 9)]`, a pattern or a set of words
for a str, a range of decoded bytes for base64, a range of lengths for a tuple. A field with a default is
omitted while it has that default; `Annotated[str, …] | None` may be null, `Annotated[str | None, …]` may be
absent and never null. A field with `flat` in its metadata adds the members of another object to this one; it
is None where they are not all present. Unknown members are ignored: a newer program may send more.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Self,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from link1.canonical import MAX_INTEGER, JsonObject, b64_decode
from link1.errors import FormatError

_Reader = Callable[[object], object]


@dataclass(frozen=True, slots=True)
class Between:
    """The range of an int, or of the length of a tuple, both ends included."""

    low: int
    high: int = MAX_INTEGER


@dataclass(frozen=True, slots=True)
class Base64Bytes:
    """A str that is strict base64 of `low` to `high` bytes; it stays as it is written."""

    low: int
    high: int

    def holds(self, text: str) -> bool:
        try:
            return len(b64_decode(text, max_length=self.high)) >= self.low
        except FormatError:
            return False


_Rule = Between | Base64Bytes | frozenset[str] | re.Pattern[str]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class WireObject:
    """Base of the objects that cross a cable or a socket. Every class made from it is a frozen dataclass.

    `constants`: members that every object of the class has, with one value.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    constants: ClassVar[Mapping[str, int | str]] = {}

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    def to_obj(self) -> JsonObject:
        """The members as JSON values."""
        obj: JsonObject = dict(self.constants)
        for member in _members_of(type(self)):
            value = getattr(self, member.field)
            if value == member.default:
                continue
            if member.flat is not None:
                obj |= value.to_obj()
            else:
                obj[member.name] = _written(value)
        return obj

    @classmethod
    def from_obj(cls, obj: Mapping[str, object]) -> Self:
        """Read the members of a JSON object. Raises FormatError."""
        for name, value in cls.constants.items():
            found = obj.get(name)
            if type(found) is not type(value) or found != value:
                raise FormatError(f"member {name} is not {value!r}")
        given: dict[str, object] = {}
        for member in _members_of(cls):
            if member.flat is not None:
                if member.flat.lies_in(obj):
                    given[member.field] = member.flat.from_obj(obj)
            elif member.name in obj:
                given[member.field] = _read(member, obj[member.name])
            elif member.default is MISSING:
                raise FormatError(f"member {member.name} is missing")
        return cls(**given)

    @classmethod
    def lies_in(cls, obj: Mapping[str, object]) -> bool:
        """Whether an object has every member that this one requires."""
        return all(
            member.name in obj
            for member in _members_of(cls)
            if member.flat is None and member.default is MISSING
        )


@dataclass(frozen=True, slots=True)
class _WireMember:
    """One field. `default` is MISSING where there is none. `flat`: the object whose members it adds."""

    name: str
    field: str
    default: object
    read: _Reader
    flat: type[WireObject] | None = None


_KNOWN: Final[dict[type, tuple[_WireMember, ...]]] = {}


def _members_of(cls: type[WireObject]) -> tuple[_WireMember, ...]:
    """Computed once for each class."""
    if cls not in _KNOWN:
        _KNOWN[cls] = _read_fields(cls)
    return _KNOWN[cls]


def _read_fields(cls: type[WireObject]) -> tuple[_WireMember, ...]:
    hints = get_type_hints(cls, include_extras=True)
    return tuple(
        _WireMember(
            one.metadata.get("member", one.name),
            one.name,
            one.default,
            _reader(hints[one.name]),
            flat=one.metadata.get("flat"),
        )
        for one in fields(cls)
    )


def _read(member: _WireMember, value: object) -> object:
    try:
        return member.read(value)
    except _NotTaken as error:
        raise FormatError(f"member {member.name} is not {error}") from None


class _NotTaken(Exception):
    """The text says what is expected."""


def _written(value: object) -> object:
    if isinstance(value, WireObject):
        return value.to_obj()
    if isinstance(value, tuple):
        return [_written(item) for item in value]
    return str(value) if isinstance(value, StrEnum) else value


def _reader(kind: Any) -> _Reader:  # noqa: PLR0911 - one line a kind
    """The function that reads a value of this type; it raises _NotTaken or FormatError."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _ruled(_reader(_without_none(arguments[0])), arguments[1])
    if origin in (Union, UnionType):
        some = _reader(_without_none(kind))
        return lambda value: None if value is None else some(value)
    if origin is tuple and arguments[-1] is Ellipsis:
        return _array(_reader(arguments[0]))
    if origin is tuple:
        return _row([_reader(kind) for kind in arguments])
    if origin is dict and arguments[1] is not Any:
        return _mapping(_reader(arguments[1]))
    if origin is dict:
        return _plain(dict, "an object")
    if isinstance(kind, type) and issubclass(kind, WireObject):
        return _nested(kind)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _word(kind)
    return _plain(kind, _WORDS[kind])


def _without_none(kind: Any) -> Any:
    """The X of `X | None`; another type as it is."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    return next(one for one in get_args(kind) if one is not NoneType)


_WORDS: Final = {int: "an integer", str: "a string", bool: "true or false"}


def _plain(kind: type, what: str) -> _Reader:
    def read(value: object) -> object:
        if type(value) is not kind:  # True is not an integer here
            raise _NotTaken(what)
        return value

    return read


def _word(kind: type[StrEnum]) -> _Reader:
    def read(value: object) -> object:
        try:
            return kind(cast("str", value))
        except ValueError:
            raise _NotTaken(f"one of {', '.join(sorted(kind))}") from None

    return read


def _nested(kind: type[WireObject]) -> _Reader:
    def read(value: object) -> object:
        if not isinstance(value, dict):
            raise _NotTaken("an object")
        return kind.from_obj(value)

    return read


def _array(item: _Reader) -> _Reader:
    def read(value: object) -> object:
        if not isinstance(value, list):
            raise _NotTaken("an array")
        return tuple(item(entry) for entry in value)

    return read


def _row(items: list[_Reader]) -> _Reader:
    def read(value: object) -> object:
        if not isinstance(value, list) or len(value) != len(items):
            raise _NotTaken(f"an array of {len(items)}")
        return tuple(item(entry) for item, entry in zip(items, value, strict=True))

    return read


def _mapping(item: _Reader) -> _Reader:
    def read(value: object) -> object:
        if not isinstance(value, dict):
            raise _NotTaken("an object")
        return {name: item(entry) for name, entry in value.items()}

    return read


def _ruled(read_any: _Reader, rule: _Rule) -> _Reader:
    def read(value: object) -> object:
        found = read_any(value)
        match found, rule:
            case int(), Between() if not rule.low <= found <= rule.high:
                raise _NotTaken(f"an integer from {rule.low} to {rule.high}")
            case tuple(), Between() if not rule.low <= len(found) <= rule.high:
                raise _NotTaken(f"an array of {rule.low} to {rule.high} items")
            case str(), re.Pattern() if rule.fullmatch(found) is None:
                raise _NotTaken(f"a string of the form {rule.pattern}")
            case str(), frozenset() if found not in rule:
                raise _NotTaken(f"one of {', '.join(sorted(rule))}")
            case str(), Base64Bytes() if not rule.holds(found):
                raise _NotTaken(f"base64 of {rule.low} to {rule.high} bytes")
        return found

    return read
