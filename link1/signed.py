"""Signed objects: `{<member>: object, "alg": "ed25519", "signer_kid": …, "sig_b64": …}` (LINK/1 §2).

The signature covers `prefix ‖ 0x00 ‖ RFC 8785 bytes of the object`, so a signature made for one kind
of object can never pass for another.
"""

import hashlib
from collections.abc import Mapping
from enum import Enum
from typing import Any

from link1.canonical import JsonObject, b64_decode, b64_encode, canonical_bytes, canonical_integers
from link1.errors import FormatError, SignatureError
from link1.keys import SIGNATURE_BYTES, PublicKey, SigningKey
from link1.members import HEX32


class Kind(Enum):
    """Every kind of signed object: the member that carries it and the prefix of its signature."""

    HELLO = ("hello_obj", "svc.link.hello.v1")
    STATUS = ("status_obj", "svc.link.status.v1")
    REQUEST = ("request", "svc.gate.request.v1")
    VERDICT = ("verdict", "svc.gate.verdict.v1")
    DECISION = ("decision_obj", "svc.gate.decision.v1")
    PASSAGE = ("passage", "svc.gate.passage.v1")
    GALLERY_HEAD = ("head_obj", "svc.gallery.head.v1")
    DEVICE_STATUS = ("device_status_obj", "svc.device.status.v1")
    REGISTER = ("register_obj", "svc.device.register.v1")
    REGISTERED = ("registered_obj", "svc.device.registered.v1")
    """Of this product, not of the contract: the answer to a registration that travels on a stick."""
    ERASURE_RECEIPT = ("receipt", "svc.erasure.receipt.v1")
    POST = ("post", "svc.post.record.v1")
    TRUST_BUNDLE = ("bundle_obj", "svc.trust.bundle.v1")
    CONFIG = ("config_obj", "svc.config.v1")
    UPDATE_MANIFEST = ("manifest_obj", "svc.update.manifest.v1")
    UPDATE_OFFER = ("offer_obj", "svc.update.offer.v1")

    def __init__(self, member: str, prefix: str) -> None:
        self.member = member
        self.prefix = prefix

    def signed_bytes(self, obj: Mapping[str, Any]) -> bytes:
        """`prefix ‖ 0x00 ‖ RFC 8785 bytes of obj`; raises FormatError."""
        return self.prefix.encode("ascii") + b"\x00" + canonical_integers(obj)


def sign_object(kind: Kind, obj: Mapping[str, Any], key: SigningKey) -> JsonObject:
    """Wrap `obj` with its signature by `key`. Raises FormatError when `obj` has no canonical form."""
    return {
        kind.member: dict(obj),
        "alg": "ed25519",
        "signer_kid": key.kid,
        "sig_b64": b64_encode(key.sign(kind.signed_bytes(obj))),
    }


def signer_kid_of(kind: Kind, wrapper: object) -> str:
    """Check the shape of a wrapper and return the kid of its claimed signer; raises FormatError."""
    return _parse(kind, wrapper)[1]


def verify_object(kind: Kind, wrapper: object, key: PublicKey) -> JsonObject:
    """Return the inner object of `wrapper` when `key` signed it.

    Raises FormatError when the wrapper has other members, types or spellings than the contract's,
    SignatureError when it names another signer or the signature does not hold.
    """
    obj, signer_kid, signature = _parse(kind, wrapper)
    if signer_kid != key.kid:
        raise SignatureError(f"{kind.member} is signed by another key than the one expected")
    key.verify(kind.signed_bytes(obj), signature)
    return obj


def object_ref(wrapper: Mapping[str, Any]) -> str:
    """First 32 hex characters of SHA-256 over the RFC 8785 bytes of a whole wrapper.

    Of a signed verdict this is its `verdict_ref`, which the cloud calls `verdict_id`.
    """
    return hashlib.sha256(canonical_bytes(wrapper)).hexdigest()[:32]


def _parse(kind: Kind, wrapper: object) -> tuple[JsonObject, str, bytes]:
    if not isinstance(wrapper, dict) or set(wrapper) != {kind.member, "alg", "signer_kid", "sig_b64"}:
        raise FormatError(f"a signed {kind.member} has the members {kind.member}, alg, signer_kid, sig_b64")
    obj = wrapper[kind.member]
    signer_kid = wrapper["signer_kid"]
    if not isinstance(obj, dict):
        raise FormatError(f"{kind.member} is not an object")
    if wrapper["alg"] != "ed25519":
        raise FormatError("alg is not ed25519")
    if not isinstance(signer_kid, str) or HEX32.fullmatch(signer_kid) is None:
        raise FormatError("signer_kid is not 32 lower-case hexadecimal digits")
    return obj, signer_kid, b64_decode(wrapper["sig_b64"], length=SIGNATURE_BYTES)
