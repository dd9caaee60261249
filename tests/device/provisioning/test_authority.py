"""A device that was provisioned by a string believes the authority in it, and no other."""

import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from cloud_client.client import ServerAddress
from device.provisioning.invitation import WHOLE, authority_pem
from link1.errors import FormatError
from tests.authorities import Authority, PrivateKey, authority
from tools.cloud.authority import pack_authority

__all__ = ["authority"]


def shakes_hands(believed: bytes, server: tuple[Path, Path], folder: Path, *, strict: bool = False) -> bool:
    """Whether the device's own TLS context with this `ca_file` accepts the server."""
    file = folder / "believed.pem"
    file.write_bytes(believed)
    context = ServerAddress.parse("https://127.0.0.1", file).tls_context()
    assert isinstance(context, ssl.SSLContext)
    if strict:
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # Python 3.13 asks for it by itself
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*server)
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            serving.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        context.wrap_socket(ours, server_hostname="127.0.0.1").close()
        return True
    except ssl.SSLCertVerificationError:
        return False
    finally:
        ours.close()
        thread.join(10)


KEYS: dict[str, PrivateKey] = {
    "p256": ec.generate_private_key(ec.SECP256R1()),
    "p384": ec.generate_private_key(ec.SECP384R1()),
    "p521": ec.generate_private_key(ec.SECP521R1()),
    "rsa": rsa.generate_private_key(65_537, 2048),
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("strict", [False, True])
def test_the_server_of_that_authority_is_believed_and_one_of_the_same_name_is_not(
    kind: str, strict: bool, tmp_path: Path
) -> None:
    meant = Authority.made(tmp_path, "meant", KEYS[kind])
    packed = meant.packed()
    assert len(packed) < 120 if kind in ("p256", "p384") else len(packed) > 300
    believed = authority_pem(packed)
    assert believed is not None
    assert shakes_hands(believed, meant.server(), tmp_path, strict=strict)
    namesake = Authority.made(tmp_path, "meant", ec.generate_private_key(ec.SECP256R1()))
    assert not shakes_hands(believed, namesake.server(), tmp_path, strict=strict)


def test_what_a_certificate_says_besides_name_and_key_is_not_left_out(tmp_path: Path) -> None:
    limited = Authority.made(tmp_path, "limited", path_length=0)
    believed = authority_pem(limited.packed())
    assert believed == limited.file.read_bytes()
    assert shakes_hands(believed, limited.server(), tmp_path)


def test_it_ends_when_the_authority_ends(authority: Authority) -> None:
    believed = authority_pem(authority.packed())
    assert believed is not None
    made, real = (x509.load_pem_x509_certificate(pem) for pem in (believed, authority.file.read_bytes()))
    assert made.not_valid_after_utc == real.not_valid_after_utc
    assert made.subject.public_bytes() == real.subject.public_bytes()
    assert made.public_key() == real.public_key()


def test_two_certificates_or_none_are_refused(authority: Authority) -> None:
    pem = authority.file.read_bytes()
    for wrong in (b"", b"no certificate", pem + pem):
        with pytest.raises(FormatError):
            pack_authority(wrong)


def test_a_certificate_of_a_version_that_there_is_not_is_refused(authority: Authority) -> None:
    der = ssl.PEM_cert_to_DER_cert(authority.file.read_text())
    wrong = der.replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020105"), 1)
    assert wrong != der
    with pytest.raises(FormatError):
        pack_authority(ssl.DER_cert_to_PEM_cert(wrong).encode())
    with pytest.raises(FormatError):
        authority_pem(WHOLE + wrong)


@given(
    st.binary(min_size=1, max_size=300).flatmap(
        lambda data: st.sampled_from([data, b"\1" + data, b"\2" + data])
    )
)
def test_bytes_that_are_no_authority_are_refused(packed: bytes) -> None:
    with pytest.raises(FormatError):
        authority_pem(packed)
