import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from link1.canonical import (
    CARRYING_DEPTH,
    MAX_DEPTH,
    MAX_INTEGER,
    b64_decode,
    b64_encode,
    canonical_bytes,
    nesting,
    read_strict,
    read_with_fractions,
)
from link1.errors import FormatError

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('abcé\u2028"\\', max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text('abcé\u2028"\\', max_size=4), JSON, max_size=5)


@given(OBJECTS)
def test_what_is_written_is_read_back(value: dict[str, object]) -> None:
    data = canonical_bytes(value)
    assert read_strict(data, max_bytes=len(data)) == value
    assert canonical_bytes(json.loads(data)) == data


def test_an_answer_may_hold_any_number_and_nothing_else_that_the_strict_reader_refuses() -> None:
    answer = read_with_fractions(b'{"a":1,"b":[0.5,-0,1e2,90071992547409930],"c":2.0}', max_bytes=100)
    assert answer == {"a": 1, "b": [0.5, 0, 100.0, 90071992547409930.0], "c": 2.0}
    assert type(answer["a"]) is int and type(answer["c"]) is float
    for data in (b'{"a":1,"a":1}', b'{"a":NaN}', b'{"a":"\\ud800"}', b"[1]", b"{} " + b" " * 100):
        with pytest.raises(FormatError):
            read_with_fractions(data, max_bytes=100)


@given(st.binary(max_size=200) | st.text('{}[]":,01-.eE\\u truefalsn"d8', max_size=60).map(str.encode))
def test_any_bytes_give_an_object_or_a_format_error(data: bytes) -> None:
    try:
        value = read_strict(data, max_bytes=150)
    except FormatError:
        return
    canonical_bytes(value)


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":1,"a":1}',
        b'{"a":{"b":1,"b":2}}',
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":1.0}',
        b'{"a":1e2}',
        b'{"a":-0}',
        b'{"a":9007199254740992}',
        b'{"a":-9007199254740992}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":"\\ud800"}',
        b'{"\\udc00":1}',
        b'{"a":"\xff"}',
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":1} {"b":2}',
        b"[1]",
        b"1",
        b"",
        b'{"a":' + b"[" * 16 + b"]" * 16 + b"}",
        b'{"a":' + b"[" * 100_000,
    ],
)
def test_what_two_readers_could_see_differently_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        read_strict(data, max_bytes=1_000_000)


def test_depth_counts_the_outermost_object_and_not_what_stands_in_strings() -> None:
    deepest = b'{"a":' + b"[" * 15 + b"]" * 15 + b"}"
    read_strict(deepest, max_bytes=100)
    assert read_strict(b'{"a":"' + b"[{" * 40 + b'\\""}', max_bytes=200) == {"a": "[{" * 40 + '"'}


def test_a_reader_of_what_carries_messages_may_go_deeper() -> None:
    deepest = b'{"a":' + b"[" * (CARRYING_DEPTH - 1) + b"]" * (CARRYING_DEPTH - 1) + b"}"
    value = read_strict(deepest, max_bytes=100, max_depth=CARRYING_DEPTH)
    assert nesting(value) == CARRYING_DEPTH > MAX_DEPTH
    with pytest.raises(FormatError, match=f"deeper than {CARRYING_DEPTH - 1}"):
        read_strict(deepest, max_bytes=100, max_depth=CARRYING_DEPTH - 1)


def test_the_outermost_object_is_a_level() -> None:
    values: list[object] = [{}, [], {"a": 1}, {"a": {}}, [{"a": []}], 1]
    assert list(map(nesting, values)) == [1, 1, 1, 2, 3, 0]


def test_size_is_checked_before_anything_else() -> None:
    with pytest.raises(FormatError, match="at most 5"):
        read_strict(b'{"a":1}', max_bytes=5)


@given(st.binary(max_size=100))
def test_base64_has_one_spelling(data: bytes) -> None:
    text = b64_encode(data)
    assert b64_decode(text, length=len(data)) == data
    for other in (text + "=", text + "\n", text.rstrip("="), text.replace("+", "-").replace("/", "_")):
        if other != text:
            with pytest.raises(FormatError):
                b64_decode(other)


@pytest.mark.parametrize("text", ["AB==", "AAB=", "A", "é===", None, 7, b"AA=="])
def test_other_spellings_and_types_are_refused(text: object) -> None:
    with pytest.raises(FormatError):
        b64_decode(text)


@pytest.mark.parametrize("value", [{"a": 2**53}, {"a": "\ud800"}, {"a": float("nan")}, {"a": {1}}])
def test_what_has_no_canonical_form_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(FormatError):
        canonical_bytes(value)
