"""A registered device's trust, and bundles that change it."""

from typing import Any

from device.trust.trust import Trust, trust_from_registration
from link1.canonical import JsonObject
from link1.keys import SigningKey
from link1.sealed import SignerCertificate, SignerPurpose
from link1.signed import Kind, sign_object
from tests.device.core_makers import (
    BUNDLE_KEY,
    DBD_ID,
    DEVICE_ID,
    GATE_ID,
    NOW_MS,
    ROOT_KEY,
    registration_answer,
)


def registered(*, passage_sensor: bool = False) -> Trust:
    return trust_from_registration(
        registration_answer(),
        device_id=DEVICE_ID,
        gate_id=GATE_ID,
        dbd_id=DBD_ID,
        passage_sensor=passage_sensor,
        pinned_at_ms=NOW_MS,
    )


def bundle(root: SigningKey = ROOT_KEY, signer: SigningKey = BUNDLE_KEY, **changed: Any) -> JsonObject:
    obj: JsonObject = {
        "v": 1,
        "bundle_seq": 1,
        "issued_at_ms": NOW_MS,
        "roots": [],
        "keys": [],
        "seal_keys": [],
        "revoked_kids": [],
        "dbd_keys": [],
    }
    purpose = changed.pop("purpose", SignerPurpose.BUNDLE)
    ends_ms = changed.pop("certificate_ends_ms", NOW_MS + 1_000)
    certificate = SignerCertificate.issue(purpose, signer.public, ends_ms, root)
    wrapper = sign_object(Kind.TRUST_BUNDLE, obj | changed, signer)
    return wrapper | {"signer_cert_b64": certificate.b64}
