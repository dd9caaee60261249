"""Packing an authority into a provisioning string; the device's half is `device.provisioning.invitation`."""

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from device.provisioning.invitation import ANCHOR, CURVES, WHOLE
from link1.errors import FormatError

_CARRIED = (x509.BasicConstraints, x509.KeyUsage, x509.SubjectKeyIdentifier, x509.AuthorityKeyIdentifier)


def pack_authority(pem: bytes) -> bytes:
    """The one certificate of a PEM file, as a name and a key where these say all that it says.

    Raises FormatError.
    """
    try:
        certificates = x509.load_pem_x509_certificates(pem)
    except (ValueError, x509.InvalidVersion) as error:
        raise FormatError("no certificate in PEM form") from error
    if len(certificates) != 1:
        raise FormatError(f"{len(certificates)} certificates instead of one")
    return _anchor(certificates[0]) or WHOLE + certificates[0].public_bytes(Encoding.DER)


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
        or key.curve.name not in {curve.name for curve in CURVES.values()}
        or not constraints.ca
        or constraints.path_length is not None
        or identifier != x509.SubjectKeyIdentifier.from_public_key(key)
        or not all(isinstance(extension.value, _CARRIED) for extension in extensions)
    ):
        return None
    point = key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    until = int(certificate.not_valid_after_utc.timestamp()).to_bytes(5, "big")
    return ANCHOR + until + bytes([len(point)]) + point + certificate.subject.public_bytes()
