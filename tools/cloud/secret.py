"""`palmctl cloud secret`: the key-management key, which every stored key is wrapped under."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tools.cloud.store import echo, on_data, opened_store
from tools.palmctl.groups import WholeHelpGroup

if TYPE_CHECKING:
    from cloud_client.reference_server.ops.key_rotation import SecretRotation
    from cloud_client.reference_server.store.base import CloudStore
    from cloud_client.reference_server.store.vault import Vault

_to = click.option(
    "--to",
    "uri",
    metavar="URI",
    help="Make the key in a PKCS#11 token: pkcs11:token=T;object=NEW?module-path=M&pin-source=file:PIN.  "
    "[default: a file in secrets/]",
)


@click.group(cls=WholeHelpGroup)
def secret() -> None:
    """The key in secrets/ that every stored key is wrapped under."""


@secret.command("prepare")
@_to
@on_data
def secret_prepare(*, uri: str | None, data: Path, database: str | None, as_json: bool) -> None:
    """Make the next key without using it: copy secrets/ to the other servers, then rotate."""
    from cloud_client.reference_server.ops.key_rotation import prepare

    _do(data, database, lambda store, vault: prepare(store, vault, uri), as_json=as_json)


@secret.command("rotate")
@_to
@on_data
def secret_rotate(*, uri: str | None, data: Path, database: str | None, as_json: bool) -> None:
    """Wrap every stored key under a new key and destroy the old one, while servers run.

    Interrupted or killed, it goes on when it is called again.
    """
    from cloud_client.reference_server.ops.key_rotation import rotate

    _do(data, database, lambda store, vault: rotate(store, vault, uri), as_json=as_json)


def _do(
    data: Path, database: str | None, work: "Callable[[CloudStore, Vault], SecretRotation]", *, as_json: bool
) -> None:
    with opened_store(data, database) as (store, vault, _):
        echo(asdict(work(store, vault)), as_json=as_json)
