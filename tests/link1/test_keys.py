"""Keys: what is none, and signatures that only look like one."""

from collections.abc import Callable

import pytest

from link1.errors import KeyFormatError, SignatureError
from link1.keys import PublicKey, SealKey, SealPublicKey, SigningKey

KEY = SigningKey.from_seed(bytes(range(32)))
GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493


@pytest.mark.parametrize(
    "load", [PublicKey.from_bytes, SigningKey.from_seed, SealPublicKey.from_bytes, SealKey.from_seed]
)
@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_has_32_bytes(load: Callable[[bytes], object], size: int) -> None:
    with pytest.raises(KeyFormatError, match="32 bytes"):
        load(b"\x09" * size)


@pytest.mark.parametrize("load", [PublicKey.from_bytes, SealPublicKey.from_bytes])
def test_a_point_of_low_order_is_no_key(load: Callable[[bytes], object]) -> None:
    for raw in (bytes(32), b"\x01" + bytes(31)):
        with pytest.raises(KeyFormatError):
            load(raw)


def test_a_signature_holds_for_its_message_alone() -> None:
    signature = KEY.sign(b"message")
    KEY.public.verify(b"message", signature)
    for message, given in ((b"massage", signature), (b"message", KEY.sign(b"massage"))):
        with pytest.raises(SignatureError):
            KEY.public.verify(message, given)


@pytest.mark.parametrize("size", [0, 63, 65, 66])
def test_no_byte_moves_between_signature_and_message(size: int) -> None:
    """The two lie behind each other where they are checked: the same bytes, cut at another place."""
    both = KEY.sign(b"message") + b"message"
    with pytest.raises(SignatureError, match="64 bytes"):
        KEY.public.verify(both[size:], both[:size])


def test_a_signature_has_one_spelling() -> None:
    signature = KEY.sign(b"message")
    larger = int.from_bytes(signature[32:], "little") + GROUP_ORDER
    with pytest.raises(SignatureError, match="outside the group order"):
        KEY.public.verify(b"message", signature[:32] + larger.to_bytes(32, "little"))
    for s, words in ((GROUP_ORDER, "outside the group order"), (GROUP_ORDER - 1, "does not hold")):
        with pytest.raises(SignatureError, match=words):
            KEY.public.verify(b"message", signature[:32] + s.to_bytes(32, "little"))


def test_no_private_key_is_shown() -> None:
    assert "seed" not in repr(KEY)
    assert "seed" not in repr(SealKey.from_seed(bytes(32)))
