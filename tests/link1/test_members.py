"""Each reader of a member takes its own type and range, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from link1 import members
from link1.canonical import MAX_INTEGER
from link1.errors import FormatError

EDGES = (0, 1, 2, 5, 6, MAX_INTEGER, MAX_INTEGER + 1, "", "a", "b", "a\n", "d" * 64, "d" * 65)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(EDGES)
    | st.lists(st.integers(), max_size=7)
    | st.dictionaries(st.text(max_size=1), st.integers(), max_size=2)
)
READERS: dict[str, tuple[Callable[[dict[str, Any]], Any], Callable[[Any], bool]]] = {
    "text": (
        lambda obj: members.text(obj, "m", members.NAME),
        lambda value: isinstance(value, str) and members.NAME.fullmatch(value) is not None,
    ),
    "integer": (
        lambda obj: members.integer(obj, "m", 2, 5),
        lambda value: type(value) is int and value in range(2, 6),
    ),
    "integer of any size": (
        lambda obj: members.integer(obj, "m"),
        lambda value: type(value) is int and value in range(MAX_INTEGER + 1),
    ),
    "boolean": (lambda obj: members.boolean(obj, "m"), lambda value: isinstance(value, bool)),
    "nested": (lambda obj: members.nested(obj, "m"), lambda value: isinstance(value, dict)),
    "array": (
        lambda obj: members.array(obj, "m", 2, 5),
        lambda value: isinstance(value, list) and len(value) in range(2, 6),
    ),
    "one_of": (
        lambda obj: members.one_of(obj, "m", frozenset({"a", "dd"})),
        lambda value: isinstance(value, str) and value in {"a", "dd"},
    ),
}


@pytest.mark.parametrize("name", READERS)
@given(value=VALUES)
def test_a_reader_takes_its_type_and_range_alone(name: str, value: object) -> None:
    read, takes = READERS[name]
    if takes(value):
        assert read({"m": value}) is value
    else:
        with pytest.raises(FormatError, match="member m is not"):
            read({"m": value})


@pytest.mark.parametrize("name", READERS)
def test_a_member_that_is_missing_is_named(name: str) -> None:
    with pytest.raises(FormatError, match="member m is missing"):
        READERS[name][0]({"n": 1})


def test_null_is_not_absent() -> None:
    assert members.optional_text({}, "m", members.NAME) is None
    assert members.optional_text({"m": "a"}, "m", members.NAME) == "a"
    with pytest.raises(FormatError, match="member m is not a string"):
        members.optional_text({"m": None}, "m", members.NAME)
