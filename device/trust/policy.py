"""The signed configuration of the service: thresholds and time limits (device surface §6).

A pinned root certifies a bundle signer, who signs `config_obj`; the certificate accompanies the signature.
Its validity is checked for the time at which the configuration was accepted, not the time of reading: a
configuration stays in force when its signer's certificate expires, or its signer is revoked.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Annotated, Any

from device.errors import TrustError
from gallery.freshness import MAX_TTL_MS
from link1 import members
from link1.canonical import JsonObject
from link1.errors import FormatError, SignatureError
from link1.keys import PublicKey
from link1.sealed import SignerCertificate, SignerPurpose
from link1.signed import Kind, verify_object
from link1.wire import Between, WireObject
from models.thresholds import Thresholds

WaitMs = Annotated[int, Between(1, 600_000)]


class Policy(WireObject):
    """The settings of this device. `attempts`: good captures needed to reject a palm."""

    config_seq: Annotated[int, Between(0)]
    thresholds: Thresholds
    attempts: Annotated[int, Between(1, 100)]
    decision_timeout_ms: WaitMs
    passage_timeout_ms: WaitMs
    gallery_ttl_ms: Annotated[int, Between(1, MAX_TTL_MS)]


def certified(
    kind: Kind,
    signed: Mapping[str, Any],
    *,
    roots: Sequence[PublicKey],
    now_ms: int,
    revoked: Container[str] = (),
) -> JsonObject:
    """The object in `{KIND_obj, alg, signer_kid, sig_b64, signer_cert_b64}`, verified up to a root.

    `now_ms`: epoch milliseconds for checking the signer's certificate. `revoked`: kids of signers that count
    no more. Raises FormatError, SignatureError.
    """
    wrapper = dict(signed)
    certificate = SignerCertificate.from_b64(wrapper.pop("signer_cert_b64", None))
    return verify_object(kind, wrapper, certificate.check(SignerPurpose.BUNDLE, list(roots), now_ms, revoked))


def read_policy(
    signed: Mapping[str, Any],
    *,
    roots: tuple[PublicKey, ...],
    taken_at_ms: int,
    revoked: Container[str] = (),
) -> Policy:
    """Verify a signed configuration and read it.

    `taken_at_ms`: epoch milliseconds at which the device accepted it; `revoked`: kids revoked at that time.
    Raises TrustError.
    """
    try:
        obj = certified(Kind.CONFIG, signed, roots=roots, now_ms=taken_at_ms, revoked=revoked)
        members.version_1(obj)
        return Policy.from_obj(obj)
    except (FormatError, SignatureError) as error:
        raise TrustError(
            f"the signed configuration is refused: {error}; "
            "the service has to send one that a pinned root vouches for"
        ) from error
