"""Verifying the HTTP message signatures of the device surface (``cloud_client.http_signature``), pure."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cloud_client.contract import SIGNATURE_LABEL, SIGNATURE_SKEW_S, SIGNATURE_TAG
from cloud_client.http_signature import content_digest, covered_components, signature_base
from cloud_client.reference_server.errors import HttpSignatureError
from link1.canonical import b64_decode
from link1.errors import Link1Error
from link1.keys import PublicKey

_MAX_HEADER_CHARS = 1024  # ours are about 250; a cap before any regular expression runs
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}

# RFC 8941 inner list with parameters, restricted to what the profile can hold: no escapes, no flags.
_INPUT = re.compile(
    rf'{SIGNATURE_LABEL}=\( *((?:"[@a-z-]+"(?: +|(?=\))))+)\)'
    r'((?:; *[a-z]+=(?:"[^"\\]*"|[0-9]+))*)'
)
_PARAMETER = re.compile(r'; *([a-z]+)=("[^"\\]*"|[0-9]+)')
_SIGNATURE = re.compile(rf"{SIGNATURE_LABEL}=:([A-Za-z0-9+/=]+):")
_CREATED = re.compile(r"(?:0|[1-9][0-9]{0,14})")
_NONCE = re.compile(r"[A-Za-z0-9+/=_-]{22,64}")
_HEX_NONCE = re.compile(r"[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True)
class VerifiedRequest:
    """Who signed a request; ``nonce`` is still to be looked up in the caller's memory of nonces.

    ``digest`` is the ``Content-Digest`` that was signed, "" where a body was not.
    """

    kid: str
    nonce: str
    digest: str = ""

    def check_body(self, body: bytes | None) -> None:
        """HttpSignatureError unless this is the body that was signed."""
        if (content_digest(body) if body else "") != self.digest:
            raise HttpSignatureError("Content-Digest is not the sha-256 of the body")


def normalise_authority(scheme: str, authority: str) -> str:
    """RFC 9421 §2.2.3: lower case, and the default port of the scheme left out."""
    lowered = authority.lower()
    return lowered.removesuffix(_DEFAULT_PORTS.get(scheme, "\0"))


def verify_request(
    method: str,
    authority: str,
    path: str,
    query: str,
    *,
    headers: Mapping[str, str],
    key_of: Callable[[str], PublicKey | None],
    now_s: int,
) -> VerifiedRequest:
    """Check the signature of a received request's head; HttpSignatureError when anything is wrong.

    The body is yet to be read: see ``check_body`` of the result. ``headers`` may be in any case; the caller
    refuses repeated headers beforehand. ``key_of`` returns the key of a kid, None when there is none.
    ``created`` may differ from ``now_s`` by 300 s either way. The caller remembers nonces.
    """
    fields = {name.lower(): value.strip() for name, value in headers.items()}
    components, params, values = _read_input(fields.get("signature-input", ""))
    digest = fields.get("content-digest", "") if "content-digest" in components else ""
    covered = covered_components(method, authority, path, query, digest)
    if components != [name for name, _ in covered]:
        raise HttpSignatureError("the covered components are not exactly those of the device surface")
    nonce, kid = _check_values(values, now_s)
    found = _SIGNATURE.fullmatch(fields.get("signature", "")[:_MAX_HEADER_CHARS])
    if found is None:
        raise HttpSignatureError('header Signature is not of the form "sig1=:<base64>:"')
    key = key_of(kid)
    if key is None:
        raise HttpSignatureError("keyid names no known key")
    try:
        key.verify(signature_base(covered, params), b64_decode(found[1], length=64))
    except Link1Error as error:
        raise HttpSignatureError(f"signature does not verify: {error}") from error
    return VerifiedRequest(kid, nonce, digest)


def _read_input(value: str) -> tuple[list[str], str, dict[str, str]]:
    """Components, the parameters as they are signed (RFC 8941 form), and their values."""
    found = _INPUT.fullmatch(value) if len(value) <= _MAX_HEADER_CHARS else None
    if found is None:
        raise HttpSignatureError('header Signature-Input is not of the form "sig1=(…);created=…;…"')
    components = [name.strip('"') for name in found[1].split()]
    pairs = _PARAMETER.findall(found[2])
    values = dict(pairs)
    if len(values) != len(pairs):
        raise HttpSignatureError("a signature parameter is repeated")
    listed = " ".join(f'"{name}"' for name in components)
    params = f"({listed})" + "".join(f";{name}={text}" for name, text in pairs)
    return components, params, values


def _check_values(values: dict[str, str], now_s: int) -> tuple[str, str]:
    if set(values) != {"created", "nonce", "keyid", "alg", "tag"}:
        raise HttpSignatureError("signature parameters are not exactly created, nonce, keyid, alg and tag")
    if values["alg"] != '"ed25519"' or values["tag"] != f'"{SIGNATURE_TAG}"':
        raise HttpSignatureError(f'expected alg="ed25519" and tag="{SIGNATURE_TAG}"')
    if not _CREATED.fullmatch(values["created"]):
        raise HttpSignatureError("created is not an integer")
    if abs(int(values["created"]) - now_s) > SIGNATURE_SKEW_S:
        raise HttpSignatureError(f"created is more than {SIGNATURE_SKEW_S} s from this clock")
    if not values["nonce"].startswith('"') or not values["keyid"].startswith('"'):
        raise HttpSignatureError("nonce and keyid are strings")
    nonce, kid = values["nonce"].strip('"'), values["keyid"].strip('"')
    # 16 bytes are 22 characters of base64 without its padding, 32 of hex.
    if not _NONCE.fullmatch(nonce) or (_HEX_NONCE.fullmatch(nonce) and len(nonce) < 32):
        raise HttpSignatureError("nonce is not base64 or hex of at least 16 bytes, at most 64 characters")
    if not re.fullmatch(r"[0-9a-f]{32}", kid):
        raise HttpSignatureError("keyid is not 32 hex characters")
    return nonce, kid
