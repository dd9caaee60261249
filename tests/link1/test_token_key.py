"""`pkcs11:` URIs: what they name, and what is refused in them."""

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from link1.errors import FormatError
from link1.token_key import TokenKey

WORDS = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(WORDS, WORDS, WORDS, st.none() | st.binary(max_size=20), st.booleans())
def test_a_uri_names_a_key_whatever_is_in_its_words(
    token: str | None, serial: str | None, label: str | None, id_: bytes | None, ends_early: bool
) -> None:
    if label is None and id_ is None:
        label = "a key"
    words = {"token": token, "serial": serial, "object": label, "type": "private", "id": id_}
    path = ";".join(f"{name}={quote(word, safe='')}" for name, word in words.items() if word is not None)
    query = f"module-path={quote('/a b/m;&?.so', safe='')}"
    key = TokenKey.parse(f"pkcs11:{path}{';' if ends_early else ''}?{query}")
    assert key == TokenKey(Path("/a b/m;&?.so"), None, token, serial, label, id_)
    assert key.pin() is None


@pytest.mark.parametrize("scheme", ["", "file:"])
def test_the_pin_is_in_a_file_of_its_own(tmp_path: Path, scheme: str) -> None:
    file = tmp_path / "a pin"
    key = TokenKey.parse(f"pkcs11:id=%01?module-path=/m&pin-source={scheme}{quote(str(file))}")
    assert key.pin_file == file
    with pytest.raises(FileNotFoundError):
        key.pin()
    file.write_bytes(b" 1234\n")
    assert key.pin() == "1234"
    file.write_bytes(bytes([0xFF]))
    with pytest.raises(UnicodeDecodeError):
        key.pin()


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("pkcs11:", "none"),
        ("pkcs11:object=a", "object"),
        ("pkcs11:?module-path=/m", "module-path"),
        ("pkcs11:token=a;serial=b?module-path=/m", "module-path, serial, token"),
        ("pkcs11:object=a;new=b?module-path=/m", "module-path, new, object"),
        ("pkcs11:object=a?module-path=/m&module-name=b", "module-name, module-path, object"),
    ],
)
def test_a_uri_that_names_no_key_is_refused(uri: str, found: str) -> None:
    with pytest.raises(FormatError, match=rf"expected pkcs11:.* alone; found {found}$"):
        TokenKey.parse(uri)


def test_a_pin_is_never_in_the_configuration() -> None:
    with pytest.raises(FormatError, match="no place for a PIN"):
        TokenKey.parse("pkcs11:object=a?module-path=/m&pin-value=1234")
