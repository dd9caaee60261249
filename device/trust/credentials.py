"""The device's keys as credentials of the service manager (systemd.exec(5), LoadCredentialEncrypted=).

    state/credentials/verdict.cred …   encrypted with the machine's TPM, or else with its host key
    /etc/credstore.encrypted/palm-access.verdict → the file above; systemd looks there by name
    $CREDENTIALS_DIRECTORY/palm-access.verdict    decrypted, in memory that is never swapped, for palmd alone

The encrypted files are in the state directory and not in /etc, so that a wipe can destroy them. A missing
credential does not prevent a unit from starting, so that a wiped device can still report its state.

With a TPM a stolen card is useless without the board. The host key is on the same disk and adds no protection
against theft (docs/explanation/SECURITY.md).
"""

import contextlib
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from device.errors import KeyStoreError
from device.platform.files import replace_synced, replace_within, shred
from device.trust.keystore import (
    CREDENTIALS_FOLDER,
    KeyPurpose,
    KeySource,
    KeyStore,
    checked_key,
    read_key,
)
from link1.keys import KEY_BYTES
from link1.plain_file import sync_folder

CREDSTORE: Final = Path("/etc/credstore.encrypted")
SYSTEMD: Final = Path("/etc/systemd/system")
UNIT: Final = "palmd.service"
"""The unit that receives the keys. The carrier gets its one key from the core."""
_VARIABLE: Final = "CREDENTIALS_DIRECTORY"
_TOOL_WITHIN_S: Final = 60.0

Run = Callable[[Sequence[str], bytes], bytes]
"""Runs a program with these bytes on its standard input and returns its output. Raises KeyStoreError."""


def credential_name(purpose: KeyPurpose) -> str:
    """The name in LoadCredentialEncrypted= and inside the encrypted file."""
    return f"palm-access.{purpose}"


def read_credential(folder: Path, purpose: KeyPurpose) -> bytes:
    """The 32 bytes of one key that the service manager has decrypted for this unit. Raises KeyStoreError."""
    path = folder / credential_name(purpose)
    try:
        with path.open("rb") as file:
            return checked_key(path, file.read(KEY_BYTES + 1))
    except OSError as error:
        raise KeyStoreError(
            f"the {purpose} key cannot be read from {path} ({error.strerror}); the unit needs "
            f"LoadCredentialEncrypted={credential_name(purpose)}"
        ) from error


def _read_sealed(folder: Path, purpose: KeyPurpose) -> bytes:
    """The 32 bytes of one key that `encrypt_keys` encrypted; it opens for root. Raises KeyStoreError."""
    path = folder / f"{purpose}.cred"
    try:
        return checked_key(path, _decrypted(credential_name(purpose), path.read_bytes(), run_tool))
    except OSError as error:
        raise KeyStoreError(f"the {purpose} key cannot be read from {path} ({error.strerror})") from error
    except KeyStoreError as error:
        raise KeyStoreError(f"the {purpose} key is encrypted and does not open here: {error}") from error


def key_source(keys_dir: Path, environ: Mapping[str, str] = os.environ) -> KeySource:
    """The credentials of this unit, if it has any of this product's, else the key files. An encryption that
    was cut off leaves all files, or all credentials."""
    given = environ.get(_VARIABLE)
    if given and Path(given).is_dir():
        names = {credential_name(purpose) for purpose in KeyPurpose}
        here = names & {path.name for path in Path(given).iterdir()}
        if here == names or (here and not keys_dir.exists()):
            return partial(read_credential, Path(given))
    return partial(read_key, keys_dir)


def run_tool(command: Sequence[str], given: bytes) -> bytes:
    """Run a program with `given` on its standard input; its output. Raises KeyStoreError."""
    try:
        done = subprocess.run(  # noqa: S603 - the words are this module's own
            command, input=given, capture_output=True, timeout=_TOOL_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KeyStoreError(
            f"{command[0]} cannot be run ({error}); encrypted credentials need systemd 250 or newer"
        ) from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise KeyStoreError(
            f"{' '.join(command[:2])} failed: {said[-1] if said else 'it printed no reason'}; "
            "see systemd-creds(1)"
        )
    return done.stdout


def open_stored(keys_dir: Path) -> KeyStore:
    """The keys on this disk: files, or for root what `encrypt_keys` made of them. Raises KeyStoreError."""
    folder = keys_dir.with_name(CREDENTIALS_FOLDER)
    if os.geteuid() == 0 and folder.is_dir() and not keys_dir.exists():
        return KeyStore.load(partial(_read_sealed, folder))
    return KeyStore.open(keys_dir)


def encrypt_keys(
    keys_dir: Path, *, with_key: str = "auto", credstore: Path = CREDSTORE, run: Run = run_tool
) -> bool:
    """Turn the key files into encrypted credentials; destroy the files once every credential is verified.

    `with_key`: of systemd-creds(1): auto, host, tpm2 or host+tpm2. Runs as root, after the unit has its
    drop-in; after an interruption the next run continues. False when there was no file left to encrypt or
    destroy. Raises KeyStoreError, OSError.
    """
    folder = keys_dir.with_name(CREDENTIALS_FOLDER)
    sealed = {purpose: folder / f"{purpose}.cred" for purpose in KeyPurpose}
    if not all(path.exists() for path in sealed.values()):
        KeyStore.open(keys_dir)  # each is a key, not only 32 bytes
        _write_sealed(keys_dir, sealed, with_key, run)
    credstore.mkdir(mode=0o700, parents=True, exist_ok=True)
    for purpose, path in sealed.items():
        name = credential_name(purpose)
        checked_key(path, _decrypted(name, path.read_bytes(), run))
        fresh = credstore / f".{name}.new"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(path)
        fresh.rename(credstore / name)
    sync_folder(credstore)
    if not keys_dir.is_dir():
        return False
    for purpose in KeyPurpose:
        file = keys_dir / purpose.file_name
        if file.exists():
            shred(file)
    keys_dir.rmdir()
    sync_folder(keys_dir.parent)
    return True


def _write_sealed(keys_dir: Path, sealed: Mapping[KeyPurpose, Path], with_key: str, run: Run) -> None:
    """The folder and its files are palmd's, because the wipe is, and palmd is not root. It may exchange them
    for links meanwhile, so nothing is written or given away but within the folder that was opened."""
    folder, owner = keys_dir.with_name(CREDENTIALS_FOLDER), keys_dir.lstat()
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError as error:
        raise KeyStoreError(f"{folder} is a link or a file, not a folder; remove it") from error
    try:
        os.fchown(opened, owner.st_uid, owner.st_gid)
        for purpose, path in sealed.items():
            name, key = credential_name(purpose), read_key(keys_dir, purpose)
            data = run(
                ["systemd-creds", "encrypt", f"--with-key={with_key}", f"--name={name}", "-", "-"], key
            )
            if _decrypted(name, data, run) != key:
                raise KeyStoreError(f"{name} decrypts to other bytes; the key files are left unchanged")
            replace_within(opened, path.name, data, mode=0o600, user=owner.st_uid, group=owner.st_gid)
    finally:
        os.close(opened)


def drop_in() -> str:
    """The drop-in that makes the service manager hand `UNIT` its keys."""
    names = "".join(f"LoadCredentialEncrypted={credential_name(purpose)}\n" for purpose in KeyPurpose)
    return f"# Keys as encrypted credentials: palmctl keys encrypt.\n[Service]\n{names}"


def drop_in_path(systemd: Path = SYSTEMD) -> Path:
    return systemd / f"{UNIT}.d" / "credentials.conf"


def write_drop_in(systemd: Path = SYSTEMD) -> None:
    """Write the drop-in; a missing credential does not prevent the unit from starting."""
    path = drop_in_path(systemd)
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    replace_synced(path, drop_in().encode("ascii"), mode=0o644)


def _decrypted(name: str, sealed: bytes, run: Run) -> bytes:
    return run(["systemd-creds", "decrypt", f"--name={name}", "-", "-"], sealed)
