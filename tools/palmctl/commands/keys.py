"""`palmctl keys`: the keys of this device as encrypted credentials of systemd."""

import json
from pathlib import Path

import click

from tools.palmctl.groups import WholeHelpGroup
from tools.palmctl.language import translated as _


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

    Exit code 0: done, or done before. 1: refused or failed. 3: not provisioned.
    """
    from device.config.config import config_path, load_config
    from tools.palmctl.credential_units import move_keys

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
