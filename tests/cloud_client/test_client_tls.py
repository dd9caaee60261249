"""What the client trusts over TLS: the CA it was given, for the host it was given, and nothing else."""

import asyncio
import datetime
import ipaddress
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cloud_client.client import CloudClient, ServerAddress
from cloud_client.errors import CloudUnreachable
from link1.keys import SigningKey
from tests.cloud_client.scripted_http import Answer, http, scripted

KEY = SigningKey.from_seed(bytes(range(32)))
NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
GOOD = http(200, {})


@dataclass
class Authority:
    """A CA of the test's own, in a file."""

    file: Path
    key: ec.EllipticCurvePrivateKey
    name: x509.Name

    @classmethod
    def made(cls, folder: Path, name: str) -> "Authority":
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _builder(subject, subject, key, NOW + DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        file = folder / f"{name}.pem"
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return cls(file, key, subject)

    def server(
        self, folder: Path, address: str = "127.0.0.1", until: datetime.datetime = NOW + DAY
    ) -> ssl.SSLContext:
        """A server certificate for an address."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
        certificate = (
            _builder(subject, self.name, key, until)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
            .sign(self.key, hashes.SHA256())
        )
        file = folder / "server.pem"
        file.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, until: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - 2 * DAY)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def asked(context: ssl.SSLContext, ca_file: Path | None, answer: Answer = GOOD) -> None:
    """One request to a TLS server, with this CA file."""

    async def scenario() -> None:
        async with asyncio.timeout(20), scripted([answer], tls=context) as double:
            address = ServerAddress.parse(double.origin, ca_file)
            async with CloudClient(address, KEY, lambda: 0) as cloud:
                await cloud.device_status()

    asyncio.run(scenario())


def test_a_server_of_the_given_ca_is_believed(tmp_path: Path) -> None:
    ours = Authority.made(tmp_path, "ours")
    asked(ours.server(tmp_path), ours.file)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda folder, _ours: (Authority.made(folder, "theirs").server(folder), True),
        lambda folder, ours: (ours.server(folder, address="192.0.2.1"), True),
        lambda folder, ours: (ours.server(folder, until=NOW - DAY), True),
        lambda folder, ours: (ours.server(folder), False),
    ],
    ids=["another CA", "another host", "run out", "not in the system's store"],
)
def test_anybody_else_is_unreachable_and_told_nothing(
    tmp_path: Path, wrong: Callable[[Path, Authority], tuple[ssl.SSLContext, bool]]
) -> None:
    ours = Authority.made(tmp_path, "ours")
    context, with_file = wrong(tmp_path, ours)
    with pytest.raises(CloudUnreachable, match="certificate"):
        asked(context, ours.file if with_file else None)


def test_old_tls_is_refused(tmp_path: Path) -> None:
    ours = Authority.made(tmp_path, "ours")
    context = ours.server(tmp_path)
    with pytest.warns(DeprecationWarning):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.raises(CloudUnreachable):
        asked(context, ours.file)


def test_bytes_that_are_changed_on_the_way_are_no_answer(tmp_path: Path) -> None:
    async def changed(writer: asyncio.StreamWriter) -> None:
        writer.write(http(200, {"a": 1})[:-3])
        await writer.drain()
        os.write(writer.get_extra_info("socket").fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))

    ours = Authority.made(tmp_path, "ours")
    with pytest.raises(CloudUnreachable, match="decryption failed"):
        asked(ours.server(tmp_path), ours.file, changed)
