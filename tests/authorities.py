"""Authorities of the tests' own making, and servers that they vouch for."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from device.provisioning.invitation import SIGNS_CERTIFICATES
from tools.cloud.authority import pack_authority

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Authority:
    """An authority, whose certificate is `file`."""

    folder: Path
    file: Path
    key: PrivateKey
    name: x509.Name

    @classmethod
    def made(
        cls, folder: Path, name: str, key: PrivateKey | None = None, path_length: int | None = None
    ) -> "Authority":
        key = key or ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Metrô do Porto"),
                x509.NameAttribute(NameOID.COMMON_NAME, name),
            ]
        )
        certificate = (
            _begun(subject, subject, key, NOW + 365 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
            .add_extension(SIGNS_CERTIFICATES, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        file = folder / f"{name}.pem"
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return cls(folder, file, key, subject)

    def packed(self) -> bytes:
        return pack_authority(self.file.read_bytes())

    def server(
        self, name: str = "server", at: str = "127.0.0.1", until: datetime.datetime = NOW + 365 * DAY
    ) -> tuple[Path, Path]:
        """Certificate and key files of a server at an address."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(at))])
        certificate = (
            _begun(subject, self.name, key, until)
            .add_extension(address, critical=False)
            .add_extension(issuer, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        cert_file, key_file = self.folder / f"{name}-cert.pem", self.folder / f"{name}-key.pem"
        cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return cert_file, key_file


def _begun(
    subject: x509.Name, issuer: x509.Name, key: PrivateKey, until: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - 2 * DAY)
        .not_valid_after(until)
    )


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.made(tmp_path, "authority")
