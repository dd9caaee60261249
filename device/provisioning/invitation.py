"""The provisioning string: in one line, everything that makes a fresh board a device of a service.

    PALM1 ‖ Crockford base32 of (length ‖ body ‖ checksum)

    length    u16     bytes of the body
    body      u8      1 when the validator has a passage sensor, else 0
              16      kid of the service's root
              u40     when the token expires, epoch seconds
              5 ×     u8 length and ASCII: URL, token, device_id, gate_id, dbd_id
              rest    the service's authority: whose certificates its server shows
                      empty                              the authorities that the system trusts
                      1 ‖ u40 not_after, epoch s ‖ u8 length, compressed point ‖ name
                                                         an elliptic-curve authority
                      2 ‖ certificate                    any other, whole
                      (point: P-256 33 bytes, P-384 49; name and certificate: DER)
    checksum  4       the first bytes of SHA-256 over "PALM1" ‖ length ‖ body

Integers are big-endian. The string is upper case, so that a QR code holds it in its alphanumeric mode; a
reader takes lower case, hyphens, and Crockford's O for 0 and I or L for 1. It holds the token, which makes
one board this device: as long as the token is valid, the string is a secret.

A trust anchor is a name and a key (RFC 5280, 6.1.1 d), so the string holds only these two of an authority's
certificate. The device makes a certificate of them for its `[cloud] ca_file`: OpenSSL builds chains to it by
name, key id and key, and does not look at the signature of what it was given to trust.

The service packs it (`tools/cloud/pack_invitation.py`), the device reads it.
"""

import base64
import datetime
import hashlib
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from device.errors import ProvisioningError
from link1.errors import FormatError

PREFIX: Final = "PALM1"
MAX_TEXT: Final = 4096
"""Longest string that is looked at, in characters; one that fits a QR code has about 320."""

TIME_BYTES: Final = 5
_ROOT_BYTES, _SUM_BYTES = 16, 4
_FROM_CROCKFORD = bytes.maketrans(
    b"0123456789ABCDEFGHJKMNPQRSTVWXYZ" + b"OIL", b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567" + b"ABB"
)
ANCHOR, WHOLE = b"\x01", b"\x02"
CURVES: Final[dict[int, ec.EllipticCurve]] = {33: ec.SECP256R1(), 49: ec.SECP384R1()}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_LATEST_S: Final = 253_402_300_799
"""The end of the year 9999, which X.509 means by "no end"."""
SIGNS_CERTIFICATES: Final = x509.KeyUsage(
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
_ASK = "copy it again whole, or have a new one made with: palmctl cloud device invite"


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a provisioning string says."""

    url: str
    token: str = field(repr=False)
    device_id: str
    gate_id: str
    dbd_id: str
    passage_sensor: bool
    root_kid: str
    expires_at_s: int
    """Epoch seconds, by the service's clock."""
    authority: bytes
    """Whose certificates the server shows, as `pack_authority` packs it; empty: the system's authorities."""


def read_invitation(text: str) -> Invitation:
    """What a provisioning string says. Raises ProvisioningError; the cost is linear in MAX_TEXT at most."""
    measured = _decoded(text)
    try:
        return _read_body(measured[2:])
    except (FormatError, ValueError) as error:
        raise ProvisioningError(
            f"the provisioning string is whole, but of another form than this software reads ({error}); "
            "update the software of this board, or have a string made by its own version"
        ) from error


def _decoded(text: str) -> bytes:
    """Length and body, once the checksum agrees."""
    if len(text) > MAX_TEXT:
        raise ProvisioningError(
            f"expected a provisioning string of at most {MAX_TEXT} characters, found {len(text):,}; {_ASK}"
        )
    plain = text.strip().replace("-", "").upper()
    if not plain.startswith(PREFIX):
        newer = plain.startswith(PREFIX[:-1])
        found = "one of another version; update the software of this board" if newer else f"none; {_ASK}"
        raise ProvisioningError(f"expected a provisioning string, which begins with {PREFIX}, found {found}")
    try:
        written = plain[len(PREFIX) :].encode("ascii")
        if b"U" in written:
            raise ValueError("no letter of Crockford's")
        coded = written.translate(_FROM_CROCKFORD)
        # The bits that are left over of the last character are no byte.
        data = base64.b32decode(coded + b"A" * (-len(coded) % 8))[: len(coded) * 5 // 8]
    except ValueError:
        raise ProvisioningError(
            f"expected letters and digits without U after {PREFIX}, found another character; {_ASK}"
        ) from None
    expected = 2 + int.from_bytes(data[:2], "big") + _SUM_BYTES
    if len(data) < expected:
        characters = len(PREFIX) + -(-expected * 8 // 5)
        raise ProvisioningError(
            f"the provisioning string is cut off: expected {characters} characters, "
            f"found {len(plain)}; {_ASK}"
        )
    measured = data[: expected - _SUM_BYTES]
    if len(data) > expected or data[len(measured) :] != checksum(measured):
        raise ProvisioningError(f"the provisioning string was changed: its checksum does not agree; {_ASK}")
    return measured


def _read_body(body: bytes) -> Invitation:
    at = 1 + _ROOT_BYTES
    if not body or body[0] > 1:
        raise FormatError("unknown flags")
    root_kid, expires_at_s = body[1:at].hex(), int.from_bytes(body[at : at + TIME_BYTES], "big")
    at += TIME_BYTES
    texts = []
    for _ in range(5):
        size = body[at] if at < len(body) else 0
        text = body[at + 1 : at + 1 + size].decode("ascii")
        if not 0 < size == len(text) or not all("!" <= letter <= "~" for letter in text):
            raise FormatError("a text that is empty, cut off or not printable")
        texts.append(text)
        at += 1 + size
    url, token, device_id, gate_id, dbd_id = texts
    authority_pem(body[at:])  # what cannot be used is refused here
    return Invitation(
        url,
        token,
        device_id,
        gate_id,
        dbd_id,
        passage_sensor=bool(body[0]),
        root_kid=root_kid,
        expires_at_s=expires_at_s,
        authority=body[at:],
    )


def checksum(measured: bytes) -> bytes:
    """Of the length and the body."""
    return hashlib.sha256(PREFIX.encode("ascii") + measured).digest()[:_SUM_BYTES]


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
    except (ValueError, UnsupportedAlgorithm, OverflowError, x509.InvalidVersion) as error:
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
        .add_extension(SIGNS_CERTIFICATES, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )
    return made.sign(ec.generate_private_key(CURVES[size]), hashes.SHA256()).public_bytes(Encoding.PEM)
