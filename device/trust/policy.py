"""The signed configuration of the service: thresholds and time limits (device surface §6).

A pinned root certifies a bundle signer, who signs `config_obj`; the certificate accompanies the signature.
Its validity is checked for the time at which the configuration was accepted, not the time of reading: a
configuration stays in force when its signer's certificate expires.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from device.errors import TrustError
from gallery.freshness import MAX_TTL_MS
from link1 import members
from link1.canonical import JsonObject
from link1.errors import FormatError, SignatureError
from link1.keys import PublicKey
from link1.sealed import SignerCertificate, SignerPurpose
from link1.signed import Kind, verify_object
from models.thresholds import Thresholds

_MAX_WAIT_MS = 600_000


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of this device. `attempts`: good captures needed to reject a palm."""

    config_seq: int
    thresholds: Thresholds
    attempts: int
    decision_timeout_ms: int
    passage_timeout_ms: int
    gallery_ttl_ms: int


def certified(
    kind: Kind, signed: Mapping[str, Any], *, roots: Sequence[PublicKey], now_ms: int
) -> JsonObject:
    """The object in `{KIND_obj, alg, signer_kid, sig_b64, signer_cert_b64}`, verified up to a root.

    `now_ms`: epoch milliseconds for checking the signer's certificate. Raises FormatError, SignatureError.
    """
    wrapper = dict(signed)
    certificate = SignerCertificate.from_b64(wrapper.pop("signer_cert_b64", None))
    return verify_object(kind, wrapper, certificate.check(SignerPurpose.BUNDLE, list(roots), now_ms))


def read_policy(signed: Mapping[str, Any], *, roots: tuple[PublicKey, ...], taken_at_ms: int) -> Policy:
    """Verify a signed configuration and read it.

    `taken_at_ms`: epoch milliseconds at which the device accepted it. Raises TrustError.
    """
    try:
        obj = certified(Kind.CONFIG, signed, roots=roots, now_ms=taken_at_ms)
        members.version_1(obj)
        return Policy(
            config_seq=members.integer(obj, "config_seq"),
            thresholds=Thresholds.from_obj(members.nested(obj, "thresholds")),
            attempts=members.integer(obj, "attempts", 1, 100),
            decision_timeout_ms=members.integer(obj, "decision_timeout_ms", 1, _MAX_WAIT_MS),
            passage_timeout_ms=members.integer(obj, "passage_timeout_ms", 1, _MAX_WAIT_MS),
            gallery_ttl_ms=members.integer(obj, "gallery_ttl_ms", 1, MAX_TTL_MS),
        )
    except (FormatError, SignatureError) as error:
        raise TrustError(
            f"the signed configuration is refused: {error}; "
            "the service has to send one that a pinned root vouches for"
        ) from error
