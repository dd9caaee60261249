"""Objects that cross a socket between two programs of the device, each defined by one dataclass.

    @dataclass(frozen=True, slots=True)
    class WipeConfirmed(WireObject):
        wipe_id: Annotated[str, WIPE_ID]

    WipeConfirmed("w-1").to_obj()                   # {"wipe_id": "w-1"}
    WipeConfirmed.from_obj({"wipe_id": "w-1"})      # FormatError where a member is missing or of another type

A field is the member of the same name, or of the name in its metadata (`member`). Its type says what is read:
int, str, bool, a JSON object, another WireObject, a tuple of one type, a mapping from names to one type; each
of these or None. An int or str may have a range or pattern. A field with a default is omitted while it has
that default. A field with `flat` in its metadata adds the members of another object to this one; it is None
where they are not all present. Unknown members are ignored: a newer program may send more.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Final, Self, Union, cast, get_args, get_origin, get_type_hints

from device.platform.ipc import Packet, reply
from link1.canonical import MAX_INTEGER, JsonObject
from link1.errors import FormatError

_Reader = Callable[[object], object]


@dataclass(frozen=True, slots=True)
class Between:
    """The range of an int, both ends included."""

    low: int
    high: int = MAX_INTEGER


class WireObject:
    """Base of the dataclasses that cross a socket."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def to_obj(self) -> JsonObject:
        """The members as JSON values."""
        obj: JsonObject = {}
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


def reply_with(answer: WireObject, payload: bytes | bytearray = b"") -> Packet:
    """A good reply with the members of `answer`."""
    return reply(payload, **answer.to_obj())


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
    return value


def _reader(kind: Any) -> _Reader:  # noqa: PLR0911 - one line a kind
    """The function that reads a value of this type; it raises _NotTaken or FormatError."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _ruled(_reader(arguments[0]), arguments[1])
    if origin in (Union, UnionType):
        some = _reader(next(kind for kind in arguments if kind is not NoneType))
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
    return _plain(kind, _WORDS[kind])


_WORDS: Final = {int: "an integer", str: "a string", bool: "true or false"}


def _plain(kind: type, what: str) -> _Reader:
    def read(value: object) -> object:
        if type(value) is not kind:  # True is not an integer here
            raise _NotTaken(what)
        return value

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


def _ruled(read_any: _Reader, rule: Between | re.Pattern[str]) -> _Reader:
    def read(value: object) -> object:
        found = read_any(value)
        if isinstance(rule, Between):
            if not rule.low <= cast("int", found) <= rule.high:
                raise _NotTaken(f"an integer from {rule.low} to {rule.high}")
        elif rule.fullmatch(cast("str", found)) is None:
            raise _NotTaken(f"a string of the form {rule.pattern}")
        return found

    return read
