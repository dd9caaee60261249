"""The evidence of a device's keys: signed from a file, a credential and a PKCS#11 token."""

import hashlib
import json
import os
import ssl
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from device.config.config import AttestSection
from device.core.attestations import Attestations
from device.errors import AttestationError
from device.health import Health
from device.trust.attestation import (
    GOOD_FOR_MS,
    attestation_body,
    is_attested,
    note_attested,
    read_attested,
    read_chain,
)
from device.trust.keystore import KeyStore
from device.trust.service_status import ServiceStatus, StatusReader
from link1.canonical import b64_decode, b64_encode
from tests.device.carrier_setting import DEVICE_ID, SERVICE_KEY, device_status
from tests.device.core_makers import HandClock
from tests.device.factory import make_board, make_ca

MODULE = Path("/usr/lib/softhsm/libsofthsm2.so")
CHALLENGE = b"challenge of the service"
KINDS = {
    "P-256": "-algorithm EC -pkeyopt ec_paramgen_curve:P-256",
    "P-384": "-algorithm EC -pkeyopt ec_paramgen_curve:P-384",
    "Ed25519": "-algorithm ed25519",
}


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    return KeyStore.create(tmp_path / "keys")


@pytest.fixture
def board(tmp_path: Path) -> Path:
    make_ca(tmp_path)
    make_board(tmp_path)
    return tmp_path


def verify(body: bytes, keys: KeyStore, challenge: bytes = CHALLENGE) -> None:
    """As the contract words it. Raises InvalidSignature."""
    told = json.loads(body)
    assert told["level"] == "x509"
    leaf = x509.load_der_x509_certificate(b64_decode(told["evidence"]["chain_b64"][0]))
    raw = keys.verdict.public.raw + keys.http.public.raw + keys.seal.public.raw
    message = b"svc.device.attest.v1\x00" + hashlib.sha256(raw).digest() + challenge
    signature = b64_decode(told["evidence"]["sig_b64"])
    match leaf.public_key():
        case ed25519.Ed25519PublicKey() as key:
            key.verify(signature, message)
        case ec.EllipticCurvePublicKey() as key:
            key.verify(signature, message, ec.ECDSA(SHA256()))
        case other:
            raise AssertionError(other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_in_a_file_or_a_credential_vouches_for_the_devices_keys(
    tmp_path: Path, keys: KeyStore, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_ca(tmp_path)
    chain = read_chain(make_board(tmp_path, KINDS[kind]))
    verify(attestation_body(chain, f"file:{tmp_path / 'board.key'}", keys, CHALLENGE), keys)
    (tmp_path / "palm-access.attest").write_bytes((tmp_path / "board.key").read_bytes())
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    verify(attestation_body(chain, "credential:palm-access.attest", keys, CHALLENGE), keys)
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    with pytest.raises(AttestationError, match="not started with credentials"):
        attestation_body(chain, "credential:palm-access.attest", keys, CHALLENGE)


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SoftHSM's configuration: a process reads it once, and may run these tests in two stretches."""
    if not MODULE.exists():
        pytest.skip(f"{MODULE} is not installed (package softhsm2)")
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "softhsm2.conf").write_text(f"directories.tokendir = {folder}\nobjectstore.backend = file\n")
    (folder / "pin").write_text("1234\n")
    os.environ["SOFTHSM2_CONF"] = str(folder / "softhsm2.conf")
    softhsm("--init-token", "--free", "--label", "board", "--so-pin", "5678")
    return folder


def softhsm(*words: str) -> None:
    subprocess.run(["softhsm2-util", *words, "--pin", "1234"], check=True, capture_output=True)


@pytest.mark.parametrize(("kind", "number"), [("P-256", "01"), ("P-384", "02"), ("Ed25519", "03")])
def test_a_token_signs_with_a_key_that_does_not_leave_it(
    tmp_path: Path, keys: KeyStore, tokens: Path, kind: str, number: str
) -> None:
    make_ca(tmp_path)
    chain = read_chain(make_board(tmp_path, KINDS[kind]))
    key = tmp_path / "board.key"
    softhsm("--import", str(key), "--token", "board", "--label", kind, "--id", number)
    key.unlink()
    by_label = f"pkcs11:token=board;object={kind}?module-path={MODULE}&pin-source=file:{tokens / 'pin'}"
    verify(attestation_body(chain, by_label, keys, CHALLENGE), keys)
    by_id = f"pkcs11:token=board;id=%{number}?module-path={MODULE}&pin-source={tokens / 'pin'}"
    verify(attestation_body(chain, by_id, keys, CHALLENGE), keys)
    (tmp_path / "wrong").write_text("9999")
    for wrong in (
        by_label.replace(f"object={kind}", "object=absent"),
        by_label.replace("token=board", "token=absent"),
        by_label.replace(str(tokens / "pin"), str(tmp_path / "wrong")),
        by_label.replace(str(tokens / "pin"), str(tmp_path / "absent")),
        by_label.replace(str(MODULE), str(tmp_path / "absent.so")),
    ):
        with pytest.raises(AttestationError, match="signer"):
            attestation_body(chain, wrong, keys, CHALLENGE)


def test_a_key_that_the_chain_does_not_certify_is_noticed_here(board: Path, keys: KeyStore) -> None:
    chain = read_chain(board / "chain.pem")
    make_board(board)
    with pytest.raises(AttestationError, match="another key"):
        attestation_body(chain, f"file:{board / 'board.key'}", keys, CHALLENGE)


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "cannot be read"), (b"", "no PEM"), (b"-----BEGIN CERTIFICATE-----\nAAAA\n", "no PEM")],
)
def test_a_chain_that_cannot_be_read(tmp_path: Path, content: bytes | None, told: str) -> None:
    if content is not None:
        (tmp_path / "chain.pem").write_bytes(content)
    with pytest.raises(AttestationError, match=told):
        read_chain(tmp_path / "chain.pem")


def test_a_chain_of_a_version_that_there_is_not(board: Path) -> None:
    chain = board / "chain.pem"
    der = x509.load_pem_x509_certificate(chain.read_bytes()).public_bytes(Encoding.DER)
    wrong = der.replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020105"), 1)
    assert wrong != der
    chain.write_text(ssl.DER_cert_to_PEM_cert(wrong))
    with pytest.raises(AttestationError, match="no PEM"):
        read_chain(chain)


def test_a_chain_that_is_too_long_or_of_another_kind_of_key(board: Path) -> None:
    chain = board / "chain.pem"
    chain.write_bytes(chain.read_bytes() * 5)
    with pytest.raises(AttestationError, match="at most 4"):
        read_chain(chain)
    with pytest.raises(AttestationError, match="not Ed25519, P-256 or P-384"):
        read_chain(make_board(board, "-algorithm RSA"))


def test_a_signer_that_holds_no_usable_key(board: Path, keys: KeyStore) -> None:
    chain = read_chain(board / "chain.pem")
    for content in (b"", b"secret", (board / "chain.pem").read_bytes()):
        (board / "other.key").write_bytes(content)
        with pytest.raises(AttestationError, match="no private key") as error:
            attestation_body(chain, f"file:{board / 'other.key'}", keys, CHALLENGE)
        assert "secret" not in str(error.value)
    with pytest.raises(AttestationError, match="cannot be read"):
        attestation_body(chain, f"file:{board / 'absent.key'}", keys, CHALLENGE)


async def test_an_attestation_that_is_lost_on_its_way_is_due_with_the_next_status(
    board: Path, keys: KeyStore
) -> None:
    section = AttestSection(board / "chain.pem", f"file:{board / 'board.key'}")
    made = Attestations(section, board, keys, Health(lambda _words: None), HandClock())

    def status() -> ServiceStatus:
        signed = json.loads(device_status(challenge_b64=b64_encode(os.urandom(16))))
        return StatusReader(DEVICE_ID, lambda _kid: SERVICE_KEY.public).read(signed)

    assert made.due(status())
    await made.body()
    assert made.due(status()), "no answer came"
    await made.body()
    await made.answered(422, "validation_failed")
    assert not made.due(status()), "the service does not take it"


def test_a_success_is_remembered_for_these_keys_alone(tmp_path: Path, keys: KeyStore) -> None:
    assert read_attested(tmp_path, keys) is None
    note_attested(tmp_path, keys, 1_000)
    assert read_attested(tmp_path, keys) == 1_000
    assert is_attested(1_000, GOOD_FOR_MS)
    assert not is_attested(1_000, GOOD_FOR_MS + 1_000)
    assert read_attested(tmp_path, KeyStore.create(tmp_path / "other")) is None
    (tmp_path / "attest.json").write_bytes(b"torn")
    assert read_attested(tmp_path, keys) is None
