"""`palmctl cloud bundle`: devices without a network, registered over a stick."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tools.cloud.store import Work, of_environment, on_store
from tools.palmctl.groups import WholeHelpGroup

if TYPE_CHECKING:
    from cloud_client.reference_server.domain.tenancy.callers import Environment
    from cloud_client.reference_server.store.base import Tx
    from cloud_client.reference_server.store.vault import Vault

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(cls=WholeHelpGroup)
def bundle() -> None:
    """Registrations that come and go as files."""


@bundle.command("create")
@click.option(
    "--request", required=True, type=_FILE, help="What the device wrote: palmctl provision --offline-bundle."
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the answer goes.  [default: in the place of the request]",
)
@click.option(
    "--verdict-kid", metavar="KID", help="The id of the verdict key that the device shows; else asked for."
)
@of_environment
@on_store
def bundle_create(
    *, environment: "Environment", request: Path, out: Path | None, verdict_kid: str | None
) -> Work:
    """Register the device of a request file, and write the signed answer for it.

    Compare the id of the verdict key with the id that the device shows (its QR code holds the same): that
    is what a token is online. Give the technician the root_kid that is printed by another way than the stick.
    """
    from cloud_client.reference_server.ops.offline_registration import (
        MAX_REQUEST_BYTES,
        answer_request,
        verdict_kid_of,
    )
    from device.platform.files import write_on_stick
    from link1.plain_file import read_plain_file

    content = read_plain_file(request, MAX_REQUEST_BYTES)
    device_id, found = verdict_kid_of(content)
    if verdict_kid is None:
        if not sys.stdin.isatty():
            raise click.UsageError(
                "there is no terminal to ask: give --verdict-kid KID as the device shows it"
            )
        click.confirm(f"Does {device_id} show verdict key {found}?", err=True, abort=True)
        verdict_kid = found
    agreed, target = verdict_kid.replace(" ", "").lower(), out or request

    def work(tx: "Tx", vault: "Vault", now_ms: int) -> dict[str, Any]:
        printed, answer = answer_request(tx, vault, environment, content, verdict_kid=agreed, now_ms=now_ms)
        write_on_stick(target, answer)
        return {**printed, "file": str(target)}

    return work
