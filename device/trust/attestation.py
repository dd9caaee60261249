"""Attestation of this device's keys: its maker's certificate chain, and the leaf's signature over them.

    [attest] chain_file   PEM, the leaf first
             signer       file:PATH, credential:NAME (of the unit, systemd.exec(5)), pkcs11:… (RFC 7512)

The leaf signs `svc.device.attest.v1 ‖ 0x00 ‖ SHA-256(verdict ‖ http ‖ seal public key) ‖ challenge`, with
Ed25519, or with ECDSA (P-256, P-384) over SHA-256 in DER (device surface §6). A secure element keeps its key;
a file or credential is read for each signature and forgotten.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from device.errors import AttestationError
from device.platform.files import replace_synced
from device.trust.keystore import KeyStore
from link1 import members
from link1.canonical import b64_encode, canonical_bytes, read_strict
from link1.errors import FormatError, reason_of
from link1.plain_file import read_plain_file
from link1.token_key import TokenKey

PREFIX: Final = b"svc.device.attest.v1\x00"
MAX_CHAIN: Final = 4
MAX_CERTIFICATE_BYTES: Final = 4096
GOOD_FOR_MS: Final = 90 * 24 * 3600 * 1000
"""How long the service takes a device as attested after a success."""
AGAIN_AFTER_MS: Final = 30 * 24 * 3600 * 1000
UNATTESTED: Final = "no factory certificate vouches for this device's keys"
RECORD_NAME: Final = "attest.json"
_MAX_FILE_BYTES: Final = 64 * 1024
_CREDENTIALS: Final = "CREDENTIALS_DIRECTORY"

LeafKey = ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey


@dataclass(frozen=True, slots=True)
class FactoryChain:
    """The certificates of `[attest] chain_file`, and the leaf's key."""

    certificates: tuple[x509.Certificate, ...]
    key: LeafKey


def read_chain(path: Path) -> FactoryChain:
    """Read the chain. Raises AttestationError."""
    try:
        certificates = x509.load_pem_x509_certificates(read_plain_file(path, _MAX_FILE_BYTES))
    except OSError as error:
        raise AttestationError(f"[attest] chain_file {path} cannot be read: {reason_of(error)}") from error
    except (ValueError, x509.InvalidVersion):
        raise AttestationError(f"[attest] chain_file {path} holds no PEM certificates") from None
    if len(certificates) > MAX_CHAIN or any(len(_der(one)) > MAX_CERTIFICATE_BYTES for one in certificates):
        raise AttestationError(
            f"[attest] chain_file {path}: expected at most {MAX_CHAIN} certificates of at most "
            f"{MAX_CERTIFICATE_BYTES} bytes; leave the root of the CA out"
        )
    try:
        key = certificates[0].public_key()
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if isinstance(key, ed25519.Ed25519PublicKey) or (
        isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1)
    ):
        return FactoryChain(tuple(certificates), key)
    raise AttestationError(
        f"[attest] chain_file {path}: the key of its first certificate is not Ed25519, P-256 or P-384; "
        "the leaf comes first"
    )


def attestation_body(chain: FactoryChain, signer: str, keys: KeyStore, challenge: bytes) -> bytes:
    """The body of `POST /v1/devices/attest`. Blocks while a secure element signs. Raises AttestationError."""
    publics = (keys.verdict.public.raw, keys.http.public.raw, keys.seal.public.raw)
    message = PREFIX + hashlib.sha256(b"".join(publics)).digest() + challenge
    signature = leaf_signature(chain, signer, message)
    evidence = {
        "chain_b64": [b64_encode(_der(one)) for one in chain.certificates],
        "sig_b64": b64_encode(signature),
    }
    return canonical_bytes({"level": "x509", "evidence": evidence})


def leaf_signature(chain: FactoryChain, signer: str, message: bytes) -> bytes:
    """`message` signed by `[attest] signer`, and verified with the leaf's key. Blocks while a secure element
    signs. Raises AttestationError.
    """
    signature = _sign(signer, message, chain.key)
    try:
        if isinstance(chain.key, ed25519.Ed25519PublicKey):
            chain.key.verify(signature, message)
        else:
            chain.key.verify(signature, message, ec.ECDSA(SHA256()))
    except InvalidSignature:
        raise AttestationError(
            "[attest] signer holds another key than the first certificate of chain_file; name the key that "
            "the factory certified"
        ) from None
    return signature


def secret_file(signer: str) -> Path | None:
    """The file that lets its reader attest as this board: the key, or its token's PIN. Raises FormatError."""
    scheme, _, rest = signer.partition(":")
    if scheme == "pkcs11":
        return TokenKey.parse(signer).pin_file
    return Path(rest) if scheme == "file" else None


def read_attested(state_dir: Path, keys: KeyStore) -> int | None:
    """When the service last took an attestation of these keys (epoch ms); None without one."""
    try:
        obj = read_strict(
            read_plain_file(state_dir / RECORD_NAME, _MAX_FILE_BYTES), max_bytes=_MAX_FILE_BYTES
        )
        known = members.member(obj, "verdict_kid") == keys.verdict.kid
        return members.integer(obj, "attested_at_ms") if known else None
    except (OSError, FormatError):
        return None  # unreadable is as good as none: the next attestation replaces it


def note_attested(state_dir: Path, keys: KeyStore, at_ms: int) -> None:
    """Remember the time of a success (epoch ms). Raises OSError."""
    record = {"attested_at_ms": at_ms, "verdict_kid": keys.verdict.kid}
    replace_synced(state_dir / RECORD_NAME, canonical_bytes(record), mode=0o600)


def is_attested(attested_at_ms: int | None, now_ms: int) -> bool:
    """Whether the service takes the device as attested, as far as the device knows."""
    return attested_at_ms is not None and now_ms - attested_at_ms < GOOD_FOR_MS


def _der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.DER)


def _sign(signer: str, message: bytes, leaf: LeafKey) -> bytes:
    scheme, _, rest = signer.partition(":")
    if scheme == "pkcs11":
        try:
            return _sign_in_token(TokenKey.parse(signer), message, leaf)
        except FormatError as error:
            raise AttestationError(f"[attest] signer: {error}") from None
    path = Path(rest)
    if scheme == "credential":
        folder = os.environ.get(_CREDENTIALS)
        if folder is None:
            raise AttestationError(
                f"[attest] signer {signer}: this program was not started with credentials; palmd attests, as "
                "its systemd service"
            )
        path = Path(folder) / rest
    try:
        key = load_pem_private_key(read_plain_file(path, _MAX_FILE_BYTES), None)
    except OSError as error:
        raise AttestationError(f"[attest] signer {path} cannot be read: {reason_of(error)}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise AttestationError(
            f"[attest] signer {path} holds no private key in PEM without a passphrase"
        ) from None
    match key:
        case ed25519.Ed25519PrivateKey():
            return key.sign(message)
        case ec.EllipticCurvePrivateKey():
            return key.sign(message, ec.ECDSA(SHA256()))
        case _:
            raise AttestationError(f"[attest] signer {path}: the key is not Ed25519, P-256 or P-384")


def _sign_in_token(held: TokenKey, message: bytes, leaf: LeafKey) -> bytes:
    try:
        import pkcs11
        from pkcs11.exceptions import PKCS11Error
    except ImportError:
        raise AttestationError(
            "[attest] signer is a pkcs11: URI, and python-pkcs11 is not installed here (the extra pkcs11)"
        ) from None
    try:
        pin = held.pin()
        library = pkcs11.lib(str(held.module))
        serial = None if held.serial is None else held.serial.encode("utf-8")
        token = library.get_token(token_label=held.token, token_serial=serial)
        with token.open(user_pin=pin) as session:
            key = session.get_key(pkcs11.ObjectClass.PRIVATE_KEY, label=held.label, id=held.id)
            if not isinstance(key, pkcs11.SignMixin):
                raise AttestationError("[attest] signer names a key that does not sign")
            if isinstance(leaf, ed25519.Ed25519PublicKey):
                return bytes(key.sign(message, mechanism=pkcs11.Mechanism.EDDSA))
            # Tokens that hash by themselves are rarer than those that sign a digest.
            raw = bytes(key.sign(hashlib.sha256(message).digest(), mechanism=pkcs11.Mechanism.ECDSA))
    except (OSError, UnicodeDecodeError) as error:
        raise AttestationError(f"[attest] signer: the PIN cannot be read: {error}") from error
    except (PKCS11Error, RuntimeError) as error:
        told = f"{type(error).__name__} {error}".rstrip()
        todo = _todo(held, type(error).__name__)
        raise AttestationError(f"[attest] signer: the token does not sign: {told}; {todo}") from error
    half = len(raw) // 2
    return encode_dss_signature(int.from_bytes(raw[:half]), int.from_bytes(raw[half:]))


def _todo(held: TokenKey, fault: str) -> str:
    """The next step after a fault, named as python-pkcs11 names it: its module is absent on most boards."""
    match fault:
        case "PinIncorrect" | "PinInvalid" | "PinLenRange":
            return f"the PIN in {held.pin_file} is not the token's; correct it first: wrong PINs lock a token"
        case "PinLocked":
            return "wrong PINs locked the token; correct the PIN, then unlock it (docs/howto/ATTESTATION.md)"
        case "NoSuchToken" | "NoSuchKey":
            return f"compare the URI with `pkcs11-tool --module {held.module} --list-objects --login`"
        case _:
            return (
                "see that the secure element answers, that it made this key and that this user may use both, "
                "then restart palmd"
            )
