"""Published vectors against the code that meets foreign bytes.

The vectors are not in this tree: PALM_TEST_VECTORS names a folder that holds them.
"""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from pyhpke import AEADId, CipherSuite, KDFId, KEMId, PyHPKEError

from link1.canonical import canonical_bytes
from link1.errors import KeyFormatError, SignatureError
from link1.keys import PublicKey, SealPublicKey, SigningKey

FOLDER = os.environ.get("PALM_TEST_VECTORS")
pytestmark = pytest.mark.skipif(
    FOLDER is None, reason="PALM_TEST_VECTORS is not set: published vectors not run"
)


def vectors(*parts: str) -> Path:
    assert FOLDER is not None
    return Path(FOLDER, *parts)


def load(*parts: str) -> Any:
    return json.loads(vectors(*parts).read_text())


def accepts(public_key: str, message: bytes, signature: str) -> bool:
    try:
        PublicKey.from_bytes(bytes.fromhex(public_key)).verify(message, bytes.fromhex(signature))
    except (KeyFormatError, SignatureError):
        return False
    return True


def test_jcs_official_files_are_byte_exact() -> None:
    names = sorted(path.name for path in vectors("jcs", "input").iterdir())
    assert names
    for name in names:
        value = load("jcs", "input", name)
        # The array file has no outer object, and everything this project signs has one.
        got = canonical_bytes(value) if isinstance(value, dict) else rfc8785.dumps(value)
        assert got == vectors("jcs", "output", name).read_bytes(), name


def test_jcs_numbers() -> None:
    for line in vectors("jcs", "es6_10000.txt").read_text().splitlines():
        bits, expected = line.split(",")
        number = struct.unpack(">d", int(bits, 16).to_bytes(8, "big"))[0]
        assert rfc8785.dumps(number).decode() == expected


def test_ed25519_wycheproof_verdicts_all_match() -> None:
    checked = 0
    for group in load("wycheproof", "ed25519_test.json")["testGroups"]:
        for case in group["tests"]:
            got = accepts(group["publicKey"]["pk"], bytes.fromhex(case["msg"]), case["sig"])
            assert got == (case["result"] == "valid"), case["tcId"]
            checked += 1
    assert checked > 100


def test_ed25519_speccheck_accepts_none() -> None:
    cases = load("ed25519-speccheck", "cases.json")
    assert len(cases) == 12
    for number, case in enumerate(cases):
        assert not accepts(case["pub_key"], bytes.fromhex(case["message"]), case["signature"]), number


def test_ed25519_cctv_accepts_exactly_the_case_without_flags() -> None:
    cases = load("c2sp-cctv-ed25519", "ed25519vectors.json")
    accepted = [case for case in cases if accepts(case["key"], case["msg"].encode(), case["sig"])]
    assert len(cases) == 914
    assert [case["flags"] for case in accepted] == [None]


def test_ed25519_djb_lines_sign_and_verify() -> None:
    lines = vectors("djb-ed25519", "sign.input").read_text().splitlines()
    assert len(lines) == 1024
    for line in lines:
        secret, public, message, signed, *_ = line.split(":")
        key = SigningKey.from_seed(bytes.fromhex(secret)[:32])
        assert key.public.raw.hex() == public
        signature = key.sign(bytes.fromhex(message))
        assert signed.startswith(signature.hex())
        assert accepts(public, bytes.fromhex(message), signature.hex())


def test_x25519_low_order_points_are_refused() -> None:
    refused = 0
    for group in load("wycheproof", "x25519_test.json")["testGroups"]:
        for case in group["tests"]:
            if "ZeroSharedSecret" in case["flags"]:
                with pytest.raises(KeyFormatError):
                    SealPublicKey.from_bytes(bytes.fromhex(case["public"]))
                refused += 1
    assert refused


def test_hpke_rfc9180_opens_all_and_refuses_flipped_bits() -> None:
    suite = CipherSuite.new(KEMId.DHKEM_X25519_HKDF_SHA256, KDFId.HKDF_SHA256, AEADId.CHACHA20_POLY1305)
    modes = load("hpke-rfc9180", "x25519-hkdfsha256-chacha20poly1305.json")
    assert sorted(vector["mode"] for vector in modes) == [0, 1, 2, 3]
    for vector in modes:
        recipient = suite.kem.deserialize_private_key(bytes.fromhex(vector["skRm"]))
        arguments: dict[str, Any] = {"info": bytes.fromhex(vector["info"])}
        if "psk" in vector:
            arguments |= {"psk": bytes.fromhex(vector["psk"]), "psk_id": bytes.fromhex(vector["psk_id"])}
        if "pkSm" in vector:
            arguments["pks"] = suite.kem.deserialize_public_key(bytes.fromhex(vector["pkSm"]))
        enc = bytes.fromhex(vector["enc"])
        context = suite.create_recipient_context(enc, recipient, **arguments)
        for encryption in vector["encryptions"]:
            ciphertext, aad = bytes.fromhex(encryption["ct"]), bytes.fromhex(encryption["aad"])
            assert context.open(ciphertext, aad).hex() == encryption["pt"]
        first = vector["encryptions"][0]
        flipped = bytearray.fromhex(first["ct"])
        flipped[0] ^= 1
        fresh = suite.create_recipient_context(enc, recipient, **arguments)
        with pytest.raises(PyHPKEError):
            fresh.open(bytes(flipped), bytes.fromhex(first["aad"]))
