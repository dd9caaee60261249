"""`palmctl keys`: the keys of this device as encrypted credentials of systemd."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import click

from device.config.config import config_path, load_config
from device.errors import KeysAbsent
from device.trust.credentials import UNIT, encrypt_keys, write_drop_in
from device.trust.keystore import KeyStore
from tools.palmctl.errors import KeysNotEncrypted, RootNeeded
from tools.palmctl.groups import WholeHelpGroup
from tools.palmctl.language import translated as _

_BOOTED = Path("/run/systemd/system")


@click.group(cls=WholeHelpGroup)
def keys() -> None:
    """Where the keys of this device lie."""


@keys.command()
@click.option(
    "--with-key",
    type=click.Choice(["auto", "host", "tpm2", "host+tpm2"]),
    default="auto",
    show_default=True,
    help="What encrypts them; auto: the TPM where there is one, else the host key, which lies on the disk.",
)
@click.option("--config", type=click.Path(path_type=Path), help="Configuration file; default as for palmd.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as one JSON object.")
def encrypt(*, with_key: str, config: Path | None, as_json: bool) -> None:
    """Make the key files encrypted credentials of palmd and palm-syncd, and destroy the files.

    Each is read back before its file goes. Daemons that run are restarted. Interrupted, run it again: it goes
    on. There is no way back to files; a factory reset makes room for new keys.

    Exit code 0: done, or done before. 1: refused or failed. 3: not provisioned. 4: this user is not root.
    """
    settings = load_config(config_path(config))
    kind = move_keys(settings.keys_dir, with_key, lambda text: click.echo(_(text), err=True))
    if as_json:
        click.echo(json.dumps({"encrypted_with": kind, "moved": kind is not None}))
        return
    if kind is None:
        click.echo(_("The keys were encrypted credentials already."))
        return
    by = {
        "host": _("the host key, which lies on the same disk: a copied card opens elsewhere"),
        "tpm2": _("the TPM: a copied card does not open elsewhere"),
        "host+tpm2": _("the TPM and the host key: a copied card does not open elsewhere"),
    }[kind]
    click.echo(_(f"The keys are encrypted credentials now, under {by}."))


def move_keys(keys_dir: Path, with_key: str, tell: Callable[[str], None]) -> str | None:
    """Encrypt the keys of this board, and restart the daemons that run. The drop-in comes first, so that no
    cut leaves the unit without keys.

    Returns what they are encrypted with, as systemd-creds(1) names it; None where it was all done before.
    Raises RootNeeded, KeysNotEncrypted, KeyStoreError, OSError.
    """
    if not KeyStore.exists(keys_dir):
        raise KeysAbsent(f"{keys_dir} holds no keys; `palmctl provision` makes the keys of a new device")
    if os.geteuid() != 0:
        raise RootNeeded("only root may hand keys to the units: sudo palmctl keys encrypt")
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
