import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from link1.canonical import b64_encode
from link1.errors import FormatError, KeyFormatError, SignatureError
from link1.keys import PublicKey, SealKey, SealPublicKey, SigningKey
from link1.objects import Decision, Passage, Request, Verdict, VerdictResult
from link1.signed import Kind, object_ref, sign_object, verify_object
from tests.link1.cable import verdict_for

KEY = SigningKey.from_seed(bytes(range(32)))
OTHER = SigningKey.from_seed(bytes(range(1, 33)))
REQUEST = Request("ab" * 16, "gate-1", "dbd-1", b64_encode(bytes(16)), 1_700_000_000_000, 5000)
VERDICT = verdict_for(REQUEST, onboard_ref="card:7")
DECISION = Decision("ab" * 16, "g", "d", b64_encode(bytes(32)), "ef" * 16, "ok", "LIBERAR", True, 1, 3)
PASSAGE = Passage("ab" * 16, "d", "g", "ef" * 16, True, "giro", 4, 1)


def test_a_signature_holds_for_its_kind_key_and_bytes_alone() -> None:
    wrapper = sign_object(Kind.REQUEST, REQUEST.to_obj(), KEY)
    assert Request.from_obj(verify_object(Kind.REQUEST, wrapper, KEY.public)) == REQUEST
    with pytest.raises(SignatureError):
        verify_object(Kind.REQUEST, wrapper, OTHER.public)
    with pytest.raises(SignatureError):
        verify_object(Kind.REQUEST, wrapper | {"signer_kid": OTHER.kid}, OTHER.public)
    with pytest.raises(SignatureError, match="another key"):
        verify_object(Kind.REQUEST, wrapper | {"signer_kid": OTHER.kid}, KEY.public)
    with pytest.raises(SignatureError):
        verify_object(Kind.REQUEST, wrapper | {"request": REQUEST.to_obj() | {"ttl_ms": 5001}}, KEY.public)
    renamed = {"passage": wrapper["request"]} | {n: v for n, v in wrapper.items() if n != "request"}
    with pytest.raises(SignatureError):
        verify_object(Kind.PASSAGE, renamed, KEY.public)


def test_unknown_members_stay_under_the_signature() -> None:
    wrapper = sign_object(Kind.REQUEST, REQUEST.to_obj() | {"later": [1]}, KEY)
    assert Request.from_obj(verify_object(Kind.REQUEST, wrapper, KEY.public)) == REQUEST
    del wrapper["request"]["later"]
    with pytest.raises(SignatureError):
        verify_object(Kind.REQUEST, wrapper, KEY.public)


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"alg": "Ed25519"},
        {"signer_kid": KEY.kid.upper()},
        {"signer_kid": 5},
        {"sig_b64": "AA=="},
        {"sig_b64": None},
        {"request": []},
    ],
)
def test_a_wrapper_has_exactly_its_members(change: dict[str, object]) -> None:
    wrapper = sign_object(Kind.REQUEST, REQUEST.to_obj(), KEY)
    with pytest.raises(FormatError):
        verify_object(Kind.REQUEST, wrapper | change, KEY.public)
    with pytest.raises(FormatError):
        verify_object(Kind.REQUEST, [wrapper], KEY.public)


def test_a_signed_object_holds_no_fraction() -> None:
    for number in (0.5, 1.0, 2.0**60):
        signed = sign_object(Kind.REQUEST, {"more": {"list": [1]}}, KEY)
        signed["request"]["more"]["list"] = [number]
        with pytest.raises(FormatError):
            verify_object(Kind.REQUEST, signed, KEY.public)
        with pytest.raises(FormatError):
            sign_object(Kind.REQUEST, {"more": {"list": [number]}}, KEY)


def test_a_missing_wrapper_member_is_refused() -> None:
    wrapper = sign_object(Kind.REQUEST, REQUEST.to_obj(), KEY)
    for name in wrapper:
        with pytest.raises(FormatError):
            verify_object(Kind.REQUEST, {n: v for n, v in wrapper.items() if n != name}, KEY.public)


def test_verdict_ref_covers_the_signature() -> None:
    wrapper = sign_object(Kind.VERDICT, VERDICT.to_obj(), KEY)
    other = sign_object(Kind.VERDICT, VERDICT.to_obj(), OTHER)
    assert object_ref(wrapper) != object_ref(other)
    assert object_ref(wrapper) == object_ref(copy.deepcopy(wrapper))


@pytest.mark.parametrize("value", [REQUEST, VERDICT, DECISION, PASSAGE], ids=lambda v: type(v).__name__)
def test_objects_are_read_as_they_are_written(value: Any) -> None:
    assert type(value).from_obj(value.to_obj()) == value


@given(st.data())
def test_a_member_of_another_type_or_out_of_range_is_refused(data: st.DataObject) -> None:
    value: Any = data.draw(st.sampled_from([REQUEST, VERDICT, DECISION, PASSAGE]))
    obj = value.to_obj()
    name = data.draw(st.sampled_from(sorted(set(obj) - {"onboard_ref"})))
    # A change that keeps the type stays inside its range here, so only a foreign type is drawn.
    wrong: object = data.draw(st.sampled_from([None, 1.5, [], {}, "\n", True, -(10**6), ""]))
    if isinstance(obj[name], bool) and isinstance(wrong, bool):
        return
    with pytest.raises(FormatError):
        type(value).from_obj(obj | {name: wrong})
    with pytest.raises(FormatError):
        type(value).from_obj({n: v for n, v in obj.items() if n != name})


def test_only_an_accept_names_a_person() -> None:
    with pytest.raises(FormatError):
        Verdict.from_obj(VERDICT.to_obj() | {"decision": "reject", "result": "NO_MATCH"})
    with pytest.raises(FormatError):
        Verdict.from_obj(VERDICT.to_obj() | {"decision": "reject"})
    with pytest.raises(FormatError):
        replace(VERDICT, result=VerdictResult.NO_MATCH)
    stranger = replace(VERDICT, result=VerdictResult.NO_MATCH, subject_ref=None, onboard_ref=None, hand=None)
    assert Verdict.from_obj(stranger.to_obj()) == stranger


def test_keys_are_loaded_strictly_and_never_shown() -> None:
    for raw in (bytes(32), b"\x01" + bytes(31), b"\xff" * 32, bytes(31), bytes(33)):
        with pytest.raises(KeyFormatError):
            PublicKey.from_bytes(raw)
    with pytest.raises(KeyFormatError):
        SealPublicKey.from_bytes(bytes(32))
    with pytest.raises(KeyFormatError):
        SigningKey.from_seed(b"short")
    assert "seed" not in repr(KEY)
    assert "seed" not in repr(SealKey.generate())
    assert len(KEY.kid) == 32
