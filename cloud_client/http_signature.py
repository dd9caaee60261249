"""HTTP message signatures of the device surface: RFC 9421 with Ed25519, pure. Verifying is the server's.

One profile only (device surface §2): label ``sig1``; the components ``"@method" "@authority" "@path"
"@query"`` and, when the request has a body, ``"content-digest"`` (RFC 9530, sha-256), in this order; the
parameters ``created``, ``nonce``, ``keyid``, ``alg="ed25519"`` and ``tag="svc.device.v1"``, each once, in
any order. Nothing here keeps state or reads a clock.

    headers = sign_request("GET", "127.0.0.1:8710", "/v1/devices/self/status", "", None,
                           key=key, created_s=1_700_000_000, nonce=new_nonce())
"""

import hashlib
import secrets
from collections.abc import Sequence

from cloud_client.contract import SIGNATURE_LABEL, SIGNATURE_TAG
from link1.canonical import b64_encode
from link1.keys import SigningKey

CONTENT_DIGEST_HEADER = "Content-Digest"
SIGNATURE_INPUT_HEADER = "Signature-Input"
SIGNATURE_HEADER = "Signature"

_COMPONENTS = ("@method", "@authority", "@path", "@query")


def new_nonce() -> str:
    """16 random bytes in hex."""
    return secrets.token_hex(16)


def content_digest(body: bytes) -> str:
    """The RFC 9530 ``Content-Digest`` value of a body."""
    return f"sha-256=:{b64_encode(hashlib.sha256(body).digest())}:"


def sign_request(
    method: str,
    authority: str,
    path: str,
    query: str,
    body: bytes | None,
    *,
    key: SigningKey,
    created_s: int,
    nonce: str,
) -> dict[str, str]:
    """The headers that sign this request: Signature-Input, Signature and, with a body, Content-Digest.

    ``authority`` is the Host header's value, ``path`` as in the request line (percent-encoding
    kept), ``query`` what follows ``?`` ("" for none), ``created_s`` epoch seconds.
    """
    digest = content_digest(body) if body else ""
    covered = covered_components(method, authority, path, query, digest)
    listed = " ".join(f'"{name}"' for name, _ in covered)
    params = (
        f'({listed});created={created_s};nonce="{nonce}";keyid="{key.public.kid}"'
        f';alg="ed25519";tag="{SIGNATURE_TAG}"'
    )
    signature = key.sign(signature_base(covered, params))
    headers = {CONTENT_DIGEST_HEADER: digest} if digest else {}
    return headers | {
        SIGNATURE_INPUT_HEADER: f"{SIGNATURE_LABEL}={params}",
        SIGNATURE_HEADER: f"{SIGNATURE_LABEL}=:{b64_encode(signature)}:",
    }


def signature_base(fields: Sequence[tuple[str, str]], params: str) -> bytes:
    """The bytes that are signed (RFC 9421 §2.5): one line a component, the parameters last."""
    lines = [f'"{name}": {value}' for name, value in fields]
    lines.append(f'"@signature-params": {params}')
    return "\n".join(lines).encode()


def covered_components(
    method: str, authority: str, path: str, query: str, digest: str
) -> list[tuple[str, str]]:
    """The components of this profile, in their order; ``digest`` is empty without a body."""
    fields = zip(_COMPONENTS, (method, authority.lower(), path or "/", f"?{query}"), strict=True)
    return [*fields, ("content-digest", digest)] if digest else list(fields)
