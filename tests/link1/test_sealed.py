import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyhpke import AEADId, CipherSuite, KDFId, KEMId

from cloud_client.reference_server.contract.sealed import check_outbox_record
from link1.bodies import Box
from link1.canonical import b64_decode, b64_encode, canonical_bytes
from link1.errors import FormatError, SealError, SignatureError
from link1.keys import SealKey, SigningKey
from link1.sealed import (
    SignerCertificate,
    SignerPurpose,
    check_inbox_record,
    open_record,
    seal_record,
)
from link1.signed import Kind

ROOT, MAILMAN, DEVICE = (SigningKey.from_seed(bytes([n]) * 32) for n in (1, 2, 3))
DEVICE_SEAL, SERVICE_SEAL = SealKey.from_seed(b"\x04" * 32), SealKey.from_seed(b"\x05" * 32)
NOT_AFTER_MS = 2_000_000_000_000
BODY = {"release": 7, "note": "é"}


def certificate(purpose: SignerPurpose, not_after_ms: int, root: SigningKey) -> SignerCertificate:
    return SignerCertificate.issue(purpose, MAILMAN.public, not_after_ms, root)


CERTIFICATE = certificate(SignerPurpose.POST, NOT_AFTER_MS, ROOT)


def inbox_record(**change: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "box": Box.IN,
        "src": "svc",
        "dst": "palm-1",
        "seq": 4,
        "rid": "ab" * 16,
        "created_ms": 9,
        "type_": "svc.config",
        "body": BODY,
        "to": DEVICE_SEAL.public,
        "signer": MAILMAN,
        "certificate": CERTIFICATE,
    }
    return seal_record(**arguments | change)


RECORD = inbox_record()


def check(record: dict[str, Any], now_ms: int = 10, next_seq: int = 4) -> tuple[Any, bytes]:
    return check_inbox_record(
        record, device_id="palm-1", roots=[ROOT.public], now_ms=now_ms, next_seq=next_seq
    )


def test_an_inbox_record_opens_for_its_device_alone() -> None:
    record = inbox_record()
    post, ciphertext = check(record)
    assert (post.seq, post.box) == (4, Box.IN)
    assert open_record(record, ciphertext, DEVICE_SEAL) == ("svc.config", BODY)
    with pytest.raises(SealError, match="does not open") as refused:
        open_record(record, ciphertext, SERVICE_SEAL)
    assert refused.value.code == "malformed"


def test_an_outbox_record_is_signed_by_the_device() -> None:
    record = inbox_record(
        box=Box.OUT, src="palm-1", dst="svc", to=SERVICE_SEAL.public, signer=DEVICE, certificate=None
    )
    post, ciphertext = check_outbox_record(record, device_id="palm-1", signer=DEVICE.public)
    assert open_record(record, ciphertext, SERVICE_SEAL) == ("svc.config", BODY)
    assert post.dst == "svc"
    with pytest.raises(SealError) as refused:
        check_outbox_record(record, device_id="palm-1", signer=MAILMAN.public)
    assert refused.value.code == "unknown_signer"


def outbox_record(**change: Any) -> dict[str, Any]:
    return inbox_record(
        box=change.pop("box", Box.OUT),
        src=change.pop("src", "palm-1"),
        dst=change.pop("dst", "svc"),
        to=SERVICE_SEAL.public,
        signer=DEVICE,
        certificate=None,
        **change,
    )


def test_an_outbox_is_numbered_from_one() -> None:
    post, _ = check_outbox_record(outbox_record(seq=1), device_id="palm-1", signer=DEVICE.public)
    assert post.seq == 1
    with pytest.raises(SealError) as refused:
        check_outbox_record(outbox_record(seq=0), device_id="palm-1", signer=DEVICE.public)
    assert refused.value.code == "malformed"


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (outbox_record(dst="palm-2"), "wrong_destination"),
        (outbox_record(src="palm-9"), "wrong_source"),
        (outbox_record(box=Box.IN), "wrong_box"),
        (outbox_record() | {"ct_b64": b64_encode(bytes(100))}, "length_mismatch"),
        (outbox_record() | {"ct_b64": b64_encode(bytes(outbox_record()["post"]["ct_len"]))}, "hash_mismatch"),
    ],
)
def test_each_fault_of_an_outbox_record_has_its_code(record: dict[str, Any], code: str) -> None:
    with pytest.raises(SealError) as refused:
        check_outbox_record(record, device_id="palm-1", signer=DEVICE.public)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"dst": "palm-2"}, "wrong_destination"),
        ({"src": "palm-9"}, "wrong_source"),
        ({"box": Box.OUT}, "wrong_box"),
        ({"seq": 5}, "seq_conflict"),
        ({"signer": DEVICE}, "unknown_signer"),
        ({"certificate": None}, "malformed"),
        ({"certificate": certificate(SignerPurpose.BUNDLE, NOT_AFTER_MS, ROOT)}, "unknown_signer"),
        ({"certificate": certificate(SignerPurpose.POST, NOT_AFTER_MS, MAILMAN)}, "unknown_signer"),
        ({"certificate": certificate(SignerPurpose.POST, 5, ROOT)}, "unknown_signer"),
    ],
)
def test_each_fault_has_its_code(change: dict[str, Any], code: str) -> None:
    with pytest.raises(SealError) as refused:
        check(inbox_record(**change))
    assert refused.value.code == code


def test_the_post_is_under_the_signature_and_pins_the_ciphertext() -> None:
    record = inbox_record()
    moved = record | {"post": record["post"] | {"created_ms": 10}}
    with pytest.raises(SealError) as refused:
        check(moved)
    assert refused.value.code == "bad_signature"
    ciphertext = bytearray(b64_decode(record["ct_b64"]))
    ciphertext[-1] ^= 1
    with pytest.raises(SealError) as refused:
        check(record | {"ct_b64": b64_encode(bytes(ciphertext))})
    assert refused.value.code == "hash_mismatch"
    with pytest.raises(SealError) as refused:
        check(record | {"ct_b64": b64_encode(bytes(ciphertext[:-1]))})
    assert refused.value.code == "length_mismatch"


def test_the_post_of_a_later_version_is_not_read_as_one_of_this() -> None:
    record = inbox_record()
    post = record["post"] | {"v": 2}
    with pytest.raises(SealError, match="member v"):
        check(record | {"post": post, "sig_b64": b64_encode(MAILMAN.sign(Kind.POST.signed_bytes(post)))})


def test_a_ciphertext_does_not_open_under_other_addressing() -> None:
    """The holder of the signing key still cannot readdress what was sealed."""
    record = inbox_record()
    post = record["post"] | {"seq": 5}
    record |= {"post": post, "sig_b64": b64_encode(MAILMAN.sign(Kind.POST.signed_bytes(post)))}
    _, ciphertext = check(record, next_seq=5)
    with pytest.raises(SealError):
        open_record(record, ciphertext, DEVICE_SEAL)


@given(
    st.dictionaries(
        st.sampled_from(["post", "ct_b64", "alg", "signer_kid", "sig_b64", "x"]),
        st.none() | st.integers() | st.text(max_size=5),
    )
)
def test_garbage_is_malformed(change: dict[str, Any]) -> None:
    record = {name: value for name, value in (RECORD | change).items() if value is not None}
    if record == RECORD:
        return
    with pytest.raises(SealError):
        check(record)


def test_an_unknown_suite_has_its_code() -> None:
    record = inbox_record()
    with pytest.raises(SealError) as refused:
        check(record | {"post": record["post"] | {"suite": "rot13"}})
    assert refused.value.code == "unsupported_suite"


def holding(ciphertext: bytes, box: Box = Box.IN) -> dict[str, Any]:
    """A record with this ciphertext, signed by the key that may sign it."""
    record = inbox_record() if box is Box.IN else outbox_record()
    post = record["post"] | {"ct_len": len(ciphertext), "ct_sha256": hashlib.sha256(ciphertext).hexdigest()}
    signature = (MAILMAN if box is Box.IN else DEVICE).sign(Kind.POST.signed_bytes(post))
    return record | {"post": post, "ct_b64": b64_encode(ciphertext), "sig_b64": b64_encode(signature)}


def check_of(box: Box, record: dict[str, Any]) -> int:
    if box is Box.IN:
        return len(check(record)[1])
    return len(check_outbox_record(record, device_id="palm-1", signer=DEVICE.public)[1])


@pytest.mark.parametrize(("box", "most"), [(Box.IN, 524_288), (Box.OUT, 65_536)])
def test_a_ciphertext_has_48_bytes_at_least_and_its_box_has_a_limit(box: Box, most: int) -> None:
    for size in (48, most):
        assert check_of(box, holding(bytes(size), box)) == size
    for size in (47, most + 1):
        with pytest.raises(SealError) as refused:
            check_of(box, holding(bytes(size), box))
        assert refused.value.code == "malformed"


def test_a_body_is_sealed_up_to_the_limit_of_its_box() -> None:
    without: int = outbox_record(body={"x": ""})["post"]["ct_len"]
    assert outbox_record(body={"x": "y" * (65_536 - without)})["post"]["ct_len"] == 65_536
    with pytest.raises(FormatError, match="at most 65536"):
        outbox_record(body={"x": "y" * (65_537 - without)})


@pytest.mark.parametrize(
    "inside",
    [
        b"",
        b"{",
        b'{"body":{},"type":"svc.config","v":2}',
        b'{"body":{},"type":"svc.config"}',
        b'{"body":{},"v":1}',
        b'{"body":[],"type":"svc.config","v":1}',
        b'{"body":{},"type":"two words","v":1}',
    ],
)
def test_what_is_no_message_inside_a_record_is_malformed(inside: bytes) -> None:
    suite = CipherSuite.new(KEMId.DHKEM_X25519_HKDF_SHA256, KDFId.HKDF_SHA256, AEADId.CHACHA20_POLY1305)
    addressing = {n: value for n, value in RECORD["post"].items() if n not in {"ct_len", "ct_sha256"}}
    enc, context = suite.create_sender_context(
        suite.kem.deserialize_public_key(DEVICE_SEAL.public.raw),
        b"svc.post.v1\0" + canonical_bytes(addressing),
    )
    record = holding(enc + context.seal(inside))
    _, ciphertext = check(record)
    with pytest.raises(SealError, match="inside the record") as refused:
        open_record(record, ciphertext, DEVICE_SEAL)
    assert refused.value.code == "malformed"


@pytest.mark.parametrize("change", [{"alg": "none"}, {"sig_b64": "AA=="}, {"signer_kid": "k"}])
def test_a_wrapper_outside_the_contract_is_malformed_before_its_signer_is_looked_at(
    change: dict[str, Any],
) -> None:
    with pytest.raises(SealError) as refused:
        check(inbox_record(certificate=certificate(SignerPurpose.POST, 5, ROOT)) | change)
    assert refused.value.code == "malformed"


def test_a_post_without_a_canonical_form_is_malformed() -> None:
    with pytest.raises(SealError) as refused:
        check(RECORD | {"post": RECORD["post"] | {"later": 1 << 60}})
    assert refused.value.code == "malformed"


def test_certificates_are_140_characters_and_run_out() -> None:
    assert len(CERTIFICATE.b64) == 140
    again = SignerCertificate.from_b64(CERTIFICATE.b64)
    assert again == CERTIFICATE
    assert again.check(SignerPurpose.POST, [DEVICE.public, ROOT.public], NOT_AFTER_MS) == MAILMAN.public
    with pytest.raises(SignatureError):
        again.check(SignerPurpose.POST, [ROOT.public], NOT_AFTER_MS + 1)
