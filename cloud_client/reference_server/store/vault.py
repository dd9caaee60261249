"""Keys at rest: what the database alone cannot give away.

Three 32-byte files of mode 0600 in ``secrets/`` of the data directory:

- ``kms.key`` wraps every other stored key (tenant keys, person keys, signer seeds). It replaces an
  operator's key-management service: ``KeyManagement`` is the interface where a real one goes.
- ``server.key`` is the origin of MACs and of the keys that recorded answers are sealed under.
- ``root.key`` is the Ed25519 root that devices pin. It is needed only to issue signer certificates.

A person's key exists once, wrapped, in the person's row; deleting that row destroys everything sealed
under it, wherever copies of the ciphertext without the row may still be. (A backup has the row.)
"""

import hashlib
import hmac
import os
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cloud_client.reference_server.errors import OperatorError, ServerError
from link1.keys import SigningKey

_NONCE_BYTES = 12
KEY_BYTES = 32


class KeyManagement(Protocol):
    """Wraps and unwraps short secrets; ``context`` binds a ciphertext to the place it is stored in."""

    def wrap(self, secret: bytes, context: bytes) -> bytes: ...

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes: ...


class KeyFile:
    """Key management by a key in a file: AES-256-GCM."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def wrap(self, secret: bytes, context: bytes) -> bytes:
        return _seal(self._cipher, secret, context)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        return _unseal(self._cipher, wrapped, context)


class Vault:
    """The keys of one data directory."""

    def __init__(self, root: SigningKey, key_management: KeyManagement, server_key: bytes) -> None:
        self.root = root
        self.kms = key_management
        self._mac_keys: dict[str, bytes] = {}
        self._server_key = server_key
        self._signing_keys: dict[str, SigningKey] = {}

    @classmethod
    def open(cls, directory: Path) -> "Vault":
        """Load the keys, made on first use. OperatorError when a file is unusable."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        root, kms, server = (_load_or_make(directory / f"{name}.key") for name in ("root", "kms", "server"))
        return cls(SigningKey.from_seed(root), KeyFile(kms), server)

    def mac(self, purpose: str, *parts: bytes) -> bytes:
        """HMAC-SHA256 under a separate key for each ``purpose``; parts are delimited by their lengths."""
        key = self._mac_keys.get(purpose)
        if key is None:
            key = self._mac_keys[purpose] = self.derive(f"mac:{purpose}", b"")
        message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(key, message, "sha256")

    def signing_key(self, kid: str, seed_ct: bytes) -> SigningKey:
        """A signing key out of its stored form; unwrapped once a process."""
        key = self._signing_keys.get(kid)
        if key is None:
            key = self._signing_keys[kid] = SigningKey.from_seed(self.kms.unwrap(seed_ct, kid.encode()))
        return key

    def derive(self, purpose: str, secret: bytes) -> bytes:
        """A 32-byte key from the server key and ``secret``: neither gives it alone."""
        # HKDF-SHA256 (RFC 5869) for exactly one block of output.
        extracted = hmac.digest(self._server_key, secret, "sha256")
        return hmac.digest(extracted, purpose.encode() + b"\x01", "sha256")


def seal(key: bytes, plaintext: bytes, context: bytes) -> bytes:
    """AES-256-GCM: random 12-byte nonce ‖ ciphertext ‖ tag, bound to ``context``."""
    return _seal(AESGCM(key), plaintext, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """The plaintext of ``seal``. ServerError when key, context or bytes are not the ones sealed with."""
    return _unseal(AESGCM(key), sealed, context)


def _seal(cipher: AESGCM, plaintext: bytes, context: bytes) -> bytes:
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + cipher.encrypt(nonce, plaintext, context)


def _unseal(cipher: AESGCM, sealed: bytes, context: bytes) -> bytes:
    try:
        return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], context)
    except InvalidTag:
        raise ServerError("a stored ciphertext does not open: wrong key file or damaged database") from None


def token_hash(token: str) -> bytes:
    """What is stored of a random token or secret: SHA-256 (they hold at least 128 bits)."""
    return hashlib.sha256(token.encode()).digest()


def _load_or_make(path: Path) -> bytes:
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        key = os.urandom(KEY_BYTES)
        # Two first commands at once: the first to link its file wins, the other reads it.
        temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            key = path.read_bytes()
        finally:
            temporary.unlink()
        directory = os.open(path.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
    except OSError as error:
        raise OperatorError(f"{path} cannot be read ({error.strerror}): check its owner and mode") from error
    if len(key) != KEY_BYTES:
        raise OperatorError(f"{path} holds {len(key)} bytes, expected {KEY_BYTES}: restore it from a backup")
    return key
