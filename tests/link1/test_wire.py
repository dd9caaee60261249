"""Objects of dataclasses: each reads what it writes, and says what it does not take."""

import re
from dataclasses import FrozenInstanceError, field, replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from link1.canonical import JsonObject
from link1.errors import FormatError
from link1.wire import Base64Bytes, Between, WireObject


class Inner(WireObject):
    name: str


class Outer(WireObject):
    count: Annotated[int, Between(1, 9)]
    word: Annotated[str, re.compile("[a-z]+")]
    flag: bool
    inner: Inner | None
    several: tuple[Inner, ...]
    pairs: tuple[tuple[str, int], ...]
    numbers: dict[str, int]
    anything: JsonObject
    dotted: int | None = field(default=None, metadata={"member": "dotted.name"})


WHOLE: JsonObject = {
    "count": 3,
    "word": "abc",
    "flag": True,
    "inner": {"name": "x"},
    "several": [{"name": "y"}, {"name": "z"}],
    "pairs": [["a", 1], ["b", 2]],
    "numbers": {"n": 7},
    "anything": {"deep": [1, {"er": None}]},
    "dotted.name": 5,
}


def test_it_reads_what_it_writes() -> None:
    outer = Outer.from_obj(WHOLE)
    assert outer.to_obj() == WHOLE
    assert (outer.inner, outer.pairs[1], outer.dotted) == (Inner("x"), ("b", 2), 5)
    assert Outer.from_obj(WHOLE | {"inner": None}).inner is None


def test_it_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Inner("x").name = "y"  # type: ignore[misc]


def test_a_default_is_left_out_and_a_member_of_a_newer_program_ignored() -> None:
    without = {name: value for name, value in WHOLE.items() if name != "dotted.name"}
    assert Outer.from_obj(without | {"newer": 1}).to_obj() == without


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"count": 10}, "member count is not an integer from 1 to 9"),
        ({"count": True}, "member count is not an integer"),
        ({"count": "3"}, "member count is not an integer"),
        ({"word": "ABC"}, "member word is not a string of the form"),
        ({"flag": 1}, "member flag is not true or false"),
        ({"inner": {}}, "member name is missing"),
        ({"inner": []}, "member inner is not an object"),
        ({"several": {}}, "member several is not an array"),
        ({"several": [1]}, "member several is not an object"),
        ({"pairs": [["a"]]}, "member pairs is not an array of 2"),
        ({"pairs": [["a", 1, 2]]}, "member pairs is not an array of 2"),
        ({"pairs": ["ab"]}, "member pairs is not an array of 2"),
        ({"pairs": [["a", "1"]]}, "member pairs is not an integer"),
        ({"numbers": {"n": None}}, "member numbers is not an integer"),
        ({"anything": None}, "member anything is not an object"),
    ],
)
def test_what_it_does_not_take(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(FormatError, match=says):
        Outer.from_obj(WHOLE | changes)


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "dotted.name"])
def test_every_member_without_a_default_is_required(name: str) -> None:
    with pytest.raises(FormatError, match=f"member {name} is missing"):
        Outer.from_obj({other: value for other, value in WHOLE.items() if other != name})


some_values = st.none() | st.integers() | st.text() | st.lists(st.none())


@given(st.dictionaries(st.sampled_from(sorted(WHOLE)), some_values))
def test_anything_else_is_a_format_error_and_no_other(changes: dict[str, object]) -> None:
    try:
        outer = Outer.from_obj(WHOLE | changes)
    except FormatError:
        return
    given_obj = WHOLE | changes
    if given_obj["dotted.name"] is None:
        del given_obj["dotted.name"]
    assert outer.to_obj() == given_obj


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


class Place(WireObject):
    x: int
    y: int = 0


class Ruled(WireObject):
    constants: ClassVar = {"v": 1}

    size: Size
    sizes: Annotated[tuple[Size, ...], Between(1, 3)]
    hint: Annotated[str, frozenset({"near", "far"})]
    key_b64: Annotated[str, Base64Bytes(2, 3)]
    many: Annotated[int, Between(4)] = 4
    nullable: Annotated[str, re.compile("[a-z]")] | None = "a"
    absent: Annotated[str | None, re.compile("[a-z]")] = None
    place: Place | None = field(default=None, metadata={"flat": Place})


RULED: JsonObject = {"v": 1, "size": "small", "sizes": ["small"], "hint": "near", "key_b64": "AAA="}


@pytest.mark.parametrize(
    ("more", "read"),
    [
        ({}, {}),
        ({"sizes": ["small", "large", "small"]}, {"sizes": (Size.SMALL, Size.LARGE, Size.SMALL)}),
        ({"key_b64": "AAAA"}, {"key_b64": "AAAA"}),
        ({"many": 5}, {"many": 5}),
        ({"nullable": None}, {"nullable": None}),
        ({"absent": "b"}, {"absent": "b"}),
        ({"x": 2}, {"place": Place(2)}),
        ({"x": 2, "y": 3}, {"place": Place(2, 3)}),
    ],
)
def test_a_rule_takes_what_it_names(more: JsonObject, read: dict[str, Any]) -> None:
    ruled = Ruled.from_obj(RULED | more)
    assert ruled == replace(Ruled(Size.SMALL, (Size.SMALL,), "near", "AAA="), **read)
    assert ruled.to_obj() == RULED | more


def test_the_members_of_another_object_are_read_where_they_are_all_there() -> None:
    assert Ruled.from_obj(RULED | {"y": 3}).place is None
    with pytest.raises(FormatError, match="member x is not an integer"):
        Ruled.from_obj(RULED | {"x": None})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"v": 2}, "member v is not 1"),
        ({"v": True}, "member v is not 1"),
        ({"v": None}, "member v is not 1"),
        ({"size": "medium"}, "member size is not one of large, small"),
        ({"size": []}, "member size is not one of"),
        ({"sizes": []}, "member sizes is not an array of 1 to 3 items"),
        ({"sizes": ["small"] * 4}, "member sizes is not an array of 1 to 3 items"),
        ({"hint": "here"}, "member hint is not one of far, near"),
        ({"key_b64": "AA=="}, "member key_b64 is not base64 of 2 to 3 bytes"),
        ({"key_b64": "AAAAAA=="}, "member key_b64 is not base64 of 2 to 3 bytes"),
        ({"key_b64": "AAB="}, "member key_b64 is not base64"),
        ({"many": 3}, "member many is not an integer from 4 to 9007199254740991"),
        ({"many": 1 << 53}, "member many is not an integer from 4"),
        ({"nullable": "A"}, "member nullable is not a string of the form"),
        ({"absent": None}, "member absent is not a string"),
    ],
)
def test_a_rule_says_what_it_expects(changes: JsonObject, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        Ruled.from_obj(RULED | changes)
