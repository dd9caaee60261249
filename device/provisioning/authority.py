"""The authority that a provisioning string names: whose certificates the service's server shows.

A trust anchor is a name and a key (RFC 5280, 6.1.1 d), so a string for a QR code holds only these two of an
authority's certificate. The device makes a certificate of them for its `[cloud] ca_file`: OpenSSL builds
chains to it by name, key id and key, and does not look at the signature of what it was given to trust.

    packed  empty                                        the authorities that the system trusts
            1 ‖ u40 not_after, epoch s ‖ u8 length, compressed point ‖ name    an elliptic-curve authority
            2 ‖ certificate                              any other, whole
    (point: P-256 33 bytes, P-384 49; name and certificate: DER)

The service packs it (`tools/cloud/authority.py`), the device reads it.
"""

import datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from link1.errors import FormatError

ANCHOR, WHOLE = b"\x01", b"\x02"
CURVES: Final[dict[int, ec.EllipticCurve]] = {33: ec.SECP256R1(), 49: ec.SECP384R1()}
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


def authority_pem(packed: bytes) -> bytes | None:
    """PEM for `[cloud] ca_file`; None when the system's authorities are meant. Raises FormatError.

    Of a name and a key it is another certificate each time: its signature counts for nothing.
    """
    if not packed:
        return None
    try:
        if packed[:1] == WHOLE:
            return x509.load_der_x509_certificate(packed[1:]).public_bytes(Encoding.PEM)
        if packed[:1] == ANCHOR:
            return _made(packed)
    except (ValueError, UnsupportedAlgorithm, OverflowError) as error:
        raise FormatError("no authority that can be read") from error
    raise FormatError("an authority of unknown form")


def _made(packed: bytes) -> bytes:
    """A certificate of the name and the key. ValueError for what is none."""
    until_s, size = int.from_bytes(packed[1:6], "big"), packed[6] if len(packed) > 6 else 0
    if size not in CURVES or until_s > _LATEST_S:
        raise ValueError("no such curve, or no such time")
    key = ec.EllipticCurvePublicKey.from_encoded_point(CURVES[size], packed[7 : 7 + size])
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
    return made.sign(ec.generate_private_key(CURVES[size]), hashes.SHA256()).public_bytes(Encoding.PEM)
