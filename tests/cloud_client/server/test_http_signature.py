"""RFC 9421 signatures of the device surface: the RFC's own vector, an independent library, and refusals."""

import base64
import datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from http_message_signatures import HTTPMessageVerifier, HTTPSignatureKeyResolver, algorithms
from hypothesis import given
from hypothesis import strategies as st

from cloud_client.http_signature import sign_request, signature_base
from cloud_client.reference_server.contract.request_signature import normalise_authority, verify_request
from cloud_client.reference_server.errors import HttpSignatureError
from link1.keys import PublicKey, SigningKey

KEY = SigningKey.from_seed(bytes(range(32)))
NOW_S = 1_700_000_000
NONCE = "00112233445566778899aabbccddeeff"


def key_of(kid: str) -> PublicKey | None:
    return KEY.public if kid == KEY.kid else None


def signed(body: bytes | None = b'{"a":1}', query: str = "b=2&a=%20") -> dict[str, str]:
    return sign_request(
        "POST", "localhost:8710", "/v1/enrollments", query, body, key=KEY, created_s=NOW_S, nonce=NONCE
    )


def verify(headers: dict[str, str], body: Any = b'{"a":1}', **changes: object) -> str:
    request: dict[str, object] = {
        "method": "POST",
        "authority": "localhost:8710",
        "path": "/v1/enrollments",
        "query": "b=2&a=%20",
        "now_s": NOW_S,
    }
    request.update(changes)
    verified = verify_request(headers=headers, key_of=key_of, **request)  # type: ignore[arg-type]
    verified.check_body(body)
    return verified.kid


def test_rfc_9421_vector_b_2_6() -> None:
    seed = base64.urlsafe_b64decode("n4Ni-HpISpVObnQMW0wOhCKROaIKqKtW_2ZYb2p9KcU=")
    fields = [
        ("date", "Tue, 20 Apr 2021 02:07:55 GMT"),
        ("@method", "POST"),
        ("@path", "/foo"),
        ("@authority", "example.com"),
        ("content-type", "application/json"),
        ("content-length", "18"),
    ]
    params = (
        '("date" "@method" "@path" "@authority" "content-type" "content-length")'
        ';created=1618884473;keyid="test-key-ed25519"'
    )
    key = SigningKey.from_seed(seed)
    assert base64.urlsafe_b64encode(key.public.raw) == b"JrQLj5P_89iXES9-vFgrIy29clF9CC_oPPsw3c5D0bs="
    assert base64.b64encode(key.sign(signature_base(fields, params))) == (
        b"wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw=="
    )


class _Resolver(HTTPSignatureKeyResolver):
    def resolve_public_key(self, key_id: str) -> object:
        assert key_id == KEY.kid
        return Ed25519PrivateKey.from_private_bytes(KEY.seed).public_key()

    def resolve_private_key(self, key_id: str) -> bytes:
        return KEY.seed


class _Message:
    def __init__(self, method: str, url: str, headers: dict[str, str]) -> None:
        self.method, self.url, self.headers = method, url, headers


def test_an_independent_library_accepts_what_we_sign() -> None:
    now_s = int(datetime.datetime.now(datetime.UTC).timestamp())
    headers = sign_request(
        "POST",
        "localhost:8710",
        "/v1/enrollments",
        "b=2&a=%20",
        b'{"a":1}',
        key=KEY,
        created_s=now_s,
        nonce=NONCE,
    )
    verifier = HTTPMessageVerifier(signature_algorithm=algorithms.ED25519, key_resolver=_Resolver())
    message = _Message("POST", "http://localhost:8710/v1/enrollments?b=2&a=%20", headers)
    (result,) = verifier.verify(message, max_age=datetime.timedelta(seconds=60))
    assert set(result.covered_components) >= {'"@method"', '"@authority"', '"@path"', '"@query"'}


def test_round_trip_with_and_without_a_body() -> None:
    assert verify(signed()) == KEY.kid
    assert verify(signed(body=None), body=b"") == KEY.kid
    assert verify(signed(body=None, query=""), body=None, query="") == KEY.kid


def test_parameters_in_any_order_and_header_case() -> None:
    headers = {name.upper(): value for name, value in signed().items()}
    assert verify(headers) == KEY.kid
    params = (
        '("@method" "@authority" "@path" "@query");tag="svc.device.v1";alg="ed25519"'
        f';keyid="{KEY.kid}";created={NOW_S};nonce="{NONCE}"'
    )
    base = signature_base([("@method", "GET"), ("@authority", "h"), ("@path", "/p"), ("@query", "?")], params)
    headers = {
        "Signature-Input": "sig1=" + params.replace(";tag", "; tag"),
        "Signature": f"sig1=:{base64.b64encode(KEY.sign(base)).decode()}:",
    }
    assert verify_request("GET", "H", "/p", "", headers=headers, key_of=key_of, now_s=NOW_S).nonce == NONCE


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "PUT"},
        {"authority": "localhost:8711"},
        {"path": "/v1/enrollments/"},
        {"query": "a=%20&b=2"},
        {"query": ""},
        {"body": b'{"a":2}'},
        {"body": None},
        {"now_s": NOW_S + 301},
        {"now_s": NOW_S - 301},
    ],
)
def test_whatever_is_covered_cannot_be_changed(changes: dict[str, object]) -> None:
    with pytest.raises(HttpSignatureError):
        verify(signed(), **changes)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('alg="ed25519"', 'alg="rsa-pss-sha512"'),
        (';alg="ed25519"', ""),
        ('tag="svc.device.v1"', 'tag="other"'),
        ("sig1=", "sig2="),
        (NONCE, "00112233445566778899aabbccddee"),
        (NONCE, NONCE * 3),
        (KEY.kid, "0" * 32),
        ('"@query" ', ""),
        (f"created={NOW_S}", 'created="now"'),
        (f"created={NOW_S}", f"created={NOW_S};created={NOW_S}"),
        (f"created={NOW_S}", f"created={NOW_S};expires={NOW_S}"),
    ],
)
def test_another_profile_is_refused(old: str, new: str) -> None:
    headers = signed()
    assert old in headers["Signature-Input"]
    headers["Signature-Input"] = headers["Signature-Input"].replace(old, new)
    with pytest.raises(HttpSignatureError):
        verify(headers)


@pytest.mark.parametrize("name", ["Signature-Input", "Signature", "Content-Digest"])
def test_each_header_is_needed(name: str) -> None:
    headers = signed()
    del headers[name]
    with pytest.raises(HttpSignatureError):
        verify(headers)


@given(st.text(max_size=300), st.text(max_size=120))
def test_arbitrary_headers_raise_nothing_else(signature_input: str, signature: str) -> None:
    with pytest.raises(HttpSignatureError):
        verify({"Signature-Input": signature_input, "Signature": signature}, body=None)


def test_the_default_port_is_left_out() -> None:
    assert normalise_authority("https", "A:443") == "a"
    assert normalise_authority("https", "A:80") == "a:80"


def test_the_oracle_key_is_ours() -> None:
    public = Ed25519PrivateKey.from_private_bytes(KEY.seed).public_key()
    raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    assert raw == KEY.public.raw
