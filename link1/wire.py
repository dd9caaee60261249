"""JSON objects that cross the cable or a socket, each defined by one dataclass.

    class WipeConfirmed(WireObject):
        wipe_id: Annotated[str, WIPE_ID]

    WipeConfirmed("w-1").to_obj()                   # {"wipe_id": "w-1"}
    WipeConfirmed.from_obj({"wipe_id": "w-1"})      # FormatError where a member is missing or of another type

A field is the member of the same name, or of the name in its metadata (`member`). Its type says what is read:
int, str, bool, a StrEnum, a JSON object, another WireObject, a tuple of one type, a mapping from names to one
type; each of these or None. A rule narrows it: a range for an int, for the length of a tuple or for the bytes
of base64; a pattern or a set of words for a str. A field with a default is omitted while it has that default;
`Annotated[str, …] | None` may be null, `Annotated[str | None, …]` may be absent and is never null. A field
with `flat` in its metadata adds the members of another object to this one; it is None where they are not all
present. Unknown members are ignored: a newer program may send more.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from functools import partial
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Self,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from link1.canonical import MAX_INTEGER, JsonObject, b64_decode
from link1.errors import FormatError


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


_Reader = Callable[[Any], Any]
_Rule = Between | Base64Bytes | frozenset[str] | re.Pattern[str]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class WireObject:
    """Base of these objects. Every class made from it is a frozen dataclass. `constants`: members that every
    object of the class has, with one value."""

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
                try:
                    given[member.field] = member.read(obj[member.name])
                except _NotTaken as error:
                    raise FormatError(f"member {member.name} is not {error}") from None
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
    flat: type[WireObject] | None


_KNOWN: Final[dict[type, tuple[_WireMember, ...]]] = {}


def _members_of(cls: type[WireObject]) -> tuple[_WireMember, ...]:
    """Computed once for each class."""
    if cls not in _KNOWN:
        hints = get_type_hints(cls, include_extras=True)
        _KNOWN[cls] = tuple(
            _WireMember(
                one.metadata.get("member", one.name),
                one.name,
                one.default,
                _reader(hints[one.name]),
                one.metadata.get("flat"),
            )
            for one in fields(cls)
        )
    return _KNOWN[cls]


class _NotTaken(Exception):
    """The text says what is expected."""


def _written(value: object) -> object:
    if isinstance(value, WireObject):
        return value.to_obj()
    if isinstance(value, tuple):
        return [_written(item) for item in value]
    return str(value) if isinstance(value, StrEnum) else value


def _reader(kind: Any) -> _Reader:  # noqa: PLR0911 - one line a kind
    """What reads a value of the type `kind`. It raises _NotTaken, or FormatError from an object in it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _ruled(_without_none(arguments[0]), arguments[1])
    if origin in (Union, UnionType):
        read = _reader(_without_none(kind))
        return lambda value: None if value is None else read(value)
    if origin is tuple:
        return _tuple_reader([_reader(each) for each in arguments if each is not Ellipsis], arguments[-1])
    if origin is dict and arguments[1] is not Any:
        read = _reader(arguments[1])
        return lambda value: {name: read(member) for name, member in _plain(dict, value).items()}
    if origin is None and issubclass(kind, WireObject):
        return lambda value: kind.from_obj(_plain(dict, value))
    if origin is None and issubclass(kind, StrEnum):
        return partial(_word, kind)
    return partial(_plain, origin or kind)


def _without_none(kind: Any) -> Any:
    """The X of `X | None`; another type as it is."""
    some = [each for each in get_args(kind) if each is not NoneType]
    return some[0] if get_origin(kind) in (Union, UnionType) else kind


def _tuple_reader(readers: list[_Reader], last: Any) -> _Reader:
    """Of an array of one kind, or a row with a kind for each item."""
    if last is Ellipsis:
        return lambda value: tuple(readers[0](item) for item in _plain(list, value))

    def row(value: object) -> tuple[object, ...]:
        if not isinstance(value, list) or len(value) != len(readers):
            raise _NotTaken(f"an array of {len(readers)}")
        return tuple(read(item) for read, item in zip(readers, value, strict=True))

    return row


_WORDS: Final = {
    int: "an integer",
    str: "a string",
    bool: "true or false",
    dict: "an object",
    list: "an array",
}


def _plain(kind: type, value: object) -> Any:
    if type(value) is not kind:  # True is not an integer here
        raise _NotTaken(_WORDS[kind])
    return value


def _word(kind: type[StrEnum], value: Any) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        raise _NotTaken(f"one of {', '.join(sorted(kind))}") from None


def _ruled(kind: Any, rule: _Rule) -> _Reader:
    """What reads a value of the type `kind` that fits `rule`."""
    read, (fits, expected) = _reader(kind), _fits(kind, rule)

    def ruled(value: object) -> object:
        found = read(value)
        if not fits(found):
            raise _NotTaken(expected)
        return found

    return ruled


def _fits(kind: Any, rule: _Rule) -> tuple[Callable[[Any], object], str]:
    """What is true of a value that fits, and how the rule reads."""
    match rule:
        case Between(low, high) if get_origin(kind) is tuple:
            return lambda items: low <= len(items) <= high, f"an array of {low} to {high} items"
        case Between(low, high):
            return lambda number: low <= number <= high, f"an integer from {low} to {high}"
        case Base64Bytes(low, high):
            return rule.holds, f"base64 of {low} to {high} bytes"
        case frozenset():
            return rule.__contains__, f"one of {', '.join(sorted(rule))}"
        case re.Pattern():
            return rule.fullmatch, f"a string of the form {rule.pattern}"
