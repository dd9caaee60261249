"""Attesting a device's keys: a certificate chain of its maker (device surface §3).

The evidence of level x509 is ``{chain_b64: [DER, leaf first], sig_b64}``. The leaf's key signs

    "svc.device.attest.v1" ‖ 0x00 ‖ SHA-256(verdict ‖ http ‖ seal public key) ‖ challenge

where the challenge is the one of the device's latest signed status (300 s, once). The chain has to lead to
a factory CA that an operator configured; the CA itself may be left out of it. Leaf and CA keys are ECDSA
on P-256 or P-384 or Ed25519 (CA keys also RSA); the leaf signs with SHA-256, in DER.

What does not verify is one answer, whatever the reason, which the log alone has.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import Field

from cloud_client.reference_server.contract import answers as shown
from cloud_client.reference_server.contract.bodies import Attest, Body, read_model
from cloud_client.reference_server.contract.mail import base64_of
from cloud_client.reference_server.contract.problems import FieldError, Problem, ProblemCode, invalid
from cloud_client.reference_server.contract.times import DAY_MS
from cloud_client.reference_server.domain.call import ApiAnswer, Call
from cloud_client.reference_server.domain.devices.records import is_attested, row_by_id, trust_of
from cloud_client.reference_server.domain.tenancy.rows import device_params
from cloud_client.reference_server.errors import OperatorError
from cloud_client.reference_server.store.base import Row, Tx
from link1.canonical import b64_decode
from link1.errors import KeyFormatError, SignatureError
from link1.keys import PublicKey

PREFIX: Final = b"svc.device.attest.v1\x00"
MAX_CHAIN: Final = 4
_MAX_CERTIFICATE_BYTES: Final = 4096
_MAX_SIGNATURE_BYTES: Final = 256
_GOOD_FOR_MS: Final = 90 * DAY_MS
_DUE_AFTER_MS: Final = 30 * DAY_MS
_CURVES: Final = (ec.SECP256R1, ec.SECP384R1)
_UNREADABLE: Final = (
    ValueError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What cannot be read in a certificate: some of it when it is loaded, some when it is looked at."""
_UNDERSTOOD: Final = frozenset(
    {x509.BasicConstraints.oid, x509.KeyUsage.oid, x509.ExtendedKeyUsage.oid, x509.SubjectAlternativeName.oid}
)


class X509Evidence(Body):
    chain_b64: Annotated[
        list[base64_of(1, _MAX_CERTIFICATE_BYTES)],  # type: ignore[valid-type]
        Field(min_length=1, max_length=MAX_CHAIN),
    ]
    sig_b64: base64_of(1, _MAX_SIGNATURE_BYTES)  # type: ignore[valid-type]


class _NotVerified(Exception):
    """The evidence proves nothing; the reason is for the log alone, and quotes nothing of it."""


def attest_device(call: Call, tx: Tx) -> ApiAnswer:
    """``POST /v1/devices/attest``."""
    body: Attest = call.body
    device = row_by_id(tx, call.environment, call.caller.device_id)
    if body.level == "none":
        if body.evidence is not None:
            raise invalid("/evidence", "type")
        return _attested(tx, device, None, call.now_ms)
    evidence = _evidence(body.evidence)
    try:
        proof = _verify(call, tx, device, evidence)
    except _NotVerified as error:
        raise invalid("/evidence", "not_verified", reason=str(error)) from None
    _bind_leaf(tx, device, proof.leaf)
    return _attested(tx, device, proof, call.now_ms)


def is_due(tx: Tx, device: Row, now_ms: int) -> bool:
    """Whether the device should attest its keys: it could and is not verified, or did long ago."""
    if is_attested(device, now_ms):
        return bool(now_ms - device["attested_ms"] >= _DUE_AFTER_MS)
    return tx.exists("SELECT 1 FROM factory_cas")


def key_digest(verdict: bytes, http: bytes, seal: bytes) -> bytes:
    """The digest of all keys of a device: SHA-256 over the three raw public keys."""
    return hashlib.sha256(verdict + http + seal).digest()


def add_factory_ca(tx: Tx, content: bytes, now_ms: int) -> dict[str, Any]:
    """``factory-ca add``: a certificate in PEM or DER."""
    try:
        is_pem = content.lstrip().startswith(b"-----BEGIN")
        load = x509.load_pem_x509_certificate if is_pem else x509.load_der_x509_certificate
        certificate = load(content)
        _check_issuer(certificate, below=0)
    except (*_UNREADABLE, _NotVerified):
        raise OperatorError(
            "this is no CA certificate that can vouch for devices: give its PEM or DER"
        ) from None
    fingerprint = certificate.fingerprint(SHA256()).hex()
    tx.run(
        """INSERT INTO factory_cas (fingerprint, certificate, added_ms)
           VALUES (:fingerprint, :certificate, :now_ms) ON CONFLICT DO NOTHING""",
        fingerprint=fingerprint,
        certificate=certificate.public_bytes(Encoding.DER),
        now_ms=now_ms,
    )
    return _shown_ca(fingerprint, certificate)


def list_factory_cas(tx: Tx) -> dict[str, Any]:
    rows = tx.all("SELECT fingerprint, certificate FROM factory_cas ORDER BY added_ms, fingerprint")
    return {
        "data": [
            _shown_ca(row["fingerprint"], x509.load_der_x509_certificate(row["certificate"])) for row in rows
        ]
    }


def remove_factory_ca(tx: Tx, fingerprint: str) -> dict[str, Any]:
    removed = tx.one(
        "DELETE FROM factory_cas WHERE fingerprint = :fingerprint RETURNING fingerprint, certificate",
        fingerprint=fingerprint.lower(),
    )
    if removed is None:
        raise OperatorError("no such factory CA: `factory-ca list` prints the fingerprint to give here")
    tx.run(
        "UPDATE devices SET attested_until_ms = 0 WHERE attested_ca = :fingerprint",
        fingerprint=removed["fingerprint"],
    )
    return _shown_ca(removed["fingerprint"], x509.load_der_x509_certificate(removed["certificate"]))


def _shown_ca(fingerprint: str, certificate: x509.Certificate) -> dict[str, Any]:
    return {"fingerprint": fingerprint, "subject": certificate.subject.rfc4514_string()}


@dataclass(frozen=True, slots=True)
class _Proof:
    """What verified evidence says: whose leaf key (SHA-256), under which CA, and until when."""

    leaf: bytes
    ca: str
    until_ms: int


def _attested(tx: Tx, device: Row, proof: _Proof | None, now_ms: int) -> ApiAnswer:
    tx.run(
        """UPDATE devices SET attested_ms = :at_ms, attested_until_ms = :until_ms, attested_ca = :ca
           WHERE tenant_id = :tenant_id AND device_id = :device_id""",
        at_ms=None if proof is None else now_ms,
        until_ms=0 if proof is None else proof.until_ms,
        ca=None if proof is None else proof.ca,
        **device_params(device),
    )
    return ApiAnswer(200, shown.Attestation(trust=trust_of(attested=proof is not None)))


def _bind_leaf(tx: Tx, device: Row, leaf: bytes) -> None:
    """A leaf vouches for one device until that is wiped. Problem 409 when it did for one of any tenant."""
    where = device_params(device)
    tx.run(
        """INSERT INTO attested_leaves (leaf, tenant_id, device_id)
           VALUES (:leaf, :tenant_id, :device_id) ON CONFLICT DO NOTHING""",
        leaf=leaf,
        **where,
    )
    if not tx.exists(
        """SELECT 1 FROM attested_leaves
           WHERE leaf = :leaf AND tenant_id = :tenant_id AND device_id = :device_id""",
        leaf=leaf,
        **where,
    ):
        raise Problem(ProblemCode.DEVICE_STATE_CONFLICT)


def _evidence(value: object) -> X509Evidence:
    try:
        return read_model(X509Evidence, value)
    except Problem as problem:
        errors = [FieldError(f"/evidence{error.pointer}", error.code) for error in problem.errors]
        raise Problem(problem.code, errors=errors) from None


def _verify(call: Call, tx: Tx, device: Row, evidence: X509Evidence) -> _Proof:
    now = datetime.fromtimestamp(call.now_ms / 1000, UTC)
    try:
        chain = [x509.load_der_x509_certificate(b64_decode(text)) for text in evidence.chain_b64]
        roots = [
            x509.load_der_x509_certificate(row["certificate"])
            for row in tx.all("SELECT certificate FROM factory_cas ORDER BY fingerprint")
        ]
        path = _checked_path(chain, roots, now)
        message = PREFIX + _digest_of(tx, device) + _spent_challenge(tx, device, call.now_ms)
        _check_signature(chain[0], message, b64_decode(evidence.sig_b64))
    except (InvalidSignature, SignatureError):
        raise _NotVerified("sig_b64 is not the leaf's, or over other keys or another challenge") from None
    except (*_UNREADABLE, TypeError, KeyFormatError) as error:
        raise _NotVerified(f"a certificate cannot be read: {type(error).__name__}") from None
    leaf_key = path[0].public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    expires_ms = min(int(certificate.not_valid_after_utc.timestamp()) for certificate in path) * 1000
    return _Proof(
        leaf=hashlib.sha256(leaf_key).digest(),
        ca=path[-1].fingerprint(SHA256()).hex(),
        until_ms=min(expires_ms, call.now_ms + _GOOD_FOR_MS),
    )


def _checked_path(
    chain: Sequence[x509.Certificate], roots: Sequence[x509.Certificate], now: datetime
) -> list[x509.Certificate]:
    """The path from the leaf to a configured CA: each is issued by the next, and may do what it does."""
    if len(chain) > 1 and chain[-1] in roots:
        chain = chain[:-1]
    leaf = chain[0]
    if _basic(leaf) is not None and leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
        raise _NotVerified("the leaf is a CA")
    usage = _usage(leaf)
    if usage is not None and not usage.digital_signature:
        raise _NotVerified("the leaf may not sign: key usage")
    # A renewed CA has the name and the key of the one before it: the one that is good for longest counts.
    refusal = _NotVerified("no factory CA of ours issued the last certificate of the chain")
    for above in sorted(roots, key=lambda root: root.not_valid_after_utc, reverse=True):
        if _issued(chain[-1], above):
            try:
                return _path_to(above, chain, now)
            except _NotVerified as error:
                refusal = error
    raise refusal


def _path_to(
    above: x509.Certificate, chain: Sequence[x509.Certificate], now: datetime
) -> list[x509.Certificate]:
    issuers = [*chain[1:], above]
    for below, (certificate, issuer) in enumerate(zip(chain, issuers, strict=True)):
        if not _issued(certificate, issuer):
            raise _NotVerified(f"certificate {below} of the chain is not issued by the next")
        _check_issuer(issuer, below=below)
    for certificate in (*chain, above):
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise _NotVerified("a certificate of the chain, or its CA, is not valid now")
        if any(item.critical and item.oid not in _UNDERSTOOD for item in certificate.extensions):
            raise _NotVerified("a critical extension of a certificate is not understood")
    return [*chain, above]


def _issued(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (*_UNREADABLE, TypeError, InvalidSignature):
        return False
    return True


def _check_issuer(certificate: x509.Certificate, *, below: int) -> None:
    """A CA that may have ``below`` other CAs between itself and a leaf."""
    basic, usage = _basic(certificate), _usage(certificate)
    if basic is None or not basic.ca or (basic.path_length is not None and basic.path_length < below):
        raise _NotVerified("an issuer is no CA, or its path length is too short")
    if usage is not None and not usage.key_cert_sign:
        raise _NotVerified("an issuer may not sign certificates: key usage")


def _basic(certificate: x509.Certificate) -> x509.BasicConstraints | None:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        return None


def _usage(certificate: x509.Certificate) -> x509.KeyUsage | None:
    try:
        return certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound:
        return None


def _digest_of(tx: Tx, device: Row) -> bytes:
    keys = {
        row["purpose"]: row["pub"]
        for row in tx.all(
            """SELECT purpose, pub FROM device_keys
               WHERE tenant_id = :tenant_id AND device_id = :device_id
                 AND registration_no = :registration_no""",
            **device_params(device),
            registration_no=device["registration_no"],
        )
    }
    return key_digest(keys["verdict"], keys["http"], device["seal_pub"])


def _spent_challenge(tx: Tx, device: Row, now_ms: int) -> bytes:
    """The challenge of the device's latest status, which is good this once."""
    row = tx.one(
        """DELETE FROM challenges
           WHERE tenant_id = :tenant_id AND device_id = :device_id AND expires_ms > :now_ms
           RETURNING challenge""",
        **device_params(device),
        now_ms=now_ms,
    )
    if row is None:
        raise _NotVerified("no status was read in the last 300 s, or its challenge is spent")
    challenge: bytes = row["challenge"]
    return challenge


def _check_signature(leaf: x509.Certificate, message: bytes, signature: bytes) -> None:
    key = leaf.public_key()
    if isinstance(key, ed25519.Ed25519PublicKey):
        PublicKey.from_bytes(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).verify(message, signature)
    elif isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, _CURVES):
        key.verify(signature, message, ec.ECDSA(SHA256()))
    else:
        raise _NotVerified("the leaf's key is neither Ed25519 nor ECDSA on P-256 or P-384")
