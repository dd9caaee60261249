"""The authority that a provisioning string names: whose certificates the service's server shows.

A trust anchor is a name and a key (RFC 5280, 6.1.1 d), so a string for a QR code holds only these two of an
authority's certificate. The device makes a certificate of them for its `[cloud] ca_file`: OpenSSL builds
chains to it by name, key id and key, and does not look at the signature of what it was given to trust.

    packed  empty                                        the authorities that the system trusts
            1 ‖ u40 not_after, epoch s ‖ u8 length, compressed point ‖ name    an elliptic-curve authority
            2 ‖ certificate                              any other, whole
    (point: P-256 33 bytes, P-384 49; name and certificate: DER)
"""

import datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from link1.errors import FormatError

_ANCHOR, _WHOLE = b"\x01", b"\x02"
_CURVES: Final[dict[int, ec.EllipticCurve]] = {33: ec.SECP256R1(), 49: ec.SECP384R1()}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_LATEST_S: Final = 253_402_300_799
"""The end of the year 9999, which X.509 means by "no end"."""
_SIGNS_CERTIFICATES: Final = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
_CARRIED = (x509.BasicConstraints, x509.KeyUsage, x509.SubjectKeyIdentifier, x509.AuthorityKeyIdentifier)


def pack_authority(pem: bytes) -> bytes:
    """The one certificate of a PEM file, as a name and a key where these say all that it says.

    Raises FormatError.
    """
    try:
        certificates = x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise FormatError("no certificate in PEM form") from error
    if len(certificates) != 1:
        raise FormatError(f"{len(certificates)} certificates instead of one")
    return _anchor(certificates[0]) or _WHOLE + certificates[0].public_bytes(Encoding.DER)


def authority_pem(packed: bytes) -> bytes | None:
    """PEM for `[cloud] ca_file`; None when the system's authorities are meant. Raises FormatError.

    Of a name and a key it is another certificate each time: its signature counts for nothing.
    """
    if not packed:
        return None
    try:
        if packed[:1] == _WHOLE:
            return x509.load_der_x509_certificate(packed[1:]).public_bytes(Encoding.PEM)
        if packed[:1] == _ANCHOR:
            return _made(packed)
    except (ValueError, UnsupportedAlgorithm, OverflowError) as error:
        raise FormatError("no authority that can be read") from error
    raise FormatError("an authority of unknown form")


def _anchor(certificate: x509.Certificate) -> bytes | None:
    """Name and key; None when the certificate says more than these, or is of another kind of key."""
    try:
        key = certificate.public_key()
        certificate.verify_directly_issued_by(certificate)
        extensions = certificate.extensions
        constraints = extensions.get_extension_for_class(x509.BasicConstraints).value
        identifier = extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature, x509.ExtensionNotFound):
        return None
    if (
        not isinstance(key, ec.EllipticCurvePublicKey)
        or key.curve.name not in {curve.name for curve in _CURVES.values()}
        or not constraints.ca
        or constraints.path_length is not None
        or identifier != x509.SubjectKeyIdentifier.from_public_key(key)
        or not all(isinstance(extension.value, _CARRIED) for extension in extensions)
    ):
        return None
    point = key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    until = int(certificate.not_valid_after_utc.timestamp()).to_bytes(5, "big")
    return _ANCHOR + until + bytes([len(point)]) + point + certificate.subject.public_bytes()


def _made(packed: bytes) -> bytes:
    """A certificate of the name and the key. ValueError for what is none."""
    until_s, size = int.from_bytes(packed[1:6], "big"), packed[6] if len(packed) > 6 else 0
    if size not in _CURVES or until_s > _LATEST_S:
        raise ValueError("no such curve, or no such time")
    key = ec.EllipticCurvePublicKey.from_encoded_point(_CURVES[size], packed[7 : 7 + size])
    name = x509.Name.from_bytes(packed[7 + size :])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key)
        .serial_number(1)
        .not_valid_before(_EPOCH)
        .not_valid_after(_EPOCH + datetime.timedelta(seconds=until_s))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_SIGNS_CERTIFICATES, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )
    return made.sign(ec.generate_private_key(_CURVES[size]), hashes.SHA256()).public_bytes(Encoding.PEM)
