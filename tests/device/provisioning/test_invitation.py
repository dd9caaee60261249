"""The provisioning string: what it holds, how a spoilt one is refused, and what a hostile one costs."""

import time
from base64 import b32encode
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device.errors import ProvisioningError
from device.provisioning.invitation import MAX_TEXT, PREFIX, Invitation, read_invitation
from models.qr_code import MAX_TEXT as MAX_IN_A_CODE
from tests.authorities import Authority, authority
from tools.cloud.pack_invitation import pack_invitation

__all__ = ["authority"]
SAID = Invitation(
    url="https://palm.metro.example:8443",
    token="ILObMGeT4uhj3vqbZ8W1yJ7sB2nQfK0eXrTgHdLcVwA",
    device_id="gate-7-left",
    gate_id="gate-7",
    dbd_id="dbd-7",
    passage_sensor=True,
    root_kid="d115f2e13f3c2a0a823f39a3d9a2bb30",
    expires_at_s=1_795_188_237,
    authority=b"",
)
TEXT = pack_invitation(SAID)
CROCKFORD = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", b"0123456789ABCDEFGHJKMNPQRSTVWXYZ")
NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=64)


@given(
    st.builds(
        Invitation,
        url=NAMES,
        token=NAMES,
        device_id=NAMES,
        gate_id=NAMES,
        dbd_id=NAMES,
        passage_sensor=st.booleans(),
        root_kid=st.binary(min_size=16, max_size=16).map(bytes.hex),
        expires_at_s=st.integers(0, 2**40 - 1),
        authority=st.just(b""),
    )
)
def test_what_is_said_is_read(said: Invitation) -> None:
    assert read_invitation(pack_invitation(said)) == said


def test_a_hand_may_write_it_with_hyphens_in_lower_case_and_with_the_letters_it_lacks() -> None:
    plain = TEXT
    grouped = "-".join(plain[at : at + 8] for at in range(0, len(plain), 8)).lower()
    for text in (grouped, f"  {plain}\n", plain[:5] + plain[5:].replace("0", "o").replace("1", "l")):
        assert read_invitation(text) == SAID
    assert SAID.token not in repr(SAID)


def test_an_elliptic_curve_authority_fits_a_code_and_any_other_is_carried_whole(
    authority: Authority,
) -> None:
    small = replace(SAID, authority=authority.packed())
    assert len(pack_invitation(small)) < MAX_IN_A_CODE
    whole = replace(SAID, authority=Authority.made(authority.folder, "named", path_length=1).packed())
    assert len(pack_invitation(whole)) > MAX_IN_A_CODE
    assert [read_invitation(pack_invitation(said)) for said in (small, whole)] == [small, whole]


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (TEXT[:-1], "cut off: expected {0} characters, found"),
        (TEXT[:40], "cut off: expected {0} characters, found 40"),
        ("PALM1", "cut off"),
        (TEXT + "0", "checksum does not agree"),
        (TEXT[:100] + ("0" if TEXT[100] != "0" else "2") + TEXT[101:], "checksum"),
        (TEXT.replace("PALM1", "PALM2"), "another version; update"),
        (TEXT[:50] + "U" + TEXT[51:], "another character"),
        (TEXT[:50] + "!" + TEXT[51:], "another character"),
        (TEXT[:50] + "é" + TEXT[51:], "another character"),
        ("https://cloud.example", "begins with PALM1, found none"),
        ("", "begins with PALM1, found none"),
        (TEXT * 20, f"at most {MAX_TEXT} characters"),
    ],
)
def test_a_spoilt_string_is_refused_with_what_was_expected_and_found(spoilt: str, said: str) -> None:
    with pytest.raises(ProvisioningError) as refused:
        read_invitation(spoilt)
    assert said.format(len(TEXT)) in str(refused.value)
    assert "palmctl cloud device invite" in str(refused.value) or "update" in str(refused.value)
    assert SAID.token not in str(refused.value)


@given(st.binary(max_size=600))
def test_whatever_has_the_right_checksum_is_read_or_refused(body: bytes) -> None:
    measured = len(body).to_bytes(2, "big") + body
    coded = b32encode(measured + sha256(PREFIX.encode() + measured).digest()[:4]).rstrip(b"=")
    text = PREFIX + coded.translate(CROCKFORD).decode()
    try:
        assert pack_invitation(read_invitation(text)) == text
    except ProvisioningError as error:
        assert "another form" in str(error)


@given(st.text(max_size=300))
def test_garbage_is_refused(text: str) -> None:
    for garbage in (text, "PALM1" + text):
        with pytest.raises(ProvisioningError):
            read_invitation(garbage)


def test_an_endless_string_costs_no_more_than_a_long_one() -> None:
    endless = "PALM1" + "0" * 50_000_000
    began = time.perf_counter()
    with pytest.raises(ProvisioningError, match="at most"):
        read_invitation(endless)
    assert time.perf_counter() - began < 0.1
