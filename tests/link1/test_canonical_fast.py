"""The quick way to RFC 8785 bytes gives the same bytes as the general one, or leaves the object to it."""

import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from link1.canonical import canonical_bytes

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300)
@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), _VALUES, max_size=6))
def test_same_bytes(obj: dict[str, object]) -> None:
    try:
        general = rfc8785.dumps(obj)  # type: ignore[arg-type]
    except UnicodeEncodeError:
        return
    assert canonical_bytes(obj) == general
