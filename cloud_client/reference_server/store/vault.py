"""Keys at rest: what the database alone cannot give away.

Files of mode 0600 in ``secrets/`` of the data directory, made with a new store only; a ``.key`` has 32 bytes:

- ``kms.key`` wraps every other stored key (tenant keys, person keys, signer seeds). A rotation replaces it by
  ``kms-ID.key``, or by ``kms-ID.uri``, which names a key in a PKCS#11 token. ID is 16 hex digits. What such a
  key wraps begins with the 8 bytes of its ID; what ``kms.key`` wraps begins with the nonce.
- ``server.key`` is the origin of MACs and of the keys that recorded answers are sealed under.
- ``root.key`` is the Ed25519 root that devices pin. It is needed only to issue signer certificates.

A person's key exists once, wrapped, in the person's row; deleting that row destroys everything sealed
under it, wherever copies of the ciphertext without the row may still be. (A backup has the row.)
"""

import hashlib
import hmac
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cloud_client.reference_server.errors import OperatorError, ServerError
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.store.key_token import KeyToken
from link1.keys import SigningKey
from link1.plain_file import sync_folder

_NONCE_BYTES = 12
KEY_BYTES = 32
KEY_ID_BYTES = 8
FIRST_KEY = ""
"""The id of ``kms.key``."""
_ORIGINS = ("root.key", "server.key")
_URI_BYTES = 4096


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


class KeyRing:
    """Every key-management key in ``secrets/``: the one in force wraps, each opens what it has wrapped.

    The database says which is in force (``wrapping_keys``), so that all processes change over with one
    commit. A key that another process has made is looked for when it is first met.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._keys = _key_management(directory)

    @property
    def in_token(self) -> bool:
        """Whether a key is in a PKCS#11 token, which may be slow or far away."""
        return any(isinstance(key, KeyToken) for key in self._keys.values())

    def wrap(self, tx: Tx, secret: bytes, context: bytes) -> bytes:
        """Wrap under the key in force in this transaction. ServerError when ``secrets/`` lacks it."""
        return self.wrap_under(key_in_force(tx), secret, context)

    def wrap_under(self, key_id: str, secret: bytes, context: bytes) -> bytes:
        """Wrap under the key named. ServerError when ``secrets/`` lacks it."""
        if key_id not in self._keys:
            self._keys = _key_management(self.directory)
        if key_id not in self._keys:
            raise ServerError(
                f"secrets/ lacks the key-management key {key_id}, which a rotation has put in force: "
                "copy it from the machine on which `palmctl cloud secret rotate` was called"
            )
        return bytes.fromhex(key_id) + self._keys[key_id].wrap(secret, context)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """What ``wrap`` was given. ServerError when no key here opens it."""
        key_id = wrapped[:KEY_ID_BYTES].hex()
        if key_id not in self._keys:
            if FIRST_KEY in self._keys:
                try:
                    return self._keys[FIRST_KEY].unwrap(wrapped, context)
                except ServerError:
                    pass
            self._keys = _key_management(self.directory)
        if key_id not in self._keys:
            raise ServerError("a stored ciphertext does not open: wrong key file or damaged database")
        return self._keys[key_id].unwrap(wrapped[KEY_ID_BYTES:], context)


def key_in_force(tx: Tx) -> str:
    """The id of the key that wraps."""
    return tx.scalar("SELECT key_id FROM wrapping_keys WHERE state = 'in_force'") or FIRST_KEY


def key_file(directory: Path, key_id: str, *, in_token: bool = False) -> Path:
    """Where ``secrets/`` has a key-management key, or the URI of one in a token."""
    if key_id == FIRST_KEY:
        return directory / "kms.key"
    return directory / f"kms-{key_id}.{'uri' if in_token else 'key'}"


class Vault:
    """The keys of one data directory."""

    def __init__(self, root: SigningKey, key_ring: KeyRing, server_key: bytes) -> None:
        self.root = root
        self.kms = key_ring
        self._mac_keys: dict[str, bytes] = {}
        self._server_key = server_key
        self._signing_keys: dict[str, SigningKey] = {}

    @classmethod
    def make(cls, directory: Path) -> "Vault":
        """The keys of a new store: each file that is not there is made. OperatorError as ``open``, and where
        the keys are those of another store, which has rotated them."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        first = key_file(directory, FIRST_KEY)
        if any(directory.glob("kms-*")) and not first.exists():
            raise OperatorError(
                f"{directory} has the keys of a database that was in use, and this database is empty: "
                "name that one, or restore it; to start from nothing, move the folder away"
            )
        for name in (*_ORIGINS, first.name):
            load_or_make(directory / name, new_key)
        return cls.open(directory, FIRST_KEY)

    @classmethod
    def open(cls, directory: Path, key_id: str) -> "Vault":
        """Load the keys of a store that is in use, which wraps under ``key_id``.

        OperatorError when a file is unusable or missing.
        """
        root, server = (_checked(directory / name, _present(directory / name)) for name in _ORIGINS)
        if not any(key_file(directory, key_id, in_token=token).exists() for token in (False, True)):
            file = key_file(directory, key_id)
            raise _missing(file if key_id == FIRST_KEY else f"{file} or .uri")
        return cls(SigningKey.from_seed(root), KeyRing(directory), server)

    def marks(self) -> dict[str, str]:
        """What each key that wraps nothing is known again by, and that gives nothing of it away."""
        return {"root.key": self.root.kid, "server.key": self.mac("mark").hex()}

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


def new_key() -> bytes:
    return os.urandom(KEY_BYTES)


def load_or_make(path: Path, new: Callable[[], bytes]) -> bytes:
    """The content of a file, which is made with mode 0600 where it is missing.

    OperatorError when it cannot be read, or is a key of another length.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = new()
        # Two first commands at once: the first to link its file wins, the other reads it.
        temporary = path.with_name(f"{path.name}.{os.urandom(8).hex()}.new")
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            content = path.read_bytes()
        finally:
            temporary.unlink()
        sync_folder(path.parent)
    except OSError as error:
        raise _unreadable(path, error) from error
    return _checked(path, content)


def _present(path: Path) -> bytes:
    """The content of a key file that has to be there: devices and rows depend on the key that was."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise _missing(path) from None
    except OSError as error:
        raise _unreadable(path, error) from error


def _missing(file: Path | str) -> OperatorError:
    return OperatorError(
        f"{file} is missing, and the database is in use with that key: restore it from the backup, "
        "or copy secrets/ from the first server's data directory"
    )


def _unreadable(path: Path, error: OSError) -> OperatorError:
    return OperatorError(f"{path} cannot be read ({error.strerror}): check its owner and mode")


def _checked(path: Path, content: bytes) -> bytes:
    if path.suffix == ".key" and len(content) != KEY_BYTES:
        raise OperatorError(
            f"{path} holds {len(content)} bytes, expected {KEY_BYTES}: restore it from a backup"
        )
    return content


def _key_management(directory: Path) -> dict[str, KeyManagement]:
    keys: dict[str, KeyManagement] = {}
    for path in (*directory.glob("kms.key"), *directory.glob("kms-*.key"), *directory.glob("kms-*.uri")):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue  # a rotation has just destroyed it: nothing is wrapped under it
        except OSError as error:
            raise OperatorError(
                f"{path} cannot be read ({error.strerror}): check its owner and mode"
            ) from error
        key_id = path.stem.removeprefix("kms").removeprefix("-")
        if path.suffix == ".uri":
            keys[key_id] = KeyToken(content[:_URI_BYTES].decode("utf-8", "replace").strip())
        elif len(content) == KEY_BYTES:
            keys[key_id] = KeyFile(content)
        else:
            raise OperatorError(
                f"{path} holds {len(content)} bytes, expected {KEY_BYTES}: restore it from a backup"
            )
    return keys
