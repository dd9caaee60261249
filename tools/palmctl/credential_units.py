"""Keys moved into encrypted credentials: the drop-in first, so that no cut leaves the unit without keys."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from device.errors import KeysAbsent
from device.trust.credentials import UNIT, encrypt_keys, write_drop_in
from device.trust.keystore import KeyStore
from tools.palmctl.errors import KeysNotEncrypted

_BOOTED = Path("/run/systemd/system")


def move_keys(keys_dir: Path, with_key: str, tell: Callable[[str], None]) -> str | None:
    """Encrypt the keys of this board, and restart the daemons that run.

    Returns what they are encrypted with, as systemd-creds(1) names it; None where it was all done before.
    Raises KeysNotEncrypted, KeyStoreError, OSError.
    """
    if not KeyStore.exists(keys_dir):
        raise KeysAbsent(f"{keys_dir} holds no keys; `palmctl provision` makes the keys of a new device")
    if os.geteuid() != 0:
        raise KeysNotEncrypted("only root may hand keys to the units: sudo palmctl keys encrypt")
    if not _BOOTED.is_dir() or shutil.which("systemd-creds") is None:
        raise KeysNotEncrypted(
            "systemd does not run this machine, or has no systemd-creds (it came with 250): the keys stay "
            "files; run this on the board, with the package installed"
        )
    kind = _resolved(with_key)
    write_drop_in()
    _systemctl("daemon-reload")
    if not encrypt_keys(keys_dir, with_key=kind):
        return None
    tell("restarting what runs of palmd and palm-syncd …")
    _systemctl("try-restart", UNIT)
    return kind


def _resolved(with_key: str) -> str:
    if with_key != "auto":
        return with_key
    told = subprocess.run(["systemd-creds", "has-tpm2"], capture_output=True, text=True, check=False).stdout
    # Its exit code asks for firmware that uses the TPM as well, which boards without UEFI have not.
    return "host+tpm2" if {"+driver", "+system"} <= set(told.split()) else "host"


def _systemctl(*words: str) -> None:
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = done.stderr.strip().splitlines()[:1] or [f"it ended with {done.returncode}"]
        raise KeysNotEncrypted(f"systemctl {words[0]} failed ({why[0]}); see: palmctl logs, palmctl doctor")
