"""The device's own secrets: four files of 32 bytes that never leave the device.

    keys/            0700
      verdict.key    0600  Ed25519 seed: verdicts, outbox records
      http.key       0600  Ed25519 seed: request signatures; the only key that the carrier gets
      seal.key       0600  X25519 private key: opens the inbox
      data.key       0600  seals database rows

1. All four appear at once or not at all: they are written into `keys.partial`, synced, and the folder is
   renamed.
2. This module never overwrites a key.
3. A key that other users could read is rejected: a reader of the verdict key can sign for the device.

Keys are read through a `KeySource`: these files, or the credentials of the service manager
(`device.trust.credentials`). A TPM or secure element could be a third source only if it exports the key; one
that signs internally replaces `SigningKey` instead.
"""

import os
import secrets
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path

from device.errors import KeysAbsent, KeyStoreError
from device.platform.files import write_synced
from link1.keys import KEY_BYTES, SealKey, SigningKey
from link1.plain_file import sync_folder

CREDENTIALS_FOLDER = "credentials"
"""Next to the folder of key files: the same keys, encrypted for the service manager."""


class KeyPurpose(StrEnum):
    VERDICT = "verdict"
    HTTP = "http"
    SEAL = "seal"
    DATA = "data"

    @property
    def file_name(self) -> str:
        return f"{self}.key"


KeySource = Callable[[KeyPurpose], bytes]
"""Returns the 32 bytes of one key. Raises KeyStoreError."""


@dataclass(frozen=True, slots=True)
class KeyStore:
    """The four keys, read once at start."""

    verdict: SigningKey
    http: SigningKey
    seal: SealKey
    data_key: bytes = field(repr=False)

    @classmethod
    def create(cls, folder: Path) -> "KeyStore":
        """Make new keys in `folder`, which must not hold any. Raises KeyStoreError."""
        if KeyStore.exists(folder):
            raise KeyStoreError(
                f"{folder} already holds keys, which are never overwritten; "
                "`palmctl factory-reset` destroys them so that the device can be provisioned again"
            )
        partial = folder.with_name(folder.name + ".partial")
        try:
            if partial.exists():  # an earlier start was cut off before these keys were ever used
                shutil.rmtree(partial)
            partial.mkdir(mode=0o700)
            for purpose in KeyPurpose:
                write_synced(partial / purpose.file_name, secrets.token_bytes(KEY_BYTES), mode=0o600)
            sync_folder(partial)
            partial.rename(folder)
            sync_folder(folder.parent)
        except OSError as error:
            raise KeyStoreError(
                f"keys cannot be written into {folder}: {error.strerror}; "
                f"check that {folder.parent} exists, belongs to this user and has room"
            ) from error
        return cls.open(folder)

    @staticmethod
    def exists(folder: Path) -> bool:
        """True when `folder`, or the folder of encrypted credentials, holds any file."""
        places = (folder, folder.with_name(CREDENTIALS_FOLDER))
        return any(place.is_dir() and any(place.iterdir()) for place in places)

    @classmethod
    def open(cls, folder: Path) -> "KeyStore":
        """Read the four keys of `folder`. Raises KeyStoreError."""
        return cls.load(partial(read_key, folder))

    @classmethod
    def load(cls, source: KeySource) -> "KeyStore":
        """Read the four keys from `source`. Raises KeyStoreError."""
        return cls(
            verdict=SigningKey.from_seed(source(KeyPurpose.VERDICT)),
            http=SigningKey.from_seed(source(KeyPurpose.HTTP)),
            seal=SealKey.from_seed(source(KeyPurpose.SEAL)),
            data_key=source(KeyPurpose.DATA),
        )


def read_key(folder: Path, purpose: KeyPurpose) -> bytes:
    """The 32 bytes of one key file. Raises KeyStoreError."""
    path = folder / purpose.file_name
    try:
        _check_private(folder, folder.lstat(), stat.S_ISDIR, "0700")
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        if folder.with_name(CREDENTIALS_FOLDER).is_dir():
            raise KeyStoreError(
                f"no {purpose} key at {path}: this device's keys are encrypted credentials, and this program "
                "was started without them; start it as its systemd service"
            ) from None
        if KeyStore.exists(folder):
            raise KeyStoreError(
                f"no {purpose} key at {path}, where others are; restore it, or run `palmctl factory-reset`, "
                "have the device revoked, then provision it with a new token"
            ) from None
        raise KeysAbsent(
            f"no {purpose} key at {path}; `palmctl provision` makes the keys of a new device"
        ) from None
    except OSError as error:
        raise KeyStoreError(
            f"the {purpose} key at {path} cannot be read: {error.strerror}; "
            "it must be a plain file that belongs to the user who runs this program"
        ) from error
    try:
        _check_private(path, os.fstat(descriptor), stat.S_ISREG, "0600")
        key = os.read(descriptor, KEY_BYTES + 1)
    finally:
        os.close(descriptor)
    return checked_key(path, key)


def checked_key(path: Path, key: bytes) -> bytes:
    """`key`, read from `path`, if it can be a key. Raises KeyStoreError."""
    if len(key) != KEY_BYTES:
        found = f"{len(key)}" if len(key) < KEY_BYTES else "more"
        raise KeyStoreError(
            f"{path} is damaged: expected {KEY_BYTES} bytes, found {found}; restore it, or run "
            "`palmctl factory-reset`, have the device revoked, then provision it with a new token"
        )
    if not any(key):
        raise KeyStoreError(
            f"{path} is damaged: it holds only zeros, as after a power cut on a disk that ignores sync; run "
            "`palmctl factory-reset`, have the device revoked, then provision it with a new token"
        )
    return key


def _check_private(path: Path, status: os.stat_result, is_kind: Callable[[int], bool], expected: str) -> None:
    mode, user = status.st_mode, os.geteuid()
    if not is_kind(mode):
        kind = "folder" if expected == "0700" else "plain file"
        raise KeyStoreError(
            f"{path} is no {kind}; restore it, or run `palmctl factory-reset`, have the device revoked, then "
            "provision it with a new token"
        )
    if mode & 0o077:
        raise KeyStoreError(
            f"{path} is open to other users: expected mode {expected}, found {stat.S_IMODE(mode):04o}; "
            f"treat the key as disclosed, or run `chmod {expected} {path}` if you are sure it is not"
        )
    # root may read files of any owner; for another user, a file's owner could exchange it
    if user != 0 and status.st_uid not in (0, user):
        raise KeyStoreError(
            f"{path} belongs to user {status.st_uid}, who could exchange it, and this program runs as user "
            f"{user}; run `chown {user} {path}` if the file is this device's"
        )
